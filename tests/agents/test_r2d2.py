from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from apexrl.agents.r2d2 import R2D2
from apexrl.config import AgentConfig, EnvConfig
from apexrl.envs import FrameStack, make_vector
from apexrl.errors import AgentError
from apexrl.losses import rescale, unscale
from apexrl.networks.memory import LSTMState
from apexrl.networks.recurrent import RecurrentQ
from apexrl.protocols import FRESH
from apexrl.replay import Batch, Replay
from apexrl.roles.actor import VERSION, step_fields
from apexrl.spec import ActionSpec, EnvSpec, Field

LENGTH, STRIDE, BURN_IN, N = 8, 4, 6, 3  # a burn-in that is no multiple of the stride: some are cut short
SMALL = AgentConfig(
    agent="r2d2",
    hidden=(10,),
    recurrent_units=7,
    sequence_length=LENGTH,
    sequence_stride=STRIDE,
    burn_in=BURN_IN,
    n_step=N,
    gamma=0.9,
    target_period_updates=3,
)
POSITIONS = EnvConfig(env="apexrl.envs.toy:PositionCartPole-v0")
SPEC = EnvSpec({"observation": Field((2,), "float32")}, ActionSpec(n=2))


class Played:
    """A replay full of what an agent did, every step numbered, and what its actor said of every sequence."""

    def __init__(self, agent: R2D2, config: EnvConfig = POSITIONS, steps: int = 250, envs: int = 3) -> None:
        self.priorities: dict[int, float] = {}  # number of a sequence's first step -> its priority
        self.states: dict[int, LSTMState] = {}  # number of a step -> the state before it
        env = make_vector(config, envs, 0)
        self.replay = Replay(
            fields=step_fields(env.spec, agent.step_spec),
            kind="sequence",
            length=LENGTH,
            stride=STRIDE,
            burn_in=BURN_IN,
            gamma=0.9,
            stack=env.spec.stack,
            capacity=1000,
            sampler="fifo",
            writers=1,
            streams=envs,
        )

        def said(items: Any) -> Any:
            answer = agent.priorities(items)
            self.priorities |= zip(items[VERSION][:, BURN_IN].tolist(), answer.tolist(), strict=True)
            return answer

        writer = self.replay.writer(streams=envs, priority_fn=said)
        frames = FrameStack(env.spec.stack, envs, env.spec.observation)
        seen, state = env.reset(), None
        shown = frames.push(seen)
        epsilon = np.full(envs, 0.8, np.float32)
        for step in range(1, steps + 1):
            numbers = step * envs + np.arange(envs)
            acted = agent.act(shown, state, epsilon)
            before = acted.extras["lstm_h"], acted.extras["lstm_c"]
            for row, number in enumerate(numbers.tolist()):
                self.states[number] = LSTMState(*(torch.from_numpy(part[row].copy()) for part in before))
            stepped = env.step(acted.actions)
            results = {"reward": stepped.reward, "terminated": stepped.terminated, "truncated": stepped.truncated}
            writer.append({**seen, "action": acted.actions, **acted.extras, VERSION: numbers, **results})
            assert acted.state is not None
            state = {name: np.where(stepped.starts[:, None], 0, part) for name, part in acted.state.items()}
            seen, shown = stepped.observation, frames.push(stepped.observation, stepped.starts)
        env.close()

        self.batch: Batch = self.replay.sample(len(self.replay))  # all its sequences
        self.replay.close()


def agent_for(spec: EnvSpec = SPEC, seed: int = 0, **changes: Any) -> R2D2:
    agent = R2D2(spec, replace(SMALL, **changes), "cpu", seed)
    with torch.no_grad():  # values large enough that rescaling matters
        agent._network.network.advantage.weight.mul_(20.0)
    return agent


def learned(agent: R2D2, updates: int, batch: Any) -> None:
    for _ in range(updates):
        agent.update(agent.prepare(batch))


