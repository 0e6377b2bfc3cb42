"""The common part of DDPG, TD3 and D4PG: acting, priorities and the update. Each one's losses are in its own file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents import diagnostics, memory, trained_agent
from apexrl.agents.acting_noise import ActingNoise
from apexrl.agents.box_actions import ActionBox
from apexrl.agents.cuda_graphs import cuda_graphs, run
from apexrl.agents.decision import Decision
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import RandomGenerator, acting_generator, seeded_layers
from apexrl.agents.sequence_steps import item_priorities
from apexrl.agents.trained_network import METRICS_PERIOD_UPDATES, Gradients, Loss, Trained, as_returned
from apexrl.agents.transition_batch import (
    Observation,
    Transitions,
    as_array,
    on_device,
    side_by_side,
)
from apexrl.config import AgentConfig
from apexrl.networks.actor_critic import Critics, Policy
from apexrl.networks.recall import Present
from apexrl.protocols import Acted, Arrays, State
from apexrl.spec import EnvSpec, Field


class Deterministic(ABC):
    """A policy μ that names one action, and critics of it. Algorithms add ``errors``, and the two losses.

    Args:
        spec: the environment; its actions must be a box with finite bounds.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the networks' first weights and of exploration.
        critics: how many, K.
        outputs: numbers per critic, O: one value, or the atoms of a distribution.

    Raises:
        AgentError: the actions are no box, or have no bounds.
    """

    _policy_target = True  # a copy of the policy follows it

    def __init__(
        self, spec: EnvSpec, config: AgentConfig, device: str, seed: int, critics: int = 1, outputs: int = 1
    ) -> None:
        self._config = config
        self._device = torch.device(device)
        self._box = ActionBox(spec.action, config.agent)
        self._acting_noise = ActingNoise(self._box.size, config.pink_noise)
        self._rng = acting_generator(seed)
        chosen = memory.memory_choice(config)
        with seeded_layers(seed):
            policy = Policy(spec, config.hidden, self._box.size, config.image_units, config.network, memory=chosen)
            units = config.critic_hidden or config.hidden
            critic = Critics(spec, units, critics, outputs, config.image_units, config.network, memory=chosen)
        self._categorical = outputs > 1
        follows = self._policy_target
        self._policy = Trained("policy", policy.to(self._device), config, config.policy_learning_rate, target=follows)
        self._critic = Trained("critic", critic.to(self._device), config, target=True)
        self._normalizer = Normalizer(spec, config, self._device)
        self._memory = memory.memory_of(config, self._device, policy, critic)
        self.item = self._memory.item
        self.networks: dict[str, Trained[Any]] = {
            "policy": self._policy,
            "critic": self._critic,
            **self._normalizer.networks,
        }
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng}
        self._graphs = cuda_graphs(self)
        self._given: tuple[Tensor, ...] = ()  # drawn for the next ``critic_loss``, which else draws by itself
        self.updates = 0  # learner updates made: of the critics

    @property
    def step_spec(self) -> dict[str, Field]:
        """Nothing is recorded but what every step has, and states of memories."""
        return self._memory.fields

    # The algorithm's own part

    @abstractmethod
    def errors(self, batch: Transitions, now: Tensor, later: Tensor) -> Tensor:
        """Priorities [B] from the critics' answers, [K, B, O], on (s, a) and on (s', μ(s'))."""

    @abstractmethod
    def critic_loss(self, batch: Transitions) -> Loss:
        """The critics' loss."""

    @abstractmethod
    def policy_loss(self, batch: Transitions) -> Tensor:
        """The policy's loss, a scalar."""

    def _draw(self, rows: int) -> tuple[Tensor, ...]:
        """The random numbers of ``critic_loss`` for so many rows, if any."""
        return ()

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """μ(s) with Gaussian noise, white or pink, float32 [B, *shape] in the environment's units; greedy without.

        ``exploration`` [B] is σ of each environment, in half widths of the action's range; infinite: uniformly random.
        """
        with torch.no_grad():
            scaled = self._normalizer.observation(on_device(observations, self._device))
            seen = self._memory.now(scaled, state)
            unit = as_array(self._mu(self._policy.network, seen))
        if not greedy:
            unit, state = self._acting_noise.explored(unit, exploration, state, self._rng)
        return self._memory.acted(self._box.to_env(unit), {}, seen, state, greedy)

    def decide(self, observation: Observation, state: Mapping[str, Tensor]) -> Decision:
        """The greedy action of raw observations, in PyTorch alone; see ``Decides``."""
        seen = Present(self._normalizer.observation(observation), state)
        unit = self._mu(self._policy.network, seen)
        return Decision(self._box.to_env_tensor(unit), seen.after)

    @torch.no_grad()
    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """Q(s, μ(s)) [B] of episodes' first observations, the least of the critics'."""
        scaled = self._normalizer.observation(on_device(observations, self._device))
        seen = self._memory.now(scaled, None)
        answers = self._critic.network(seen, self._mu(self._policy.network, seen))  # [K, B, O]
        return as_array(self.values(answers).amin(dim=0) * self._normalizer.unit)

    def values(self, answers: Tensor) -> Tensor:
        """Q [K, B], of the critics' answers [K, B, O]."""
        return answers.squeeze(2)

    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """The priorities [N] that ``update`` would write back if the acting networks were the targets, without noise.

        One pass of the policy and one of the critics over all of them (Horgan et al. 2018, appendix D).
        """
        batch = self._normalizer.transitions(self._memory.fresh(items))
        with torch.no_grad():
            later = self._mu(self._policy.network, batch.next_observation)
            answers = self._critic.network(
                side_by_side(batch.observation, batch.next_observation),
                torch.cat((self._box.to_unit(batch.action), later)),
            )
            now, then = answers.tensor_split(2, dim=1)
            return as_array(item_priorities(batch, self.errors(batch, now, then), self._config.priority_eta))

    # Learning

    prepare = memory.prepare

    def gradients(self, batch: Transitions) -> Gradients:
        """Clipped gradients of the ``critic`` and, every ``policy_period_updates``, of the ``policy``, both at the same
        parameters (D4PG, algorithm 1); and how wrong the critics were, row by row.

        Raises:
            NonFiniteError: a TD error or a gradient is NaN or infinite; parameters are as before.
        """
        policy, critic, normalizer = self._policy, self._critic, self._normalizer
        statistics = normalizer.groups(batch, self.updates)
        measured = self.updates % METRICS_PERIOD_UPDATES == 0
        moves = (self.updates + 1) % self._config.policy_period_updates == 0  # the policy
        units = diagnostics.DeadUnits(measured)
        graphs = None if measured else self._graphs

        def passes(given: Transitions, *drawn: Tensor) -> Loss:
            seen = normalizer.transitions(given)
            self._given = drawn
            with units:
                found = as_returned(Loss, self.critic_loss(seen), "critic_loss")
            self._given = ()
            critic.differentiate(found.loss)
            if moves:
                policy.differentiate(self.policy_loss(seen))
            return found._replace(priorities=item_priorities(seen, found.priorities, self._config.priority_eta))

        drawn = () if graphs is None else self._draw(len(batch.weights))
        found = run(graphs, passes, batch, *drawn, variant=moves)
        priorities = as_array(found.priorities)
        norm = critic.clip(self.updates, priorities)
        groups = {"critic": critic.gradient, **statistics}
        if moves:
            policy.clip(self.updates)
            groups["policy"] = policy.gradient
        metrics: dict[str, float] = {}
        if measured:
            seen = normalizer.transitions(batch)
            metrics = {
                "loss": float(found.loss.detach()),
                "priority": float(priorities.mean()),
                "q": float(found.q.detach().mean()) * normalizer.unit,
                "gradient_norm": norm,
                **diagnostics.of_weighted(seen, self.networks, units),
            }
            if self._categorical:
                actions = self._box.to_unit(seen.action)
                metrics |= diagnostics.of_support(critic.network, seen.observation, actions)
        return Gradients(groups, priorities, metrics)

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """One step of each optimizer whose group is there. Targets move a little with every step of the policy, or are
        copied every ``target_period_updates``."""
        self._critic.step(groups["critic"])
        self._normalizer.step(groups)
        self.updates += 1
        if "policy" in groups:
            self._policy.step(groups["policy"])
        if "policy" in groups or not self._config.polyak:
            self._policy.follow(self.updates)
            self._critic.follow(self.updates)

    update, weights, load = trained_agent.update, trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal, horizon = trained_agent.anneal, trained_agent.horizon

    @staticmethod
    def _mu(policy: Policy, observation: Observation) -> Tensor:
        """μ(s), in −1 … 1, [B, d]."""
        return torch.tanh(policy(observation))
