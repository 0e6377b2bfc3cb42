"""Agents with a memory learn from the steps of sequences by the rules that they have for transitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from signal_runs import Game, Given, act, asks

from apexrl.agents import agent_class
from apexrl.agents.sequence_batch import Sequences
from apexrl.agents.sequence_steps import as_transitions, item_priorities
from apexrl.errors import AgentError
from apexrl.losses import sequence_priority
from apexrl.networks.recall import Recalled

GAMMA = 0.9


def some_sequences(length: int = 6, rows: int = 5) -> Sequences:
    """Whole ones, a truncated, a terminated one, and one with stale steps."""
    rng = np.random.default_rng(0)
    mask = np.ones((length, rows), bool)
    mask[4:, 1] = mask[3:, 2] = False
    discount = np.full((length, rows), GAMMA, np.float32)
    discount[2, 2] = 0.0
    fresh = mask.copy()
    fresh[:2, 3] = False
    tensors = {
        "action": rng.integers(3, size=(length, rows)),
        "reward": rng.normal(size=(length, rows)).astype(np.float32),
        "discount": discount,
        "mask": mask,
        "fresh": fresh,
        "weights": rng.random(rows).astype(np.float32),
        "first": np.zeros((length + 1, rows), bool),
    }
    observation = torch.arange((length + 1) * rows).view(length + 1, rows).t().unsqueeze(2).float()
    return Sequences(
        warming={},
        observation={"observation": observation},
        state={},
        resets=(),
        **{name: torch.from_numpy(value) for name, value in tensors.items()},
    )


@pytest.mark.parametrize("n_step", [1, 3, 50])
def test_a_step_is_a_transition_as_a_plain_loop_finds_it(n_step: int) -> None:
    batch = some_sequences()
    found, number = as_transitions(batch, n_step), 0
    assert isinstance(found.observation, Recalled)
    assert isinstance(found.next_observation, Recalled)
    length, rows = batch.mask.shape
    for t in range(length):
        for b in range(rows):
            if not batch.mask[t, b]:
                continue
            total, product, later = 0.0, 1.0, t
            while later < min(t + n_step, length) and batch.mask[later, b]:
                total += product * float(batch.reward[later, b])
                product *= float(batch.discount[later, b])
                later += 1
            assert float(found.reward[number]) == pytest.approx(total, abs=1e-5)
            assert float(found.discount[number]) == pytest.approx(product, abs=1e-6)
            assert int(found.observation.rows[number]) == t * rows + b
            assert int(found.next_observation.rows[number]) == later * rows + b
            assert int(found.action[number]) == int(batch.action[t, b])
            assert float(found.weights[number]) == float(batch.weights[b] * batch.fresh[t, b])
            number += 1
    assert number == len(found.reward)


def test_a_sequence_has_one_priority_of_all_its_steps() -> None:
    batch = some_sequences()
    errors = torch.rand(int(batch.mask.sum()))
    delta = torch.zeros(batch.mask.shape)
    for number, place in enumerate(batch.mask.nonzero()):
        delta[tuple(place)] = errors[number]
    found = item_priorities(as_transitions(batch, 1), errors, 0.7)
    torch.testing.assert_close(found, sequence_priority(delta, batch.mask, 0.7))


@pytest.mark.parametrize(
    ("name", "shown", "memory"),
    [("dueling_dqn", "vector", "gru"), ("rainbow", "image", "lstm"), ("ddpg", "vector", "transformer")],
)
def test_actors_say_what_the_learner_would(name: str, shown: Any, memory: str) -> None:
    """With the weights that acted, which are the target's as well, and without noise."""
    settings: dict[str, Any] = {"memory": memory, "memory_heads": 2, "memory_context": 3, "n_step": 2}
    if name == "rainbow":
        settings |= {"noisy_sigma": 1e-6}
    game = Game(name, shown, asks(name)[0], **settings)
    try:
        agent: Any = game.agent(seed=7)
        items, priorities = max(game.recorded, key=lambda one: len(one[1]))
        known = Given(items, np.zeros(len(priorities), np.uint64), np.ones(len(priorities), np.float32))
        assert len(items["mask"]) > 2
        found = agent.gradients(agent.prepare(known)).priorities
        np.testing.assert_allclose(found, priorities, rtol=1e-3, atol=1e-4)
    finally:
        game.close()


@pytest.mark.parametrize("name", ["sac", "munchausen_dqn", "ppo"])
def test_an_action_depends_on_what_was_seen_before(name: str) -> None:
    game = Game(name, "vector", asks(name)[0], memory="gru")
    try:
        agent, seen = game.agent(), game.seen(3)
        first = act(agent, seen, greedy=True)
        again = act(agent, seen, greedy=True, state=first.state)
        zeros = {key: np.zeros_like(value) for key, value in first.state.items()}
        anew = act(agent, seen, greedy=True, state=zeros)
        for key, value in first.state.items():
            np.testing.assert_array_equal(anew.state[key], value)
            assert not np.array_equal(again.state[key], value)
    finally:
        game.close()


def test_a_critic_has_a_memory_of_its_own_and_the_policy_acts_without_it() -> None:
    game = Game("sac", "vector", "box", memory="lstm")
    try:
        agent: Any = game.agent()
        parts = {"lstm_h", "lstm_c", "critic_lstm_h", "critic_lstm_c"}
        assert agent.step_spec.keys() == parts
        acted = act(agent, game.seen(2))
        assert acted.extras.keys() == acted.state.keys() == parts
        assert not np.array_equal(acted.state["lstm_h"], acted.state["critic_lstm_h"])
        assert act(agent, game.seen(2), greedy=True).state.keys() == {"lstm_h", "lstm_c"}
    finally:
        game.close()


def test_settings_that_no_memory_goes_with_are_refused() -> None:
    with pytest.raises(AgentError, match="--memory-heads 3 must divide --recurrent-units 8"):
        Game("sac", "vector", "box", memory="transformer", memory_heads=3)
    with pytest.raises(AgentError, match=r"--anneal-horizon .* leave one of them out"):
        Game("dqn", "vector", "discrete", memory="gru", anneal_horizon=True)


def test_without_a_memory_nothing_of_one_is_made() -> None:
    for name in ("dqn", "sac", "td3", "discrete_sac"):
        game = Game(name, "vector", asks(name)[0])
        agent = agent_class(name)(game.spec, game.config.agent, "cpu", 1)
        assert agent.item.kind == "transition"
        assert act(agent, game.seen(2)).state is None
        game.close()
