from __future__ import annotations

import gc
import threading
import time
import traceback
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gated_envs import WAIT_SECONDS, Gated, jittered

from apexrl.config import EnvConfig
from apexrl.envs import Episode, Stepped, VectorEnv, make_vector, threaded
from apexrl.envs.lockstep import LIFE_LOST
from apexrl.envs.threaded import ThreadRows
from apexrl.errors import EnvError
from apexrl.links.local import worker_messages
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.local.role_context import SharedContext, WorkerIdentity

ALL = np.arange(3)


def gated(*envs: gym.Env[Any, Any], name: str = "Gated", call: Any = nullcontext, **kwargs: Any) -> VectorEnv:
    return VectorEnv(ThreadRows([partial(_give, env) for env in envs], name, call), name, **kwargs)


def _give(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    env.threads = {threading.get_ident()}  # type: ignore[attr-defined]
    return env


def three(length: int = 3) -> list[Gated]:
    return [Gated(number, length) for number in range(3)]


def received(env: VectorEnv, least: int = 1) -> Stepped:
    stepped = env.receive(least, WAIT_SECONDS)
    assert stepped is not None
    return stepped


def numbers(stepped: Stepped) -> list[int]:
    assert stepped.which is not None
    np.testing.assert_array_equal(stepped.observation["observation"][:, 0], stepped.which)
    return stepped.which.tolist()


def policy(observation: dict[str, Any], actions: int) -> Any:
    """Any function of the observation alone."""
    return (np.abs(observation["observation"]).sum(axis=1) * 1000).astype(np.int64) % actions


@pytest.mark.parametrize("name", ["Acrobot-v1", "apexrl.envs.toy:Corridor-v0", "apexrl.envs.toy:SlowCartPole-v0"])
def test_every_stream_is_what_it_is_in_lock_step(name: str) -> None:
    kwargs = {"seconds": 0.0} if "Slow" in name else {}
    sync = make_vector(EnvConfig(env=name, env_kwargs=kwargs, max_episode_steps=40), 4, seed=5)
    config = EnvConfig(env=jittered, env_kwargs={"env": name, **kwargs}, max_episode_steps=40)
    parallel = make_vector(config, 4, seed=5, vector="threads")

    def look(observation: dict[str, Any]) -> dict[str, Any]:
        values = observation["observation"]
        return {"observation": values.reshape(len(values), -1)}

    expected: list[list[Any]] = [[] for _ in range(4)]
    episodes: list[list[Episode]] = [[] for _ in range(4)]
    seen = sync.reset()
    first = seen
    for _ in range(120):
        stepped = sync.step(policy(look(seen), sync.spec.action.n))
        seen = stepped.observation
        for number in range(4):
            expected[number].append(_row(stepped, number))
        for episode in stepped.episodes:
            episodes[episode.env].append(episode)
    assert sum(map(len, episodes)) >= 8

    got: list[list[Any]] = [[] for _ in range(4)]
    finished: list[list[Episode]] = [[] for _ in range(4)]
    seen = parallel.reset()
    np.testing.assert_array_equal(seen["observation"], first["observation"])
    which = np.arange(4)
    batches = set()
    while any(len(rows) < 120 for rows in got):
        parallel.send(policy(look(seen), sync.spec.action.n), which)
        stepped = received(parallel)
        assert stepped.which is not None
        seen, which = stepped.observation, stepped.which
        batches.add(len(which))
        for row, number in enumerate(which.tolist()):
            got[number].append(_row(stepped, row))
        for episode in stepped.episodes:
            finished[episode.env].append(episode)
    assert len(batches) > 1
    for number in range(4):
        assert got[number][:120] == expected[number]
        assert finished[number][: len(episodes[number])] == episodes[number]
    parallel.close()
    sync.close()


def _row(stepped: Stepped, row: int) -> tuple[Any, ...]:
    arrays = (stepped.observation["observation"], stepped.reward, stepped.terminated, stepped.truncated, stepped.starts)
    return tuple(array[row].tolist() for array in arrays)


def test_a_step_of_all_is_that_of_lock_step() -> None:
    config = EnvConfig(env="Acrobot-v1", max_episode_steps=30)
    sync = make_vector(config, 3, seed=5)
    parallel = make_vector(config, 3, seed=5, vector="threads")
    np.testing.assert_array_equal(sync.reset()["observation"], parallel.reset()["observation"])
    rng = np.random.default_rng(0)
    for _ in range(70):
        actions = rng.integers(3, size=3)
        one, two = sync.step(actions), parallel.step(actions)
        np.testing.assert_array_equal(one.observation["observation"], two.observation["observation"])
        for name in ("reward", "terminated", "truncated", "starts"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
            assert getattr(one, name).dtype == getattr(two, name).dtype
        assert one.episodes == two.episodes
    np.testing.assert_array_equal(sync.reset(8)["observation"], parallel.reset(8)["observation"])
    parallel.close()
    sync.close()


def test_one_that_is_slow_holds_nobody_up() -> None:
    envs = three()
    env = gated(*envs)
    env.reset()
    envs[1].gate.clear()
    env.send(np.zeros(3, np.int64), ALL)
    assert numbers(received(env, 2)) == [0, 2]
    assert env.receive(1, 0.0) is None
    for turn in range(2, 6):  # step 3 ends the episode, then comes the reset
        env.send(np.array([1, 2]), np.array([0, 2]))
        stepped = received(env, 2)
        assert numbers(stepped) == [0, 2]
        assert stepped.observation["observation"][:, 1:].tolist() == [[turn // 4, turn % 4]] * 2
        assert stepped.starts.tolist() == [turn == 4] * 2
        assert stepped.terminated.tolist() == [turn == 3] * 2
        np.testing.assert_allclose(stepped.reward, [turn % 4 + 0.2, turn % 4 + 0.3] if turn != 4 else [0, 0])
        assert [(e.env, e.length) for e in stepped.episodes] == ([(0, 3), (2, 3)] if turn == 3 else [])
    envs[1].gate.set()
    stepped = received(env)
    assert numbers(stepped) == [1]
    assert stepped.observation["observation"].tolist() == [[1, 0, 1]]
    env.close()


def test_fewer_than_wanted_are_kept_until_there_are_enough() -> None:
    envs = three()
    env = gated(*envs)
    env.reset()
    envs[0].gate.clear()
    env.send(np.zeros(3, np.int64), ALL)
    assert env.receive(3, 0.05) is None
    assert env.receive(3, 0.0) is None
    envs[0].gate.set()
    assert numbers(received(env, 3)) == [0, 1, 2]
    assert env.receive(1, 0.0) is None  # nobody is under way
    env.close()


def test_actions_and_answers_belong_to_the_caller() -> None:
    envs = three()
    env = gated(*envs)
    first = env.reset()["observation"]
    for each in envs:
        each.gate.clear()
    actions = np.array([0, 1, 2])
    env.send(actions, ALL)
    actions[:] = 0
    for each in envs:
        each.gate.set()
    one = received(env, 3)
    np.testing.assert_allclose(one.reward, [1.1, 1.2, 1.3])
    env.step(np.zeros(3, np.int64))
    assert first[:, 2].tolist() == [0, 0, 0]
    assert one.observation["observation"][:, 2].tolist() == [1, 1, 1]
    np.testing.assert_allclose(one.reward, [1.1, 1.2, 1.3])
    env.close()


def test_a_box_of_actions() -> None:
    class Pushed(Gated):
        action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            assert self.gate.wait(WAIT_SECONDS)
            return self._look(), float(action[0] - action[1]), False, False, {}

    envs = [Pushed(0), Pushed(1)]
    env = gated(*envs)
    env.reset()
    for each in envs:
        each.gate.clear()
    actions = np.array([[0.5, 0.25], [1.0, -1.0]], np.float32)
    env.send(actions, np.array([0, 1]))
    actions[:] = 9.0
    for each in envs:
        each.gate.set()
    assert received(env, 2).reward.tolist() == [0.25, 2.0]
    env.close()


def test_an_environment_lives_in_one_thread_of_its_own() -> None:
    made: list[Gated] = []

    def make() -> Gated:
        made.append(Gated(len(made)))
        return made[-1]

    env = VectorEnv(ThreadRows([make] * 3, "Gated"), "Gated")
    env.reset()
    env.step(np.zeros(3, np.int64))
    env.close()
    env.close()
    assert [each.closed for each in made] == [True] * 3
    assert [len(each.threads) for each in made] == [1] * 3
    assert len(set.union({threading.get_ident()}, *(each.threads for each in made))) == 4


def test_an_error_names_the_environment_and_the_others_go_on() -> None:
    config = EnvConfig(env="apexrl.envs.faulty:Raises-v0", env_kwargs={"at_step": 2})
    env = make_vector(config, 3, 0, vector="threads")
    env.reset()
    env.send(np.zeros(3, np.int64), ALL)
    received(env, 3)
    env.send(np.zeros(1, np.int64), np.array([1]))
    with pytest.raises(
        EnvError, match=r"Raises-v0: step\(\) of environment 1 raised RuntimeError: the simulator broke"
    ) as error:
        received(env)
    assert isinstance(error.value.__cause__, RuntimeError)
    assert traceback.extract_tb(error.value.__cause__.__traceback__)[-1].name == "fail"
    env.close()


def test_an_environment_that_calls_exit_has_raised_an_error() -> None:
    class Exits(Gated):
        def step(self, action: Any) -> Any:
            raise SystemExit(3)

    env = gated(Gated(0), Exits(1))
    env.reset()
    env.send(np.zeros(1, np.int64), np.array([1]))
    with pytest.raises(EnvError, match=r"step\(\) of environment 1 raised SystemExit: 3"):
        received(env)
    env.close()


def test_what_is_not_finite_is_refused_by_number() -> None:
    class Odd(Gated):
        reward = 0.0

        def step(self, action: Any) -> Any:
            return self._look() if self.reward else np.array([1, np.nan, 0], np.float32), self.reward, False, False, {}

    env = gated(Gated(0), Odd(1))
    env.reset()
    env.send(np.zeros(1, np.int64), np.array([1]))
    with pytest.raises(EnvError, match=r"number 1 of this actor\) returned NaN or infinity in 'observation'"):
        received(env)
    env.close()
    odd = Odd(2)
    odd.reward = float("inf")
    env = gated(Gated(0), Gated(1), odd)
    env.reset()
    env.send(np.zeros(2, np.int64), np.array([0, 2]))
    with pytest.raises(EnvError, match="environment 2 returned the reward inf"):
        received(env, 2)
    env.close()


def test_a_lost_life_ends_the_learners_episode_and_not_the_game() -> None:
    env = gated(Gated(0, 2), Gated(1, 2, {LIFE_LOST: True}), reward_clip=1.0)
    env.reset()
    episodes: list[Episode] = []
    ends = 0
    for _ in range(6):
        stepped = env.step(np.zeros(2, np.int64))
        episodes += stepped.episodes
        ends += int(stepped.terminated.sum())
        assert stepped.reward.max() <= 1.0
    assert ends == 4
    assert [(e.env, e.length) for e in episodes] == [(0, 2), (0, 2)]
    np.testing.assert_allclose([e.episode_return for e in episodes], 3.2)
    env.close()


def test_environments_must_be_alike() -> None:
    class Other(Gated):
        action_space = gym.spaces.Discrete(2)

    with pytest.raises(EnvError, match="environment 1 has other spaces"):
        gated(Gated(), Other())


def test_one_that_cannot_be_made_leaves_no_thread() -> None:
    name = "apexrl.envs.faulty:RaisesOnMake-v0"
    with pytest.raises(EnvError, match="the simulator has no licence"):
        make_vector(EnvConfig(env=name), 3, 0, vector="threads")
    assert threads_left(name) == 0


def test_threads_end_with_what_they_serve() -> None:
    env = gated(*three(), name="Forgotten")
    env.reset()
    assert len(_threads("Forgotten")) == 3
    del env
    assert threads_left("Forgotten") == 0


def threads_left(name: str) -> int:
    """Environments' threads that do not end by themselves."""
    deadline = time.monotonic() + WAIT_SECONDS
    while _threads(name) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return len(_threads(name))


def _threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"{name}-")]


def test_a_reset_waits_for_steps_in_progress_and_drops_them() -> None:
    envs = three()
    env = gated(*envs)
    env.reset()
    envs[2].gate.clear()
    env.send(np.zeros(3, np.int64), ALL)
    threading.Timer(0.05, envs[2].gate.set).start()
    assert env.reset()["observation"].tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]
    assert env.receive(1, 0.0) is None
    stepped = env.step(np.zeros(3, np.int64))
    assert stepped.observation["observation"][:, 2].tolist() == [1, 1, 1]
    assert not stepped.starts.any()
    env.close()


def test_closing_waits_for_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threaded, "CLOSE_SECONDS", 2.0)
    envs = three()
    env = gated(*envs, name="Late")
    env.reset()
    envs[1].gate.clear()
    env.send(np.zeros(3, np.int64), ALL)
    with pytest.warns(RuntimeWarning, match=r"Late: of 3 environments, number 1 did not return within 2 s of the end"):
        env.close()
    assert [each.closed for each in envs] == [True, False, True]
    assert len(_threads("Late")) == 1
    envs[1].gate.set()
    assert threads_left("Late") == 0
    assert envs[1].closed


