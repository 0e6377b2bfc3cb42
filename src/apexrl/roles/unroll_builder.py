"""Builds unrolls where they are learned from, as a fifo replay of ``kind="unroll"`` would give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import AgentError
from apexrl.spec import Array, EnvSpec, Field, is_observation

if TYPE_CHECKING:
    from apexrl.replay import Batch


class UnrollBuilder:
    """Collects T rows of M streams that go in step, then is a batch of M unrolls, in arrays that the next one reuses.

    Final observations are masked rows, as in the replay (docs/reference/replay.md, "Sequences and unrolls").

    Args:
        envs: M.
        length: T.
        spec: what the environment shows, with its ``stack``.
        fields: of a step (``roles.actor.step_fields``).
        gamma: γ of one step.

    Raises:
        AgentError: a field is windowed: it would have to be recorded at the bootstrap observation too, on which the
            agent acts only after it has learned.
    """

    def __init__(self, envs: int, length: int, spec: EnvSpec, fields: Mapping[str, Field], gamma: float) -> None:
        self._envs, self._length, self._gamma = envs, length, gamma
        self._stacked: dict[str, Array] = {}  # observations: name -> [M, T + 1, (stack,) ...]
        self._steps: dict[str, Array] = {}  # name -> [M, T, ...]
        self._per_item: dict[str, Array] = {}  # name -> [M, ...]
        for name, field in fields.items():
            if is_observation(name):
                frames = (spec.stack, *field.shape) if spec.stack > 1 else field.shape
                self._stacked[name] = np.zeros((envs, length + 1, *frames), field.dtype)
            elif field.windowed:
                raise AgentError(f"field {name!r} is windowed: unrolls that are learned from at once cannot hold it")
            elif field.per_item:
                self._per_item[name] = np.zeros((envs, *field.shape), field.dtype)
            elif field.sampled:
                self._steps[name] = np.zeros((envs, length, *field.shape), field.dtype)
        self._reward = np.zeros((envs, length), np.float32)
        self._discount = np.zeros((envs, length), np.float32)
        self._mask = np.zeros((envs, length), np.bool_)
        self._first = np.zeros((envs, length + 1), np.bool_)
        self._first[:, 0] = True  # of the very first unroll
        self._row = 0

    @property
    def full(self) -> bool:
        """Whether all T rows are there."""
        return self._row == self._length

    def see(self, observations: Mapping[str, Array]) -> None:
        """What the agent sees before its next step, or behind the last: name -> [M, (stack,) ...]."""
        for name, array in self._stacked.items():
            array[:, self._row] = observations[name]

    def append(self, steps: Mapping[str, Array], final: NDArray[np.bool_]) -> None:
        """The step that was taken on what was seen.

        Args:
            steps: name -> [M, ...]: the fields, ``reward``, ``terminated``, ``truncated``.
            final: bool [M], what was seen was a final observation, or an agent took no part: no step was taken on it.
        """
        row = self._row
        if row == 0:
            for name, array in self._per_item.items():
                array[:] = steps[name]
        for name, array in self._steps.items():
            array[:, row] = steps[name]
        self._reward[:, row] = np.where(final, np.float32(0), steps["reward"])
        ends = np.logical_or(final, steps["terminated"])
        self._discount[:, row] = np.where(ends, np.float32(0), np.float32(self._gamma))
        self._mask[:, row] = ~final
        self._first[:, row + 1] = final  # an episode begins behind its predecessor's final observation
        self._row += 1

    def batch(self) -> Batch:
        """The M unrolls. Its arrays hold until the next ``see``."""
        from apexrl.replay import Batch

        data = {
            **self._stacked,
            **self._steps,
            **self._per_item,
            "reward": self._reward,
            "discount": self._discount,
            "mask": self._mask,
            "first": self._first,
        }
        ones = np.ones(self._envs)
        return Batch(data, np.arange(self._envs, dtype=np.uint64), ones, ones.astype(np.float32))

    def again(self) -> None:
        """Begin the next unrolls, where these ended."""
        self._first[:, 0] = self._first[:, -1]
        self._row = 0
