"""Which host has which workers' slots of an inference link: leases that end with their host's silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from apexrl.errors import ExhaustedError, LinkError
from apexrl.links.local.inference import InferenceLink

LEASE_BITS: Final = 40
"""A worker's generation on the wire is lease · 2^40 + life · 2^20 + connection: whichever changes, it is a new life."""
LIFE_BITS: Final = 20

Lease = tuple[int, int]
"""(slot, generation of its lease)."""


class _Holder(NamedTuple):
    member: str
    lease: int
    until: float  # by the clock, unless it renews


class SlotLeases:
    """For any number of threads. What it must know of a life of the gateway that was killed stands in the link.

    Args:
        first: slot of a remote worker; those before it are this host's.
        seconds: of silence, after which a member's slots are free.
    """

    def __init__(
        self, link: InferenceLink, first: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lock = threading.Lock()
        self._seconds, self._clock = seconds, clock
        self._holders: dict[int, _Holder] = {}
        self._slots = range(first, link.workers)
        splits = len(link.splits)
        known = link.generations.max(axis=0)
        self._last = {slot: int(known[slot * splits : (slot + 1) * splits].max()) >> LEASE_BITS for slot in self._slots}
        """Generation of each slot's last lease."""
        self._kept = {slot: clock() + seconds for slot, lease in self._last.items() if lease}
        """Slot of a gateway's life that was killed, for its host -> until when."""

    def take(self, member: str, wanted: int) -> list[Lease]:
        """Lease the lowest free slots. Those that were leased when a gateway was killed wait for their hosts a while.

        Raises:
            ExhaustedError: not so many are free; then none is leased.
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
        """Those of ``holding`` that nobody else has, or had, since: the member's once more."""
        with self._lock:
            kept = []
            for slot, lease in holding:
                holder = self._holder(slot)
                mine = holder is not None and (holder.member, holder.lease) == (member, lease)
                if slot in self._slots and (mine or (holder is None and lease >= self._last[slot])):
                    kept.append((slot, self._give(member, slot, lease)))
            return kept

    def enter(self, member: str, slot: int, lease: int) -> None:
        """A worker of ``member`` is here. After a gateway's death it may come before its host.

        Raises:
            LinkError: the slot is none, or another's.
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
        """The member lives. Returns its slots."""
        with self._lock:
            mine = [slot for slot, holder in self._holders.items() if holder.member == member]
            for slot in mine:
                self._give(member, slot, self._holders[slot].lease)
            return sorted(mine)

    def leave(self, member: str) -> None:
        """The member's slots are free."""
        with self._lock:
            self._holders = {slot: holder for slot, holder in self._holders.items() if holder.member != member}

    @property
    def members(self) -> set[str]:
        """Who has slots now."""
        with self._lock:
            return {holder.member for slot in self._slots if (holder := self._holder(slot)) is not None}

    def _holder(self, slot: int) -> _Holder | None:
        holder = self._holders.get(slot)
        return holder if holder is not None and holder.until > self._clock() else None

    def _give(self, member: str, slot: int, lease: int) -> int:
        self._last[slot] = lease
        self._kept.pop(slot, None)
        self._holders[slot] = _Holder(member, lease, self._clock() + self._seconds)
        return lease
