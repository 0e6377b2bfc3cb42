"""The division of an agent's parameters among parameter servers: contiguous slices of equal size."""

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
"""Vectors are cut at multiples of so many float32 values: four cache lines. Vector instructions then process the same
values together in a slice as in the whole vector, so that a sliced update equals the whole one to the last bit."""

ONLINE, TARGET = "online", "target"

Floats = NDArray[np.float32]


class SlicePart(NamedTuple):
    """The part of one parameter group's vector that one server owns: values ``start`` to ``stop`` (exclusive)."""

    group: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    @property
    def where(self) -> slice:
        return slice(self.start, self.stop)


class ParameterSlices:
    """The vectors of all parameter groups, concatenated and cut into ``count`` slices. Picklable.

    Args:
        vectors: name -> number of values, as in ``topologies.Probe.vectors``: ``<group>/online``; of the same size, if
            the agent has them, ``<group>/target`` and ``<group>/optimizer/<name>``; and ``<group>/optimizer/steps``, 1.
        places: name of each of the agent's weights -> its position in its group's ``online`` vector.

    Raises:
        ConfigError: there are fewer pieces than slices.
    """

    def __init__(self, vectors: Mapping[str, int], places: Mapping[str, Place], count: int) -> None:
        self.vectors = dict(vectors)
        self.places = dict(places)
        self.count = count
        self.groups = {
            name.removesuffix(f"/{ONLINE}"): size for name, size in vectors.items() if name.endswith(f"/{ONLINE}")
        }
        """Group -> number of values of its vector, in the order of messages."""
        blocks = {group: -(-size // ALIGNMENT) for group, size in self.groups.items()}
        total = sum(blocks.values())
        if not 1 <= count <= total:
            raise ConfigError(
                f"--parameter-servers {count} must be between 1 and {total}: each server owns at least {ALIGNMENT} of "
                "this agent's values"
            )
        bounds = [k * total // count for k in range(count + 1)]
        self._parts: list[tuple[SlicePart, ...]] = []
        for first, last in pairwise(bounds):
            parts, begin = [], 0
            for group, number in blocks.items():
                start, stop = max(first - begin, 0), min(last - begin, number)
                if start < stop:
                    parts.append(SlicePart(group, start * ALIGNMENT, min(stop * ALIGNMENT, self.groups[group])))
                begin += number
            self._parts.append(tuple(parts))

    def parts(self, shard: int) -> tuple[SlicePart, ...]:
        """The parts that make up ``shard``, in the order of groups."""
        return self._parts[shard]

    def size(self, shard: int) -> int:
        """Number of values in ``shard``."""
        return sum(part.size for part in self._parts[shard])

    @property
    def targets(self) -> tuple[str, ...]:
        """The groups that have a target network."""
        return tuple(group for group in self.groups if f"{group}/{TARGET}" in self.vectors)

    def names(self, group: str) -> list[str]:
        """The names of a group's vectors, without the group: ``online``, ``optimizer/steps`` …"""
        return [name.removeprefix(f"{group}/") for name in self.vectors if name.startswith(f"{group}/")]

    def sliced(self, group: str, name: str) -> bool:
        """Whether a vector is cut like the parameters. Of the others (``optimizer/steps``) every server has its own."""
        return self.vectors[f"{group}/{name}"] == self.groups[group]

    def named(self, online: Mapping[str, Floats]) -> dict[str, Array]:
        """The agent's weights by name: views of its groups' ``online`` vectors."""
        return {
            name: online[group][start : start + math.prod(shape)].reshape(shape)
            for name, (group, start, shape) in self.places.items()
        }
