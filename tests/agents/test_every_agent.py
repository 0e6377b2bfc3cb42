"""What every shipped agent must do, on every kind of observation and action that it is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from signal_envs import SHOWN, Asked, Matching, Shown
from signal_runs import Game, act, asks, config_of, copied, same

from apexrl.agents import AGENTS
from apexrl.errors import AgentError, NonFiniteError, SnapshotError, SpecError
from apexrl.launch.probe import probe
from apexrl.protocols import Agent
from apexrl.run import checkpoint
from apexrl.run.metric_catalogue import KNOWN
from apexrl.spec import Array

# the others look through the same networks
ALL_SIGHTS = {"dqn", "r2d2", "discrete_sac", "sac", "crossq", "ddpg", "impala"}
IMAGES_TOO = {"iqn", "rainbow", "d4pg"}  # their heads are others'


def kinds_of(name: str) -> Iterator[tuple[str, Shown, Asked]]:
    """What an agent is tried on, so that every kind of network and of rule is met."""
    shown = SHOWN if name in ALL_SIGHTS else ("vector", "image") if name in IMAGES_TOO else SHOWN[:1]
    for asked in asks(name) if name in ALL_SIGHTS else asks(name)[:1]:
        yield from ((name, sight, asked) for sight in (shown if asked != "multi" else SHOWN[:1]))


KINDS = [kind for name in AGENTS for kind in kinds_of(name)]
DRAWN = [kind for kind in KINDS if AGENTS[kind[0]].item != "unroll"]  # by priority, from experience made with ε or σ
PLAIN: list[tuple[str, Shown, Asked]] = [(name, "vector", asks(name)[0]) for name in AGENTS]
POISONED = [
    (kind, where)
    for kind in PLAIN
    for where in ("reward", "observation", "next_observation")
    if where != "next_observation" or AGENTS[kind[0]].item == "transition"  # else it is the last of the sequence's
    if where == "observation" or kind[0] != "bc"  # which reads nothing else
]


@pytest.fixture(scope="module")
def games() -> Iterator[dict[tuple[str, Shown, Asked], Game]]:
    """Each is made once, whichever tests ask for it in whatever order."""
    made: dict[tuple[str, Shown, Asked], Game] = {}
    yield made
    for game in made.values():
        game.close()


@pytest.fixture(params=KINDS, ids="-".join)
def game(request: pytest.FixtureRequest, games: dict[tuple[str, Shown, Asked], Game]) -> Game:
    if request.param not in games:
        games[request.param] = Game(*request.param)
    return games[request.param]


@pytest.mark.parametrize("rows", [1, 5])
def test_actions_are_the_environments_and_extras_as_declared(game: Game, rows: int) -> None:
    agent, seen = game.agent(), game.seen(rows)
    assert isinstance(agent, Agent)
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


@pytest.mark.parametrize("game", DRAWN, indirect=True, ids="-".join)
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


@pytest.mark.parametrize("game", DRAWN, indirect=True, ids="-".join)
def test_actors_priorities_are_usable(game: Game) -> None:
    assert sum(len(priorities) for _, priorities in game.recorded) > 30
    for items, priorities in game.recorded:
        assert (priorities.shape, priorities.dtype) == (items["reward"].shape[:1], np.float32)
        assert np.isfinite(priorities).all()
        assert (priorities >= 0).all()
    least = 3 if game.name == "bc" else 10  # of which there is one for each pair of signal and action
    assert len(np.unique(np.concatenate([priorities for _, priorities in game.recorded]))) > least


def check_priorities(game: Game, priorities: Any) -> None:
    """Of the rows of a batch of 8, where they are drawn by priority."""
    if AGENTS[game.name].item == "unroll":
        assert priorities is None
        return
    assert (priorities.shape, priorities.dtype) == ((8,), np.float32)
    assert np.isfinite(priorities).all()
    assert (priorities >= 0).all()


def test_an_update_changes_the_network_and_says_how_surprising_rows_were(game: Game) -> None:
    agent = game.agent()
    before = copied(agent.weights())
    for number, batch in enumerate(game.batches(6)):
        given = copied(batch.data)
        learned = agent.update(agent.prepare(batch))
        check_priorities(game, learned.priorities)
        steps = game.config.agent.epochs * game.config.agent.minibatches
        period = max(1, 50 // steps) if AGENTS[game.name].item == "unroll" else 50
        assert bool(learned.metrics) == (number % period == 0)
        assert all(isinstance(value, float) and np.isfinite(value) for value in learned.metrics.values())
        assert {f"agent/{metric}" for metric in learned.metrics} <= KNOWN.keys()
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
    torch.manual_seed(1)  # what others draw globally must not matter, nor be touched
    np.random.seed(1)
    drawn = torch.random.get_rng_state()
    for batch in game.batches(3):
        np.testing.assert_array_equal(act(one, seen, 0.5).actions, act(two, seen, 0.5).actions)
        for agent in (one, two, other):
            agent.update(agent.prepare(batch))
    game.agent(seed=5)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert same(one.state_dict(), two.state_dict())
    assert not same(one.weights(), other.weights())


@pytest.mark.parametrize("game", PLAIN, indirect=True, ids="-".join)
def test_a_state_with_something_missing_is_refused(game: Game) -> None:
    agent, other = game.agent(), game.agent(seed=9)
    agent.update(agent.prepare(game.batches(1)[0]))
    state = agent.state_dict()
    counters = {name for name in state if name in ("updates", "rng", "noise") or name.endswith("optimizer/steps")}
    assert {"updates", "rng"} < counters
    for missing in state:
        error = SnapshotError if missing in counters else (SnapshotError, SpecError)  # or the network says so
        with pytest.raises(error, match=re.escape(missing) if missing in counters else "missing|holds no"):
            other.load_state_dict({name: value for name, value in state.items() if name != missing})
    whole = {name.rpartition("online/")[0] + "online/" for name in state if "online/" in name}
    for part in whole:
        with pytest.raises(SnapshotError, match=part.rstrip("/")):
            other.load_state_dict({name: value for name, value in state.items() if not name.startswith(part)})


def floats(agent: Agent) -> dict[str, Any]:
    """All of its state but what counts and what is random."""
    return {name: value for name, value in copied(agent.state_dict()).items() if value.dtype.kind == "f"}


@pytest.mark.parametrize(("game", "where"), POISONED, indirect=["game"])
def test_a_batch_that_is_not_finite_changes_nothing(game: Game, where: str) -> None:
    agent = game.agent()
    good, second, bad, last = game.batches(4)
    agent.update(agent.prepare(good))
    agent.update(agent.prepare(second))  # the next one moves the policy too, where every second or third does
    bad.data[where][3] = np.nan
    if bad.data["discount"].ndim == 1:
        bad.data["discount"][3] = 0.9  # it counts what comes after
    before, weights = floats(agent), copied(agent.weights())
    by_row = where == "reward" and not game.config.agent.normalize_returns  # else statistics see it first
    blamed = r"update 3: the error of batch rows \[3\]" if by_row else "update 3: "
    with pytest.raises(NonFiniteError, match=blamed):
        agent.update(agent.prepare(bad))
    assert same(floats(agent), before)
    assert same(agent.weights(), weights)
    assert int(agent.state_dict()["updates"]) == 2
    check_priorities(game, agent.update(agent.prepare(last)).priorities)


def behind_terminations(data: dict[str, Array], value: float) -> dict[str, Array]:
    """Sampled data, or recorded items, with ``value`` for all floats that stand behind a termination."""
    data = copied(data)
    ended = data["discount"] == 0
    if "mask" in data:  # sequences and unrolls: of every step, the next one's
        rows, steps = np.nonzero(ended & data["mask"])
        places = {name: (rows, steps + 1) for name in ("observation", "value") if name in data}
    else:
        places = {name: np.nonzero(ended) for name in data if name.startswith("next_") and data[name].dtype.kind == "f"}
    assert ended.any()
    assert places
    for name, place in places.items():
        data[name][place] = value
    return data


@pytest.mark.parametrize("game", PLAIN, indirect=True, ids="-".join)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nothing_behind_a_termination_counts(game: Game, value: float) -> None:
    # What is not finite is taken as zeros. CrossQ's statistics are of these observations too, and a projection's sums
    # round differently with other probabilities behind a discount of 0: these are compared with zeros.
    finite = (
        0.0 if game.name in ("crossq", "c51", "rainbow", "bbf", "d4pg", "simba_v2", "fast_td3", "fast_sac") else 0.25
    )
    batches = [batch for batch in game.batches(12) if (batch.data["discount"][batch.data.get("mask", ...)] == 0).any()]
    agents = game.agent(), game.agent()
    for batch in batches[:4]:
        learned = [
            agent.update(agent.prepare(replace(batch, data=behind_terminations(batch.data, stands))))
            for agent, stands in zip(agents, (finite, value), strict=True)
        ]
        np.testing.assert_array_equal(learned[0].priorities, learned[1].priorities)
    assert same(agents[0].state_dict(), agents[1].state_dict())
    assert bool(game.recorded) == (AGENTS[game.name].item != "unroll")
    if not game.recorded:
        return
    items = next(items for items, _ in game.recorded if (items["discount"][items.get("mask", ...)] == 0).any())
    said = [
        agent.priorities(behind_terminations(items, stands))
        for agent, stands in zip(agents, (finite, value), strict=True)
    ]
    assert np.isfinite(said[0]).all()
    np.testing.assert_allclose(said[0], said[1], rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in AGENTS if len(asks(name)) < 3])
def test_other_actions_are_refused_by_name(name: str) -> None:
    config = config_of(name, asked="discrete" if asks(name) == ("box",) else "box")
    with pytest.raises(AgentError, match=rf"^{name} .*use (an agent|one) for those, such as .*apexrl list agents"):
        probe(config)


@pytest.mark.parametrize("name", AGENTS)
def test_a_network_of_ones_own_is_in_every_part_and_learns(name: str) -> None:
    game = Game(name, "vector", asks(name)[0], network="signal_runs:Marked")
    agent = game.agent()
    before = copied(agent.weights())
    for batch in game.batches(6):
        agent.update(agent.prepare(batch))
    after = agent.weights()
    game.close()
    marked = [key for key in before if "marked" in key]
    nets = {"policy", "critics", "critic", "value"} & {key.partition("/")[0] for key in before}
    assert len(marked) == 2 * max(len(nets), 1)  # weight and bias of each
    assert all(not np.array_equal(before[key], after[key]) for key in marked)
