"""Soft actor-critic with two critics and a learned temperature (Haarnoja et al. 2018b, arXiv 1812.05905)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apexrl.agents import memory, soft_update, trained_agent
from apexrl.agents.acting_noise import ActingNoise
from apexrl.agents.box_actions import ActionBox
from apexrl.agents.cuda_graphs import cuda_graphs
from apexrl.agents.decision import Decision
from apexrl.agents.discrete_actions import Choices
from apexrl.agents.hybrid_actions import HybridActions, choices_of, numbers_of
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import RandomGenerator, acting_generator, noise_generator, seeded_layers
from apexrl.agents.sequence_steps import item_priorities
from apexrl.agents.soft_update import CriticLoss, PolicyLoss
from apexrl.agents.temperature import Temperature
from apexrl.agents.trained_network import Gradients, Trained
from apexrl.agents.transition_batch import Observation, Transitions, as_array, on_device, side_by_side, to_device
from apexrl.config import AgentConfig
from apexrl.losses import critics_loss, policy_loss, soft_target, soft_value
from apexrl.networks.actor_critic import Critics, Policy
from apexrl.networks.distributions import Categorical, normal_share, uniform
from apexrl.networks.ensemble import Ensemble
from apexrl.networks.memory import MemoryChoice
from apexrl.networks.recall import Present
from apexrl.networks.squashed_gaussian import gaussian, squash
from apexrl.protocols import Acted, Arrays, State
from apexrl.spec import Array, EnvSpec, Field

ENTROPY_SHARE = 0.89  # of the greatest entropy of choices, as of discrete SAC
CRITICS = 2  # the smaller of two values counts (Fujimoto et al. 2018, section 4.2)


class SAC:
    """Acts by sampling from its policy; learns it, its critics and α from transitions.

    All gradients of an update are taken at the same parameters and applied together, as in the authors' code and in
    TorchRL's (SB3 and CleanRL let the critics step first): a batch that is not finite changes nothing.

    Entropies are of actions in −1 … 1, as in SB3; those of the environment's units differ by a constant.

    Args:
        spec: the environment; its actions must be a box with finite bounds, or hybrid (``HybridSAC``).
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the networks' first weights, of exploration and of the learner's samples from the policy.

    Raises:
        AgentError: the actions are no such box.
        ConfigError: a temperature is not positive.
    """

    def __new__(cls, spec: EnvSpec, *rest: Any, **others: Any) -> SAC:
        """Of hybrid actions it is ``HybridSAC``."""
        return super().__new__(HybridSAC if cls is SAC and spec.action.hybrid else cls)

    recordable = True
    _targets = True  # a copy of the critics follows them
    _remembers = True  # what it saw before, where --memory asks for it
    _trained: type[Trained[Any]] = Trained  # of policy and critics
    _entropy_of_action = -1.0  # that a learned temperature aims at, of each number of an action: nats

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._config = config
        self._device = torch.device(device)
        self._box = ActionBox(spec.action, config.agent)
        self.policy_noise = ActingNoise(self._box.size, config.pink_noise)
        self._rng = acting_generator(seed)
        self._noise = noise_generator(seed)
        with seeded_layers(seed):
            policy, critics = self._networks(spec)
        self._policy = self._trained("policy", policy.to(self._device), config, config.policy_learning_rate)
        self._critics = self._trained("critics", critics.to(self._device), config, target=self._targets)
        by_size = self._entropy_of_action * self._box.size
        entropy = by_size if config.target_entropy is None else config.target_entropy
        self._temperature = Temperature(config, entropy, self._device)
        self._normalizer = Normalizer(spec, config, self._device)
        self._memory = memory.memory_of(config, self._device, self._policy.network, self._critics.network)
        self.item = self._memory.item
        self.networks: dict[str, Trained[Any]] = {
            "policy": self._policy,
            "critics": self._critics,
            "temperature": self._temperature.trained,
            **self._normalizer.networks,
        }
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng, "noise": self._noise}
        self._graphs = cuda_graphs(self)
        self.updates = 0  # learner updates made

    def _networks(self, spec: EnvSpec) -> tuple[nn.Module, nn.Module]:
        return self._policy_of(spec), self._critics_of(spec, CRITICS)

    def _policy_of(self, spec: EnvSpec, choices: int = 0) -> Policy:
        """A policy that is an MLP, with a μ and a log σ for each number behind the logits of ``choices``."""
        config, outputs = self._config, choices + 2 * self._box.size
        return Policy(spec, config.hidden, outputs, config.image_units, config.network, memory=self._memory_choice)

    def _critics_of(
        self, spec: EnvSpec, count: int, outputs: int = 1, layers: Callable[..., nn.Module] = Ensemble
    ) -> Critics:
        """So many critics of as many ``outputs`` each, made by ``layers``."""
        config = self._config
        hidden, chosen = config.critic_hidden or config.hidden, self._memory_choice
        return Critics(spec, hidden, count, outputs, config.image_units, config.network, layers, chosen)

    @property
    def _memory_choice(self) -> MemoryChoice | None:
        return memory.memory_choice(self._config) if self._remembers else None

    # What agents that are made of this one have otherwise

    def values(self, answers: Tensor) -> Tensor:
        """Q [K, B], of the critics' answers [K, B, O]."""
        return answers.squeeze(2)

    def judged(self, q: Tensor) -> Tensor:
        """The value that the policy climbs, [B], of all critics' [K, B]: the smaller one."""
        return q.amin(dim=0)

    def errors(self, batch: Transitions, now: Tensor, later: Tensor, next_log_prob: Tensor) -> Tensor:
        """Priorities [B], |δ|, from the critics' answers, [K, B, O], on (s, a) and on (s', a')."""
        target = soft_target(batch.reward, batch.discount, later.squeeze(2), next_log_prob, self._temperature.value)
        return (target - now.squeeze(2)).abs().mean(dim=0)

    @property
    def step_spec(self) -> dict[str, Field]:
        """Nothing is recorded but states of memories: priorities take a pass of the critics."""
        return self._memory.fields

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Actions in the environment's units, float32 [B, *shape]: samples of the policy; greedy: tanh(μ).

        Where ``exploration`` [B] is infinite they are uniformly random. The policy explores by itself, so that no other
        value of it matters.
        """
        with torch.no_grad():
            scaled = self._normalizer.observation(on_device(observations, self._device))
            seen = self._memory.now(scaled, state)
            mean, log_std = gaussian(self._policy.network(seen))
            if greedy:
                return self._memory.acted(self._box.to_env(as_array(torch.tanh(mean))), {}, seen, state, greedy)
            noise, state = self.policy_noise.normal(len(mean), state, self._rng)
            unit = as_array(squash(mean, log_std, torch.from_numpy(noise).to(self._device))[0])
        random = np.isinf(exploration)
        if random.any():
            unit[random] = self.policy_noise.random(noise[random], self._rng)
        return self._memory.acted(self._box.to_env(unit), {}, seen, state, greedy)

    def decide(self, observation: Observation, state: Mapping[str, Tensor], noise: Tensor | None = None) -> Decision:
        """The action of raw observations, drawn by ``noise`` or greedy, in PyTorch alone; see ``Draws``."""
        seen = Present(self._normalizer.observation(observation), state)
        mean, log_std = gaussian(self._policy.network(seen))
        unit = torch.tanh(mean) if noise is None else squash(mean, log_std, noise)[0]
        return Decision(self._box.to_env_tensor(unit), seen.after)

    @torch.no_grad()
    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """Q(s, tanh(μ)) [B] of episodes' first observations, as ``judged``; it counts later entropy besides rewards."""
        scaled = self._normalizer.observation(on_device(observations, self._device))
        seen = self._memory.now(scaled, None)
        action = torch.tanh(gaussian(self._policy.network(seen))[0])
        return as_array(self.judged(self.values(self._critics.network(seen, action))) * self._normalizer.unit)

    @torch.no_grad()
    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|δ| [N], the mean over the critics: one pass of the newest published ones over both states.

        Horgan et al. 2018, appendix D: an actor of box actions evaluates critics for this.
        """
        batch = self._normalizer.transitions(self._memory.fresh(items))
        mean, log_std = gaussian(self._policy.network(batch.next_observation))
        next_action, next_log_prob = squash(mean, log_std, self._white(mean))
        both = side_by_side(batch.observation, batch.next_observation)
        actions = torch.cat((self._box.to_unit(batch.action), next_action))
        now, later = self._critics.network(both, actions).tensor_split(2, dim=1)
        errors = self.errors(batch, now, later, next_log_prob)
        return as_array(item_priorities(batch, errors, self._config.priority_eta))

    def _white(self, like: Tensor) -> Tensor:
        return torch.from_numpy(self._rng.standard_normal(like.shape, np.float32)).to(self._device)

    # Learning

    prepare = memory.prepare

    def critic_loss(self, batch: Transitions, noise: Tensor) -> CriticLoss:
        """Σ_k mean(w·L(y − Q_k(s, a))) with y = R + d·(min_k Q⁻_k(s', a') − α·log π(a'|s')).

        Args:
            noise: [B, d] standard normal, of which the policy makes a'.
        """
        next_action, next_log_prob = self._next_action(batch, noise)
        q, next_q = (answers.squeeze(2) for answers in self._answers(batch, next_action))  # [2, B]
        target = soft_target(batch.reward, batch.discount, next_q, next_log_prob, self._temperature.value)  # [B]
        delta = target - q
        loss = critics_loss(delta, batch.weights, self._config.huber)
        return CriticLoss(loss, delta.detach().abs().mean(dim=0), q, next_log_prob)

    def policy_loss(self, batch: Transitions, noise: Tensor) -> PolicyLoss:
        """mean(α·log π(a|s) − Q(s, a)), where Q is as ``judged``: min_k Q_k.

        Args:
            noise: [B, d] standard normal, of which the policy makes a.
        """
        action, log_prob = squash(*gaussian(self._policy_output(batch)), noise)
        q = self.judged(self.values(self._climbed(batch, action)))
        return PolicyLoss(policy_loss(q, log_prob, self._temperature.value), log_prob)

    def gradients(self, batch: Transitions) -> Gradients:
        """Clipped gradients of the losses above and of the temperature's: see ``soft_update.gradients``."""
        return soft_update.gradients(self, batch, self._losses, self._draw)

    def _losses(self, batch: Transitions, noise: Tensor) -> tuple[CriticLoss, Callable[[], PolicyLoss]]:
        return self.critic_loss(batch, noise[1]), lambda: self.policy_loss(batch, noise[0])

    def _draw(self, rows: int) -> tuple[Tensor]:
        """Standard normal numbers for both losses, [2, rows, d]."""
        return (to_device(torch.randn(2, rows, self._box.size, generator=self._noise), self._device),)

    @torch.no_grad()
    def _next_action(self, batch: Transitions, noise: Tensor) -> tuple[Tensor, Tensor]:
        """a' [B, d], drawn at s' by ``noise`` [B, d], and log π(a'|s') [B]."""
        return squash(*gaussian(self._policy.network(batch.next_observation)), noise)

    def _answers(self, batch: Transitions, next_action: Tensor) -> tuple[Tensor, Tensor]:
        """The critics' answers at (s, a), to be differentiated, and the targets' at (s', a'), each [K, B, O]."""
        now = self._critics.network(batch.observation, self._box.to_unit(batch.action))
        with torch.no_grad():
            return now, self._critics.target(batch.next_observation, next_action)

    def _climbed(self, batch: Transitions, action: Tensor) -> Tensor:
        """The critics' answers at (s, a), [K, B, O], to be differentiated by a alone."""
        answers: Tensor = self._critics.network(batch.observation, action, frozen=True)
        return answers

    def _policy_output(self, batch: Transitions) -> Tensor:
        """μ and log σ at s, [B, 2d], to be differentiated."""
        output: Tensor = self._policy.network(batch.observation)
        return output

    apply = soft_update.apply

    update, weights, load = trained_agent.update, trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal, horizon = trained_agent.anneal, trained_agent.horizon


