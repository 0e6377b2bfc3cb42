"""Small soft agents, batches for them, and the optimizers of their published rules by torch.optim."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from apexrl import agents
from apexrl.config import AgentConfig, Config
from apexrl.spec import ActionSpec, Array, EnvSpec, Field
from sampled_batch import Batch

LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)
BOX = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec((2,), "float32", low=LOW, high=HIGH))
MULTI = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec((2,), nvec=(2, 3)))
ROWS, D, N = 12, 2, 6


def config_of(name: str, **changes: Any) -> AgentConfig:
    small: dict[str, Any] = {"hidden": (16, 8), "critic_hidden": (12, 16), "learning_rate": 1e-2}
    if name == "simba_v2":  # its blocks are all of the same units
        small["critic_hidden"] = (12, 12)
        small["hidden"] = (16,)
    small |= {"policy_learning_rate": 5e-3, "temperature_learning_rate": 2e-3, "gradient_clip": 0.0, "polyak": 0.05}
    return replace(agents.with_agent(Config(), name).agent, **small | changes)


def make(name: str, seed: int = 0, **changes: Any) -> Any:
    spec = MULTI if name == "discrete_sac" else BOX
    return agents.agent_class(name)(spec, config_of(name, **changes), "cpu", seed)


def make_batch(name: str, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    box = rng.uniform(LOW, HIGH, (ROWS, 2)).astype(np.float32)
    data: dict[str, Array] = {
        "observation": rng.standard_normal((ROWS, 3), np.float32),
        "next_observation": rng.standard_normal((ROWS, 3), np.float32),
        "action": rng.integers([2, 3], size=(ROWS, 2)) if name == "discrete_sac" else box,
        "reward": rng.standard_normal(ROWS, np.float32),
        "discount": np.where(rng.random(ROWS) < 0.8, 0.97, 0.0).astype(np.float32),
    }
    return Batch(data, np.arange(ROWS, dtype=np.uint64), rng.random(ROWS, np.float32))


def train(agent: Any, name: str, updates: int, first: int = 0) -> list[Any]:
    return [agent.update(agent.prepare(make_batch(name, first + k))) for k in range(updates)]


# The rules, written out


def squashed(output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = output[:, :D], output[:, D:]
    normal = torch.distributions.Normal(mean, log_std.exp())
    u = mean + log_std.exp() * noise
    action = torch.tanh(u)
    return action, (normal.log_prob(u) - torch.log(1 - action.square())).sum(dim=1)


class Published:
    """Two optimizers for networks and one for log α, and targets by Polyak averaging."""

    def __init__(self, agent: Any, config: AgentConfig) -> None:
        self.policy, self.critics = (
            deepcopy(part.network).requires_grad_() for part in (agent._policy, agent._critics)
        )
        self.target = deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.config, self.count = config, 0
        betas = (config.first_moment_decay, config.second_moment_decay)
        self.of_policy = torch.optim.Adam(self.policy.parameters(), config.policy_learning_rate, betas)
        self.of_critics = torch.optim.Adam(self.critics.parameters(), config.learning_rate, betas)
        self.of_alpha = torch.optim.Adam([self.log_alpha], config.temperature_learning_rate)

    @property
    def due(self) -> bool:
        """Whether the next update is one of the policy too."""
        return (self.count + 1) % self.config.policy_period_updates == 0

    def step(self, critics_loss: Tensor, policy_loss: Tensor, log_prob: Tensor, target_entropy: float) -> None:
        """All gradients first, then the steps; policy, α and Polyak targets only when due."""
        due = self.due
        self.count += 1
        of_critics = torch.autograd.grad(critics_loss, list(self.critics.parameters()))
        of_policy = torch.autograd.grad(policy_loss, list(self.policy.parameters()))
        alpha_loss = -(self.log_alpha * (log_prob + target_entropy).detach()).mean()
        self._apply(self.of_critics, self.critics, of_critics)
        if due:
            self._apply(self.of_policy, self.policy, of_policy)
            (self.log_alpha.grad,) = torch.autograd.grad(alpha_loss, [self.log_alpha])
            self.of_alpha.step()
        copied = not self.config.polyak and self.count % self.config.target_period_updates == 0
        share = 1.0 if copied else self.config.polyak * (due or self.config.eager_targets)
        with torch.no_grad():
            for slow, fast in zip(self.target.parameters(), self.critics.parameters(), strict=True):
                slow.lerp_(fast, share)

    @staticmethod
    def _apply(optimizer: torch.optim.Optimizer, network: nn.Module, gradients: tuple[Tensor, ...]) -> None:
        norm = torch.sqrt(sum((g.square().sum() for g in gradients), torch.zeros(())))
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.grad = gradient / max(1.0, float(norm) / 0.5)
        optimizer.step()


def half_square(delta: Tensor, kappa: float) -> Tensor:
    """½δ², or Huber's loss."""
    if not kappa:
        return 0.5 * delta.square()
    return nn.functional.huber_loss(delta, torch.zeros_like(delta), reduction="none", delta=kappa)


def close(arrays: dict[str, Array], prefix: str, network: nn.Module) -> None:
    for name, parameter in network.named_parameters():
        expected = parameter.detach().numpy()
        np.testing.assert_allclose(arrays[prefix + name], expected, rtol=2e-3, atol=2e-5, err_msg=name)


def learned_as(agent: Any, rule: Published) -> None:
    """The agent has learned what the published rule learns."""
    weights = agent.weights()
    close(weights, "policy/", rule.policy)
    close(weights, "critics/", rule.critics)
    close(agent.state_dict(), "critics/target/", rule.target)
    assert float(weights["temperature/log"]) == pytest.approx(float(rule.log_alpha.detach()), rel=1e-3)


def copy_moments(optimizer: torch.optim.Optimizer, trained: Any) -> None:
    """Let PyTorch's Adam go on from where ours is."""
    moments = {name: trained.parameters.split(vector) for name, vector in trained.optimizer.state.items()}
    names = [name for name, _ in trained.network.named_parameters()]
    for name, parameter in zip(names, optimizer.param_groups[0]["params"], strict=True):
        optimizer.state[parameter] = {
            "step": trained.optimizer.steps.clone(),
            "exp_avg": moments["first_moment"][name].clone(),
            "exp_avg_sq": moments["second_moment"][name].clone(),
        }


def unclipped(rule: Published, critics_loss: Tensor, policy_loss: Tensor) -> None:
    """One step of both networks."""
    losses = ((rule.of_critics, rule.critics, critics_loss), (rule.of_policy, rule.policy, policy_loss))
    gradients = [torch.autograd.grad(loss, list(network.parameters())) for _, network, loss in losses]
    for (optimizer, network, _), found in zip(losses, gradients, strict=True):
        for parameter, gradient in zip(network.parameters(), found, strict=True):
            parameter.grad = gradient
        optimizer.step()
