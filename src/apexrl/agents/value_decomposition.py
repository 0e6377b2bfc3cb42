"""VDN and QMIX: Q-learning of a team, whose value is made up of its agents' values of their own actions.

Sunehag et al. 2018 (arXiv 1706.05296) add them; Rashid et al. 2018 (arXiv 1803.11485) mix them by a network that grows
with each and sees the state. Each agent acts greedily on its own values, which is then greedy for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl.agents import diagnostics, memory, trained_agent
from apexrl.agents.action_masks import LEAST, Observation, random_possible
from apexrl.agents.decision import Decision
from apexrl.agents.layer_choice import layer_choice
from apexrl.agents.normalizer import Normalizer
from apexrl.agents.rng_state import RandomGenerator, acting_generator, seeded_layers
from apexrl.agents.sequence_steps import item_priorities
from apexrl.agents.trained_network import Loss, Trained
from apexrl.agents.transition_batch import Transitions, as_array, on_device
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.losses import huber_loss
from apexrl.networks.recall import Present
from apexrl.networks.team_values import TeamValues
from apexrl.protocols import Acted, Arrays, State
from apexrl.spec import ACTION_MASK, EnvSpec, Field


class ValueDecomposition:
    """Acts ε-greedily on every agent's own values, and learns from transitions of all of them at once.

    In comments B is the batch, k the number of agents, n that of actions of the agent with the most.

    Args:
        spec: of a team (``envs.team``); of another environment every one of several choices is an agent.
        device: of PyTorch, ``"cpu"`` or ``"cuda…"``.
        seed: of the network's first weights and of exploration.

    Raises:
        AgentError: the actions are a box.
    """

    def __init__(self, spec: EnvSpec, config: AgentConfig, device: str = "cpu", seed: int = 0) -> None:
        action = spec.action
        if action.box or action.hybrid:
            raise AgentError(
                f"{config.agent} is for discrete actions, but this environment takes {action.words}; use an agent for "
                "those, such as sac or ppo: apexrl list agents"
            )
        self._config, self._spec = config, spec
        self._device = torch.device(device)
        self._rng = acting_generator(seed)
        self._nvec = action.choices
        n = max(self._nvec)
        self._exists = np.arange(n) < np.array(self._nvec)[:, None]  # [k, n]
        places = np.cumsum((0, *self._nvec[:-1]))[:, None] + np.minimum(np.arange(n), np.array(self._nvec)[:, None] - 1)
        self._places = places  # in a mask, [k, n]
        with seeded_layers(seed):
            network = TeamValues(
                spec,
                config.hidden,
                config.mixer,
                config.mixing_units,
                config.image_units,
                config.network,
                layer_choice(config),
                memory.memory_choice(config),
            ).to(self._device)
        self._network = Trained("", network, config, target=True)
        self._normalizer = Normalizer(spec, config, self._device)
        self._memory = memory.memory_of(config, self._device, network, rows=network.rows)
        self.item = self._memory.item
        self.networks: dict[str, Trained[Any]] = {"q": self._network, **self._normalizer.networks}
        self.generators: dict[str, RandomGenerator] = {"rng": self._rng}
        self.updates = 0  # learner updates made

    @property
    def step_spec(self) -> dict[str, Field]:
        """Priorities take a pass of the network, so values are not recorded; with a memory every sequence records the
        states of all agents before it."""
        return self._memory.fields

    # Acting

    @torch.no_grad()
    def act(self, observations: Arrays, state: State, exploration: NDArray[np.float32], greedy: bool = False) -> Acted:
        """Actions, int64 [B] or [B, k]. ``exploration`` is the ε [B] with which each agent by itself acts at random."""
        seen = self._memory.now(self._normalizer.observation(on_device(observations, self._device)), state)
        actions = self._possible_values(seen, observations).argmax(dim=2).cpu().numpy()
        if not greedy:
            explore = self._rng.random(actions.shape, np.float32) < exploration[:, None]
            possible = self._possible(observations).cpu().numpy()
            possible = np.broadcast_to(possible, (len(actions), *possible.shape[1:]))
            actions[explore] = random_possible(possible[explore], self._rng)
        return self._memory.acted(actions if self._spec.action.nvec else actions[:, 0], {}, seen, state, greedy)

    def decide(self, observation: Observation, state: Mapping[str, Tensor]) -> Decision:
        """The greedy actions of raw observations, in PyTorch alone; see ``Decides``."""
        seen = Present(self._normalizer.observation(observation), state)
        chosen = self._possible_values(seen, observation).argmax(dim=2)
        return Decision(chosen if self._spec.action.nvec else chosen[:, 0], seen.after)

    @torch.no_grad()
    def expected_returns(self, observations: Arrays) -> NDArray[np.float32]:
        """Q [B] of the greedy actions at episodes' first observations."""
        seen = self._memory.now(self._normalizer.observation(on_device(observations, self._device)), None)
        values = self._possible_values(seen, observations).amax(dim=2)
        return as_array(self._network.network.together(values, seen) * self._normalizer.unit)

    @torch.no_grad()
    def priorities(self, items: Arrays) -> NDArray[np.float32]:
        """|δ| [N], of sequences as ``priority_eta`` says: passes of the newest published network over both states."""
        batch = self._normalizer.transitions(self._memory.fresh(items))
        network = self._network.network
        target = self._target(batch, network, self._possible_values(batch.next_observation, batch.next_observation))
        return as_array(item_priorities(batch, (target - self._taken(batch)).abs(), self._config.priority_eta))

    # Learning

    prepare = memory.prepare

    def loss(self, batch: Transitions) -> Loss:
        """mean(w·L(y − Q(s, a))) with y = R + d·Q⁻(s', a'), where each agent's a' is its best one by its own values: of
        the target network (Rashid et al. 2018, equation 6), with ``double`` of the online one."""
        taken = self._taken(batch)
        with torch.no_grad():
            chooser = self._network.network if self._config.double else self._network.target
            values = self._possible_values(batch.next_observation, batch.next_observation, chooser)
            target = self._target(batch, self._network.target, values)
        delta = target - taken
        return Loss((batch.weights * huber_loss(delta, self._config.huber)).mean(), delta.detach().abs(), taken)

    def _scaled(self, batch: Transitions) -> Transitions:
        return self._normalizer.transitions(batch)

    def _measure(self, q: Tensor, batch: Transitions) -> diagnostics.Metrics:
        return {"q": float(q.mean()) * self._normalizer.unit}

    def _differentiated(self, batch: Transitions, measured: bool) -> Loss:
        """As ``trained_agent.differentiated``; priorities are those of what was drawn."""
        found = trained_agent.differentiated(self, batch)
        return found._replace(priorities=item_priorities(batch, found.priorities, self._config.priority_eta))

    gradients, apply = trained_agent.gradients, trained_agent.apply
    update, weights, load = trained_agent.update, trained_agent.weights, trained_agent.load
    state_dict, load_state_dict = trained_agent.state_dict, trained_agent.load_state_dict
    anneal, horizon = trained_agent.anneal, trained_agent.horizon

    def _taken(self, batch: Transitions) -> Tensor:
        """Q(s, a) [B]."""
        network = self._network.network
        action = batch.action.view(len(batch.reward), -1, 1)
        values = network(batch.observation).gather(2, action).squeeze(2)
        return network.together(values, batch.observation)

    def _target(self, batch: Transitions, network: TeamValues, values: Tensor) -> Tensor:
        """R + d·Q(s', argmax values) [B], by ``network``."""
        later = network(batch.next_observation).gather(2, values.argmax(dim=2, keepdim=True)).squeeze(2)
        return torch.addcmul(batch.reward, batch.discount, network.together(later, batch.next_observation))

    def _possible_values(
        self, seen: Observation, observation: Observation, network: TeamValues | None = None
    ) -> Tensor:
        """Q_i [B, k, n], ``LEAST`` where an action is not possible.

        Args:
            seen: what the network sees, scaled.
            observation: whose masks are read.
        """
        values = (network or self._network.network)(seen)
        return torch.where(self._possible(observation).to(values.device), values, LEAST)

    def _possible(self, observation: Observation) -> Tensor:
        """Which actions are possible, bool [B or 1, k, n]."""
        exists = torch.from_numpy(self._exists)[None]
        if not self._spec.masked:
            return exists
        mask = torch.as_tensor(observation[ACTION_MASK])
        newest = mask[:, -1] if self._spec.stack > 1 else mask
        return newest[:, torch.from_numpy(self._places)].to(torch.bool) & exists.to(newest.device)
