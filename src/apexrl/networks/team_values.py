"""Values of a team: what each agent's action is worth, and how these make up what all of them are worth together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from apexrl.errors import SpecError
from apexrl.networks.encoders import PLAIN, LayerChoice, VectorEncoder
from apexrl.networks.memory import MemoryChoice
from apexrl.networks.q_network import QNetwork
from apexrl.networks.recall import Present, Recalled
from apexrl.spec import ACTION_MASK, PRESENT, ActionSpec, EnvSpec, is_state, is_team

Mixer = Literal["sum", "monotonic"]


class Sum(nn.Module):
    """Q = Σ_i Q_i. Sunehag et al. 2018 (VDN, arXiv 1706.05296), equation 3."""

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """[B, k] -> [B]."""
        return values.sum(dim=1)


class Monotonic(nn.Module):
    """Q = |w2(s)|·ELU(|W1(s)|·q + b1(s)) + b2(s), which grows with every Q_i: so the best action of each agent is part
    of the best of all. Rashid et al. 2018 (QMIX, arXiv 1803.11485), section 4.1 and figure 2: W1, b1 and w2 are linear
    in the state, b2 has a hidden layer of ReLUs.

    Args:
        agents: k.
        inputs: of the state.
        units: of the mixing network's hidden layer, and of that of b2.
    """

    def __init__(self, agents: int, inputs: int, units: int) -> None:
        super().__init__()
        self.weights_in, self.bias_in = nn.Linear(inputs, agents * units), nn.Linear(inputs, units)
        self.weights_out = nn.Linear(inputs, units)
        self.bias_out = nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, 1))

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """[B, k] and the state [B, inputs] -> [B]."""
        weights = self.weights_in(state).abs().view(-1, values.shape[1], self.weights_out.out_features)
        hidden = elu(torch.bmm(values.unsqueeze(1), weights).squeeze(1) + self.bias_in(state))
        mixed: Tensor = (hidden * self.weights_out(state).abs()).sum(dim=1) + self.bias_out(state).squeeze(1)
        return mixed


class TeamValues(nn.Module):
    """Q_i(o_i, ·) of k agents, by one network for all of them, and what they make up.

    Where observations are no team's (``envs.team``), every one of several choices is an agent that sees everything.

    Args:
        spec: the environment, with a choice of actions for each agent.
        hidden: units of the layers for vectors.
        mixer: how values make up one.
        units: of the monotonic mixing network.
        image_units, network, choice, memory: as ``QNetwork``; each agent has a memory of its own.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        mixer: Mixer,
        units: int,
        image_units: int = 512,
        network: str = "",
        choice: LayerChoice = PLAIN,
        memory: MemoryChoice | None = None,
    ) -> None:
        super().__init__()
        choices = spec.action.choices
        self._agents, self._most, self._stacked = len(choices), max(choices), spec.stack > 1
        self._seen = [name for name in spec.observation if spec.of_team and is_team(name)]
        n = self._most if self._seen else self._agents * self._most
        self.rows = (self._agents,) if self._seen else ()
        """Agents for each of which the network of values has a row, and with a memory a state."""
        self.q = QNetwork(
            _of_one(spec, self._seen, n),
            hidden,
            False,
            image_units=image_units,
            network=network,
            choice=choice,
            memory=memory,
        )
        self.mixer: nn.Module = Sum()
        self.state = nn.ModuleDict()  # makes vectors of what the mixer sees
        if mixer == "monotonic":
            inputs = 0
            for name in _state(spec, self._seen):
                encoder = VectorEncoder(spec.observation[name], spec.stack, spec.categories.get(name, 0), ())
                self.state[_key(name)] = encoder
                inputs += encoder.features
            if not inputs:
                raise SpecError(
                    "the weights of a monotonic mixer follow from what is no image, and all observations are images: "
                    "add --show-state where the environment's state is a vector, or choose --mixer sum"
                )
            self.mixer = Monotonic(self._agents, inputs, units)
        self._names = {_key(name): name for name in spec.observation}

    def forward(self, observation: Mapping[str, Tensor]) -> Tensor:
        """Q_i of every action, [B, k, n]; n is that of the agent with the most."""
        if not self._seen:
            z: Tensor = self.q(observation)
        elif isinstance(observation, Recalled):
            z = self.q(observation.of_agents(self._agents, partial(self._cut, steps=1)))
        elif isinstance(observation, Present):
            each = observation.of_agents(self._cut)
            z = self.q(each)
            observation.after |= {name: one.view(-1, self._agents, *one.shape[1:]) for name, one in each.after.items()}
        else:
            z = self.q(self._cut(observation))
        return z.view(-1, self._agents, self._most)

    def _cut(self, observation: Mapping[str, Tensor], steps: int = 0) -> dict[str, Tensor]:
        """What each agent sees, name -> [B·k, …] of [B, (T,) (stack,) k, …]; T is there if there are ``steps``."""
        axis = 1 + steps + self._stacked
        return {name: observation[name].movedim(axis, 1).flatten(0, 1) for name in self._seen}

    def together(self, values: Tensor, observation: Mapping[str, Tensor]) -> Tensor:
        """Q [B] of what the agents chose, Q_i [B, k]. Who is not there counts as 0."""
        if self._seen:
            there = observation[PRESENT]
            values = values * (there[:, -1] if self._stacked else there).to(values.dtype)
        parts = [encoder.flatten(observation[self._names[key]]) for key, encoder in self.state.items()]  # type: ignore[operator]
        state = torch.cat(parts, dim=1) if parts else values.new_empty((len(values), 0))  # a sum needs none
        mixed: Tensor = self.mixer(values, state)
        return mixed


def _of_one(spec: EnvSpec, seen: Sequence[str], n: int) -> EnvSpec:
    """What the network of values sees: one agent's part of a team's observation, or all of another."""
    if not seen:
        return replace(spec, action=ActionSpec(n=n))
    fields = {name: spec.each_sees(name) for name in seen}
    kept = {name: count for name, count in spec.categories.items() if name in fields}
    return EnvSpec(fields, ActionSpec(n=n), spec.stack, kept)


def _state(spec: EnvSpec, seen: Sequence[str]) -> list[str]:
    """What a mixer sees: the state of the environment, else all; no image, and nothing whose length varies."""
    told = [name for name in spec.observation if is_state(name)]
    all_else = [name for name in spec.observation if name != ACTION_MASK and not (seen and name == PRESENT)]
    return [name for name in told or all_else if not (spec.is_image(name) or spec.varies(name))]


def _key(name: str) -> str:
    """A name that may be part of a parameter's."""
    return name.replace("/", ":").replace(".", ",")
