from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from apexrl.config import EnvConfig
from apexrl.envs import Episode, VectorEnv, make_env, make_vector
from apexrl.envs.lockstep import LoopRows
from apexrl.envs.native_rows import NativeRows
from apexrl.errors import EnvError


class Scripted(gym.Env[np.ndarray, np.int64]):
    """Counts; ends after ``length`` steps; reward is 10 times the step, so clipping shows."""

    observation_space = gym.spaces.Box(0.0, 99.0, (2,), np.float64)
    action_space = gym.spaces.Discrete(3, start=-1)

    def __init__(self, length: int = 3, truncate: bool = False, reward: float = 10.0) -> None:
        self.length, self.truncate, self.scale = length, truncate, reward
        self.t = 0
        self.closed = False
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.array([0.0, 7.0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.actions.append(action)
        ended = self.t == self.length
        return np.array([self.t, 7.0]), self.scale * self.t, ended and not self.truncate, ended and self.truncate, {}

    def close(self) -> None:
        self.closed = True


def scripted(*envs: Scripted, **kwargs: Any) -> VectorEnv:
    return VectorEnv(LoopRows(list(envs), "Scripted"), "Scripted", **kwargs)


@pytest.mark.parametrize("truncate", [False, True])
def test_next_step_autoreset(truncate: bool) -> None:
    env = scripted(Scripted(2, truncate))
    assert env.reset()["observation"].tolist() == [[0.0, 7.0]]
    rows = [env.step(np.array([0])) for _ in range(4)]
    assert [row.observation["observation"][0, 0] for row in rows] == [1.0, 2.0, 0.0, 1.0]
    assert [bool(row.terminated[0]) for row in rows] == [False, not truncate, False, False]
    assert [bool(row.truncated[0]) for row in rows] == [False, truncate, False, False]
    assert [bool(row.starts[0]) for row in rows] == [False, False, True, False]
    assert [float(row.reward[0]) for row in rows] == [10.0, 20.0, 0.0, 10.0]
    assert [row.episodes for row in rows] == [[], [Episode(0, 30.0, 2)], [], []]


def test_dtypes() -> None:
    env = scripted(Scripted(), Scripted())
    assert env.spec.observation["observation"].dtype == "float32"  # float64 is stored as float32
    assert env.reset()["observation"].dtype == np.float32
    stepped = env.step(np.array([0, 1]))
    assert stepped.observation["observation"].dtype == np.float32
    assert stepped.reward.dtype == np.float32
    assert stepped.terminated.dtype == stepped.truncated.dtype == stepped.starts.dtype == np.bool_


def test_clipping_is_for_the_learner_only() -> None:
    env = scripted(Scripted(2), reward_clip=1.0)
    env.reset()
    env.step(np.array([0]))
    stepped = env.step(np.array([0]))
    assert stepped.reward.tolist() == [1.0]
    assert stepped.episodes == [Episode(0, 30.0, 2)]


def test_actions_are_shifted_to_where_the_space_begins() -> None:
    inner = Scripted()
    env = scripted(inner)
    assert env.spec.action.n == 3
    env.reset()
    env.step(np.array([0]))
    env.step(np.array([2]))
    assert inner.actions == [-1, 1]


@pytest.mark.parametrize("vector", ["sync", "threads"])
def test_several_choices_reach_the_environment_as_it_counts_them(vector: Any) -> None:
    inner = [Scripted(), Scripted()]
    for env in inner:
        env.action_space = gym.spaces.MultiDiscrete([2, 3], start=[1, -1])  # type: ignore[assignment]
    handed = iter(inner)
    env = make_vector(EnvConfig(env=lambda: next(handed)), 2, 0, vector)
    assert (env.spec.action.nvec, env.spec.action.shape) == ((2, 3), (2,))
    env.reset()
    env.step(np.array([[0, 0], [1, 2]]))
    assert [env.actions[0].tolist() for env in inner] == [[1, -1], [2, 1]]
    env.close()


def test_earlier_results_are_not_overwritten() -> None:
    env = scripted(Scripted())
    first = env.reset()["observation"]
    second = env.step(np.array([0]))
    env.step(np.array([0]))
    assert first[0, 0] == 0.0
    assert second.observation["observation"][0, 0] == 1.0
    assert second.reward[0] == 10.0


def test_a_native_environment_may_reuse_its_arrays() -> None:
    class Reuses(gym.vector.VectorEnv[Any, Any, Any]):
        num_envs = 2
        single_observation_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32)
        single_action_space = gym.spaces.Discrete(2)
        array = np.zeros((2, 1), np.float32)

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            self.array[:] = 0.0
            return self.array, {}

        def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            self.array += 1.0
            return self.array, np.ones(2), np.zeros(2, bool), np.zeros(2, bool), {}

    env = VectorEnv(NativeRows(Reuses(), "Reuses"), "Reuses")
    first = env.reset()["observation"]
    second = env.step(np.zeros(2, np.int64)).observation["observation"]
    env.step(np.zeros(2, np.int64))
    assert (first[0, 0], second[0, 0]) == (0.0, 1.0)


def test_the_loop_equals_gymnasiums(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EnvConfig(env="Acrobot-v1", max_episode_steps=40)
    env = make_vector(config, 3, seed=5)
    seeds: list[int] = []
    reference = gym.vector.SyncVectorEnv([lambda: make_env(config)] * 3)
    monkeypatch.setattr(env._backend, "reset", _recording(env._backend.reset, seeds))
    observation = env.reset()["observation"]
    expected, _ = reference.reset(seed=seeds)
    np.testing.assert_array_equal(observation, expected)
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(130):
        actions = rng.integers(3, size=3)
        stepped = env.step(actions)
        observations, reward, terminated, truncated, _ = reference.step(actions)
        np.testing.assert_array_equal(stepped.observation["observation"], observations)
        np.testing.assert_array_equal(stepped.reward, reward)
        np.testing.assert_array_equal(stepped.terminated, terminated)
        np.testing.assert_array_equal(stepped.truncated, truncated)
        ends += int((terminated | truncated).sum())
    assert ends >= 6
    env.close()
    reference.close()


def _recording(reset: Any, seeds: list[int]) -> Any:
    def recorded(given: list[int]) -> Any:
        seeds.extend(given)
        return reset(given)

    return recorded


def test_native_cartpole_equals_the_single_environment() -> None:
    """Dynamics, termination, truncation at 500 and NEXT_STEP autoreset, replayed on CartPole-v1 step by step."""
    env = make_vector(EnvConfig(env="CartPole-v1"), 4, seed=3)
    assert isinstance(env._backend, NativeRows)
    singles = [gym.make("CartPole-v1") for _ in range(4)]
    observation = env.reset()["observation"]
    states = env._backend._env  # type: ignore[attr-defined]
    for single in singles:
        single.reset()
    ended = np.zeros(4, bool)
    terminations = truncations = 0
    for _ in range(1100):
        x, _, angle, spin = observation.T
        balanced = (angle + 0.3 * spin + 0.01 * x > 0).astype(np.int64)
        actions = np.where(np.arange(4) < 2, balanced, 0)  # two stay up until the time limit, two fall
        before = states.state.T.tolist()  # in double precision
        stepped = env.step(actions)
        np.testing.assert_array_equal(stepped.starts, ended)
        for index, single in enumerate(singles):
            row = stepped.observation["observation"][index]
            got = (float(stepped.reward[index]), bool(stepped.terminated[index]), bool(stepped.truncated[index]))
            if ended[index]:
                assert got == (0.0, False, False)
                assert np.abs(row).max() <= 0.05  # a reset state
                single.reset()
            else:
                single.unwrapped.state = tuple(before[index])  # type: ignore[attr-defined]
                expected, reward, terminated, truncated, _ = single.step(int(actions[index]))
                np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-7)
                assert got == (float(reward), terminated, truncated)  # type: ignore[arg-type]
                terminations, truncations = terminations + terminated, truncations + truncated
        ended = stepped.terminated | stepped.truncated
        observation = stepped.observation["observation"]
    assert terminations > 100
    assert truncations >= 4
    env.close()


def test_environments_have_distinct_seeds_and_the_same_seed_repeats() -> None:
    for name in ("CartPole-v1", "Acrobot-v1"):  # native and looped
        first, second = (make_vector(EnvConfig(env=name), 3, seed=9) for _ in range(2))
        one, two = first.reset()["observation"], second.reset()["observation"]
        np.testing.assert_array_equal(one, two)
        assert len(np.unique(one[:, 0])) == 3
        assert not np.array_equal(first.reset(seed=10)["observation"], one)


@pytest.mark.parametrize("call", ["reset", "step"])
def test_an_environment_that_exits_has_raised_an_error(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object, **__: object) -> None:
        raise SystemExit("no window")

    env = make_vector(EnvConfig(env="apexrl.envs.faulty:Raises-v0", env_kwargs={"at_step": 99}), 1, 0)
    env.reset()
    monkeypatch.setattr("apexrl.envs.faulty.Faulty." + call, leave)
    with pytest.raises(EnvError, match=rf"{call}\(\) of environment 0 raised SystemExit: no window"):
        env.reset(seed=1) if call == "reset" else env.step(np.array([0]))
    env.close()


def test_errors_name_the_environment_and_keep_the_cause() -> None:
    env = make_vector(EnvConfig(env="apexrl.envs.faulty:Raises-v0", env_kwargs={"at_step": 2}), 2, 0)
    env.reset()
    env.step(np.array([0, 1]))
    with pytest.raises(
        EnvError, match=r"Raises-v0: step\(\) of environment 0 raised RuntimeError: the simulator broke"
    ) as error:
        env.step(np.array([0, 1]))
    assert isinstance(error.value.__cause__, RuntimeError)
    env.close()


def test_a_reward_that_is_not_finite_is_refused() -> None:
    env = scripted(Scripted(), Scripted(reward=float("nan")))
    env.reset()
    with pytest.raises(EnvError, match="environment 1 returned the reward nan"):
        env.step(np.array([0, 0]))


def test_a_reward_that_a_float32_does_not_hold_is_refused_unless_it_is_clipped() -> None:
    env = scripted(Scripted(), Scripted(reward=-1e39))
    env.reset()
    with pytest.raises(EnvError, match=r"environment 1 returned the reward -1e\+39; it must be finite"):
        env.step(np.array([0, 0]))
    clipped = scripted(Scripted(reward=-1e39), reward_clip=2.0)
    clipped.reset()
    assert clipped.step(np.array([0])).reward.tolist() == [-2.0]


def test_an_observation_that_does_not_fit_its_space_is_refused() -> None:
    class Liar(Scripted):
        observation_space = gym.spaces.Box(0.0, 1.0, (3,), np.float32)

    with pytest.raises(
        EnvError, match=r"number 0 .*returned 'observation' of shape \[2\]; its observation space says \[3\]"
    ):
        scripted(Liar()).reset()


def test_environments_must_be_alike() -> None:
    class Other(Scripted):
        action_space = gym.spaces.Discrete(2)

    with pytest.raises(EnvError, match="environment 1 has other spaces"):
        scripted(Scripted(), Other())


def test_close_closes_all_once_even_when_one_fails() -> None:
    class Stuck(Scripted):
        def close(self) -> None:
            raise OSError("will not close")

    last = Scripted()
    env = scripted(Stuck(), last)
    with pytest.warns(RuntimeWarning, match=r"close\(\) of environment 0 raised OSError"):
        env.close()
    assert last.closed
    env.close()  # a second time does nothing
