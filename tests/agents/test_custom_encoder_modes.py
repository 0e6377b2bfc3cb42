"""An encoder of the user's own under every agent: with dropout and batch normalisation, when it is in which mode and
what it draws; and with frozen layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from signal_runs import Game, act, asks, copied, same
from torch import Tensor, nn

from apexrl.agents import AGENTS
from apexrl.spec import EnvSpec


class Moody(nn.Module):
    """Notes with every pass whether it was in training mode and whether a gradient is to be taken."""

    features = 6
    passes: ClassVar[list[tuple[bool, bool]]] = []

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        self.layer = nn.Linear(int(np.prod(spec.observation["observation"].shape)), self.features)
        self.norm, self.dropout = nn.BatchNorm1d(self.features), nn.Dropout(0.5)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        assert self.training == self.norm.training == self.dropout.training
        self.passes.append((self.training, torch.is_grad_enabled()))
        y: Tensor = self.dropout(self.norm(self.layer(observation["observation"])))
        return y


class Pretrained(nn.Module):
    """A frozen layer, and one behind it that learns."""

    features = 6

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__()
        inputs = int(np.prod(spec.observation["observation"].shape))
        self.frozen = nn.Linear(inputs, self.features).requires_grad_(False)
        self.learning = nn.Linear(self.features, self.features)

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        return torch.relu(self.learning(torch.relu(self.frozen(observation["observation"]))))


@pytest.fixture(scope="module", params=list(AGENTS))
def game(request: pytest.FixtureRequest) -> Iterator[Game]:
    game = Game(request.param, "vector", asks(request.param)[0], network=f"{__name__}:Moody")
    yield game
    game.close()


def statistics(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arrays.items() if "running" in name}


def test_acting_is_in_evaluation_mode(game: Game) -> None:
    agent, seen = game.agent(), game.seen(4)
    agent.update(agent.prepare(game.batches(1)[0]))
    before = copied(agent.weights())
    assert statistics(before)
    Moody.passes.clear()
    first = act(agent, seen, greedy=True).actions
    for _ in range(3):
        np.testing.assert_array_equal(act(agent, seen, greedy=True).actions, first)
    act(agent, {name: value[:1] for name, value in seen.items()})
    for items, _ in game.recorded[:2]:
        agent.priorities(items)
    assert set(Moody.passes) == {(False, False)}
    assert same(agent.weights(), before)


def test_learning_is_in_training_mode_and_targets_are_not(game: Game) -> None:
    agent = game.agent()
    before = copied(agent.weights())
    Moody.passes.clear()
    for batch in game.batches(3):
        agent.update(agent.prepare(batch))
    passes = set(Moody.passes)
    assert passes - {(False, False)} == {(True, True)}
    if any("/target/" in f"/{name}" for name in agent.state_dict()):
        assert (False, False) in passes
    after = agent.weights()
    for name, value in statistics(before).items():
        assert not np.array_equal(after[name], value), name


def test_the_statistics_travel_with_the_weights(game: Game) -> None:
    agent, other, seen = game.agent(seed=1), game.agent(seed=2), game.seen(4)
    for batch in game.batches(3):
        agent.update(agent.prepare(batch))
    other.load(copied(agent.weights()))
    assert same(other.weights(), agent.weights())
    np.testing.assert_array_equal(act(other, seen, greedy=True).actions, act(agent, seen, greedy=True).actions)


def test_what_is_drawn_is_the_seeds_and_pytorchs_generator_is_left_alone(game: Game) -> None:
    batches = game.batches(4)
    agents, first = [game.agent(), game.agent()], copied(game.agent().weights())
    learned = []
    for agent, others in zip(agents, (1, 2), strict=True):
        torch.manual_seed(others)
        before = torch.get_rng_state()
        for batch in batches[:2]:
            agent.update(agent.prepare(batch))
        assert torch.equal(torch.get_rng_state(), before)
        learned.append(copied(agent.weights()))
    assert same(*learned)
    assert not same(learned[0], first)

    resumed = game.agent(seed=5)
    resumed.load_state_dict(copied(agents[0].state_dict()))
    for agent in (agents[0], resumed):
        for batch in batches[2:]:
            agent.update(agent.prepare(batch))
    assert same(resumed.state_dict(), agents[0].state_dict())


@pytest.mark.parametrize("column", ["seed", "passes"])
def test_another_seed_draws_otherwise_and_so_does_another_pass(game: Game, column: str) -> None:
    batch = game.batches(1)[0]
    one, other = game.agent(), game.agent()
    change = np.array([column == "seed", column == "passes"])
    state = {name: value + change if name.endswith("draws") else value for name, value in one.state_dict().items()}
    other.load_state_dict(copied(state))
    for agent in (one, other):
        agent.update(agent.prepare(batch))
    assert not same(one.weights(), other.weights())


def test_encoders_of_one_agent_draw_apart() -> None:
    game = Game("sac", "vector", "box", network=f"{__name__}:Moody")
    try:
        state = game.agent().state_dict()
        seeds = np.concatenate([value for name, value in state.items() if name.endswith("draws")])[:, 0]
        assert len(seeds) == len(set(seeds.tolist())) == 2
        assert same(state, game.agent().state_dict())
        assert not same(state, game.agent(seed=3).state_dict())
    finally:
        game.close()


OPTIMIZERS: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "rmsprop", "momentum": 0.9},
    {"optimizer": "adagrad"},
    {"optimizer": "sgd", "momentum": 0.9},
]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, {}) for name in ("dqn", "sac", "discrete_sac", "td3", "r2d2", "d4pg", "crossq", "impala", "ppo")),
        *(("double_dqn", {**how, "polyak": 0.1}) for how in OPTIMIZERS),
        *(("ddpg", how) for how in OPTIMIZERS),
    ],
    ids=str,
)
def test_frozen_layers_stay_as_they_are_and_the_others_learn(name: str, how: dict[str, Any]) -> None:
    changes = {"learning_rate": 0.01, **how}
    game = Game(name, "vector", asks(name)[0], network=f"{__name__}:Pretrained", **changes)
    try:
        agent = game.agent()
        before, batches = copied(agent.state_dict()), game.batches(6)
        for batch in batches:
            agent.update(agent.prepare(batch))
        after = agent.state_dict()
        # RMSProp's mean square forgets that it began at 1, also where nothing moves
        frozen = [key for key in before if ".frozen." in key and "square_average" not in key]
        assert any("online/" in key for key in frozen)
        assert same({key: after[key] for key in frozen}, {key: before[key] for key in frozen})
        learning = [key for key in agent.weights() if key.endswith("learning.weight")]
        start = game.agent().weights()
        assert learning
        for key in learning:
            assert not np.array_equal(agent.weights()[key], start[key]), key
    finally:
        game.close()
