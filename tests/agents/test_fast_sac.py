"""FastSAC against its published rule, written out with autograd and torch.optim."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from soft_reference import HIGH, LOW, ROWS, D, Published, config_of, learned_as, make, make_batch, squashed, unclipped

from apexrl.agents.rng_state import noise_generator
from apexrl.losses import categorical_projection

SMALL: dict[str, Any] = {"atoms": 11, "v_min": -5.0, "v_max": 5.0, "normalize_observations": False}
SMALL |= {"initial_temperature": 1.0, "optimizer": "adam"}  # the reference has no decay of weights


def test_updates_are_the_published_rule() -> None:
    """The authors' code: every critic learns towards its own target, the policy climbs the mean of all, a learned α
    aims at an entropy of 0, and targets follow every update."""
    changes = {**SMALL, "critics": 3, "policy_period_updates": 1}
    config, agent = config_of("fast_sac", **changes), make("fast_sac", seed=5, **changes)
    assert config.second_moment_decay == 0.95
    with torch.no_grad():
        agent._policy.network.head.weight.normal_(generator=torch.Generator().manual_seed(3))
    rule, draws, support = Published(agent, config), noise_generator(5), torch.linspace(-5, 5, 11)
    for seed in range(3):
        batch = agent.prepare(make_batch("fast_sac", seed))
        learned = agent.update(batch)
        noise = torch.randn(2, ROWS, D, generator=draws)
        alpha = float(rule.log_alpha.detach().exp())
        unit = 2 * (batch.action - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1
        with torch.no_grad():
            later, log_prob_later = squashed(rule.policy(batch.next_observation), noise[1])
            next_p = torch.softmax(rule.target(batch.next_observation, later), dim=2)
            reward = batch.reward - batch.discount * alpha * log_prob_later
            y = torch.stack([categorical_projection(reward, batch.discount, own, support) for own in next_p])
        log_p = torch.log_softmax(rule.critics(batch.observation, unit), dim=2)
        entropies = -(y * log_p).sum(dim=2)  # [K, B]
        action, log_prob = squashed(rule.policy(batch.observation), noise[0])
        q = (torch.softmax(rule.critics(batch.observation, action), dim=2) @ support).mean(dim=0)
        unclipped(rule, (batch.weights * entropies).mean(dim=1).sum(), (alpha * log_prob - q).mean())
        rule.of_alpha.zero_grad()
        (-rule.log_alpha * log_prob.detach().mean()).backward()
        rule.of_alpha.step()
        with torch.no_grad():
            for slow, fast in zip(rule.target.parameters(), rule.critics.parameters(), strict=True):
                slow.lerp_(fast, config.polyak)
        divergence = (entropies + torch.xlogy(y, y).sum(dim=2)).mean(dim=0)
        np.testing.assert_allclose(learned.priorities, divergence.detach().numpy(), rtol=2e-3, atol=1e-4)
    learned_as(agent, rule)


@pytest.mark.parametrize("eager", [False, True])
def test_targets_follow_with_every_update_or_with_the_policys(eager: bool) -> None:
    agent = make("fast_sac", **{**SMALL, "policy_period_updates": 2, "eager_targets": eager})
    before = agent._critics.target_parameters.vector.clone()
    agent.update(agent.prepare(make_batch("fast_sac", 0)))
    assert torch.equal(agent._critics.target_parameters.vector, before) is not eager
    agent.update(agent.prepare(make_batch("fast_sac", 1)))
    assert not torch.equal(agent._critics.target_parameters.vector, before)


def test_first_actions_are_in_the_middle_and_the_deviation_stays_in_its_range() -> None:
    agent = make("fast_sac", **SMALL)
    seen = {"observation": torch.from_numpy(1e3 * np.random.default_rng(0).standard_normal((50, 3), np.float32))}
    with torch.no_grad():
        mean, log_std = agent._policy.network(seen).chunk(2, dim=1)
        assert not mean.any()
        torch.testing.assert_close(log_std, torch.full_like(log_std, -2.5))
        agent._policy.network.head.weight.normal_(0.0, 100.0, generator=torch.Generator().manual_seed(1))
        log_std = agent._policy.network(seen).chunk(2, dim=1)[1]
    assert -5.0 <= float(log_std.min()) < -4.9
    assert -0.1 < float(log_std.max()) <= 0.0
