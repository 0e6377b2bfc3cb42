"""Agents for datasets against their published rules, written out with NumPy, autograd and torch.optim; and on a bandit
whose recorded actions are not the best ones."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from soft_reference import BOX, HIGH, LOW, MULTI, ROWS, Batch, D, N, close, make_batch, squashed
from torch import Tensor, nn

from apexrl import agents
from apexrl.agents.rng_state import noise_generator
from apexrl.config import AgentConfig, Config
from apexrl.errors import AgentError, ConfigError
from apexrl.losses.offline import advantage_weighted_loss, cloned_policy_loss, conservative_penalty, expectile_loss
from apexrl.spec import ActionSpec, EnvSpec, Field

BANDIT = EnvSpec(
    {"observation": Field((1,), "float32")},
    ActionSpec((1,), "float32", low=-np.ones(1, np.float32), high=np.ones(1, np.float32)),
)
BEST = 0.5  # of the bandit: a = BEST · s


def config_of(name: str, **changes: Any) -> AgentConfig:
    small = {"hidden": (16, 8), "critic_hidden": (12, 16), "learning_rate": 1e-2, "polyak": 0.05}
    return replace(agents.with_agent(Config(), name).agent, **{**small, "gradient_clip": 0.0, **changes})


def make(name: str, spec: EnvSpec = BOX, seed: int = 0, **changes: Any) -> Any:
    return agents.agent_class(name)(spec, config_of(name, **changes), "cpu", seed)


def unit_of(action: Tensor) -> Tensor:
    return 2 * (action - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1


# Losses, in NumPy


def test_the_conservative_penalty_is_the_papers() -> None:
    rng = np.random.default_rng(0)
    x, q, w = rng.standard_normal((2, 5, 4)), rng.standard_normal((2, 5)), rng.random(5)
    expected = sum((w * (np.log(np.exp(x[k]).sum(axis=1)) - q[k])).mean() for k in range(2))
    found = conservative_penalty(torch.tensor(x), torch.tensor(q), torch.tensor(w))
    assert float(found) == pytest.approx(expected)


def test_the_expectile_loss_is_least_at_the_expectile() -> None:
    """Of values 0 and 1 the τ-expectile is τ: there (1 − τ)·v = τ·(1 − v)."""
    values, ones = torch.tensor([0.0, 1.0]), torch.ones(2)
    for tau in (0.5, 0.7, 0.9):
        grid = torch.linspace(0, 1, 1001)
        losses = torch.stack([expectile_loss(values - v, ones, tau) for v in grid])
        assert float(grid[losses.argmin()]) == pytest.approx(tau, abs=2e-3)
    assert float(expectile_loss(torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.5]), 0.7)) == pytest.approx(
        (0.7 * 4 + 0.5 * 0.3 * 1) / 2
    )


def test_advantages_weigh_imitation_up_to_a_bound() -> None:
    log_prob, advantage = np.array([-1.0, -2.0, -0.5]), np.array([0.5, -1.0, 9.0])
    expected = -(np.minimum(np.exp(3.0 * advantage), 100.0) * log_prob).mean()
    found = advantage_weighted_loss(torch.tensor(log_prob), torch.tensor(advantage), 3.0, 100.0)
    assert float(found) == pytest.approx(expected)


def test_the_cloned_policy_loss_scales_values_to_one() -> None:
    rng = np.random.default_rng(1)
    q, action, recorded = rng.standard_normal(6), rng.random((6, 2)), rng.random((6, 2))
    expected = -2.5 / np.abs(q).mean() * q.mean() + ((action - recorded) ** 2).mean()
    found = cloned_policy_loss(torch.tensor(q), torch.tensor(action), torch.tensor(recorded), 2.5)
    assert float(found) == pytest.approx(expected)


# Updates, by autograd and torch.optim


def adam(network: nn.Module, config: AgentConfig, rate: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), rate or config.learning_rate)


def stepped(pairs: list[tuple[torch.optim.Optimizer, nn.Module, Tensor]]) -> None:
    """All gradients first, then the steps."""
    found = [torch.autograd.grad(loss, list(network.parameters())) for _, network, loss in pairs]
    for (optimizer, network, _), gradients in zip(pairs, found, strict=True):
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


def test_iql_is_its_published_rule() -> None:
    agent, config = make("iql", seed=3), config_of("iql")
    policy, critics, value = (
        deepcopy(part.network).requires_grad_() for part in (agent._policy, agent._critics, agent._value)
    )
    slow = deepcopy(critics)
    optimizers = [adam(one, config) for one in (policy, critics, value)]
    for seed in range(4):
        batch = agent.prepare(make_batch("iql", seed))
        learned = agent.update(batch)
        unit, w = unit_of(batch.action), batch.weights
        v, later = value(batch.observation)[:, 0], value(batch.next_observation)[:, 0].detach()
        q = critics(batch.observation, unit)[:, :, 0]
        delta = batch.reward + batch.discount * later - q
        u = slow(batch.observation, unit)[:, :, 0].min(dim=0).values.detach() - v
        value_loss = (w * torch.where(u < 0, 0.3, 0.7) * u.square()).mean()
        mean, log_std = policy(batch.observation).chunk(2, dim=1)
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(unit).sum(dim=1)
        policy_loss = -(torch.exp(3.0 * u.detach()).clamp(max=100.0) * log_prob).mean()
        critics_loss = (0.5 * w * delta.square()).mean(dim=1).sum()
        stepped(list(zip(optimizers, (policy, critics, value), (policy_loss, critics_loss, value_loss), strict=True)))
        with torch.no_grad():
            for old, new in zip(slow.parameters(), critics.parameters(), strict=True):
                old.lerp_(new, config.polyak)
        np.testing.assert_allclose(learned.priorities, delta.abs().mean(dim=0).detach(), rtol=2e-3, atol=1e-4)
    for name, network in (("policy", policy), ("critics", critics), ("value", value)):
        close(agent.weights(), f"{name}/", network)
    close(agent.state_dict(), "critics/target/", slow)


def test_cql_is_its_published_rule() -> None:
    """Targets without entropy, and the log of a sum over drawn actions, each divided by its density."""
    agent, drawn = make("cql", seed=5, conservative_actions=3), 3
    draws = noise_generator(5)
    batch = agent.prepare(make_batch("cql", 1))
    found = agent.critic_loss(batch, torch.zeros(ROWS, D))
    uniform = torch.empty(ROWS * drawn, D).uniform_(-1, 1, generator=draws).view(ROWS, drawn, D)
    noise = torch.randn(2, ROWS * drawn, D, generator=draws).view(2, ROWS, drawn, D)
    policy, critics = agent._policy.network, agent._critics.network
    with torch.no_grad():
        action, _ = squashed(policy(batch.next_observation), torch.zeros(ROWS, D))
        y = batch.reward + batch.discount * agent._critics.target(batch.next_observation, action)[:, :, 0].min(0).values
    q = critics(batch.observation, unit_of(batch.action))[:, :, 0]
    penalty = torch.zeros(2, ROWS)
    for row in range(ROWS):
        seen = {"observation": batch.observation["observation"][row : row + 1]}
        source = batch.next_observation if batch.discount[row] else batch.observation
        later = {"observation": source["observation"][row : row + 1]}
        terms = []
        for place in range(drawn):
            terms.append(critics(seen, uniform[row, place][None])[:, 0, 0] - D * np.log(0.5))
            for state, white in ((seen, noise[0]), (later, noise[1])):
                tried, log_prob = squashed(policy(state).detach(), white[row, place][None])
                terms.append(critics(seen, tried)[:, 0, 0] - log_prob)
        penalty[:, row] = torch.logsumexp(torch.stack(terms), dim=0) - q[:, row]
    expected = (batch.weights * (0.5 * (y - q).square() + 5.0 * penalty)).mean(dim=1).sum()
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-4)
    parameters = list(critics.parameters())
    for one, two in zip(
        torch.autograd.grad(found.loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(one, two, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("distribution", ["expected", "quantile"])
def test_discrete_cql_adds_the_penalty_to_the_loss_of_dqn(distribution: Any) -> None:
    changes = {"distribution": distribution, "quantiles": 8, "target_period_updates": 3}
    agent = make("discrete_cql", MULTI, conservative_weight=0.7, **changes)
    plain = make("discrete_cql", MULTI, conservative_weight=0.0, **changes)
    batch = agent.prepare(make_batch("discrete_sac", 2))
    found, base = agent.loss(batch), plain.loss(batch)
    q = agent._returns.means(agent._network.network(batch.observation, agent._draw(ROWS)))
    taken = (batch.action[:, 0] * 3 + batch.action[:, 1]).numpy()
    values = q.detach().numpy()
    penalty = np.log(np.exp(values).sum(axis=1)) - values[np.arange(ROWS), taken]
    expected = base.loss.item() + 0.7 * float((batch.weights.numpy() * penalty).mean())
    assert values.shape == (ROWS, N)
    assert found.loss.item() == pytest.approx(expected, rel=1e-4)
    before = agent.weights()
    agent.update(batch)
    plain.update(batch)
    assert any(not np.array_equal(agent.weights()[name], plain.weights()[name]) for name in before)


def test_td3_bc_stays_near_recorded_actions() -> None:
    agent = make("td3_bc", critic_hidden=())
    batch = agent.prepare(make_batch("td3_bc", 3))
    mu = torch.tanh(agent._policy.network(batch.observation))
    q = agent._critic.network(batch.observation, mu)[0, :, 0]
    expected = -2.5 / q.abs().mean().detach() * q.mean() + (mu - unit_of(batch.action)).square().mean()
    assert agent.policy_loss(batch).item() == pytest.approx(expected.item(), rel=1e-5)
    assert make("td3", critic_hidden=()).policy_loss(batch).item() == pytest.approx(-q.mean().item(), rel=1e-5)


@pytest.mark.parametrize(("name", "spec"), [("box", BOX), ("discrete_sac", MULTI)])
def test_behaviour_cloning_is_supervised_learning(name: str, spec: EnvSpec) -> None:
    agent, config = make("bc", spec), config_of("bc")
    network = deepcopy(agent._network.network).requires_grad_()
    optimizer = adam(network, config)
    for seed in range(3):
        batch = agent.prepare(make_batch(name, seed))
        learned = agent.update(batch)
        output = network(batch.observation)
        if spec.action.box:
            losses = (torch.tanh(output) - unit_of(batch.action)).square().mean(dim=1)
        else:
            index = batch.action[:, 0] * 3 + batch.action[:, 1]
            losses = -torch.log_softmax(output, dim=1)[torch.arange(ROWS), index]
        stepped([(optimizer, network, (batch.weights * losses).mean())])
        np.testing.assert_allclose(learned.priorities, losses.detach(), rtol=1e-4, atol=1e-6)
    close(agent.weights(), "policy/", network)


def test_a_name_stands_for_its_weight() -> None:
    for name, flag in (("td3_bc", "cloned_value_weight"), ("cql", "conservative_weight")):
        with pytest.raises(ConfigError, match=f"agent {name} stands for"):
            agents.check_identity(replace(agents.with_agent(Config(), name).agent, **{flag: 0.0}))


def test_iql_takes_boxes_alone() -> None:
    with pytest.raises(AgentError, match="iql is for Box actions"):
        make("iql", MULTI)


# Learning, from actions of which the worse ones are the more frequent


def recorded(rows: int, rng: np.random.Generator) -> Batch:
    """One-step episodes: actions around BEST · s + 0.4, with deviation 0.4; −(a − BEST · s)² is rewarded."""
    s = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    a = np.clip(BEST * s + 0.4 + 0.4 * rng.standard_normal((rows, 1)), -1, 1).astype(np.float32)
    data = {
        "observation": s,
        "next_observation": s,
        "action": a,
        "reward": (-10.0 * (a - BEST * s) ** 2)[:, 0],
        "discount": np.zeros(rows, np.float32),
    }
    return Batch(data, np.arange(rows, dtype=np.uint64), np.ones(rows, np.float32))


def distance(agent: Any) -> float:
    """Of greedy actions from the best ones, mean."""
    s: NDArray[np.float32] = np.linspace(-0.9, 0.9, 50, dtype=np.float32)[:, None]
    return float(np.abs(agent.act({"observation": s}, None, np.zeros(50, np.float32), True).actions - BEST * s).mean())


def learned(name: str, updates: int, **changes: Any) -> float:
    agent = make(name, BANDIT, seed=1, **{"hidden": (32, 32), "critic_hidden": (), "learning_rate": 3e-3, **changes})
    rng = np.random.default_rng(7)
    for _ in range(updates):
        agent.update(agent.prepare(recorded(128, rng)))
    return distance(agent)


CLOSE: dict[str, tuple[float, dict[str, Any]]] = {
    "iql": (0.2, {}),
    "td3_bc": (0.2, {}),
    "cql": (0.25, {"conservative_actions": 4, "policy_learning_rate": 3e-3, "conservative_weight": 1.0}),
}


@pytest.mark.parametrize("name", ["iql", *(pytest.param(name, marks=pytest.mark.long) for name in ("td3_bc", "cql"))])
def test_a_dataset_teaches_more_than_its_policy_knew(name: str) -> None:
    """Seed 1. The recorded policy is off by 0.4."""
    most, changes = CLOSE[name]
    assert learned(name, 400, **changes) < most


@pytest.mark.long
def test_behaviour_cloning_does_as_the_recorded_policy_does() -> None:
    assert learned("bc", 300) == pytest.approx(0.4, abs=0.1)
