"""VDN and QMIX: what they choose, and what they learn from, against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from apexrl.agents import agent_class, with_agent
from apexrl.agents.transition_batch import Transitions
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import AgentError
from apexrl.spec import ACTION_MASK, PRESENT, TEAM, ActionSpec, EnvSpec, Field

K, N, ROWS = 3, 4, 16
SPEC = EnvSpec(
    {TEAM: Field((K, 5), "float32"), PRESENT: Field((K,), "int8"), ACTION_MASK: Field((K * N,), "bool")},
    ActionSpec(shape=(K,), nvec=(N,) * K, starts=(0,) * K),
)


def made(name: str, **changes: Any) -> Any:
    config = override(with_agent(Config(), name), {"hidden": (16,), "mixing_units": 8, **changes})
    return agent_class(name)(SPEC, config.agent, "cpu", 1)


def seen(rng: np.random.Generator, rows: int = ROWS) -> dict[str, Any]:
    masks = rng.random((rows, K, N)) < 0.5
    masks[np.arange(rows)[:, None], np.arange(K), rng.integers(N, size=(rows, K))] = True
    return {
        TEAM: rng.normal(size=(rows, K, 5)).astype(np.float32),
        PRESENT: (rng.random((rows, K)) < 0.8).astype(np.int8),
        ACTION_MASK: masks.reshape(rows, K * N),
    }


def batch_of(rng: np.random.Generator) -> tuple[Transitions, dict[str, Any], dict[str, Any]]:
    now, later = seen(rng), seen(rng)
    action = now[ACTION_MASK].reshape(ROWS, K, N).argmax(axis=2)
    discount = np.where(rng.random(ROWS) < 0.2, 0.0, 0.9).astype(np.float32)
    arrays = action, rng.normal(size=ROWS).astype(np.float32), discount, rng.random(ROWS).astype(np.float32)
    tensors = [{name: torch.from_numpy(value) for name, value in one.items()} for one in (now, later)]
    return Transitions(*tensors, *map(torch.from_numpy, arrays)), now, later


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", ["vdn", "qmix"])
def test_its_target_is_that_of_each_agents_best_possible_action(name: str, double: bool) -> None:
    agent, rng = made(name, double=double), np.random.default_rng(0)
    with torch.no_grad():
        for parameter in agent._network.target.parameters():  # another one than the network
            parameter.add_(0.1 * torch.randn_like(parameter))
    batch, now, later = batch_of(rng)
    online, target = agent._network.network, agent._network.target

    def q(network: Any, side: dict[str, Any]) -> Any:
        return network({key: torch.from_numpy(value) for key, value in side.items()}).detach().numpy()

    def together(network: Any, values: Any, side: dict[str, Any]) -> Any:
        tensors = {key: torch.from_numpy(value) for key, value in side.items()}
        return network.together(torch.from_numpy(values), tensors).detach().numpy()

    chooser = np.where(later[ACTION_MASK].reshape(ROWS, K, N), q(online if double else target, later), -np.inf)
    best = np.take_along_axis(q(target, later), chooser.argmax(axis=2)[..., None], axis=2)[..., 0]
    y = batch.reward.numpy() + batch.discount.numpy() * together(target, best, later)
    chosen = np.take_along_axis(q(online, now), batch.action.numpy()[..., None], axis=2)[..., 0]
    delta = y - together(online, chosen, now)
    found = agent.loss(batch)
    np.testing.assert_allclose(found.priorities.numpy(), np.abs(delta), rtol=1e-4, atol=1e-5)
    assert float(found.loss.detach()) == pytest.approx(float((batch.weights.numpy() * 0.5 * delta**2).mean()), rel=1e-4)


def test_who_is_there_is_not_scaled() -> None:
    """Of agents that never end, a scaled flag would be 0, and so would their values."""
    agent, rng = made("vdn", normalize_observations=True), np.random.default_rng(4)
    batch, now, _ = batch_of(rng)
    for _ in range(3):
        agent.update(batch)
    told = {name: torch.from_numpy(value) for name, value in now.items()}
    assert torch.equal(agent._normalizer.observation(told)[PRESENT], told[PRESENT])


@pytest.mark.parametrize("name", ["vdn", "qmix"])
def test_what_agents_see_has_one_scale_that_leaves_them_apart(name: str) -> None:
    """Who each is, one-hot, is constant for itself: by a scale of its own it would be 0. Nobody counts who is gone."""
    agent, rng = made(name, normalize_observations=True), np.random.default_rng(5)
    batch, now, later = batch_of(rng)
    for side in (now, later):
        side[TEAM][..., :K] = np.eye(K)
        side[TEAM][..., 3] = 1_000.0 + 50.0 * side[TEAM][..., 3]
        side[TEAM][side[PRESENT] == 0] = 1e6
    sides = ({key: torch.from_numpy(value) for key, value in side.items()} for side in (now, later))
    batch = batch._replace(**dict(zip(("observation", "next_observation"), sides, strict=True)))
    for _ in range(3):
        agent.update(batch)
    there = now[TEAM][now[PRESENT] == 1]
    found = agent._normalizer.observation(batch.observation)[TEAM].numpy()[now[PRESENT] == 1]
    np.testing.assert_allclose(found, (there - there.mean(axis=0)) / there.std(axis=0), rtol=1e-3, atol=1e-3)
    who = found[:, :K][np.argsort(there[:, :K].argmax(axis=1), kind="stable")]
    assert len(np.unique(who.round(3), axis=0)) == K


def test_each_agent_explores_by_itself_and_takes_possible_actions() -> None:
    agent, observations = made("vdn"), seen(np.random.default_rng(1), 2000)
    masks = observations[ACTION_MASK].reshape(-1, K, N)
    greedy = agent.act(observations, None, np.zeros(2000, np.float32), greedy=True).actions
    some = agent.act(observations, None, np.full(2000, 0.5, np.float32)).actions
    for actions in (greedy, some):
        assert np.take_along_axis(masks, actions[..., None], axis=2).all()
    other = some != greedy
    assert 0.1 < other.mean() < 0.5
    assert (other.any(axis=1) & ~other.all(axis=1)).mean() > 0, "not all at once"


def test_updates_move_its_values_to_the_rewards() -> None:
    """Of steps that end an episode a value is the reward."""
    agent, rng = made("qmix", learning_rate=5e-3, normalize_returns=False), np.random.default_rng(2)
    batch, _, _ = batch_of(rng)
    batch = batch._replace(discount=torch.zeros(ROWS), weights=torch.ones(ROWS))
    first = float(agent.loss(batch).loss.detach())
    for _ in range(300):
        agent.update(batch)
    assert float(agent.loss(batch).loss.detach()) < 0.05 * first


def test_boxes_are_refused() -> None:
    box = ActionSpec(shape=(1,), dtype="float32", low=np.array([-1.0]), high=np.array([1.0]))
    with pytest.raises(AgentError, match="vdn is for discrete actions"):
        agent_class("vdn")(EnvSpec({"observation": Field((2,), "float32")}, box), with_agent(Config(), "vdn").agent)