def rows_of(batch: Batch, rows: int) -> Batch:
    """The last so many sequences: some begin within an episode, some end with one."""
    data = {name: value[-rows:] for name, value in batch.data.items()}
    return Batch(data, batch.keys[-rows:], batch.probabilities[-rows:], batch.weights[-rows:])


@pytest.fixture(scope="module")
def played() -> Played:
    return Played(agent_for())


def test_it_learns_from_sequences() -> None:
    assert agent_for().item == ("sequence", LENGTH, STRIDE, BURN_IN)


# Acting


def test_it_acts_from_zero_and_remembers() -> None:
    agent, seen, zeros = agent_for(), {"observation": np.ones((2, 2), np.float32)}, np.zeros((2, 7), np.float32)
    sure = np.zeros(2, np.float32)
    first = agent.act(seen, None, sure)
    assert first.state is not None
    same = agent.act(seen, {"lstm_h": zeros, "lstm_c": zeros}, sure)
    np.testing.assert_array_equal(first.extras["q"], same.extras["q"])
    np.testing.assert_array_equal(first.extras["lstm_h"], zeros)
    later = agent.act(seen, first.state, sure)
    assert (later.extras["q"] != first.extras["q"]).all()
    np.testing.assert_array_equal(later.extras["lstm_c"], first.state["lstm_c"])
    assert not np.shares_memory(later.state["lstm_h"], first.state["lstm_h"])  # type: ignore[index]


def test_epsilon_explores_and_the_value_is_the_greatest_all_the_same() -> None:
    agent = agent_for()
    seen = {"observation": np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)}
    greedy = agent.act(seen, None, np.ones(400, np.float32), greedy=True)
    np.testing.assert_array_equal(greedy.extras["q"], greedy.extras["value"])
    wild = agent.act(seen, None, np.full(400, np.inf, np.float32))
    assert 0.3 < wild.actions.mean() < 0.7
    np.testing.assert_array_equal(wild.extras["value"], greedy.extras["value"])
    assert (wild.extras["q"] < wild.extras["value"]).any()


def test_several_choices_at_once() -> None:
    spec = EnvSpec({"observation": Field((2,), "float32")}, ActionSpec((2,), nvec=(2, 3)))
    acted = R2D2(spec, SMALL).act({"observation": np.ones((5, 2), np.float32)}, None, np.ones(5, np.float32))
    assert acted.actions.shape == (5, 2)
    with pytest.raises(AgentError, match="Box of shape"):
        R2D2(replace(spec, action=ActionSpec((1,), "float32", low=np.zeros(1), high=np.ones(1))), SMALL)
    with pytest.raises(AgentError, match="sequence_length 0"):
        R2D2(SPEC, replace(SMALL, sequence_length=0))


# What the replay keeps


def test_the_stored_state_is_the_actors_and_zero_where_an_episode_begins(played: Played) -> None:
    batch = played.batch
    begins = 0
    for row, mask in enumerate(batch.data["mask"]):
        first = int(np.flatnonzero(mask)[0])  # burn-in included
        state = played.states[int(batch.data[VERSION][row, first])]
        np.testing.assert_array_equal(batch.data["lstm_h"][row], state.h)
        np.testing.assert_array_equal(batch.data["lstm_c"][row], state.c)
        if batch.data["first"][row, first]:
            begins += 1
            assert not batch.data["lstm_h"][row].any()
            assert not batch.data["lstm_c"][row].any()
        else:
            assert batch.data["lstm_c"][row].any()
    assert 5 < begins < len(batch) - 5


