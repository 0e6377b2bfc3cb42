"""Soft actor-critic with two critics and a learned temperature (Haarnoja et al. 2018b, arXiv 1812.05905)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apexrl.agents.box_actions import ActionBox
from apexrl.agents.network_group import Parts
from apexrl.agents.rng_state import noise_generator, pack_generator, pack_noise, unpack_generator, unpack_noise
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
from apexrl.losses import critics_loss, policy_loss, soft_target
from apexrl.networks.actor_critic import Critics, Policy
from apexrl.networks.squashed_gaussian import gaussian, squash
from apexrl.protocols import Acted, Arrays, Learned, Sampled, State
from apexrl.spec import Array, EnvSpec, Field

CRITICS = 2  # the smaller of two values counts (Fujimoto et al. 2018, section 4.2)


class SAC:
    """Acts by sampling from its policy; learns it, its critics and α from transitions.

    All gradients of an update are taken at the same parameters and applied together, as in the authors' code and in
    TorchRL's (SB3 and CleanRL let the critics step first): a batch that is not finite changes nothing.

    Entropies are of actions in −1 … 1, as in SB3; those of the environment's units differ by a constant.

    Args:
        spec: the environment; its actions must be a box with finite bounds.
        config: the learning rule.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the networks' first weights, of exploration and of the learner's samples from the policy.

    Raises:
        AgentError: the actions are no such box.
        ConfigError: a temperature is not positive.
    """

    _targets = True  # a copy of the critics follows them

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._config = config
        self._device = torch.device(device)
        self._box = ActionBox(spec.action, config.agent)
        self._rng = np.random.default_rng(np.random.SeedSequence([seed, 1]))
        self._noise = noise_generator(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's alone, where layers are made
            policy, critics = self._networks(spec)
        self._policy = Trained("policy", policy.to(self._device), config, config.policy_learning_rate)
        self._critics = Trained("critics", critics.to(self._device), config, target=self._targets)
        entropy = -float(self._box.size) if config.target_entropy is None else config.target_entropy
        self._temperature = Temperature(config, entropy, self._device)
        self.networks: dict[str, Trained[Any]] = {
            "policy": self._policy,
            "critics": self._critics,
            "temperature": self._temperature.trained,
        }
        self._parts = Parts(*self.networks.values())
        self.updates = 0  # learner updates made

    def _networks(self, spec: EnvSpec) -> tuple[nn.Module, nn.Module]:
        config = self._config
        policy = Policy(spec, config.hidden, 2 * self._box.size, config.image_units, config.network)
        hidden = config.critic_hidden or config.hidden
        return policy, Critics(spec, hidden, CRITICS, 1, config.image_units, config.network)

    @property
    def step_spec(self) -> dict[str, Field]:
        """Nothing is recorded: priorities take a pass of the critics."""
        return {}

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Actions in the environment's units, float32 [B, *shape]: samples of the policy; greedy: tanh(μ).

        Where ``exploration`` [B] is infinite they are uniformly random. The policy explores by itself, so that no other
        value of it matters.
        """
        with torch.no_grad():
            mean, log_std = gaussian(self._policy.network(on_device(observations, self._device)))
            if greedy:
                return Acted(self._box.to_env(as_array(torch.tanh(mean))), {}, state)
            unit = as_array(squash(mean, log_std, self._acting_noise(mean))[0])
        random = np.isinf(exploration)
        if random.any():
            unit[random] = self._box.random(self._rng, int(random.sum()))
        return Acted(self._box.to_env(unit), {}, state)

    @torch.no_grad()
    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|δ| [N], the mean over both critics: one pass of the newest published ones over both states.

        Horgan et al. 2018, appendix D: an actor of box actions evaluates critics for this.
        """
        batch = fresh_transitions(items, self._device)
        mean, log_std = gaussian(self._policy.network(batch.next_observation))
        next_action, next_log_prob = squash(mean, log_std, self._acting_noise(mean))
        both = side_by_side(batch.observation, batch.next_observation)
        actions = torch.cat((self._box.to_unit(batch.action), next_action))
        q, next_q = self._critics.network(both, actions).squeeze(2).tensor_split(2, dim=1)
        delta = soft_target(batch.reward, batch.discount, next_q, next_log_prob, self._temperature.value) - q
        return as_array(delta.abs().mean(dim=0))

    def _acting_noise(self, like: Tensor) -> Tensor:
        return torch.from_numpy(self._rng.standard_normal(like.shape, np.float32)).to(self._device)

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
        noise = torch.randn(2, len(batch.reward), self._box.size, generator=self._noise).to(self._device)
        temperature = self._temperature.value

        with torch.no_grad():
            next_action, next_log_prob = squash(*gaussian(policy.network(batch.next_observation)), noise[1])
        q, next_q = self._values(batch, next_action)
        delta = soft_target(batch.reward, batch.discount, next_q, next_log_prob, temperature) - q
        loss = critics_loss(delta, batch.weights, config.huber)
        critics.differentiate(loss)
        priorities = as_array(delta.detach().abs().mean(dim=0))
        norm = critics.clip(config.gradient_clip, self.updates, priorities)
        groups = {"critics": critics.gradient}

        if (self.updates + 1) % config.policy_period_updates == 0:
            action, log_prob = squash(*gaussian(self._policy_output(batch)), noise[0])
            value = critics.network(batch.observation, action, frozen=True).squeeze(2)
            policy.differentiate(policy_loss(value, log_prob, temperature))
            policy.clip(config.gradient_clip, self.updates)
            groups |= {"policy": policy.gradient, "temperature": self._temperature.gradient(log_prob)}

        metrics: dict[str, float] = {}
        if self.updates % METRICS_PERIOD_UPDATES == 0:
            metrics = {
                "loss": float(loss.detach()),
                "priority": float(priorities.mean()),
                "q": float(q.detach().mean()),
                "gradient_norm": norm,
                "temperature": float(temperature),
                "entropy": -float(next_log_prob.mean()),
            }
        return Gradients(groups, priorities, metrics)

    def _values(self, batch: Transitions, next_action: Tensor) -> tuple[Tensor, Tensor]:
        """Q(s, a) to be differentiated, and Q⁻(s', a') not to be, each [2, B]."""
        q = self._critics.network(batch.observation, self._box.to_unit(batch.action))
        with torch.no_grad():
            next_q = self._critics.target(batch.next_observation, next_action)
        return q.squeeze(2), next_q.squeeze(2)

    def _policy_output(self, batch: Transitions) -> Tensor:
        """μ and log σ at s, [B, 2d], to be differentiated."""
        output: Tensor = self._policy.network(batch.observation)
        return output

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """One step of each optimizer whose group is there. Target critics move a little with every step of the policy,
        or are copied every ``target_period_updates``."""
        self._critics.step(groups["critics"])
        self.updates += 1
        if "policy" in groups:
            self._policy.step(groups["policy"])
            self._temperature.step(groups["temperature"])
        if "policy" in groups or not self._config.polyak:
            self._follow()

    def _follow(self) -> None:
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
        """Parameters, targets, optimizers, counters and RNGs as flat named arrays."""
        return self._parts.state_dict() | {
            "updates": np.array(self.updates, np.int64),
            "rng": pack_generator(self._rng),
            "noise": pack_noise(self._noise),
        }

    def load_state_dict(self, state: Arrays) -> None:
        """Go on exactly where ``state_dict`` was taken.

        Raises:
            SnapshotError: something is missing: the state is of another agent or optimizer.
            SpecError: arrays are of other networks.
        """
        self._parts.load_state_dict(state)
        self.updates = int(held(state, "updates"))
        self._rng = unpack_generator(held(state, "rng"))
        self._noise = unpack_noise(held(state, "noise"))