def test_closing_waits_for_the_call_in_progress_and_reports_what_fails() -> None:
    class Stuck(Gated):
        def close(self) -> None:
            raise OSError("will not close")

    class Raises(Gated):
        def step(self, action: Any) -> Any:
            super().step(action)
            raise RuntimeError("nobody asks any more")

    envs = [Stuck(0), Raises(1)]
    env = gated(*envs)
    env.reset()
    envs[1].gate.clear()
    env.send(np.zeros(2, np.int64), np.array([0, 1]))
    threading.Timer(0.05, envs[1].gate.set).start()
    with pytest.warns(RuntimeWarning, match=r"close\(\) of environment 0 raised OSError: will not close"):
        env.close()
    assert envs[1].closed


def test_one_that_hangs_among_many_that_run_is_seen_from_outside() -> None:
    board = ControlBoard(1)
    ours, theirs = worker_messages.channel()
    with ours, theirs:
        context = SharedContext(WorkerIdentity("x", "x", 0, 0, 0, Path()), board, 0, theirs)
        row = board.row(0)
        envs = three()
        env = gated(*envs, call=context.env_call)
        env.reset()
        assert row.busy_since == 0.0
        envs[2].gate.clear()
        before = time.monotonic()
        env.send(np.zeros(1, np.int64), np.array([2]))
        assert envs[2].entered.wait(WAIT_SECONDS)
        since = row.busy_since
        assert before <= since <= time.monotonic()
        for _ in range(20):
            env.send(np.zeros(2, np.int64), np.array([0, 1]))
            assert numbers(received(env, 2)) == [0, 1]
            assert row.busy_since == since
        envs[2].gate.set()
        while row.busy_since and time.monotonic() < before + WAIT_SECONDS:
            time.sleep(0.001)
        assert row.busy_since == 0.0  # also as long as nobody collects what is done
        assert numbers(received(env)) == [2]
        env.close()
        assert row.busy_since == 0.0
