"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv 1910.07207)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents.discrete_actions import Choices
from apexrl.agents.network_group import Parts
from apexrl.agents.rng_state import pack_generator, unpack_generator
from apexrl.agents.temperature import Temperature
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES, Gradients, Trained, held
from apexrl.agents.transition_batch import (
    Transitions,
    as_array,
    fresh_transitions,
    on_device,
    side_by_side,
    transitions,
)
from apexrl.config import AgentConfig
from apexrl.losses import critics_loss, soft_value
from apexrl.networks.action_value_critic import ActionValues
from apexrl.networks.actor_critic import Policy
from apexrl.protocols import Acted, Arrays, Learned, Sampled, State
from apexrl.spec import Array, EnvSpec, Field

CRITICS = 2
ENTROPY_SHARE = 0.89  # of log n: the target entropy (CleanRL; Christodoulou's 0.98 is nearly uniform)


class DiscreteSAC:
    """Acts by sampling from a softmax policy; learns it, two critics and α.

    Where SAC samples an action to learn from, this takes the expectation over all.

    All gradients of an update are taken at the same parameters and applied together: a batch that is not finite
    changes nothing.

    Args:
        spec: the environment; its actions must be Discrete or MultiDiscrete.
        config: the learning rule.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the networks' first weights and of exploration.

    Raises:
        AgentError: the actions are a box, or too many.
        ConfigError: a temperature is not positive.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._config = config
        self._device = torch.device(device)
        self._choices = Choices(spec.action, config.agent)
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        n, hidden = self._choices.n, config.critic_hidden or config.hidden
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's alone, where layers are made
            policy = Policy(spec, config.hidden, n, config.image_units, config.network)
            critics = ActionValues(spec, hidden, CRITICS, n, config.image_units, config.network)
        self._policy = Trained("policy", policy.to(self._device), config, config.policy_learning_rate)
        self._critics = Trained("critics", critics.to(self._device), config, target=True)
        entropy = ENTROPY_SHARE * math.log(n) if config.target_entropy is None else config.target_entropy
        self._temperature = Temperature(config, entropy, self._device)
        self.networks: dict[str, Trained[Any]] = {
            "policy": self._policy,
            "critics": self._critics,
            "temperature": self._temperature.trained,
        }
        self._parts = Parts(*self.networks.values())
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """Nothing is recorded: priorities take a pass of the critics."""
        return {}

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Samples of the policy, int64 [B] or [B, k]; greedy: the likeliest action.

        Where ``exploration`` [B] is infinite they are uniformly random. The policy explores by itself, so that no other
        value of it matters.
        """
        with torch.no_grad():
            logits = as_array(self._policy.network(on_device(observations, self._device)))
        if not greedy:
            # argmax(logits + Gumbel noise) is a sample of the softmax; without logits, a uniform one
            noise = self._rng.gumbel(size=logits.shape)
            logits = np.where(np.isinf(exploration)[:, None], np.float32(0), logits) + noise.astype(np.float32)
        return Acted(self._choices.to_env(logits.argmax(axis=1)), {}, state)

    @torch.no_grad()
    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|δ| [N], the mean over both critics: one pass of the newest published ones over both states."""
        batch = fresh_transitions(items, self._device)
        both = side_by_side(batch.observation, batch.next_observation)
        q, next_q = self._critics.network(both).tensor_split(2, dim=1)
        log_probs = torch.log_softmax(self._policy.network(batch.next_observation), dim=1)
        value = soft_value(next_q, log_probs, self._temperature.value)
        delta = torch.addcmul(batch.reward, batch.discount, value) - self._taken(q, batch.action)
        return as_array(delta.abs().mean(dim=0))

    # Learning

    def prepare(self, batch: Sampled) -> Transitions:
        """Hand a batch over to the device; asynchronous on CUDA, no copy on the CPU."""
        return transitions(batch, self._device)

    def gradients(self, batch: Transitions) -> Gradients:
        """Gradients of the ``critics`` and, every ``policy_period_updates``, of ``policy`` and ``temperature``; |δ| of
        every row is the mean over both critics.

        Raises:
            NonFiniteError: δ or a gradient is NaN or infinite; parameters are as before.
        """
        config, policy, critics = self._config, self._policy, self._critics
        temperature = self._temperature.value

        with torch.no_grad():
            next_log_probs = torch.log_softmax(policy.network(batch.next_observation), dim=1)
            next_value = soft_value(critics.target(batch.next_observation), next_log_probs, temperature)
            target = torch.addcmul(batch.reward, batch.discount, next_value)
        values = critics.network(batch.observation)
        q = self._taken(values, batch.action)
        delta = target - q
        loss = critics_loss(delta, batch.weights, config.huber)
        critics.differentiate(loss)
        priorities = as_array(delta.detach().abs().mean(dim=0))
        norm = critics.clip(config.gradient_clip, self.updates, priorities)
        groups = {"critics": critics.gradient}

        if (self.updates + 1) % config.policy_period_updates == 0:
            log_probs = torch.log_softmax(policy.network(batch.observation), dim=1)
            policy.differentiate(-soft_value(values.detach(), log_probs, temperature).mean())
            policy.clip(config.gradient_clip, self.updates)
            expected = (log_probs.exp() * log_probs).sum(dim=1)  # E log π
            groups |= {"policy": policy.gradient, "temperature": self._temperature.gradient(expected)}

        metrics: dict[str, float] = {}
        if self.updates % METRICS_PERIOD_UPDATES == 0:
            metrics = {
                "loss": float(loss.detach()),
                "priority": float(priorities.mean()),
                "q": float(q.detach().mean()),
                "gradient_norm": norm,
                "temperature": float(temperature),
                "entropy": -float((next_log_probs.exp() * next_log_probs).sum(dim=1).mean()),
            }
        return Gradients(groups, priorities, metrics)

    def _taken(self, values: Tensor, action: Tensor) -> Tensor:
        """Q(s, a) [K, B] of [K, B, n]."""
        index = self._choices.index(action).expand(values.shape[:2])
        return values.gather(2, index.unsqueeze(2)).squeeze(2)

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """One step of each optimizer whose group is there. Target critics move a little with every step of the policy,
        or are copied every ``target_period_updates``."""
        self._critics.step(groups["critics"])
        self.updates += 1
        if "policy" in groups:
            self._policy.step(groups["policy"])
            self._temperature.step(groups["temperature"])
        if "policy" in groups or not self._config.polyak:
            self._critics.follow(self.updates)

    def update(self, prepared: Transitions) -> Learned:
        """One learner update: ``gradients`` and ``apply``.

        Raises:
            NonFiniteError: as ``gradients``; nothing was changed.
        """
        groups, priorities, metrics = self.gradients(prepared)
        self.apply(groups)
        return Learned(priorities, metrics)

    # Weights and state

    def weights(self) -> dict[str, Array]:
        """The policy, and the critics and α, from which actors compute priorities: name -> float32 copy."""
        return self._parts.weights()

    def load(self, weights: Arrays) -> None:
        """Take a policy, critics and α.

        Raises:
            SpecError: the names or shapes are of other networks.
        """
        self._parts.load(weights)

    def state_dict(self) -> dict[str, Array]:
        """Parameters, targets, optimizers, counters and RNG as flat named arrays."""
        counters = {"updates": np.array(self.updates, np.int64), "rng": pack_generator(self._rng)}
        return self._parts.state_dict() | counters

    def load_state_dict(self, state: Arrays) -> None:
        """Go on exactly where ``state_dict`` was taken.

        Raises:
            SnapshotError: something is missing: the state is of another agent or optimizer.
            SpecError: arrays are of other networks.
        """
        self._parts.load_state_dict(state)
        self.updates = int(held(state, "updates"))
        self._rng = unpack_generator(held(state, "rng"))
