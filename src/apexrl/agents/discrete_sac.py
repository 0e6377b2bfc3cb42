"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv 1910.07207)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents import memory, soft_update, trained_agent
from apexrl.agents.acting_noise import ActingNoise
from apexrl.agents.cuda_graphs import cuda_graphs
from apexrl.agents.decision import Decision
from apexrl.agents.discrete_actions import Choices
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import RandomGenerator, acting_generator, seeded_layers
from apexrl.agents.sequence_steps import item_priorities
from apexrl.agents.soft_update import CriticLoss, PolicyLoss
from apexrl.agents.temperature import Temperature
from apexrl.agents.trained_network import Gradients, Trained
from apexrl.agents.transition_batch import (
    Observation,
    Transitions,
    as_array,
    on_device,
    side_by_side,
)
from apexrl.config import AgentConfig
from apexrl.losses import critics_loss, probabilities, soft_value
from apexrl.networks.action_value_critic import ActionValues
from apexrl.networks.actor_critic import Policy
from apexrl.networks.distributions import Categorical, log_softmax
from apexrl.networks.recall import Present
from apexrl.protocols import Acted, Arrays, State
from apexrl.spec import EnvSpec, Field

CRITICS = 2
ENTROPY_SHARE = 0.89  # of log n: the target entropy (CleanRL; Christodoulou's 0.98 is nearly uniform)


