"""Off-policy evaluation on the corridor, whose values are computed exactly; and importance sampling by hand."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from corridor_data import corridor_episodes, write_corridor

from apexrl.config import Config
from apexrl.datasets.episode import Episode
from apexrl.datasets.minari_files import Dataset, write
from apexrl.envs.toy import Corridor
from apexrl.errors import ConfigError, DatasetError
from apexrl.evaluation.off_policy import importance
from apexrl.evaluation.off_policy.estimates import _numbers, estimates
from apexrl.evaluation.off_policy.fitted_q import Fit, Recorded, fitted_q
from apexrl.protocols import Acted
from apexrl.spec import ActionSpec, EnvSpec, Field

GAMMA, LENGTH = 0.8, 6


class Rightwards:
    """An agent that goes right in every state."""

    checkpoint = None

    def __init__(self, spec: Any) -> None:
        self.spec, self.agent = spec, self

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        return Acted(np.ones(len(exploration), np.int64), {}, None)


def exact(right: float) -> float:
    """The value of going right with a probability, from a random first state: (I − γP)⁻¹ r."""
    moves, pays = np.zeros((LENGTH, LENGTH)), np.zeros(LENGTH)
    for state in range(LENGTH):
        for share, step in ((right, 1), (1.0 - right, -1)):
            if 0 <= state + step < LENGTH:
                moves[state, state + step] += share
            else:
                pays[state] += share * (Corridor.RIGHT_EXIT if step > 0 else Corridor.LEFT_EXIT)
    return float(np.linalg.solve(np.eye(LENGTH) - GAMMA * moves, pays).mean())


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_corridor(tmp_path_factory.mktemp("ope") / "d", corridor_episodes(300, seed=3, right=0.6)))


def test_every_estimate_has_the_true_value_in_its_interval(dataset: str) -> None:
    """Seed 0; the corridor goes right with 0.95, the dataset did with 0.6."""
    torch.set_num_threads(1)
    agent: Any = Rightwards(Dataset(dataset).spec)
    fit = Fit(GAMMA, epsilon=0.1, updates=400, critics=4, hidden=(32,), learning_rate=1e-2, polyak=0.1)
    found = estimates(agent, Config(), dataset, ("fqe", *importance.METHODS), fit)
    truth, theirs = exact(0.95), exact(0.6)
    assert truth > theirs + 0.1
    assert found.recorded.low < theirs < found.recorded.high
    for name, one in found.estimates.items():
        assert one.low <= one.value <= one.high, name
        assert one.low - 0.03 < truth < one.high + 0.03, (name, one, truth)
        assert abs(one.value - truth) < 0.1, (name, one, truth)
    assert 3 < found.effective < 300


def test_answers_reach_as_far_as_gamma_does() -> None:
    """Every step pays 1, for ever: 1/(1 − γ) = 50, of which targets that follow by 0.01 leave 15 after 500 updates."""
    torch.set_num_threads(1)
    rows, rng = 200, np.random.default_rng(0)
    seen = {"observation": rng.normal(size=(rows, 2)).astype(np.float32)}
    action, pays = rng.integers(2, size=rows), np.ones(rows, np.float32)
    ends, episode = np.zeros(rows, np.bool_), np.repeat(np.arange(20), 10)
    first = {"observation": seen["observation"][::10]}
    data = Recorded(seen, action, pays, seen, action, ends, episode, first, action[::10])
    spec = EnvSpec({"observation": Field((2,), "float32")}, ActionSpec(n=2))
    small: dict[str, Any] = {"updates": 500, "critics": 2, "hidden": (16,), "learning_rate": 1e-2, "batch_size": 32}
    assert fitted_q(spec, data, Fit(0.98, **small)).value == pytest.approx(50.0, rel=0.1)
    assert fitted_q(spec, data, Fit(0.98, **small, polyak=0.01)).value < 30.0
    assert Fit(0.98).following == pytest.approx(0.08)
    assert Fit(0.995).least_updates == 3000


def test_importance_sampling_is_unbiased_over_all_episodes_there_are() -> None:
    """Two steps of two actions: the mean over all four episodes, as often as they are recorded, is the exact value."""
    b, pi = np.array([0.25, 0.75]), np.array([0.9, 0.1])
    pays = {actions: np.array([1.0 + actions[0], 3.0 * actions[1] - actions[0]]) for actions in
            itertools.product((0, 1), repeat=2)}  # fmt: skip
    truth = sum(pi[a] * pi[c] * (r[0] + 0.5 * r[1]) for (a, c), r in pays.items())
    episodes = [actions for actions in pays for _ in range(round(16 * b[actions[0]] * b[actions[1]]))]
    assert len(episodes) == 16
    of = importance.weighted(
        [pays[one] for one in episodes], [np.log(pi[list(one)] / b[list(one)]) for one in episodes], 0.5
    )
    assert importance.ordinary(of) == pytest.approx(truth)
    assert importance.per_decision(of) == pytest.approx(truth)
    assert importance.ordinary_weighted(of) == pytest.approx(truth)  # of every episode there is, the weights are whole
    assert importance.per_decision_weighted(of) == pytest.approx(truth)


def test_weights_of_episodes_of_unequal_length_by_hand() -> None:
    of = importance.weighted([np.array([1.0]), np.array([2.0, 4.0])], [np.log([2.0]), np.log([0.5, 3.0])], 0.5)
    np.testing.assert_allclose(of.ratio, [[2.0, 2.0], [0.5, 1.5]])
    np.testing.assert_allclose(of.reward, [[1.0, 0.0], [2.0, 2.0]])
    assert importance.ordinary(of) == pytest.approx((2.0 + 1.5 * 4.0) / 2)
    assert importance.ordinary_weighted(of) == pytest.approx((2.0 + 6.0) / 3.5)
    assert importance.per_decision(of) == pytest.approx((2.0 + 0.5 * 2 + 1.5 * 2) / 2)
    assert importance.per_decision_weighted(of) == pytest.approx((2.0 + 1.0) / 2.5 + 3.0 / 3.5)
    assert importance.effective_episodes(of) == pytest.approx(3.5**2 / (4 + 2.25))
    with np.errstate(divide="ignore"):
        seldom = importance.weighted([np.ones(3)] * 4, [np.log([1.0, 0.0, 1.0])] * 3 + [np.zeros(3)], 1.0)
        never = importance.weighted([np.ones(3)] * 4, [np.log([1.0, 0.0, 1.0])] * 4, 1.0)
    assert importance.estimate("wis", seldom) == pytest.approx((3.0, 3.0, 3.0))  # not 0 where no such episode was drawn
    for method in ("wis", "wpdis"):
        assert np.isnan(importance.estimate(method, never)).all()


def test_bootstrap_samples_take_no_memory_of_their_number() -> None:
    returns = np.random.default_rng(0).normal(size=20_000)
    tracemalloc.start()
    found = importance.mean_return(returns)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 * returns.nbytes
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 / np.sqrt(20_000), rel=0.2)


class Randomly(Rightwards):
    """Whose actions are the second ones of every choice, where nothing is executed at random."""

    def act(self, observations: Any, state: Any, exploration: Any, greedy: bool = False) -> Acted:
        return Acted(np.ones((len(exploration), *self.spec.action.shape), np.int64), {}, None)


@pytest.mark.parametrize(
    ("actions", "possible", "taken"),
    [
        (gym.spaces.Discrete(3), [0, 1, 1], [1, 2]),
        (gym.spaces.MultiDiscrete([2, 3]), [0, 1, 1, 1, 0], [[1, 0], [1, 1]]),
    ],
)
def test_random_actions_are_possible_ones(actions: Any, possible: list[int], taken: list[Any], tmp_path: Path) -> None:
    """Two actions are possible, which return 2 and 4; behind the end none is."""
    torch.set_num_threads(1)
    there = np.array([possible, [0] * len(possible)], bool)
    episodes = [
        Episode(
            {"observation/x": np.zeros((2, 1), np.float32), "observation/action_mask": there},
            np.array([taken[number % 2]]), np.array([2.0 + 2.0 * (number % 2)], np.float32),
            np.array([True]), np.array([False]), np.log([0.5]),
        )
        for number in range(40)
    ]  # fmt: skip
    seen = gym.spaces.Dict(x=gym.spaces.Box(-1, 1, (1,), np.float32), action_mask=gym.spaces.MultiBinary(len(possible)))
    where = tmp_path / "d"
    write(where, "masked/test-v0", episodes, seen, actions)
    agent: Any = Randomly(Dataset(str(where)).spec)
    fit = Fit(0.9, epsilon=1.0, updates=400, critics=2, hidden=(16,), learning_rate=1e-2, polyak=0.1)
    found = estimates(agent, Config(), str(where), ("fqe", "is"), fit)
    assert {name: one.value for name, one in found.estimates.items()} == pytest.approx(
        {"fqe": 3.0, "is": 3.0}, rel=0.05
    )


def test_critics_take_numbers_in_the_units_of_their_bounds() -> None:
    low, high = np.array([-np.inf, 2.0, -1.0], np.float32), np.array([np.inf, np.inf, 3.0], np.float32)
    agent: Any = Rightwards(EnvSpec({}, ActionSpec((3,), "float32", low=low, high=high)))
    actions = np.array([[5.0, 4.0, 3.0], [-5.0, 2.0, 1.0]], np.float64)
    np.testing.assert_array_equal(_numbers(agent, actions), [[5.0, 1.0, 1.0], [-5.0, -1.0, 0.0]])


def test_what_cannot_be_estimated_is_refused(dataset: str, tmp_path: Path) -> None:
    agent: Any = Rightwards(Dataset(dataset).spec)
    with pytest.raises(ConfigError, match="there is no method 'dm': use fqe, is, wis, pdis, wpdis"):
        estimates(agent, Config(), dataset, ("dm",), Fit(GAMMA))
    untold = [one._replace(log_prob=None) for one in corridor_episodes(3)]
    where = str(write_corridor(tmp_path / "d", untold))
    with pytest.raises(DatasetError, match="does not say with which probabilities"):
        estimates(agent, Config(), where, ("wis",), Fit(GAMMA))
    other: Any = Rightwards(
        EnvSpec({"observation": Field((), "int64")}, ActionSpec(n=3), categories={"observation": 6})
    )
    with pytest.raises(DatasetError, match="does not fit the environment"):
        estimates(other, Config(), dataset, ("wis",), Fit(GAMMA))
