"""Membership: which learners average together, agreed on through a shared record, in numbered epochs.

A member announces itself in the newest epoch that is still open. When all that are alive have done so, somebody writes
the list of members; the first list that is written holds for all. A member that is lost, or a new one, makes the others
go to the next epoch. Who is alive shows in a counter that every member raises.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from apexrl.links.averaging.shared_record import SharedRecord

BEAT_SECONDS: Final = 0.25
_SILENT_SECONDS = 2.0  # a member whose counter stood still for this long is not waited for
_FORGOTTEN_SECONDS = 60.0  # after this its counter is removed
_EPOCH, _BEAT, _MEMBERS = "epoch", "beat", "members"
_LONGEST = 4096  # bytes of an announcement


@dataclass(frozen=True)
class Member:
    """A learner, as it announces itself."""

    name: str
    """Of this process: its successor has another one."""
    place: int
    """Among the learners; the lowest is the first in sums, and its state holds where several are equally new."""
    version: int
    """Of its next update."""
    progress: int
    """Updates of the run that are in its state."""
    updates: int
    """Those that its agent counts."""
    settled: bool
    """It was a member of an earlier epoch, so that its state is whole."""
    floats: tuple[int, int]
    """Values of its gradient and of its state: those of all must be equal."""
    transports: tuple[str, ...] = ("sockets",)
    """By which it can sum, the best first."""
    device: str = ""
    """The CUDA device of its parameters, named like no other on any host; empty: they are on none."""

    @property
    def newness(self) -> tuple[int, bool, int]:
        return self.progress, self.settled, -self.place


@dataclass(frozen=True)
class Epoch:
    """An epoch whose members are agreed on."""

    number: int
    members: tuple[Member, ...]
    """By place."""
    rank: int
    """Where one's own is among them."""
    transport: str
    """By which they sum; empty: they have none in common."""

    @property
    def newest(self) -> int:
        """Rank of the member whose state all take."""
        return max(range(len(self.members)), key=lambda rank: self.members[rank].newness)

    @property
    def version(self) -> int:
        """Of the first update: no member has seen a greater one."""
        return max(member.version for member in self.members)