class DiscreteSAC:
    """Acts by sampling from a softmax policy; learns it, two critics and α.

    Where SAC samples an action to learn from, this takes the expectation over all.

    All gradients of an update are taken at the same parameters and applied together: a batch that is not finite
    changes nothing.

    Args:
        spec: the environment; its actions must be Discrete or MultiDiscrete.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the networks' first weights and of exploration.

    Raises:
        AgentError: the actions are a box, or too many.
        ConfigError: a temperature is not positive.
    """

    recordable = True

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._config = config
        self._device = torch.device(device)
        self._choices = Choices(spec, config.agent)
        self._softmax = Categorical((self._choices.n,), vector=False)
        self.policy_noise = ActingNoise(1, config.pink_noise, kind="uniform")
        self._rng = acting_generator(seed)
        n, hidden = self._choices.n, config.critic_hidden or config.hidden
        chosen = memory.memory_choice(config)
        with seeded_layers(seed):
            policy = Policy(spec, config.hidden, n, config.image_units, config.network, memory=chosen)
            critics = ActionValues(spec, hidden, CRITICS, n, config.image_units, config.network, chosen)
        self._policy = Trained("policy", policy.to(self._device), config, config.policy_learning_rate)
        self._critics = Trained("critics", critics.to(self._device), config, target=True)
        entropy = ENTROPY_SHARE * math.log(n) if config.target_entropy is None else config.target_entropy
        self._target_entropy = entropy
        self._temperature = Temperature(config, entropy, self._device)
        self._normalizer = Normalizer(spec, config, self._device)
        self._memory = memory.memory_of(config, self._device, policy, critics)
        self.item = self._memory.item
        self.networks: dict[str, Trained[Any]] = {
            "policy": self._policy,
            "critics": self._critics,
            "temperature": self._temperature.trained,
            **self._normalizer.networks,
        }
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng}
        self._graphs = cuda_graphs(self)
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """Nothing is recorded but states of memories: priorities take a pass of the critics."""
        return self._memory.fields

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Samples of the policy, int64 [B] or [B, k]; greedy: the likeliest action.

        Where ``exploration`` [B] is infinite they are uniformly random. The policy explores by itself, so that no other
        value of it matters.
        """
        with torch.no_grad():
            shown = on_device(self._choices.masks.networks_see(observations), self._device)
            seen = self._memory.now(self._normalizer.observation(shown), state)
            logits = as_array(self._policy.network(seen))
            if not greedy:
                logits = np.where(np.isinf(exploration)[:, None], np.float32(0.0), logits)
            logits = self._choices.masks.acted(logits, observations)
        if greedy:
            index = self._softmax.mode(logits)
        else:
            noise, state = self.policy_noise.uniform(len(logits), state, self._rng)
            index = self._softmax.drawn(logits, noise).action
        actions = self._choices.to_env(cast("NDArray[np.int64]", index))
        return self._memory.acted(actions, {}, seen, state, greedy)

    def decide(self, observation: Observation, state: Mapping[str, Tensor], noise: Tensor | None = None) -> Decision:
        """The action of raw observations, drawn by ``noise`` or greedy, in PyTorch alone; see ``Draws``."""
        seen = Present(self._normalizer.observation(observation), state)
        logits = self._logits(seen)
        return Decision(self._choices.to_env_tensor(self._softmax.chosen(logits, noise)), seen.after)

    @torch.no_grad()
    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """The smaller Q [B] of the likeliest action at episodes' first observations; it counts later entropy besides
        rewards."""
        scaled = self._normalizer.observation(on_device(observations, self._device))
        seen = self._memory.now(scaled, None)
        action = self._logits(seen).argmax(dim=1)
        value = self._critics.network(seen).amin(dim=0).gather(1, action[:, None]).squeeze(1)
        return as_array(value * self._normalizer.unit)

    @torch.no_grad()
    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|δ| [N], the mean over both critics: one pass of the newest published ones over both states."""
        batch = self._normalizer.transitions(self._memory.fresh(items))
        both = side_by_side(batch.observation, batch.next_observation)
        q, next_q = self._critics.network(both).tensor_split(2, dim=1)
        log_probs = log_softmax(self._logits(batch.next_observation))
        value = soft_value(next_q, log_probs, self._temperature.value)
        delta = torch.addcmul(batch.reward, batch.discount, value) - self._taken(q, batch.action)
        errors = delta.abs().mean(dim=0)
        return as_array(item_priorities(batch, errors, self._config.priority_eta))

    # Learning

    prepare = memory.prepare

    def critic_loss(self, batch: Transitions, values: Tensor) -> CriticLoss:
        """Σ_k mean(w·L(y − Q_k(s, a))) with y = R + d·Σ_a' π(a'|s')·(min_k Q⁻_k(s', a') − α·log π(a'|s')).

        Args:
            values: Q_k(s, ·) [2, B, n], differentiable.
        """
        with torch.no_grad():
            log_probs = log_softmax(self._logits(batch.next_observation))  # [B, n]
            next_value = soft_value(self._critics.target(batch.next_observation), log_probs, self._temperature.value)
            target = torch.addcmul(batch.reward, batch.discount, next_value)  # [B]
        q = self._taken(values, batch.action)  # [2, B]
        delta = target - q
        loss = critics_loss(delta, batch.weights, self._config.huber)
        return CriticLoss(loss, delta.detach().abs().mean(dim=0), q, log_probs)

    def policy_loss(self, batch: Transitions, values: Tensor) -> PolicyLoss:
        """−mean(Σ_a π(a|s)·(min_k Q_k(s, a) − α·log π(a|s))).

        Args:
            values: Q_k(s, ·) [2, B, n], constant.
        """
        log_probs = log_softmax(self._logits(batch.observation))  # [B, n]
        loss = -soft_value(values, log_probs, self._temperature.value).mean()
        known = log_probs.detach()
        expected = (probabilities(known) * known).sum(dim=1)
        return PolicyLoss(loss, self._choices.masks.steered(expected, batch.observation, self._target_entropy))

    def gradients(self, batch: Transitions) -> Gradients:
        """Clipped gradients of the losses above and of the temperature's: see ``soft_update.gradients``."""
        return soft_update.gradients(self, batch, self._losses)

    def _losses(self, batch: Transitions) -> tuple[CriticLoss, Callable[[], PolicyLoss]]:
        values = self._critics.network(batch.observation)
        return self.critic_loss(batch, values), lambda: self.policy_loss(batch, values.detach())

    def _logits(self, observation: Observation) -> Tensor:
        """The policy's [B, n], ``LEAST`` where an action is not possible."""
        return self._choices.masks.values(self._policy.network(observation), observation)

    def _taken(self, values: Tensor, action: Tensor) -> Tensor:
        """Q(s, a) [K, B] of [K, B, n]."""
        index = self._choices.index(action).expand(values.shape[:2])
        return values.gather(2, index.unsqueeze(2)).squeeze(2)

    apply = soft_update.apply

    update, weights, load = trained_agent.update, trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal, horizon = trained_agent.anneal, trained_agent.horizon
