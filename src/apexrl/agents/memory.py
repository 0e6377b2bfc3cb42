"""An agent's memory, or that it has none: what it records of states, and how its batches become transitions.

The policy and the critics have memories of their own, as Ni et al. 2022 found best (Recurrent Model-Free RL Can Be a
Strong Baseline for Many POMDPs, arXiv 2110.05038, section 4), and all critics one together. Where they begin sequences
with zeros, every sequence brings the states of both from when it was recorded, and a burn-in (Kapturowski et al. 2019,
section 3).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from apexrl.agents.sequence_batch import Sequences, sequences
from apexrl.agents.transition_batch import Observation, Transitions, as_array, fresh_transitions, on_device, transitions
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.networks.memory import MemoryChoice
from apexrl.networks.recall import MemoryTrunk, Present, memory_trunks
from apexrl.protocols import Acted, Arrays, Item, Sampled, State
from apexrl.spec import Array, Field


class Memory(Protocol):
    """What an agent asks of its memory."""

    item: Item
    """What the agent learns from."""
    fields: dict[str, Field]
    """What is recorded of states."""

    def now(self, observation: Observation, state: State) -> Observation:
        """What networks see of scaled observations [B, ...] and the state before them; None: an episode begins."""

    def acted(self, actions: Array, extras: dict[str, Array], seen: Observation, state: State, greedy: bool) -> Acted:
        """What ``act`` returns, of what the networks have seen; ``state`` is that of noise."""

    def prepare(self, batch: Sampled) -> Transitions | Sequences:
        """A batch on the device."""

    def fresh(self, items: Arrays) -> Transitions | Sequences:
        """Items that were just recorded."""


class NoMemory:
    """Of networks that see what is there: they learn from transitions."""

    item = Item()

    def __init__(self, device: torch.device) -> None:
        self.fields: dict[str, Field] = {}
        self._device = device

    def now(self, observation: Observation, state: State) -> Observation:
        return observation

    def acted(self, actions: Array, extras: dict[str, Array], seen: Observation, state: State, greedy: bool) -> Acted:
        return Acted(actions, extras, state)

    def prepare(self, batch: Sampled) -> Transitions:
        return transitions(batch, self._device)

    def fresh(self, items: Arrays) -> Transitions:
        return fresh_transitions(items, self._device)


class Remembers:
    """Of networks with ``MemoryTrunk``: they learn from sequences.

    Args:
        acting: of the network that chooses actions.
        others: of those that judge them; they see the same, as their states are recorded too.
        rows: agents of a team, each of which has a state; of one agent none.
    """

    def __init__(
        self,
        config: AgentConfig,
        device: torch.device,
        acting: list[MemoryTrunk],
        others: list[MemoryTrunk],
        rows: tuple[int, ...] = (),
    ) -> None:
        self.item = Item("sequence", config.sequence_length, config.sequence_stride, config.burn_in)
        shapes = {name: shape for trunk in (*acting, *others) for name, shape in trunk.fields.items()}
        self.fields = {name: Field((*rows, *shape), "float32", per_item=True) for name, shape in shapes.items()}
        self._others, self._device = others, device

    def now(self, observation: Observation, state: State) -> Present:
        rows, given = len(next(iter(observation.values()))), state or {}
        before = {
            name: given[name] if name in given else np.zeros((rows, *field.shape), np.float32)
            for name, field in self.fields.items()
        }
        return Present(observation, on_device(before, self._device))

    def acted(self, actions: Array, extras: dict[str, Array], seen: Observation, state: State, greedy: bool) -> Acted:
        assert isinstance(seen, Present)
        if not greedy:
            with torch.no_grad():
                for trunk in self._others:
                    seen.remembered(trunk)
        before = {name: as_array(value) for name, value in seen.before.items()}
        after: dict[str, Array] = {name: as_array(value) for name, value in seen.after.items()}
        return Acted(actions, {**extras, **before}, {**(state or {}), **after})

    def prepare(self, batch: Sampled) -> Sequences:
        return sequences(batch, self.item.burn_in, tuple(self.fields), self._device)

    def fresh(self, items: Arrays) -> Sequences:
        ones = np.ones(len(items["mask"]), np.float32)
        return self.prepare(_Items(cast("dict[str, Array]", items), np.zeros(len(ones), np.uint64), ones))


class _Items(NamedTuple):
    data: dict[str, Array]
    keys: NDArray[np.uint64]
    weights: NDArray[np.float32]


class WithMemory(Protocol):
    """An agent with a memory, or with none."""

    _memory: Memory


def prepare(agent: WithMemory, batch: Sampled) -> Transitions | Sequences:
    """Copy a batch to the device: asynchronously on CUDA, not at all on the CPU. Agents take it into their class."""
    return agent._memory.prepare(batch)


def memory_of(
    config: AgentConfig, device: torch.device, acting: nn.Module, *others: nn.Module, rows: tuple[int, ...] = ()
) -> Memory:
    """Of an agent with these networks: the one that chooses actions, and those that judge them; ``rows`` as of
    ``Remembers``.

    Raises:
        AgentError: the settings cannot go with a memory.
    """
    trunks = memory_trunks(acting)
    if not trunks:
        return NoMemory(device)
    if config.anneal_horizon:
        raise AgentError(
            f"{config.agent}: --anneal-horizon changes n and γ of transitions, and with --memory {config.memory} steps "
            "of sequences are learned from: leave one of them out"
        )
    return Remembers(config, device, trunks, memory_trunks(*others), rows)


def memory_choice(config: AgentConfig) -> MemoryChoice | None:
    """The memory that ``config`` asks for, if any.

    Raises:
        AgentError: the heads of a transformer do not divide its units.
    """
    kind, units = config.memory, config.recurrent_units
    if kind == "none":
        return None
    if kind == "transformer" and units % config.memory_heads:
        raise AgentError(
            f"--memory-heads {config.memory_heads} must divide --recurrent-units {units}: every head has as many"
        )
    return MemoryChoice(kind, units, config.memory_layers, config.memory_heads, config.memory_context)