def test_burn_in_from_the_stored_state_arrives_at_the_actors_state(played: Played) -> None:
    """While the weights are those that acted, warming up changes nothing: it leads to the state of that time."""
    agent, batch = agent_for(), played.batch
    prepared = agent.prepare(batch)
    net = agent._network.network
    resets = [step for step in prepared.resets if step < BURN_IN]
    assert resets, "some burn-in is cut short by an episode's start"
    state = LSTMState(prepared.state["lstm_h"], prepared.state["lstm_c"])
    _, state = net.unroll(prepared.warming, state, prepared.first[:BURN_IN], resets)
    going = ~prepared.first[BURN_IN].unsqueeze(1)
    for row, number in enumerate(batch.data[VERSION][:, BURN_IN].tolist()):
        torch.testing.assert_close(state.h[row] * going[row], played.states[number].h, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(state.c[row] * going[row], played.states[number].c, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("stack", "multi_step"), [(1, "n_step"), (3, "n_step"), (1, "peng"), (1, "retrace")])
def test_the_actors_priorities_are_those_that_the_learner_would_give(stack: int, multi_step: str) -> None:
    """While the weights are those that acted, and the target's too."""
    config = replace(POSITIONS, stack=stack, last_action_reward=stack > 1)
    env = make_vector(config, 1, 0)
    env.close()
    agent = agent_for(env.spec, multi_step=multi_step)
    play = Played(agent, config)
    batch = play.batch
    priorities = agent.gradients(agent.prepare(batch)).priorities
    said = [play.priorities[number] for number in batch.data[VERSION][:, BURN_IN].tolist()]
    np.testing.assert_allclose(priorities, said, rtol=2e-4)
    assert len(said) > 50
    assert np.std(said) > 0.1 * np.mean(said)


# Learning


def q_by_hand(net: RecurrentQ, data: dict[str, Any], row: int) -> list[Tensor]:
    """Q of every observation of one sequence from its stored state, step by step; burn-in included."""
    state = LSTMState(*(torch.from_numpy(data[name][row : row + 1].copy()) for name in ("lstm_h", "lstm_c")))
    values = []
    for column, first in enumerate(data["first"][row]):
        if first:
            state = LSTMState(torch.zeros_like(state.h), torch.zeros_like(state.c))
        seen = {"observation": torch.from_numpy(data["observation"][row : row + 1, column])}
        with torch.no_grad():
            q, state = net.step(seen, state)
        values.append(q[0])
    return values


def deltas_by_hand(agent: R2D2, data: dict[str, Any], row: int) -> list[float]:
    config = agent._config
    online, target = (q_by_hand(net, data, row) for net in (agent._network.network, agent._network.target))
    end = int(np.flatnonzero(data["mask"][row])[-1]) + 1
    deltas: list[float] = []
    if config.multi_step != "n_step":
        later = 0.0
        for t in reversed(range(BURN_IN, end)):
            best = int((online if config.double else target)[t + 1].argmax())
            value = float(unscale(target[t + 1][best], config.rescaling_eps))
            if t + 1 < end:
                greedy = config.multi_step == "peng" or int(data["action"][row, t + 1]) == best
                value += config.trace_lambda * greedy * (later - value)
            later = float(data["reward"][row, t]) + float(data["discount"][row, t]) * value
            y = rescale(torch.tensor(later), config.rescaling_eps)
            deltas.insert(0, float(y - online[t][int(data["action"][row, t])]))
        return deltas
    for t in range(BURN_IN, end):
        total, factor, m = 0.0, 1.0, min(config.n_step, end - t)
        for k in range(t, t + m):
            total += factor * float(data["reward"][row, k])
            factor *= float(data["discount"][row, k])
        chooser = online if config.double else target
        value = target[t + m][int(chooser[t + m].argmax())]
        y = rescale(total + factor * unscale(value, config.rescaling_eps), config.rescaling_eps)
        deltas.append(float(y - online[t][int(data["action"][row, t])]))
    return deltas


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"double": False, "dueling": False, "n_step": 20, "rescaling_eps": 0.0},
        {"huber": 0.3},
        {"multi_step": "peng", "trace_lambda": 0.8},
        {"multi_step": "retrace", "trace_lambda": 0.8},
        {"multi_step": "retrace", "trace_lambda": 0.8, "double": False},
    ],
    ids=str,
)
def test_an_update_learns_what_a_plain_loop_says(played: Played, changes: dict[str, Any]) -> None:
    """Another target network, which burns in by itself and would choose otherwise; other weights than those that
    acted."""
    batch = played.batch
    agent = agent_for(seed=5, **changes)
    with torch.no_grad():
        agent._network.target_parameters.vector.mul_(1.3)
        for parameter in agent._network.target.advantage.parameters():
            parameter.neg_()
    weights = np.random.default_rng(0).random(len(batch)).astype(np.float32)
    batch = rows_of(Batch(batch.data, batch.keys, batch.probabilities, weights), 40)
    weights = batch.weights
    by_hand = [deltas_by_hand(agent, batch.data, row) for row in range(len(batch))]
    mixed = [0.9 * np.abs(one).max() + 0.1 * np.abs(one).mean() for one in by_hand]
    result = agent.gradients(agent.prepare(batch))
    np.testing.assert_allclose(result.priorities, mixed, rtol=1e-3, atol=1e-5)
    most = agent._config.huber or np.inf
    clipped = [np.minimum(np.abs(one), most) for one in by_hand]
    losses = [(c * (np.abs(one) - 0.5 * c)).sum() for c, one in zip(clipped, by_hand, strict=True)]
    loss = np.mean(weights * losses)
    assert result.metrics["loss"] == pytest.approx(loss, rel=1e-3)