class HybridSAC(SAC):
    """SAC of choices and numbers at once (Delalleau et al. 2019, Discrete and Continuous Action Representation for
    Practical RL in Video Games, arXiv 1912.11077, section 3).

    The policy has a softmax for every choice and a squashed Gaussian for the numbers, independent of each other in one
    state. Critics take the numbers and have a value for each combination of choices: over these the losses take
    expectations, as discrete SAC does, and numbers are drawn. Each half has a temperature of its own:
    ``target_entropy`` is that of the numbers, and choices have 0.89 of their greatest entropy.

    Args:
        spec: the environment; its actions are hybrid, with finite bounds and at most 4096 combinations of choices.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._hybrid = HybridActions(spec.action, config.agent)
        self._choices = Choices(choices_of(spec), config.agent)
        self._softmax = Categorical(self._hybrid.nvec, vector=True)
        super().__init__(replace(spec, action=numbers_of(spec.action)), config, device, seed)
        self.policy_noise = ActingNoise(self._hybrid.size, config.pink_noise)
        greatest = math.log(self._choices.n)
        self._choice_temperature = Temperature(config, ENTROPY_SHARE * greatest, self._device, "choice_temperature")
        self.networks["choice_temperature"] = self._choice_temperature.trained
        self._choice_log_prob: Tensor | None = None  # expected by the last policy's loss, [B]

    def _networks(self, spec: EnvSpec) -> tuple[nn.Module, nn.Module]:
        return self._policy_of(spec, self._softmax.outputs), self._critics_of(spec, CRITICS, self._choices.n)

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Choices and numbers in the environment's units, float32 [B, k + d]: as of ``SAC``."""
        k = self._hybrid.choices
        with torch.no_grad():
            seen = self._memory.now(self._normalizer.observation(on_device(observations, self._device)), state)
            logits, (mean, log_std) = self._split(self._policy.network(seen))
            if greedy:
                unit, chosen = as_array(torch.tanh(mean)), self._softmax.mode(as_array(logits))
                return self._memory.acted(self._joined(chosen, unit), {}, seen, state, greedy)
            noise, state = self.policy_noise.normal(len(mean), state, self._rng)
            unit = as_array(squash(mean, log_std, torch.from_numpy(noise[:, k:]).to(self._device))[0])
        random = np.isinf(exploration)
        if random.any():
            unit[random] = self.policy_noise.random(noise[random], self._rng)[:, k:]
        said = np.where(random[:, None], np.float32(0), as_array(logits))
        drawn = self._softmax.drawn(said, uniform(noise[:, :k])).action
        return self._memory.acted(self._joined(drawn, unit), {}, seen, state, greedy)

    def decide(self, observation: Observation, state: Mapping[str, Tensor], noise: Tensor | None = None) -> Decision:
        """As of ``SAC``."""
        k = self._hybrid.choices
        seen = Present(self._normalizer.observation(observation), state)
        logits, (mean, log_std) = self._split(self._policy.network(seen))
        if noise is None:
            chosen, unit = self._softmax.chosen(logits, None), torch.tanh(mean)
        else:
            chosen = self._softmax.chosen(logits, normal_share(noise[:, :k]))
            unit = squash(mean, log_std, noise[:, k:])[0]
        return Decision(self._hybrid.to_env_tensor(torch.cat((chosen.float(), unit), dim=1)), seen.after)

    @torch.no_grad()
    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """The smaller Q [B] of the likeliest choices and tanh(μ) at episodes' first observations."""
        seen = self._memory.now(self._normalizer.observation(on_device(observations, self._device)), None)
        logits, (mean, _) = self._split(self._policy.network(seen))
        index = self._choices.index(self._softmax.chosen(logits, None))
        values = self._critics.network(seen, torch.tanh(mean)).amin(dim=0)
        return as_array(values.gather(1, index[:, None]).squeeze(1) * self._normalizer.unit)

    @torch.no_grad()
    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """As of ``SAC``."""
        batch = self._normalizer.transitions(self._memory.fresh(items))
        log_probs, next_action, next_log_prob = self._drawn(batch.next_observation, self._white)
        both = side_by_side(batch.observation, batch.next_observation)
        numbers = torch.cat((self._numbers(batch.action), next_action))
        now, later = self._critics.network(both, numbers).tensor_split(2, dim=1)
        target = self._target(batch, later, log_probs, next_log_prob)
        errors = (target - self._taken(now, batch.action)).abs().mean(dim=0)
        return as_array(item_priorities(batch, errors, self._config.priority_eta))

    # Learning

    def critic_loss(self, batch: Transitions, noise: Tensor) -> CriticLoss:
        """Σ_k mean(w·L(y − Q_k(s, a))) with y = R + d·(Σ_j π(j|s')·(min_k Q⁻_k(s', a', j) − α_c·log π(j|s')) −
        α·log π(a'|s')), of choices j and numbers a'.
        """
        with torch.no_grad():
            log_probs, next_action, next_log_prob = self._drawn(batch.next_observation, lambda mean: noise)
            later = self._critics.target(batch.next_observation, next_action)
            target = self._target(batch, later, log_probs, next_log_prob)
        q = self._taken(self._critics.network(batch.observation, self._numbers(batch.action)), batch.action)
        delta = target - q
        loss = critics_loss(delta, batch.weights, self._config.huber)
        drawn = next_log_prob + (log_probs.exp() * log_probs).sum(dim=1)
        return CriticLoss(loss, delta.detach().abs().mean(dim=0), q, drawn)

    def policy_loss(self, batch: Transitions, noise: Tensor) -> PolicyLoss:
        """mean(α·log π(a|s) − Σ_j π(j|s)·(min_k Q_k(s, a, j) − α_c·log π(j|s))), of choices j and numbers a."""
        log_probs, action, log_prob = self._drawn(batch.observation, lambda mean: noise)
        value = soft_value(self._climbed(batch, action), log_probs, self._choice_temperature.value)
        self._choice_log_prob = (log_probs.exp() * log_probs).sum(dim=1).detach()
        return PolicyLoss((self._temperature.value * log_prob - value).mean(), log_prob)

    def gradients(self, batch: Transitions) -> Gradients:
        """As of ``SAC``, with the choices' temperature."""
        found = super().gradients(batch)
        if "policy" in found.groups and self._choice_log_prob is not None:
            own = {"choice_temperature": self._choice_temperature.gradient(self._choice_log_prob)}
            found = found._replace(groups={**found.groups, **own})
        return found

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """As of ``SAC``, with the choices' temperature."""
        soft_update.apply(self, groups)
        if "choice_temperature" in groups:
            self._choice_temperature.step(groups["choice_temperature"])

    def _drawn(self, observation: Observation, noise: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """log π [B, n] of all combinations of choices, unit numbers [B, d], and log π [B] of these."""
        logits, (mean, log_std) = self._split(self._policy.network(observation))
        return self._softmax.log_probs(logits), *squash(mean, log_std, noise(mean))

    def _target(self, batch: Transitions, later: Tensor, log_probs: Tensor, next_log_prob: Tensor) -> Tensor:
        """y [B] of the critics' answers at (s', a'), [K, B, n]."""
        value = soft_value(later, log_probs, self._choice_temperature.value) - self._temperature.value * next_log_prob
        return torch.addcmul(batch.reward, batch.discount, value)

    def _split(self, output: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits of all choices, and μ and log σ."""
        return output[:, : self._softmax.outputs], gaussian(output[:, self._softmax.outputs :])

    def _joined(self, chosen: Array, unit: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._hybrid.to_env(np.concatenate((chosen.astype(np.float32), unit), axis=1))

    def _numbers(self, action: Tensor) -> Tensor:
        """The numbers of the environment's actions, [B, d] in −1 … 1."""
        return self._box.to_unit(action[:, self._hybrid.choices :])

    def _taken(self, answers: Tensor, action: Tensor) -> Tensor:
        """Q(s, a) [K, B] of the answers [K, B, n]."""
        index = self._choices.index(action[:, : self._hybrid.choices].long()).expand(answers.shape[:2])
        return answers.gather(2, index.unsqueeze(2)).squeeze(2)
