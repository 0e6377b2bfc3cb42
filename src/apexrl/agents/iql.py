"""Implicit Q-learning (Kostrikov et al. 2021, arXiv 2110.06169): no action that the dataset lacks is ever valued."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents import diagnostics, trained_agent
from apexrl.agents.acting_noise import ActingNoise
from apexrl.agents.box_actions import ActionBox
from apexrl.agents.decision import Decision
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import RandomGenerator, acting_generator, seeded_layers
from apexrl.agents.sac import CRITICS
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES, Gradients, Trained
from apexrl.agents.transition_batch import (
    Observation,
    Transitions,
    as_array,
    fresh_transitions,
    on_device,
)
from apexrl.config import AgentConfig
from apexrl.losses.offline import advantage_weighted_loss, expectile_loss
from apexrl.losses.soft import critics_loss
from apexrl.networks.actor_critic import Critics, OneDeviationPolicy, Policy
from apexrl.protocols import Acted, Arrays, State
from apexrl.spec import EnvSpec, Field

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class IQL:
    """Learns V as an expectile of Q over the dataset's actions, Q from V, and a policy that imitates what is better
    than V.

    All gradients of an update are taken at the same parameters and applied together; the authors' code lets V step
    first. The policy is a Gaussian around a tanh, with one deviation for all states, as theirs.

    Args:
        spec: the environment; its actions must be a box with finite bounds.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the networks' first weights and of exploration.

    Raises:
        AgentError: the actions are no such box.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._config = config
        self._device = torch.device(device)
        self._box = ActionBox(spec.action, config.agent)
        self.policy_noise = ActingNoise(self._box.size, config.pink_noise)
        self._rng = acting_generator(seed)
        units = config.critic_hidden or config.hidden
        with seeded_layers(seed):
            policy = OneDeviationPolicy(spec, config.hidden, self._box.size, config.image_units, config.network)
            critics = Critics(spec, units, CRITICS, 1, config.image_units, config.network)
            value = Policy(spec, units, 1, config.image_units, config.network)
        self._policy = Trained("policy", policy.to(self._device), config, config.policy_learning_rate)
        self._critics = Trained("critics", critics.to(self._device), config, target=True)
        self._value = Trained("value", value.to(self._device), config)
        self._normalizer = Normalizer(spec, config, self._device)
        self.networks: dict[str, Trained[Any]] = {
            "policy": self._policy,
            "critics": self._critics,
            "value": self._value,
            **self._normalizer.networks,
        }
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng}
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """Nothing is recorded: priorities take a pass of critics and V."""
        return {}

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Actions in the environment's units, float32 [B, *shape]: samples of the policy; greedy: its mean.

        Where ``exploration`` [B] is infinite they are uniformly random; no other value of it matters.
        """
        with torch.no_grad():
            seen = self._normalizer.observation(on_device(observations, self._device))
            mean, log_std = (as_array(half) for half in self._policy.network(seen).chunk(2, dim=1))
        if greedy:
            return Acted(self._box.to_env(mean), {}, state)
        noise, state = self.policy_noise.normal(len(mean), state, self._rng)
        unit: NDArray[np.float32] = np.clip(mean + np.exp(log_std) * noise, -1.0, 1.0)
        random = np.isinf(exploration)
        if random.any():
            unit[random] = self.policy_noise.random(noise[random], self._rng)
        return Acted(self._box.to_env(unit), {}, state)

    def decide(self, observation: Observation, state: Mapping[str, Tensor], noise: Tensor | None = None) -> Decision:
        """The action of raw observations, drawn by ``noise`` or greedy, in PyTorch alone; see ``Draws``."""
        mean, log_std = self._policy.network(self._normalizer.observation(observation)).chunk(2, dim=1)
        unit = mean if noise is None else (mean + log_std.exp() * noise).clamp(-1.0, 1.0)
        return Decision(self._box.to_env_tensor(unit), {})

    @torch.no_grad()
    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """V(s) [B] of episodes' first observations."""
        seen = self._normalizer.observation(on_device(observations, self._device))
        return as_array(self._value.network(seen).squeeze(1) * self._normalizer.unit)

    @torch.no_grad()
    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|δ| [N], the mean over the critics, of the newest published networks."""
        batch = self._normalizer.transitions(fresh_transitions(items, self._device))
        return as_array(self._errors(batch).abs().mean(dim=0))

    # Learning

    prepare = trained_agent.prepare

    def _errors(self, batch: Transitions) -> Tensor:
        """δ_k = R + d·V(s') − Q_k(s, a), [K, B], to be differentiated by the critics alone."""
        with torch.no_grad():
            target = torch.addcmul(batch.reward, batch.discount, self._value.network(batch.next_observation).squeeze(1))
        answers: Tensor = self._critics.network(batch.observation, self._box.to_unit(batch.action))
        return target - answers.squeeze(2)

    def advantage(self, batch: Transitions) -> Tensor:
        """min_k Q⁻_k(s, a) − V(s) [B], to be differentiated by V alone."""
        with torch.no_grad():
            q = self._critics.target(batch.observation, self._box.to_unit(batch.action)).squeeze(2).amin(dim=0)
        value: Tensor = self._value.network(batch.observation)
        return torch.sub(q, value.squeeze(1))

    def policy_loss(self, batch: Transitions, advantage: Tensor) -> Tensor:
        """``advantage_weighted_loss`` of the recorded actions."""
        mean, log_std = self._policy.network(batch.observation).chunk(2, dim=1)
        distance = (self._box.to_unit(batch.action) - mean) * torch.exp(-log_std)
        log_prob = -(0.5 * distance.square() + log_std + _HALF_LOG_2PI).sum(dim=1)
        return advantage_weighted_loss(log_prob, advantage, self._config.advantage_scale, self._config.advantage_clip)

    def gradients(self, batch: Transitions) -> Gradients:
        """Clipped gradients of the ``critics``, of the ``value`` and, every ``policy_period_updates``, of the
        ``policy``, all at the same parameters.

        Raises:
            NonFiniteError: δ or a gradient is NaN or infinite; parameters are as before.
        """
        config, normalizer = self._config, self._normalizer
        statistics, batch = normalizer.groups(batch, self.updates), normalizer.transitions(batch)
        measured = self.updates % METRICS_PERIOD_UPDATES == 0
        with diagnostics.DeadUnits(measured) as units:
            delta = self._errors(batch)
            loss = critics_loss(delta, batch.weights, config.huber)
        self._critics.differentiate(loss)
        priorities = as_array(delta.detach().abs().mean(dim=0))
        norm = self._critics.clip(self.updates, priorities)
        advantage = self.advantage(batch)
        self._value.differentiate(expectile_loss(advantage, batch.weights, config.expectile))
        self._value.clip(self.updates)
        groups = {"critics": self._critics.gradient, "value": self._value.gradient, **statistics}
        if (self.updates + 1) % config.policy_period_updates == 0:
            self._policy.differentiate(self.policy_loss(batch, advantage.detach()))
            self._policy.clip(self.updates)
            groups["policy"] = self._policy.gradient
        metrics: dict[str, float] = {}
        if measured:
            with torch.no_grad():
                q = self._critics.network(batch.observation, self._box.to_unit(batch.action))
            metrics = {
                "loss": float(loss.detach()),
                "priority": float(priorities.mean()),
                "q": float(q.mean()) * normalizer.unit,
                "gradient_norm": norm,
                "advantage": float(advantage.detach().mean()) * normalizer.unit,
                **diagnostics.of_weighted(batch, self.networks, units),
            }
        return Gradients(groups, priorities, metrics)

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """One step of each optimizer whose group is there; then the target critics follow."""
        self._critics.step(groups["critics"])
        self._value.step(groups["value"])
        self._normalizer.step(groups)
        self.updates += 1
        if "policy" in groups:
            self._policy.step(groups["policy"])
        self._critics.follow(self.updates)

    update, weights, load = trained_agent.update, trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal, horizon = trained_agent.anneal, trained_agent.horizon
