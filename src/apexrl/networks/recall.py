"""Observations that bring the memory before them, so that a network with a memory is called as one without.

``Present`` is one step of some environments: a network takes the state before it there, and leaves the one behind it.
``Recalled`` is some steps of sequences, ``Window``, through which every network runs once, from its stored state on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from apexrl.networks.encoders import PLAIN, LayerChoice
from apexrl.networks.memory import MemoryChoice
from apexrl.networks.recurrent_trunk import RecurrentTrunk
from apexrl.networks.trunk import Trunk
from apexrl.spec import EnvSpec

Observation = Mapping[str, Tensor]

CRITIC = "critic_"
"""Before the names of the states of critics' memories."""


class MemoryTrunk(nn.Module):
    """What a network with a memory has in place of a ``Trunk``: a memory of what was seen.

    Args:
        hidden: units of the fully connected layers for vectors, before the memory.
        image_units: units of the fully connected layer behind convolutions.
        network: an encoder of your own (``encoder_for``).
        layers: which layers ours have.
        prefix: before the names of its state.
        behind: units of fully connected layers with ReLU behind the memory, which see its inputs besides (Ni et al.
            2022, figure 2, where the present observation goes past the memory too); None: the memory alone is passed
            on.
    """

    def __init__(
        self,
        spec: EnvSpec,
        hidden: Sequence[int],
        choice: MemoryChoice,
        image_units: int = 512,
        network: str = "",
        layers: LayerChoice = PLAIN,
        prefix: str = "",
        behind: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.body = RecurrentTrunk(spec, hidden, choice, image_units, network, layers)
        self.fields = {prefix + name: shape for name, shape in self.body.memory.fields.items()}
        self.joined = behind is not None
        self.features = choice.units + self.joined * self.body.width
        self.behind = nn.Sequential()
        for units in behind or ():
            self.behind.extend((nn.Linear(self.features, units), nn.ReLU()))
            self.features = units

    @property
    def sees_image(self) -> bool:
        """Whether convolutions of ours are in it."""
        return self.body.sees_image

    def forward(self, observation: Observation) -> Tensor:
        """Of a ``Present`` or ``Recalled`` observation of N rows; returns float32 [N, features]."""
        assert isinstance(observation, Present | Recalled), "a network with a memory needs its state"
        y: Tensor = self.behind(observation.remembered(self))
        return y

    def out(self, y: Tensor, x: Tensor) -> Tensor:
        """What is passed on of the memory's outputs y and inputs x, both [..., ·]."""
        return torch.cat((y, x), dim=-1) if self.joined else y


class Present(dict[str, Tensor]):
    """Observations of B environments, name -> [B, (stack,) *shape].

    Args:
        observation: scaled.
        before: the parts of all states by name, [B, *shape].
    """

    def __init__(self, observation: Observation, before: Mapping[str, Tensor]) -> None:
        super().__init__(observation)
        self.before = before
        self.after: dict[str, Tensor] = {}
        """Of the networks that have been called."""

    def remembered(self, trunk: MemoryTrunk) -> Tensor:
        """float32 [B, ·], before the layers behind it."""
        body = trunk.body
        x = body.inputs(self)
        y, after = body.memory.step(x, body.memory.state(*(self.before[name] for name in trunk.fields)))
        self.after |= zip(trunk.fields, after, strict=True)
        return trunk.out(y, x)

    def of_agents(self, cut: Callable[[Observation], Observation]) -> Present:
        """A row for each agent of each environment, whose states before are [B, k, *shape].

        Args:
            cut: makes rows of agents of name -> [B, …].
        """
        return Present(cut(self), {name: value.flatten(0, 1) for name, value in self.before.items()})


class Window:
    """B sequences of W steps that only warm states up and then L + 1 observations.

    A network's memory runs through them at its first call, with a gradient if it takes one, and not again: its
    parameters must not change meanwhile.

    Args:
        warming, observation: name -> [B, W, …] and [B, L + 1, …], scaled.
        state: the parts of all states before the first step, by name.
        first: [W + L + 1, B] bool, true where a state is zeroed before the step.
        resets: the steps at which it is true anywhere.
    """

    def __init__(
        self, warming: Observation, observation: Observation, state: Observation, first: Tensor, resets: Sequence[int]
    ) -> None:
        self.observation = observation
        self._warming, self._state = warming, state
        self._first, self._resets = first, resets
        self._found: dict[MemoryTrunk, Tensor] = {}
        self._agents: Window | None = None

    def remembered(self, trunk: MemoryTrunk) -> Tensor:
        """float32 [(L + 1)·B, ·], time first."""
        if trunk not in self._found:
            with torch.enable_grad():
                self._found[trunk] = self._run(trunk)
        return self._found[trunk]

    def of_agents(self, count: int, cut: Callable[[Observation], Observation]) -> Window:
        """A sequence for each of ``count`` agents of each environment, as of ``Present.of_agents``; made once."""
        if self._agents is None:
            state = {name: value.flatten(0, 1) for name, value in self._state.items()}
            first = self._first.repeat_interleave(count, dim=1)
            self._agents = Window(cut(self._warming), cut(self.observation), state, first, self._resets)
        return self._agents

    def _run(self, trunk: MemoryTrunk) -> Tensor:
        body = trunk.body
        warm = len(self._first) - next(iter(self.observation.values())).shape[1]
        state = body.memory.state(*(self._state[name] for name in trunk.fields))
        if warm:
            with torch.no_grad():
                resets = [step for step in self._resets if step < warm]
                _, state = body.unroll(self._warming, state, self._first[:warm], resets)
        x = body.sequence_inputs(self.observation)
        resets = [step - warm for step in self._resets if step >= warm]
        y, _ = body.unroll_inputs(x, state, self._first[warm:], resets)
        return trunk.out(y, x).flatten(0, 1)


class Recalled(Mapping[str, Tensor]):
    """Some rows of a ``Window``, gathered where they are asked for: name -> [N, (stack,) *shape].

    Args:
        window: in which they are.
        rows: int64 [N], t·B + b.
    """

    def __init__(self, window: Window, rows: Tensor) -> None:
        self.window, self.rows = window, rows

    def __getitem__(self, name: str) -> Tensor:
        whole = self.window.observation[name]
        return whole[self.rows % len(whole), self.rows // len(whole)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.window.observation)

    def __len__(self) -> int:
        return len(self.window.observation)

    def remembered(self, trunk: MemoryTrunk) -> Tensor:
        """float32 [N, ·], before the layers behind it."""
        whole = self.window.remembered(trunk)
        found = whole.index_select(0, self.rows)
        return found if torch.is_grad_enabled() else found.detach()

    def of_agents(self, count: int, cut: Callable[[Observation], Observation]) -> Recalled:
        """``count`` rows for each: of the agents of a team."""
        rows = self.rows[:, None] * count + torch.arange(count, device=self.rows.device)
        return Recalled(self.window.of_agents(count, cut), rows.flatten())

    @classmethod
    def joined(cls, several: Iterable[Recalled]) -> Recalled:
        """The rows of all, which are of one window, one after the other."""
        parts = list(several)
        return cls(parts[0].window, torch.cat([part.rows for part in parts]))


def memory_trunks(*networks: nn.Module) -> list[MemoryTrunk]:
    """All that are in some networks, in their order."""
    return [module for network in networks for module in network.modules() if isinstance(module, MemoryTrunk)]


def trunk_for(
    spec: EnvSpec,
    hidden: Sequence[int],
    image_units: int,
    network: str = "",
    layers: LayerChoice = PLAIN,
    memory: MemoryChoice | None = None,
    prefix: str = "",
) -> Trunk | MemoryTrunk:
    """A ``Trunk``; or with ``memory`` a memory with the ``hidden`` layers behind it, and ``prefix`` before the names of
    its state."""
    if memory is None:
        return Trunk(spec, hidden, image_units, network, layers)
    return MemoryTrunk(spec, (), memory, image_units, network, layers, prefix, behind=hidden)
