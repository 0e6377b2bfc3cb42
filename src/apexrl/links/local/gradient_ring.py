"""Gradients from learners to parameter servers: a bounded ring in shared memory for each pair of them.

A gradient is cut into the servers' slices. Each slice carries the version of the parameters that it was computed from.
A message becomes visible by one store after it is complete: what a dead sender wrote in part is never read, and its
successor overwrites it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl._native import Segment
from apexrl.links.local.parameter_slices import Floats, ParameterSlices

CAPACITY = 2
"""Messages that may wait in a ring: one being applied, one ready. More would make gradients older."""

_LINE = 64  # bytes of a cache line
_SLICE_SECONDS = 0.1  # longest native wait, so that Python can handle signals


class Gradient(NamedTuple):
    """One slice of a gradient."""

    base: int  # version of the slice's parameters that it was computed from
    groups: dict[str, Floats]  # group -> its part, a copy, for the groups in the gradient
    complete: bool  # the gradient has all groups, including those without a part in this slice
    sender: int


class GradientLink:
    """All rings. Picklable to local processes.

    Args:
        shards: the division into slices.
        senders: processes that compute gradients.
        capacity: messages that may wait in one ring.
        shared: between processes, or between roles that take turns in one; both use the same memory.
        slots: of the run in which the senders serve, where others serve elsewhere; empty: 0 … ``senders`` - 1.
    """

    def __init__(
        self,
        shards: ParameterSlices,
        senders: int,
        capacity: int = CAPACITY,
        shared: bool = True,
        slots: Sequence[int] = (),
    ) -> None:
        self.shards = shards
        self.senders = senders
        self.capacity = capacity
        self.slots = tuple(slots) or tuple(range(senders))
        # Words: a bell for each shard, then one for each sender, each on a line of its own.
        end = (shards.count + senders) * _LINE
        self._rings: list[list[int]] = []  # [sender][shard] -> offset: written (line), read (line), then messages
        self._message = [-(-(16 + 4 * shards.size(k)) // _LINE) * _LINE for k in range(shards.count)]  # bytes
        for _ in range(senders):
            self._rings.append([])
            for nbytes in self._message:
                self._rings[-1].append(end)
                end += 2 * _LINE + capacity * nbytes
        self._leases = end
        self._segment = Segment(end + 2 * 8 * senders)

    @property
    def leases(self) -> NDArray[np.int64]:
        """[senders], writable: the generation of the newest lease of each slot of another host; 0: none. For the
        successor of a gateway that was killed."""
        leases: NDArray[np.int64] = self._segment.array()[self._leases :][: 8 * self.senders].view(np.int64)
        return leases

    @property
    def beats(self) -> NDArray[np.int64]:
        """[senders], writable, of other hosts' slots, for the same."""
        return self._segment.array()[self._leases + 8 * self.senders :][: 8 * self.senders].view(np.int64)

    def sender(self, slot: int) -> GradientSender:
        """For the sender in ``slot``, in one process at a time."""
        return GradientSender([self.ring(slot, k) for k in range(self.shards.count)], self.shards)

    def receiver(self, shard: int) -> GradientReceiver:
        """For the server of ``shard``, in one process at a time."""
        return GradientReceiver([self.ring(slot, shard) for slot in self.slots], self.shards, shard)

    def ring(self, slot: int, shard: int) -> Ring:
        """From the sender in ``slot`` to the server of ``shard``."""
        sender = self.slots.index(slot)
        bells = (shard * _LINE, (self.shards.count + sender) * _LINE)
        size = self.shards.size(shard)
        return Ring(self._segment, self._rings[sender][shard], bells, self.capacity, size, self._message[shard])


class Ring:
    """Messages from one sender to one shard. One process writes, one reads.

    Args:
        offset: of the ring in the segment.
        bells: offsets of two words: rung when a message was written, and when one was read.
        size: values of a message.
        nbytes: of a message.
    """

    def __init__(
        self, segment: Segment, offset: int, bells: tuple[int, int], capacity: int, size: int, nbytes: int
    ) -> None:
        self.segment = segment
        self.bells = bells
        self._written, self._read, self._settled = offset, offset + _LINE, offset + _LINE + 4
        self._capacity = capacity
        self._wrap = 2**32 // capacity * capacity  # both counts wrap around here
        data = segment.array()  # keeps the memory mapped
        starts = [offset + 2 * _LINE + i * nbytes for i in range(capacity)]
        self._heads: list[NDArray[np.int64]] = [data[start : start + 16].view(np.int64) for start in starts]
        self._values: list[Floats] = [data[at + 16 : at + 16 + 4 * size].view(np.float32) for at in starts]

    @property
    def full(self) -> bool:
        return self.waiting == self._capacity

    @property
    def empty(self) -> bool:
        return self.waiting == 0

    @property
    def waiting(self) -> int:
        """Messages that were written and not read."""
        return (self.segment.load(self._written) - self.segment.load(self._read)) % self._wrap

    @property
    def unsettled(self) -> int:
        """Messages that were written and are not settled."""
        return (self.segment.load(self._written) - self.segment.load(self._settled)) % self._wrap

    def write(self, base: int, mask: int, parts: Sequence[tuple[int, Any]]) -> None:
        """Write a message into a ring that is not full; ``parts``: (position, values)."""
        written = self.segment.load(self._written)
        self._heads[written % self._capacity][:] = base, mask
        values = self._values[written % self._capacity]
        for start, part in parts:
            values[start : start + len(part)] = part
        self.segment.store(self._written, (written + 1) % self._wrap)
        self.segment.ring(self.bells[0])

    def read(self) -> tuple[int, int, Floats]:
        """Take the oldest message out of a ring that is not empty: (base, mask, copied values)."""
        read = self.segment.load(self._read)
        base, mask = self._heads[read % self._capacity].tolist()
        values = self._values[read % self._capacity].copy()
        self.segment.store(self._read, (read + 1) % self._wrap)
        self.segment.ring(self.bells[1])
        return base, mask, values

    def settle(self) -> None:
        """Mark the messages that were read as settled: applied and published, or refused."""
        read = self.segment.load(self._read)
        if self.segment.load(self._settled) != read:
            self.segment.store(self._settled, read)
            self.segment.ring(self.bells[1])

    @property
    def settled(self) -> bool:
        """Whether every written message is settled."""
        return self.unsettled == 0


