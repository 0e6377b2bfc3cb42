"""Gradient averaging: learners make every update together, each with the mean of all gradients.

``GradientAveraging`` is the link that a topology gives its learners. It makes an ``AveragingMember`` in each of their
processes, or an ``InlineMember`` where they take turns in one.
"""

from __future__ import annotations

import secrets
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from apexrl.errors import LinkError, SpecError
from apexrl.links.averaging.membership import BEAT_SECONDS, Epoch, Membership
from apexrl.links.averaging.shared_record import SegmentRecord, SharedRecord

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from apexrl.links.averaging.connections import Connections
    from apexrl.links.averaging.process_group import ProcessGroup
    from apexrl.links.averaging.sum_plans import Form, Kind

_SECRET = "secret"
_RECORD_BYTES = 1 << 16  # and for every pair of members the addresses by which they connect
_PAIR_BYTES = 512


class State(NamedTuple):
    """What a learner needs to continue like the others."""

    vector: Tensor
    """All that an update changes, float32 on the CPU."""
    version: int
    """Of its next update."""
    progress: int
    """Updates of the run that are in it."""
    updates: int
    """Those that the agent counts."""


class Member(Protocol):
    """One of the learners that average, in its process."""

    wanted: bool
    """Somebody waits to join: all are to leave this epoch after the same update."""
    size: int
    """Members of the epoch."""

    @property
    def device(self) -> torch.device:
        """Where the vectors are to be that it sums."""

    @property
    def joined(self) -> bool:
        """Whether it has the state that all of its epoch began with."""

    def join(self, state: State, gradient: int, form: Form | None = None) -> State | None:
        """Be of the next epoch. To be called until it answers.

        Args:
            gradient: values of what is summed.
            form: in which vectors that are summed travel; the same for all. None: as they are.

        Returns:
            The state that all begin with; None: the others are not here yet.
        """

    def send(self, vector: Tensor, start: int) -> None:
        """Of the next vector to be summed, what is final: from value ``start`` on. It may go out already."""

    def called(self, timeout: float) -> bool:
        """Whether others wait at the next sum, or one is lost, after up to ``timeout`` seconds. False: there is no need
        to sum, unless this member wants to."""
        ...

    def sum(self, vector: Tensor) -> Tensor | None:
        """The sum of all members' vectors, float32 on ``device`` or the CPU: not in the memory of ``vector``, the same
        to the last bit for all, and held until the next sum. None: ask again with the same vector, or, if ``joined`` is
        False now, join again: a member is lost."""

    def leave(self) -> None:
        """Leave the epoch; ``joined`` is False now."""

    def close(self) -> None: ...


class GradientAveraging:
    """The link of learners that average. Picklable to local processes.

    Args:
        members: learners with which the group begins, places 0 … ``members`` − 1.
        patience: seconds that a member may leave the others waiting before they go on without it.
        shared: between processes; otherwise between roles that take turns in one.
        record: through which they find each other where other hosts may bring learners too, picklable; None: shared
            memory of this machine.
        first: place of the first learner here.
        compression: of gradients, as ``config.wiring.gradient_compression`` says.
        share: of a gradient's values that ``top-k`` sends.
        transport: of sums, as ``config.wiring.averaging_transport`` says.
    """

    def __init__(
        self,
        members: int,
        patience: float,
        shared: bool = True,
        record: SharedRecord | None = None,
        first: int = 0,
        compression: Kind = "none",
        share: float = 1.0,
        transport: str = "auto",
    ) -> None:
        self.compression, self.share = compression, share
        self._transport = "sockets" if transport == "auto" and compression != "none" else transport
        self._members, self._patience, self._first = members, patience, first
        self._turns = None if shared else Turns(members)
        self._record = record
        if record is None and shared:
            self._record = SegmentRecord(_RECORD_BYTES + _PAIR_BYTES * members**2)

    def member(self, place: int, alive: Callable[[], object], device: torch.device | None = None) -> Member:
        """Learner ``place`` of those here, in one process at a time.

        Args:
            alive: called several times a second, in another thread, while this member waits for others.
            device: of all its parameters; None: of several devices, or on the CPU.

        Raises:
            SpecError: it cannot sum by the transport that was chosen.
        """
        if self._turns is not None:
            return InlineMember(self._turns, place)
        assert self._record is not None
        number = self._first + place
        return AveragingMember(self._record, number, self._members, self._patience, alive, self._transport, device)


