"""Behaviour cloning: a policy that does what was recorded (Bain and Sammut 1999; as in Fujimoto & Gu 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents import diagnostics, trained_agent
from apexrl.agents.acting_noise import ActingNoise
from apexrl.agents.box_actions import ActionBox
from apexrl.agents.decision import Decision
from apexrl.agents.discrete_actions import Choices
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import RandomGenerator, acting_generator, seeded_layers
from apexrl.agents.trained_network import Loss, Trained
from apexrl.agents.transition_batch import Observation, Transitions, as_array, fresh_transitions, on_device
from apexrl.config import AgentConfig
from apexrl.networks.actor_critic import Policy
from apexrl.networks.distributions import Categorical
from apexrl.protocols import Acted, Arrays, State
from apexrl.spec import EnvSpec, Field


class BehaviourCloning:
    """Supervised learning of the recorded actions: of boxes their squared distance from tanh of the network's output,
    in −1 … 1; of discrete ones their log-probability. Rewards mean nothing to it.

    Args:
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the network's first weights and of exploration.

    Raises:
        AgentError: the actions are a box without bounds, or too many.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        self._config = config
        self._device = torch.device(device)
        self._box = ActionBox(spec.action, config.agent) if spec.action.box else None
        self._choices = None if spec.action.box else Choices(spec, config.agent)
        self._rng = acting_generator(seed)
        outputs = self._box.size if self._box else cast("Choices", self._choices).n
        self._random = ActingNoise(outputs, pink=False)
        with seeded_layers(seed):
            policy = Policy(spec, config.hidden, outputs, config.image_units, config.network)
        self._network = Trained("policy", policy.to(self._device), config)
        self._normalizer = Normalizer(spec, config, self._device)
        self.networks: dict[str, Trained[Any]] = {"policy": self._network, **self._normalizer.networks}
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng}
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """Nothing is recorded."""
        return {}

    # Acting

    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """The likeliest action; of discrete ones, unless ``greedy``, one drawn by their probabilities.

        Where ``exploration`` [B] is infinite actions are uniformly random; no other value of it matters.
        """
        with torch.no_grad():
            output = self._output(self._normalizer.observation(on_device(observations, self._device))).cpu()
        random = np.isinf(exploration)
        if self._box is not None:
            unit = as_array(torch.tanh(output))
            if random.any() and not greedy:
                unit[random] = self._random.random(unit[random], self._rng)
            return Acted(self._box.to_env(unit), {}, state)
        choices = cast("Choices", self._choices)
        if not greedy:
            output = torch.where(torch.from_numpy(random)[:, None], 0.0, output)
        logits = choices.masks.acted(as_array(output), observations)
        if greedy:
            return Acted(choices.to_env(logits.argmax(axis=1)), {}, state)
        drawn = Categorical((choices.n,), vector=False).drawn(logits, self._rng.random((len(logits), 1)))
        return Acted(choices.to_env(cast("NDArray[np.int64]", drawn.action)), {}, state)

    def decide(self, observation: Observation, state: Mapping[str, Tensor]) -> Decision:
        """The likeliest action of raw observations, in PyTorch alone; see ``Decides``."""
        output = self._output(self._normalizer.observation(observation))
        if self._box is not None:
            return Decision(self._box.to_env_tensor(torch.tanh(output)), {})
        choices = cast("Choices", self._choices)
        return Decision(choices.to_env_tensor(choices.masks.values(output, observation).argmax(dim=1)), {})

    @torch.no_grad()
    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """How far the policy is from every recorded action, [N], as ``losses`` has it."""
        return as_array(self.losses(self._normalizer.transitions(fresh_transitions(items, self._device))))

    def _output(self, observation: Observation) -> Tensor:
        output: Tensor = self._network.network(observation)
        return output

    # Learning

    prepare = trained_agent.prepare

    def losses(self, batch: Transitions) -> Tensor:
        """Of every row, [B]: mean (tanh f(s) − a)² over an action's numbers, or −log softmax f(s)[a]."""
        output = self._output(batch.observation)
        if self._box is not None:
            return (torch.tanh(output) - self._box.to_unit(batch.action)).square().mean(dim=1)
        choices = cast("Choices", self._choices)
        logits = choices.masks.values(output, batch.observation)
        return torch.nn.functional.cross_entropy(logits, choices.index(batch.action), reduction="none")

    def loss(self, batch: Transitions) -> Loss:
        """mean(w·``losses``)."""
        losses = self.losses(batch)
        return Loss((batch.weights * losses).mean(), losses.detach(), losses)

    def _scaled(self, batch: Transitions) -> Transitions:
        return self._normalizer.transitions(batch)

    def _measure(self, losses: Tensor, batch: Transitions) -> diagnostics.Metrics:
        return {}

    _differentiated = trained_agent.differentiated

    def apply(self, groups: Mapping[str, Tensor]) -> None:
        """One step of the optimizer."""
        self._network.step(groups["policy"])
        self._normalizer.step(groups)
        self.updates += 1

    gradients = trained_agent.gradients
    update, weights, load = trained_agent.update, trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal = trained_agent.anneal
