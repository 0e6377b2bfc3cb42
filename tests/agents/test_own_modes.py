"""An encoder of the user's own with dropout and batch normalisation, under every agent: when it is in which mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from games import Game, act, asks, copied, same
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
