"""What every shipped agent must do, on every kind of observation and action that it is for."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from games import Game, act, asks, config_of, copied, same
from matching import SHOWN, Matching

from apexrl import checkpoint
from apexrl.agents import AGENTS, agent_class, check_read, unread
from apexrl.agents.reads import READS
from apexrl.config import AgentConfig
from apexrl.errors import AgentError, ConfigError, NonFiniteError
from apexrl.launch.probe import probe
from apexrl.protocols import Agent

KINDS = [
    (name, shown, asked)
    for name in AGENTS
    for asked in asks(name)
    for shown in (SHOWN if asked != "multi" else SHOWN[:1])
]


@pytest.fixture(scope="module", params=KINDS, ids="-".join)
def game(request: pytest.FixtureRequest) -> Iterator[Game]:
    game = Game(*request.param)
    yield game
    game.close()


@pytest.mark.parametrize("rows", [1, 5])
def test_actions_are_the_environments_and_extras_as_declared(game: Game, rows: int) -> None:
    agent, seen = game.agent(), game.seen(rows)
    before = copied(seen)
    state = None
    for exploration in (0.0, 0.3, 1.0, np.inf):
        acted = act(agent, seen, exploration, state=state)
        state = acted.state
        actions = np.asarray(acted.actions)
        assert actions.shape == (rows, *game.spec.action.shape)
        assert actions.dtype == game.spec.action.dtype
        space: gym.Space[Any] = Matching(**game.config.env.env_kwargs).action_space
        assert all(space.contains(action) for action in game.spec.action.as_counted(actions))
        fields = agent.step_spec
        assert acted.extras.keys() == fields.keys()
        for name, field in fields.items():
            value = np.asarray(acted.extras[name])
            assert (name, value.shape, value.dtype) == (name, (rows, *field.shape), field.dtype)
            assert np.isfinite(value).all()
        assert all(len(value) == rows for value in (state or {}).values())
    assert same(seen, before)


def test_greedy_actions_are_always_the_same(game: Game) -> None:
    agent, seen = game.agent(), game.seen(5)
    first = act(agent, seen, 1.0, greedy=True).actions
    for exploration in (0.0, 1.0, np.inf):
        act(agent, seen, exploration)
        np.testing.assert_array_equal(act(agent, seen, exploration, greedy=True).actions, first)
    # alone or among others: the same but for rounding in the last place
    alone = act(agent, {name: value[2:3] for name, value in seen.items()}, 0.0, greedy=True).actions
    np.testing.assert_allclose(alone[0], first[2], rtol=1e-4, atol=1e-4)


def test_infinite_exploration_is_uniformly_random(game: Game) -> None:
    agent, rows = game.agent(), 900
    seen = {name: np.repeat(value, rows, axis=0) for name, value in game.seen(1).items()}
    actions = np.asarray(act(agent, seen, np.inf).actions)
    action = game.spec.action
    if action.box:
        assert action.low is not None
        assert action.high is not None
        unit = (actions - action.low) / (np.asarray(action.high) - action.low)  # 0 … 1
        np.testing.assert_allclose(unit.mean(axis=0), 0.5, atol=0.05)
        np.testing.assert_allclose(unit.std(axis=0), 12**-0.5, atol=0.03)
        assert unit.min() < 0.02
        assert unit.max() > 0.98
    else:
        _, counts = np.unique(actions, axis=0, return_counts=True)
        assert len(counts) == (action.n or int(np.prod(action.nvec)))
        assert np.ptp(counts / rows) < 0.12


def test_actors_priorities_are_usable(game: Game) -> None:
    assert sum(items for items, _ in game.priorities) > 30
    for items, priorities in game.priorities:
        assert (priorities.shape, priorities.dtype) == ((items,), np.float32)
        assert np.isfinite(priorities).all()
        assert (priorities >= 0).all()
    assert len(np.unique(np.concatenate([priorities for _, priorities in game.priorities]))) > 10


def test_an_update_changes_the_network_and_says_how_surprising_rows_were(game: Game) -> None:
    agent = game.agent()
    before = copied(agent.weights())
    for number, batch in enumerate(game.batches(6)):
        given = copied(batch.data)
        learned = agent.update(agent.prepare(batch))
        assert learned.priorities is not None
        assert (learned.priorities.shape, learned.priorities.dtype) == ((8,), np.float32)
        assert np.isfinite(learned.priorities).all()
        assert (learned.priorities >= 0).all()
        assert bool(learned.metrics) == (number == 0)
        assert all(isinstance(value, float) and np.isfinite(value) for value in learned.metrics.values())
        assert same(batch.data, given)
    after = agent.weights()
    assert after.keys() == before.keys()
    assert all(np.isfinite(value).all() for value in after.values())
    for part in {name.partition("/")[0] for name in before}:
        assert any(not np.array_equal(before[name], after[name]) for name in before if name.partition("/")[0] == part)


def test_published_weights_act_alike(game: Game) -> None:
    agent, other = game.agent(), game.agent(seed=9)
    for batch in game.batches(4):
        agent.update(agent.prepare(batch))
    sent = copied(agent.weights())
    other.load(sent)
    assert same(other.weights(), agent.weights())
    seen = game.seen(5)
    np.testing.assert_array_equal(act(other, seen, greedy=True).actions, act(agent, seen, greedy=True).actions)
    for batch in game.batches(2):  # what was sent is a copy on neither side
        agent.update(agent.prepare(batch))
    assert same(other.weights(), sent)


def test_a_saved_state_goes_on_to_the_last_bit(game: Game, tmp_path: Path) -> None:
    agent, other = game.agent(), game.agent(seed=9)
    early, late = game.batches(4), game.batches(4)
    seen = game.seen(5)
    for batch in early:
        act(agent, seen)
        agent.update(agent.prepare(batch))
    checkpoint.save(tmp_path, agent.state_dict(), {"updates": 4})
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    other.load_state_dict(found.arrays)
    assert same(other.state_dict(), found.arrays)
    for batch in late:
        one, two = act(agent, seen), act(other, seen)
        np.testing.assert_array_equal(one.actions, two.actions)
        ours, theirs = agent.update(agent.prepare(batch)), other.update(other.prepare(batch))
        np.testing.assert_array_equal(ours.priorities, theirs.priorities)
    assert same(agent.state_dict(), other.state_dict())
    assert same(agent.weights(), other.weights())
    assert not same(agent.state_dict(), found.arrays)


def test_the_seed_decides_everything(game: Game) -> None:
    seen = game.seen(5)
    one, two, other = game.agent(seed=3), game.agent(seed=3), game.agent(seed=4)
    np.random.seed(1)  # what others draw globally must not matter
    for batch in game.batches(3):
        np.testing.assert_array_equal(act(one, seen, 0.5).actions, act(two, seen, 0.5).actions)
        for agent in (one, two, other):
            agent.update(agent.prepare(batch))
    assert same(one.state_dict(), two.state_dict())
    assert not same(one.weights(), other.weights())


def parameters(agent: Agent) -> dict[str, Any]:
    """All of its state that is no random generator's."""
    state = copied(agent.state_dict())
    return {name: value for name, value in state.items() if value.dtype.kind == "f" or "rng" not in name.lower()}