class Membership:
    """One member's view of the group.

    Args:
        name: of this process, like no other.
        place: see ``Member``.
        expected: members with which the group begins; the places are 0 … ``expected`` − 1.
        patience: seconds that members which are alive are waited for.
    """

    def __init__(
        self,
        record: SharedRecord,
        name: str,
        place: int,
        expected: int,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record, self._name, self._place = record, name, place
        self._expected, self._patience, self._clock = expected, patience, clock
        self._guard = threading.Lock()  # of what `beat` and the member's own thread both use
        self._heard: dict[str, tuple[bytes, float]] = {}  # name -> its counter, and when that was seen to change
        self._beats = 0
        self._mine: Member | None = None  # as announced
        self._number = 0  # of the epoch that this member is in, or wants to be in
        self._since = 0.0  # when it was announced there
        self.beat()

    def beat(self) -> bool:
        """Say that this member is alive, and look who else is; to be called every ``BEAT_SECONDS``, from any thread.

        Returns:
            Somebody wants an epoch after this member's.
        """
        with self._guard:
            self._beats += 1
            entries = self._record.put(f"{_BEAT}/{self._name}", str(self._beats).encode())
            self._hear(entries)
            return self._newest(entries) > self._number > 0

    def announce(
        self,
        version: int,
        progress: int,
        updates: int,
        settled: bool,
        floats: tuple[int, int],
        transports: tuple[str, ...] = ("sockets",),
        device: str = "",
    ) -> None:
        """Want to be in an epoch after the one that this member was in."""
        with self._guard:
            own = self._name, self._place, version, progress, updates, settled, floats
            self._mine = Member(*own, transports, device)
            self._number += 1
            self._announce(self._record.all())

    def agreed(self) -> Epoch | None:
        """The epoch that this member is in, once its members are agreed on. To be called again and again."""
        with self._guard:
            assert self._mine is not None
            entries = self._record.all()
            self._hear(entries)
            if self._newest(entries) != self._number or f"{self._prefix()}/{self._name}" not in entries:
                self._announce(entries)
                return None
            transport, members = _agreed(entries, self._number)
            if not members:
                if not self._complete(entries):
                    return None
                alive = self._alive() | {self._name}
                chosen = [one for one in _announced(entries, self._number) if one.name in alive]
                chosen.sort(key=lambda one: (one.place, one.name))
                table = {"transport": _common_transport(chosen), "members": [asdict(one) for one in chosen]}
                text = json.dumps(table).encode()
                entries[f"{self._prefix()}/{_MEMBERS}"] = self._record.put_first(f"{self._prefix()}/{_MEMBERS}", text)
                transport, members = _agreed(entries, self._number)
            names = [one.name for one in members]
            if self._name not in names:
                self._announce(entries)
                return None
            epoch = Epoch(self._number, members, names.index(self._name), transport)
            if epoch.rank == 0:
                self._clean(entries, names)
            return epoch

    def leave(self) -> None:
        """Be waited for no longer."""
        with self._guard:
            self._record.drop([f"{_BEAT}/{self._name}", f"{self._prefix()}/{self._name}"])

    def _prefix(self) -> str:
        return f"{_EPOCH}/{self._number}"

    def _announce(self, entries: dict[str, bytes]) -> None:
        """In the newest epoch, or the one after it if its members are agreed on."""
        newest = self._newest(entries)
        target = max(newest + bool(_agreed(entries, newest)[1]), 1)
        if target > self._number or self._mine is None:
            self._number = target
        assert self._mine is not None
        self._since = self._clock()
        self._record.put(f"{self._prefix()}/{self._name}", json.dumps(asdict(self._mine)).encode())

    def _complete(self, entries: dict[str, bytes]) -> bool:
        """Whether nobody else need be waited for."""
        announced = {one.name for one in _announced(entries, self._number)}
        before = {one.name for one in _agreed(entries, self._number - 1)[1]}
        alive = self._alive()
        waited = self._clock() - self._since
        if not before and len(announced) < self._expected:
            return waited > self._patience
        if alive <= announced:
            return True
        # Who was not in it leaves the decision to those who were, as long as they live: their state is newer.
        return waited > self._patience * (1 if self._name in before or not alive & before else 3)

    def _alive(self) -> set[str]:
        return {name for name, (_, when) in self._heard.items() if self._clock() - when < _SILENT_SECONDS}

    def _hear(self, entries: dict[str, bytes]) -> None:
        now = self._clock()
        found = {key.partition("/")[2]: value for key, value in entries.items() if key.startswith(f"{_BEAT}/")}
        for name, value in found.items():
            if self._heard.get(name, (b"", 0.0))[0] != value:
                self._heard[name] = value, now
        for name in self._heard.keys() - found.keys():  # it has left
            del self._heard[name]

    def _clean(self, entries: dict[str, bytes], names: list[str]) -> None:
        """Remove what nobody will read again."""
        now = self._clock()
        silent = {name for name, (_, when) in self._heard.items() if now - when > _FORGOTTEN_SECONDS}
        old = [key for key in entries if 0 < _number(key) < self._number - 1]
        self._record.drop(old + [f"{_BEAT}/{name}" for name in silent - set(names)])

    @staticmethod
    def _newest(entries: dict[str, bytes]) -> int:
        return max((_number(key) for key in entries), default=0)


def _number(key: str) -> int:
    """Of the epoch that a key is of; 0: of none."""
    kind, _, rest = key.partition("/")
    number = rest.partition("/")[0]
    return int(number) if kind == _EPOCH and number.isdecimal() and len(number) < 16 else 0


def _announced(entries: dict[str, bytes], number: int) -> list[Member]:
    prefix = f"{_EPOCH}/{number}/"
    texts = {key.removeprefix(prefix): text for key, text in entries.items() if key.startswith(prefix)}
    found = [_member(text) for name, text in texts.items() if name != _MEMBERS and "/" not in name]
    return [one for one in found if one is not None]


def _common_transport(members: list[Member]) -> str:
    """The best by which all can sum; empty: there is none. NCCL wants a device for each."""
    apart = len({one.device for one in members}) == len(members)
    common = [name for name in members[0].transports if all(name in one.transports for one in members)]
    return next((name for name in common if name != "nccl" or apart), "")


def _agreed(entries: dict[str, bytes], number: int) -> tuple[str, tuple[Member, ...]]:
    """Transport and members that are agreed on for an epoch; no members: they are not."""
    text = entries.get(f"{_EPOCH}/{number}/{_MEMBERS}")
    try:
        table = json.loads(text or b"{}")
        transport, values = table["transport"], table["members"]
    except (ValueError, TypeError, KeyError):
        return "", ()
    if not isinstance(transport, str) or not isinstance(values, list):
        return "", ()
    found = [_checked(value) for value in values]
    return transport, tuple(one for one in found if one is not None)


def _member(text: bytes) -> Member | None:
    try:
        return _checked(json.loads(text)) if len(text) <= _LONGEST else None
    except ValueError:
        return None


def _checked(value: object) -> Member | None:
    """What somebody wrote, as a member; None: it is none."""
    kinds = {"name": str, "place": int, "version": int, "progress": int}
    kinds |= {"updates": int, "settled": bool, "floats": list, "transports": list, "device": str}
    if not isinstance(value, dict) or {name: type(one) for name, one in value.items()} != kinds:
        return None
    floats, transports = tuple(value["floats"]), tuple(value["transports"])
    if (
        len(floats) != 2
        or not all(type(one) is int for one in floats)
        or not all(type(one) is str for one in transports)
    ):
        return None
    return Member(**{**value, "floats": floats, "transports": transports})