def test_steps_that_are_too_old_are_no_part_of_the_loss(played: Played) -> None:
    """… and of everything else: targets reach over them, and priorities are those of whole sequences."""
    agent, batch = agent_for(seed=5), rows_of(played.batch, 40)
    fresh = np.random.default_rng(0).random(batch.data["mask"].shape) < 0.5
    whole = agent.gradients(agent.prepare(batch))
    marked = Batch({**batch.data, FRESH: fresh}, batch.keys, batch.probabilities, batch.weights)
    result = agent.gradients(agent.prepare(marked))
    losses = []
    for row in range(len(batch)):
        deltas = np.array(deltas_by_hand(agent, batch.data, row))
        losses.append(0.5 * np.square(deltas[fresh[row, BURN_IN : BURN_IN + len(deltas)]]).sum())
    assert result.metrics["loss"] == pytest.approx(np.mean(batch.weights * losses), rel=1e-3)
    assert 0.1 < result.metrics["loss"] / whole.metrics["loss"] < 0.9
    np.testing.assert_array_equal(result.priorities, whole.priorities)


def test_no_gradient_flows_into_the_burn_in(played: Played) -> None:
    """Sequences that begin behind the burn-in, with the states that it leads to, have the same gradient."""
    agent, cold = agent_for(seed=5, gradient_clip=0.0), agent_for(seed=5, gradient_clip=0.0, burn_in=0)
    prepared = agent.prepare(played.batch)
    state = LSTMState(prepared.state["lstm_h"], prepared.state["lstm_c"])
    resets = [step for step in prepared.resets if step < BURN_IN]
    with torch.no_grad():
        _, state = agent._network.network.unroll(prepared.warming, state, prepared.first[:BURN_IN], resets)
    behind = prepared._replace(
        warming={},
        state={"lstm_h": state.h, "lstm_c": state.c},
        first=prepared.first[BURN_IN:],
        resets=tuple(step - BURN_IN for step in prepared.resets if step >= BURN_IN),
    )
    gradient = agent.gradients(prepared).groups["q"]
    assert float(gradient.norm()) > 0.1
    torch.testing.assert_close(cold.gradients(behind).groups["q"], gradient, rtol=1e-4, atol=1e-6)


def test_the_target_network_burns_in_by_itself(played: Played) -> None:
    batch, agent = played.batch, agent_for(seed=5)
    seen: list[tuple[RecurrentQ, int]] = []
    unroll = RecurrentQ.unroll

    def spy(net: RecurrentQ, observation: Any, *rest: Any) -> Any:
        seen.append((net, next(iter(observation.values())).shape[1]))
        return unroll(net, observation, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecurrentQ, "unroll", spy)
        agent.gradients(agent.prepare(batch))
    online, target = agent._network.network, agent._network.target
    assert seen == [(online, BURN_IN), (online, LENGTH + 1), (target, BURN_IN), (target, LENGTH + 1)]


