"""FastTD3 against its published rule, written out with autograd."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from soft_reference import HIGH, LOW, ROWS, D, make, make_batch

from apexrl import agents
from apexrl.agents.exploration import slot_exploration
from apexrl.agents.rng_state import noise_generator
from apexrl.config import Config
from apexrl.losses import categorical_projection
from apexrl.spec import ActionSpec

SMALL: dict[str, Any] = {"atoms": 11, "v_min": -5.0, "v_max": 5.0, "normalize_observations": False}
SMALL |= {"target_noise": 0.4, "target_noise_clip": 0.3, "optimizer": "adam"}


def draws_behind_the_first_weights(agent: Any) -> torch.Generator:
    generator = noise_generator(5)
    torch.empty(agent._policy.network.head.weight.shape).normal_(generator=generator)
    return generator


def test_gradients_are_of_the_published_losses_and_targets_follow_every_update() -> None:
    """The authors' code: the present policy chooses target actions, each critic learns towards the projected target
    whose mean is the smaller, and the policy climbs the smaller mean."""
    agent = make("fast_td3", seed=5, policy_period_updates=2, **SMALL)
    draws, support = draws_behind_the_first_weights(agent), torch.linspace(-5, 5, 11)
    with torch.no_grad():
        agent._critic.target_parameters.vector.mul_(1.5)  # another network than the one that learns
    for update in range(2):
        policy, critic, target = (
            deepcopy(part).requires_grad_()
            for part in (agent._policy.network, agent._critic.network, agent._critic.target)
        )
        batch = agent.prepare(make_batch("fast_td3", update))
        groups, priorities, _ = agent.gradients(batch)
        found = {group: gradient.clone() for group, gradient in groups.items()}

        unit = 2 * (batch.action - torch.tensor(LOW)) / torch.tensor(HIGH - LOW) - 1
        noise = (0.4 * torch.randn(ROWS, D, generator=draws)).clamp(-0.3, 0.3)
        with torch.no_grad():
            action = (torch.tanh(policy(batch.next_observation)) + noise).clamp(-1, 1)
            later = torch.softmax(target(batch.next_observation, action), dim=2)
            one, two = (categorical_projection(batch.reward, batch.discount, p, support) for p in later)
            y = torch.where(((one @ support) < (two @ support))[:, None], one, two)
        log_p = torch.log_softmax(critic(batch.observation, unit), dim=2)
        entropies = -(y * log_p).sum(dim=2)
        critic_loss = (batch.weights * entropies).mean(dim=1).sum()
        climbed = torch.softmax(critic(batch.observation, torch.tanh(policy(batch.observation))), dim=2) @ support
        losses = {"critic": (critic_loss, critic), "policy": (-climbed.amin(dim=0).mean(), policy)}
        assert found.keys() == ({"critic", "policy"} if update else {"critic"})
        for group, gradient in found.items():
            loss, network = losses[group]
            split = agent.networks[group].parameters.split(gradient)
            expected = torch.autograd.grad(loss, list(network.parameters()))
            for (name, _), wanted in zip(network.named_parameters(), expected, strict=True):
                torch.testing.assert_close(split[name], wanted, rtol=1e-3, atol=1e-6)
        divergence = (entropies + torch.xlogy(y, y).sum(dim=1)).mean(dim=0)
        np.testing.assert_allclose(priorities, divergence.detach().numpy(), rtol=1e-3, atol=1e-5)

        agent.apply(groups)
        for slow, before, fast in zip(
            agent._critic.target.parameters(), target.parameters(), agent._critic.network.parameters(), strict=True
        ):
            torch.testing.assert_close(slow, torch.lerp(before.detach(), fast.detach(), 0.05))
    assert not [name for name in agent.state_dict() if name.startswith("policy/target")]


def test_first_actions_are_near_the_middle() -> None:
    agent = make("fast_td3", **SMALL)
    seen = {"observation": np.random.default_rng(0).standard_normal((50, 3), np.float32)}
    unit = 2 * (agent.act(seen, None, np.zeros(50, np.float32), True).actions - LOW) / (HIGH - LOW) - 1
    assert 0.0 < np.abs(unit).max() < 0.1


def test_environments_explore_evenly_between_the_papers_deviations() -> None:
    config = agents.with_agent(Config(), "fast_td3").actor
    action = ActionSpec((2,), "float32", low=LOW, high=HIGH)
    found = np.concatenate([slot_exploration(action, config, slot, 4, 8) for slot in range(4)])
    np.testing.assert_allclose(np.sort(found), np.linspace(0.001, 0.4, 32), rtol=1e-5)