class GradientSender:
    """Sends one learner's gradients. A gradient is sent to every server before the next one."""

    def __init__(self, rings: Sequence[Ring], shards: ParameterSlices) -> None:
        self._rings = rings
        self._bell = rings[0].bells[1]
        self._shards = shards
        self._groups: Mapping[str, Floats] = {}
        self._mask = 0
        self._versions: Sequence[int] = ()
        self._unsent: list[int] = []  # servers that the present gradient was not sent to yet

    def begin(self, groups: Mapping[str, Floats], versions: Sequence[int]) -> None:
        """Begin to send a gradient. It must not change until ``finish`` returns True.

        Args:
            groups: group -> float32 vector; groups without a gradient may be missing.
            versions: of each slice of the parameters that it was computed from.
        """
        self._groups, self._versions = groups, list(versions)
        self._mask = sum(1 << number for number, group in enumerate(self._shards.groups) if group in groups)
        self._unsent = list(range(self._shards.count))

    def finish(self, timeout: float) -> bool:
        """Send what was begun. False: some ring stayed full for ``timeout`` seconds; call again to send the rest."""
        segment, deadline = self._rings[0].segment, time.monotonic() + timeout
        while True:
            seen = segment.load(self._bell)
            self._unsent = [shard for shard in self._unsent if not self._send(shard)]
            left = deadline - time.monotonic()
            if not self._unsent or left <= 0:
                return not self._unsent
            segment.wait(self._bell, seen, min(left, _SLICE_SECONDS))

    def settled(self, timeout: float) -> bool:
        """Wait until every server has settled what was sent to it. False: not within ``timeout`` seconds."""
        segment, deadline = self._rings[0].segment, time.monotonic() + timeout
        while True:
            seen = segment.load(self._bell)
            left = deadline - time.monotonic()
            if (done := all(ring.settled for ring in self._rings)) or left <= 0:
                return done
            segment.wait(self._bell, seen, min(left, _SLICE_SECONDS))

    def _send(self, shard: int) -> bool:
        if self._rings[shard].full:
            return False
        start, parts = 0, []
        for part in self._shards.parts(shard):
            if part.group in self._groups:
                parts.append((start, self._groups[part.group][part.where]))
            start += part.size
        self._rings[shard].write(self._versions[shard], self._mask, parts)
        return True


class GradientReceiver:
    """Receives the gradients for one server."""

    def __init__(self, rings: Sequence[Ring], shards: ParameterSlices, shard: int) -> None:
        self._rings = rings
        self._bell = rings[0].bells[0]
        self._parts = shards.parts(shard)
        self._bits = {group: 1 << number for number, group in enumerate(shards.groups)}
        self._next = 0

    @property
    def waiting(self) -> bool:
        """Whether a message is ready."""
        return not all(ring.empty for ring in self._rings)

    def receive(self, timeout: float) -> Gradient | None:
        """The oldest message of the next sender in turn. None: no sender sent one for ``timeout`` seconds."""
        segment, deadline = self._rings[0].segment, time.monotonic() + timeout
        while True:
            seen = segment.load(self._bell)
            for turn in range(len(self._rings)):
                sender = (self._next + turn) % len(self._rings)
                if not self._rings[sender].empty:
                    self._next = sender + 1
                    return self._take(sender)
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            segment.wait(self._bell, seen, min(left, _SLICE_SECONDS))

    def settle(self) -> None:
        """Tell the senders that what was received is applied and published, or refused."""
        for ring in self._rings:
            ring.settle()

    def _take(self, sender: int) -> Gradient:
        base, mask, values = self._rings[sender].read()
        groups, start = {}, 0
        for part in self._parts:
            if mask & self._bits[part.group]:
                groups[part.group] = values[start : start + part.size]
            start += part.size
        return Gradient(base, groups, mask == sum(self._bits.values()), sender)
