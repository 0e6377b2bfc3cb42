"""Agents' parameters as vectors that may be shared: for every shipped agent, and refused for others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from signal_runs import Game, act, asks

from apexrl.agents import AGENTS
from apexrl.agents.named_vectors import Vectors, bind, networks, sizes, vectors
from apexrl.agents.trained_agent import refresh
from apexrl.errors import AgentError, SpecError
from apexrl.protocols import STATISTICS, is_optimizer_state

KEEPS_STATISTICS = {"crossq"}  # of batches: those of the instance that took the gradient, and not of who applies it


@pytest.fixture(scope="module", params=list(AGENTS))
def game(request: pytest.FixtureRequest) -> Iterator[Game]:
    game = Game(request.param, "vector", asks(request.param)[0])
    yield game
    game.close()


def learned(game: Game, updates: int = 3) -> Any:
    agent = game.agent()
    for batch in game.batches(updates):
        agent.update(agent.prepare(batch))
    return agent


def elsewhere(agent: Any) -> Vectors:
    """Copies of all of an agent's vectors."""
    return {name: vector.copy() for name, vector in vectors(agent).items()}


def equal(one: Vectors, two: Vectors) -> bool:
    return one.keys() == two.keys() and all(np.array_equal(vector, two[name]) for name, vector in one.items())


def test_vectors_are_all_that_an_update_changes(game: Game) -> None:
    agent = learned(game)
    live = vectors(agent)
    before = elsewhere(agent)
    assert {name: vector.size for name, vector in live.items()} == sizes(agent)
    assert {name.partition("/")[0] for name in live} == set(networks(agent))
    for group in networks(agent):
        assert {f"{group}/online", f"{group}/optimizer/steps"} <= live.keys()
        assert live[f"{group}/optimizer/steps"].shape == (1,)
    (batch,) = game.batches(1)
    found = agent.gradients(agent.prepare(batch))
    assert set(found.groups) <= set(networks(agent))
    agent.apply(found.groups)
    assert equal(live, vectors(agent))  # the same memory
    for group in found.groups:
        moved = float(np.abs(live[f"{group}/online"] - before[f"{group}/online"]).max())
        assert moved > 0 or not found.groups[group].any()
    for name in live:  # and they hold the whole state
        live[name][:] = 0.0
    state = agent.state_dict()
    assert all(not value.any() for name, value in state.items() if name not in ("updates", "rng", "noise", "resets"))


def test_bound_agents_are_one(game: Game) -> None:
    alone = learned(game)
    shared = elsewhere(alone)
    one, two = game.agent(seed=8), game.agent(seed=9)
    for other in (one, two):
        bind(other, shared)
    for number, batch in enumerate(game.batches(6)):
        groups = alone.gradients(alone.prepare(batch)).groups
        taker: Any = (one, two)[number % 2]
        taker.updates = alone.updates  # of all, where a target follows by count
        alone.apply(groups)
        taker.apply(groups)
        for name, vector in vectors(alone).items():
            if game.name not in KEEPS_STATISTICS or STATISTICS in name:
                assert np.array_equal(shared[name], vector), name
    assert equal(vectors(one), shared)
    assert equal(vectors(two), shared)


def test_a_bound_agent_acts_as_others_have_changed_it(game: Game) -> None:
    teacher, pupil = learned(game, 1), game.agent(seed=9)
    shared = elsewhere(pupil)
    bind(pupil, shared)
    seen = game.seen(5)
    act(pupil, seen)  # whatever it derives from its parameters, it has derived
    for _ in range(2):
        batch = game.batches(1)[0]
        teacher.update(teacher.prepare(batch))
        for name, vector in vectors(teacher).items():
            shared[name][:] = vector
        refresh(pupil)
        np.testing.assert_array_equal(act(pupil, seen, greedy=True).actions, act(teacher, seen, greedy=True).actions)
        ours, theirs = (agent.gradients(agent.prepare(batch)).groups for agent in (pupil, teacher))
        if not hasattr(teacher, "_noise") and not hasattr(teacher, "_draw"):  # nothing random in an update
            assert all(np.array_equal(ours[group], theirs[group]) for group in theirs)


def test_statistics_may_stay_an_agents_own(game: Game) -> None:
    alone = learned(game)
    shared = {name: vector for name, vector in elsewhere(alone).items() if not is_optimizer_state(name)}
    own = learned(game)
    before = elsewhere(own)
    bind(own, shared, statistics=False)
    after = vectors(own)
    for name, vector in after.items():
        if is_optimizer_state(name):
            assert np.array_equal(vector, before[name])
        else:
            assert np.shares_memory(vector, shared[name])
    (batch,) = game.batches(1)
    alone.update(alone.prepare(batch))
    assert all(np.array_equal(vector, after[name]) for name, vector in vectors(own).items())


def test_a_newcomer_with_statistics_of_its_own_overwrites_no_normalization() -> None:
    game = Game("a2c", "vector", "discrete", normalize_observations=True, normalize_returns=True)
    try:
        batches = game.batches(6)
        old, new = game.agent(), game.agent()
        for batch in batches[:5]:
            old.update(old.prepare(batch))
        shared = {name: vector for name, vector in elsewhere(old).items() if not is_optimizer_state(name)}
        bind(new, shared, statistics=False)
        before = shared["normalizer/online"].copy()
        new.update(new.prepare(batches[5]))
        old.update(old.prepare(batches[5]))
        assert not np.array_equal(shared["normalizer/online"], before)
        np.testing.assert_allclose(shared["normalizer/online"], vectors(old)["normalizer/online"], rtol=1e-6)
    finally:
        game.close()


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    game = Game("dqn", "vector", "discrete")
    agent = game.agent()
    before = vectors(agent)
    whole = elsewhere(agent)
    for broken, error in (
        ({name: vector for name, vector in whole.items() if name != "q/target"}, "no shared vector 'q/target'"),
        (whole | {"q/target": np.zeros(3, np.float32)}, r"'q/target' is float32 \(3,\), and the agent's float32 \("),
        (whole | {"q/target": whole["q/target"].astype(np.float64)}, "'q/target' is float64"),
    ):
        with pytest.raises(SpecError, match=error):
            bind(agent, broken)
        assert all(np.shares_memory(vector, before[name]) for name, vector in vectors(agent).items())
    game.close()


@pytest.mark.parametrize("networks", [None, ["q"], {"q": "network"}])
def test_an_agent_that_does_not_name_its_networks_is_refused(networks: Any) -> None:
    class Own:
        def __init__(self) -> None:
            if networks is not None:
                self.networks = networks

    for function in (vectors, lambda agent: bind(agent, {})):
        with pytest.raises(AgentError, match=r"agent Own cannot share its parameters.* it has no `networks`"):
            function(Own())
    assert sizes(Own()) == {}
