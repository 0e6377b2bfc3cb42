"""SimbaV2 against its published rule, written out with autograd and torch.optim."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from soft_reference import HIGH, LOW, ROWS, D, Published, config_of, learned_as, make, make_batch, squashed, unclipped
from torch import Tensor

from apexrl.agents.parameter_layout import places
from apexrl.agents.rng_state import noise_generator
from apexrl.errors import AgentError
from apexrl.networks.hyperspherical import Dense

SMALL: dict[str, Any] = {"hidden": (8,), "critic_hidden": (6, 6), "atoms": 11, "initial_temperature": 1.0}
SMALL |= {"normalize_observations": False, "normalize_returns": False}


def projected(batch: Any, log_probs: Tensor, later: Tensor, alpha: float) -> Tensor:
    """The authors' ``categorical_td_loss``: the bins of the target, clipped, shared between both neighbours."""
    bins = torch.linspace(-5, 5, 11)
    reward, discount = batch.reward[:, None], batch.discount[:, None]
    moved = (reward + discount * (bins - alpha * log_probs[:, None])).clamp(-5, 5)
    b = (moved + 5) / (10 / 10)
    low, high = b.floor(), b.ceil()
    found = torch.zeros_like(later)
    for row in range(len(later)):
        for atom in range(11):
            lower, upper, share = int(low[row, atom]), int(high[row, atom]), float(b[row, atom])
            found[row, lower] += later[row, atom] * (upper + (lower == upper) - share)
            found[row, upper] += later[row, atom] * (share - lower)
    return found


def rescaled(network: Any) -> None:
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, Dense):
                module.weight.div_(module.weight.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("critics", [1, 2])
def test_updates_are_the_published_rule(critics: int) -> None:
    changes = {**SMALL, "critics": critics, "policy_period_updates": 1}
    config, agent = config_of("simba_v2", **changes), make("simba_v2", seed=5, **changes)
    rule, draws, support = Published(agent, config), noise_generator(5), torch.linspace(-5, 5, 11)
    first = deepcopy(rule.target)
    for seed in range(3):
        batch = agent.prepare(make_batch("simba_v2", seed))
        learned = agent.update(batch)
        noise = torch.randn(2, ROWS, D, generator=draws)
        alpha = float(rule.log_alpha.detach().exp())
        unit = 2 * (batch.action - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1
        with torch.no_grad():
            later, log_prob_later = squashed(rule.policy(batch.next_observation), noise[1])
            next_p = torch.softmax(rule.target(batch.next_observation, later), dim=2)
            least = (next_p @ support).argmin(dim=0)
            y = projected(batch, log_prob_later, next_p[least, torch.arange(ROWS)], alpha)
        log_p = torch.log_softmax(rule.critics(batch.observation, unit), dim=2)
        entropies = -(y * log_p).sum(dim=2)  # [K, B]
        action, log_prob = squashed(rule.policy(batch.observation), noise[0])
        q = (torch.softmax(rule.critics(batch.observation, action), dim=2) @ support).min(dim=0).values
        unclipped(rule, (batch.weights * entropies).mean(dim=1).sum(), (alpha * log_prob - q).mean())
        rule.of_alpha.zero_grad()
        (-rule.log_alpha * (log_prob.detach().mean() - 0.5 * D)).backward()  # the entropy aimed at is −½·dim(A)
        rule.of_alpha.step()
        rescaled(rule.policy)
        rescaled(rule.critics)
        with torch.no_grad():
            for slow, fast in zip(rule.target.parameters(), rule.critics.parameters(), strict=True):
                slow.lerp_(fast, config.polyak)
        divergence = (entropies + torch.xlogy(y, y).sum(dim=1)).mean(dim=0)
        np.testing.assert_allclose(learned.priorities, divergence.detach().numpy(), rtol=2e-3, atol=1e-4)
    learned_as(agent, rule)
    assert any(not torch.equal(one, two) for one, two in zip(first.parameters(), rule.target.parameters(), strict=True))


def test_weights_have_length_one_after_every_update() -> None:
    agent = make("simba_v2", **SMALL)
    for seed in range(3):
        agent.update(agent.prepare(make_batch("simba_v2", seed)))
        for part in (agent._policy, agent._critics):
            for module in part.network.modules():
                if isinstance(module, Dense):
                    lengths = module.weight.norm(dim=1)
                    torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_parameter_servers_cannot_make_its_updates() -> None:
    assert places(make("simba_v2", **SMALL)) == {}
    assert places(make("sac"))


@pytest.mark.parametrize("changes", [{"hidden": (8, 9)}, {"critic_hidden": (6, 6, 7)}])
def test_blocks_of_different_units_are_refused(changes: dict[str, Any]) -> None:
    (flag,) = changes
    with pytest.raises(AgentError, match=rf"residual blocks, .* and --{flag.replace('_', '-')} has \[.*128 128$"):
        make("simba_v2", **{**SMALL, **changes})