@given(st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_what_stands_outside_the_steps_has_no_influence(played: Played, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = played.batch
    data = {name: value.copy() for name, value in batch.data.items()}
    mask = data["mask"]
    assert not mask[:, BURN_IN:].all(), "some sequences are shorter"
    shown = np.concatenate([mask, np.zeros_like(mask[:, :1])], axis=1)
    shown[:, 1:] |= mask  # the observation behind the last step is one
    for name in ("reward", "discount"):
        data[name][~mask] = rng.normal(size=(~mask).sum())
    data["action"][~mask] = rng.integers(2, size=(~mask).sum())
    data["observation"][~shown] = rng.normal(size=((~shown).sum(), 2))
    other = Batch(data, batch.keys, batch.probabilities, batch.weights)
    results = []
    for one in (batch, other):
        agent = agent_for(seed=5)
        results.append(agent.update(agent.prepare(one)).priorities)
        results.append(agent._network.parameters.vector)
    np.testing.assert_array_equal(results[0], results[2])
    torch.testing.assert_close(results[1], results[3], rtol=0, atol=0)


def test_it_learns_to_remember() -> None:
    """The first observation says which action will be paid for at the fourth step, and the others say nothing."""
    config = replace(
        SMALL, n_step=1, sequence_length=4, burn_in=0, recurrent_units=16, learning_rate=1e-2, target_period_updates=20
    )
    agent, rng, rows = R2D2(SPEC, config), np.random.default_rng(0), 64
    signal = rng.integers(2, size=rows)
    observation = np.zeros((rows, 5, 2), np.float32)
    observation[:, 0, 0] = 2.0 * signal - 1.0
    action = rng.integers(2, size=(rows, 4))
    reward, discount = np.zeros((rows, 4), np.float32), np.full((rows, 4), 0.9, np.float32)
    reward[:, 3], discount[:, 3] = action[:, 3] == signal, 0.0
    mask, first = np.ones((rows, 4), np.bool_), np.zeros((rows, 5), np.bool_)
    first[:, 0] = True
    data = {"observation": observation, "action": action, "reward": reward, "discount": discount, "mask": mask}
    data |= {"first": first, "lstm_h": np.zeros((rows, 16), np.float32), "lstm_c": np.zeros((rows, 16), np.float32)}
    learned(agent, 300, Batch(data, np.zeros(rows, np.uint64), np.ones(rows), np.ones(rows, np.float32)))

    state = None
    for step, expected in enumerate([[0.729, 0.729], [0.81, 0.81], [0.9, 0.9], [1.0, 0.0]]):
        shown = observation[[int(np.argmin(signal)), int(np.argmax(signal))], step]
        acted = agent.act({"observation": shown}, state, np.zeros(2, np.float32))
        before, state = state or {"lstm_h": np.zeros((2, 16), "f4"), "lstm_c": np.zeros((2, 16), "f4")}, acted.state
        seen = {"observation": torch.from_numpy(shown)}
        with torch.no_grad():
            q, _ = agent._network.network.step(seen, LSTMState(*(torch.from_numpy(part) for part in before.values())))
        values = unscale(q, config.rescaling_eps).numpy()
        np.testing.assert_allclose(values, [expected, expected[::-1]], atol=0.1)


# Weights and state


def test_the_target_follows_by_period(played: Played) -> None:
    batch, agent = played.batch, agent_for()
    same = []
    for _ in range(6):
        learned(agent, 1, batch)
        same.append(torch.equal(agent._network.target_parameters.vector, agent._network.parameters.vector))
    assert same == [False, False, True] * 2


def test_actors_hold_no_optimizer_and_no_target() -> None:
    agent = agent_for()
    agent.act({"observation": np.ones((3, 2), np.float32)}, None, np.zeros(3, np.float32))
    assert not {"optimizer", "gradient", "_following"} & vars(agent._network).keys()
