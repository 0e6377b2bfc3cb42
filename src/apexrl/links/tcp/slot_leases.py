"""Leases of the slots of other hosts' workers. A lease ends after its host was silent for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ExhaustedError, LinkError

LEASE_BITS: Final = 40
"""A connection's generation is lease · 2^40 + worker's generation · 2^20 + number of the connection, so each change
counts."""
GENERATION_BITS: Final = 20
_MOST_NUMBER: Final = 2**40 - 1

Lease = tuple[int, int]
"""(slot, generation of its lease)."""


class _Holder(NamedTuple):
    member: str
    lease: int
    until: float  # by the clock


class SlotLeases:
    """Thread-safe.

    Args:
        slots: of workers of other hosts.
        known: slot -> generation of the newest lease that a gateway gave before it was killed; 0: none.
        beats: [slots and those before], of memory that outlives a gateway: generation of the lease of a slot · 2^40 +
            number of its host's last beat that was counted.
        seconds: of silence after which a member's slots are free.
    """

    def __init__(
        self,
        slots: range,
        known: Mapping[int, int],
        beats: NDArray[np.int64],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._seconds, self._clock = seconds, clock
        self._holders: dict[int, _Holder] = {}
        self._slots, self._beats = slots, beats
        self._last = {slot: max(known.get(slot, 0), int(beats[slot]) // (_MOST_NUMBER + 1)) for slot in slots}
        """Generation of each slot's last lease."""
        self._kept = {slot: clock() + seconds for slot, lease in self._last.items() if lease}
        """Slot leased by a killed gateway -> until when it is reserved for its host."""

    def take(self, member: str, wanted: int) -> list[Lease]:
        """Lease the lowest free slots. Slots that a killed gateway had leased stay reserved for a while.

        Raises:
            ExhaustedError: fewer are free; none is leased.
        """
        with self._lock:
            now = self._clock()
            free = [slot for slot in self._slots if self._holder(slot) is None and self._kept.get(slot, now) <= now]
            if len(free) < wanted:
                raise ExhaustedError(
                    f"the run has {len(self._slots)} slots for workers of other hosts and {len(free)} free, {wanted} "
                    "wanted"
                )
            return [(slot, self._give(member, slot, self._last[slot] + 1)) for slot in free[:wanted]]

    def keep(self, member: str, holding: Sequence[Lease]) -> list[Lease]:
        """Lease those of ``holding`` again that no other member has had since."""
        with self._lock:
            kept = []
            for slot, lease in holding:
                holder = self._holder(slot)
                mine = holder is not None and (holder.member, holder.lease) == (member, lease)
                if slot in self._slots and (mine or (holder is None and lease >= self._last[slot])):
                    kept.append((slot, self._give(member, slot, lease)))
            return kept

    def enter(self, member: str, slot: int, lease: int) -> None:
        """Record that a worker of ``member`` connected. After a gateway's death this may be before its host does.

        Raises:
            LinkError: there is no such slot, or another host has it.
        """
        if slot not in self._slots:
            raise LinkError(
                f"there is no worker {slot}: other hosts have the slots {self._slots.start} to {self._slots.stop - 1}"
                if self._slots
                else f"there is no worker {slot}: this run has no slots for other hosts"
            )
        if not self.keep(member, [(slot, lease)]):
            raise LinkError(f"slot {slot} has gone to another host meanwhile")

    def renew(self, member: str) -> list[int]:
        """Renew the member's leases. Returns its slots."""
        with self._lock:
            mine = [slot for slot, holder in self._holders.items() if holder.member == member]
            for slot in mine:
                self._give(member, slot, self._holders[slot].lease)
            return sorted(mine)

    def note(self, member: str, number: int) -> None:
        """Record, also for a gateway that takes this one's place, that beats of ``member`` up to ``number`` count."""
        with self._lock:
            for slot, holder in self._holders.items():
                if holder.member == member:
                    self._beats[slot] = holder.lease * (_MOST_NUMBER + 1) + min(number, _MOST_NUMBER)

    def noted(self, member: str) -> int:
        """The last ``number`` that was recorded for a member, under the leases that it has; 0: none."""
        with self._lock:
            mine = [(slot, holder.lease) for slot, holder in self._holders.items() if holder.member == member]
            words = [(divmod(int(self._beats[slot]), _MOST_NUMBER + 1), lease) for slot, lease in mine]
            return max((number for (noted, number), lease in words if noted == lease), default=0)

    def leave(self, member: str) -> None:
        """Free the member's slots."""
        with self._lock:
            self._holders = {slot: holder for slot, holder in self._holders.items() if holder.member != member}

    def _holder(self, slot: int) -> _Holder | None:
        holder = self._holders.get(slot)
        return holder if holder is not None and holder.until > self._clock() else None

    def _give(self, member: str, slot: int, lease: int) -> int:
        self._last[slot] = lease
        self._kept.pop(slot, None)
        self._holders[slot] = _Holder(member, lease, self._clock() + self._seconds)
        return lease