class AveragingMember:
    """A learner in a process of its own.

    Args:
        record: of the group; see ``Membership`` for the arguments that follow.
        alive, device: see ``GradientAveraging.member``.
        transport: see ``process_group.transports``.
    """

    def __init__(
        self,
        record: SharedRecord,
        place: int,
        expected: int,
        patience: float,
        alive: Callable[[], object] = lambda: None,
        transport: str = "sockets",
        device: torch.device | None = None,
    ) -> None:
        import torch

        from apexrl.links.averaging import process_group

        device = torch.device("cpu") if device is None else device
        transports = process_group.transports(transport, device)
        self.device = device if "nccl" in transports else torch.device("cpu")
        self._can = transports, process_group.device_name(self.device)
        self.joined, self.wanted, self.size = False, False, 1
        self._record, self._patience, self._alive = record, patience, alive
        self._name = f"{place}-{uuid.uuid4().hex[:12]}"
        self._known: Membership | None = None
        self._making = threading.Lock()
        self._expected, self._place = expected, place
        self._connections: Connections | ProcessGroup | None = None
        self._announced = self._settled = self._waiting = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="averaging", daemon=True)
        self._thread.start()

    @property
    def _membership(self) -> Membership:
        """Raises LinkError: the record cannot be reached."""
        with self._making:  # the watching thread and the learner's own both ask
            if self._known is None:
                self._known = Membership(self._record, self._name, self._place, self._expected, self._patience)
            return self._known

    def join(self, state: State, gradient: int, form: Form | None = None) -> State | None:
        floats = gradient, state.vector.numel()
        try:
            if not self._announced:
                self._membership.announce(*state[1:], self._settled, floats, *self._can)
                self._announced, self.wanted = True, False
            epoch = self._membership.agreed()
        except LinkError:  # the record cannot be reached now
            self._closed.wait(BEAT_SECONDS)
            return None
        if epoch is None:
            self._closed.wait(0.005)
            return None
        self._announced = False  # should this come to nothing
        _check(epoch, floats)
        self._waiting = True  # for others, which ends within its patience
        try:
            return self._connected(epoch, state, form)
        except LinkError:
            self._lose()
            return None
        finally:
            self._waiting = False

    def _connected(self, epoch: Epoch, state: State, form: Form | None) -> State:
        from apexrl.links.averaging.connections import Connections
        from apexrl.links.averaging.process_group import ProcessGroup
        from apexrl.links.averaging.sum_plans import WHOLE

        prefix, size = f"epoch/{epoch.number}", len(epoch.members)
        secret = self._record.put_first(_SECRET, secrets.token_hex(32).encode())
        address = self._record.address()
        self._connections = sockets = Connections(
            self._record, f"{prefix}/address", epoch.rank, size, address, secret, self._patience, form or WHOLE
        )
        if epoch.transport != "sockets" and size > 1:
            self._connections = ProcessGroup(
                epoch.transport, sockets, self._record, f"{prefix}/group", address, self._patience, self.device
            )
        self._connections.broadcast(state.vector, epoch.newest)
        self.joined, self.size, self._settled = True, size, True
        newest = epoch.members[epoch.newest]
        return State(state.vector, epoch.version, newest.progress, newest.updates)

    def send(self, vector: Tensor, start: int) -> None:
        if self._connections is not None:
            try:
                self._connections.begin_sum(vector, start)
            except LinkError:
                self._lose()

    def called(self, timeout: float) -> bool:
        return self._connections is not None and self._connections.called(timeout)

    def sum(self, vector: Tensor) -> Tensor | None:
        if self._connections is None:
            return None
        self._waiting = True
        try:
            return self._connections.sum(vector)
        except LinkError:
            self._lose()
            return None
        finally:
            self._waiting = False

    def leave(self) -> None:
        self.joined = False
        if self._connections is not None:
            self._connections.close()
            self._connections = None

    def _lose(self) -> None:
        if self._connections is not None:
            self._connections.abort()
        self.leave()

    def close(self) -> None:
        """Leave for good: the others do not wait."""
        self._closed.set()
        self._thread.join(timeout=self._patience)
        self.leave()
        with suppress(LinkError):
            self._membership.leave()

    def _watch(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            if self._waiting:
                self._alive()
            with suppress(LinkError):
                self.wanted |= self._membership.beat() and self.joined


def _check(epoch: Epoch, floats: tuple[int, int]) -> None:
    """Raises:
    SpecError: another member learns with other networks, or they cannot sum by one transport.
    """
    if not epoch.transport:
        can = ", ".join(
            f"{one.place} by {' or '.join(one.transports)} on {one.device or 'cpu'}" for one in epoch.members
        )
        raise SpecError(
            f"learners have no transport of sums in common, as NCCL needs a CUDA device for each: {can}; set "
            "--averaging-transport auto"
        )
    for other in epoch.members:
        if other.floats != floats:
            raise SpecError(
                f"learner {other.name} averages gradients of {other.floats[0]} values and a state of {other.floats[1]},"
                f" and this one {floats[0]} and {floats[1]}: learners of one run need the same agent and settings, and "
                "the same version of apexrl"
            )


class Turns:
    """What members that take turns in one process have in common."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.begin()

    def begin(self) -> None:
        """All begin anew."""
        self.states: dict[int, State] = {}  # by place
        self.offers: dict[tuple[int, int], tuple[int, Tensor]] = {}  # (place, odd) -> a vector and its number


class InlineMember:
    """A learner that takes turns with the others in one process: nobody is lost, and nobody waits."""

    wanted = False

    def __init__(self, turns: Turns, place: int) -> None:
        import torch

        self.device = torch.device("cpu")
        self._turns, self._place = turns, place
        self.size = turns.members
        self._states: dict[int, State] | None = None  # of the epoch that it is in
        self._number = 0
        turns.begin()

    @property
    def joined(self) -> bool:
        return self._states is self._turns.states

    def join(self, state: State, gradient: int, form: Form | None = None) -> State | None:
        states = self._turns.states
        states.setdefault(self._place, state._replace(vector=state.vector.clone()))
        if len(states) < self.size:
            return None
        self._states, self._number = states, 0
        newest = states[max(states, key=lambda place: (states[place].progress, -place))]
        return newest._replace(version=max(one.version for one in states.values()))

    def send(self, vector: Tensor, start: int) -> None: ...

    def called(self, timeout: float) -> bool:
        return True

    def sum(self, vector: Tensor) -> Tensor | None:
        offers, odd = self._turns.offers, self._number % 2
        if not self.joined:
            return None
        if offers.get((self._place, odd), (-1, None))[0] != self._number:
            offers[self._place, odd] = self._number, vector.clone()
        found = [offers.get((place, odd), (-1, vector)) for place in range(self.size)]
        if any(number != self._number for number, _ in found):
            return None
        self._number += 1
        total = found[0][1].clone()
        for _, other in found[1:]:
            total += other
        return total

    def leave(self) -> None: ...

    def close(self) -> None: ...
