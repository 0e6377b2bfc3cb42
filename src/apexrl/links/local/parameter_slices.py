"""Which of an agent's parameters each parameter server owns: contiguous slices of all its vectors, of equal size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ConfigError
from apexrl.protocols import Place
from apexrl.spec import Array

ALIGNMENT = 64
"""float32 values between places where a vector may be cut: four cache lines. Vector instructions then meet the same
values together in a slice as in the whole, so that a sharded step is the whole step to the last bit."""

ONLINE, TARGET = "online", "target"

Floats = NDArray[np.float32]


class Part(NamedTuple):
    """What one shard owns of one group's vector: the values from ``start`` up to, not including, ``stop``."""

    group: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def where(self) -> slice:
        return slice(self.start, self.stop)


class Shards:
    """The vectors of all groups, one after the other, cut into ``count`` slices. Picklable.

    Args:
        vectors: name -> values, as ``topologies.Probe.vectors`` says: ``<group>/online``, and of the same size, if the
            agent has them, ``<group>/target`` and ``<group>/optimizer/<name>``; ``<group>/optimizer/steps``, 1.
        places: the name of each of the agent's weights -> where it lies in its group's ``online`` vector.
        count: shards.

    Raises:
        ConfigError: there are more shards than pieces to share out.
    """

    def __init__(self, vectors: Mapping[str, int], places: Mapping[str, Place], count: int) -> None:
        self.vectors = dict(vectors)
        self.places = dict(places)
        self.count = count
        self.groups = {
            name.removesuffix(f"/{ONLINE}"): size for name, size in vectors.items() if name.endswith(f"/{ONLINE}")
        }
        """Group -> values of its vector, in the order in which messages have them."""
        blocks = {group: -(-size // ALIGNMENT) for group, size in self.groups.items()}
        total = sum(blocks.values())
        if not 1 <= count <= total:
            raise ConfigError(
                f"--parameter-servers {count}: this agent's parameters can be shared out among 1 … {total} servers, "
                f"{ALIGNMENT} values each at least"
            )
        bounds = [k * total // count for k in range(count + 1)]
        self._parts: list[tuple[Part, ...]] = []
        for first, last in pairwise(bounds):
            parts, begin = [], 0
            for group, number in blocks.items():
                start, stop = max(first - begin, 0), min(last - begin, number)
                if start < stop:
                    parts.append(Part(group, start * ALIGNMENT, min(stop * ALIGNMENT, self.groups[group])))
                begin += number
            self._parts.append(tuple(parts))

    def parts(self, shard: int) -> tuple[Part, ...]:
        """What ``shard`` owns, in the order of groups."""
        return self._parts[shard]

    def size(self, shard: int) -> int:
        """Values of one vector that ``shard`` owns."""
        return sum(part.size for part in self._parts[shard])

    @property
    def targets(self) -> tuple[str, ...]:
        """The groups that have a target network."""
        return tuple(group for group in self.groups if f"{group}/{TARGET}" in self.vectors)

    def names(self, group: str) -> list[str]:
        """The vectors of a group, without its name: ``online``, ``optimizer/steps`` …"""
        return [name.removeprefix(f"{group}/") for name in self.vectors if name.startswith(f"{group}/")]

    def sliced(self, group: str, name: str) -> bool:
        """Whether a vector lies like the parameters, so that it is cut as they are; every shard has one of its own of
        the others (``optimizer/steps``)."""
        return self.vectors[f"{group}/{name}"] == self.groups[group]

    def named(self, online: Mapping[str, Floats]) -> dict[str, Array]:
        """The agent's weights by name: views of its groups' ``online`` vectors."""
        return {
            name: online[group][start : start + math.prod(shape)].reshape(shape)
            for name, (group, start, shape) in self.places.items()
        }