@pytest.mark.parametrize("where", ["reward", "observation", "next_observation"])
def test_a_batch_that_is_not_finite_changes_nothing(game: Game, where: str) -> None:
    agent = game.agent()
    good, bad, last = game.batches(3)
    agent.update(agent.prepare(good))
    agent.update(agent.prepare(game.batches(1)[0]))  # the next one moves the policy too, where every second one does
    names = [name for name in bad.data if name.startswith(where) and bad.data[name].dtype.kind == "f"]
    if not names:
        assert where != "reward"
        assert "vector" not in game.config.env.env_kwargs["shown"] or "mask" in bad.data
        return
    for name in names:
        bad.data[name][3] = np.nan
    if "discount" in bad.data and bad.data["discount"].ndim == 1:
        bad.data["discount"][3] = 0.9  # it counts what comes after
    before = {name: value for name, value in parameters(agent).items() if value.dtype.kind == "f"}
    updates = int(agent.state_dict()["updates"])
    weights = copied(agent.weights())
    with pytest.raises(NonFiniteError, match="update 3"):
        agent.update(agent.prepare(bad))
    assert same({n: v for n, v in parameters(agent).items() if v.dtype.kind == "f"}, before)
    assert same(agent.weights(), weights)
    assert int(agent.state_dict()["updates"]) == updates
    learned = agent.update(agent.prepare(last))
    assert learned.priorities is not None
    assert np.isfinite(learned.priorities).all()


@pytest.mark.parametrize("name", AGENTS)
def test_other_actions_are_refused_by_name(name: str) -> None:
    config = config_of(name, asked="discrete" if asks(name) == ("box",) else "box")
    with pytest.raises(AgentError, match=rf"^{name} .*use an agent for those, such as .*apexrl list agents"):
        probe(config)


@pytest.mark.parametrize("name", AGENTS)
def test_a_network_of_ones_own_is_in_every_part_and_learns(name: str) -> None:
    game = Game(name, "vector", asks(name)[0], network="games:Marked")
    agent = game.agent()
    before = copied(agent.weights())
    for batch in game.batches(6):
        agent.update(agent.prepare(batch))
    after = agent.weights()
    game.close()
    marked = [key for key in before if "marked" in key]
    nets = {"policy", "critics", "critic"} & {key.partition("/")[0] for key in before}
    assert len(marked) == 2 * max(len(nets), 1)  # weight and bias of each
    assert all(not np.array_equal(before[key], after[key]) for key in marked)


class Noting(AgentConfig):
    """Settings that know who has read them."""

    read: ClassVar[set[str]] = set()

    def __getattribute__(self, name: str) -> Any:
        caller = sys._getframe(1).f_code
        if caller.co_filename != dataclasses.__file__ and not name.startswith("_"):  # ``replace`` copies, and reads all
            Noting.read.add(name)
        return super().__getattribute__(name)


def test_what_means_nothing_to_an_agent_is_not_read(game: Game) -> None:
    noting = Noting(**vars(game.config.agent))
    Noting.read.clear()
    agent: Agent = agent_class(game.name)(game.spec, noting, "cpu", 1)
    for batch in game.batches(3):
        agent.update(agent.prepare(batch))
    act(agent, game.seen(2))
    agent.state_dict()
    assert "hidden" in Noting.read
    assert not Noting.read & unread(game.name)


@pytest.mark.parametrize("name", AGENTS)
def test_it_is_known_what_an_agent_reads(name: str) -> None:
    assert AGENTS[name].where in READS
    fits_actions = {"epsilon", "epsilon_alpha"} if asks(name) == ("box",) else {"sigma", "sigma_alpha"}
    assert fits_actions <= unread(name)


def test_of_an_own_agent_nothing_is_known() -> None:
    assert unread("my.module:Agent") == set()
    check_read("my.module:Agent", ["double", "residual"])
    with pytest.raises(ConfigError, match=r"^--target-noise means nothing to agent sac: leave it out, .* td3$"):
        check_read("sac", ["seed", "temperature", "target_noise"])


@pytest.mark.parametrize("name", AGENTS)
def test_names_belong_to_a_class_that_says_its_source(name: str) -> None:
    assert (agent_class(name).__doc__ or "").strip()
