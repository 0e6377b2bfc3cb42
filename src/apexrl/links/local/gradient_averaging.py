"""Gradient averaging: learners make every update together, each with the mean of all gradients.

In the shared segment, every member has a line of words that only it writes, and two slots for gradients, used in turn.
A member that starts opens a new *epoch*. A member that sees a newer epoch drops what it was doing and joins it. When
all members are in the same epoch, the leader gives its state to the others, and they count updates from there.

There are no locks. All waits have a timeout: a member that was killed is missing until its successor starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from apexrl._native import Segment

LEADER: Final = 0
"""The member whose state the others take."""

_LINE = 64  # bytes
_EPOCH, _OFFERED, _BELL = 0, 4, 8  # words of a member: epoch, gradients offered in it, bell
# In the header: the epoch of the state; its version and number of updates, 8 bytes each
_STATE_EPOCH, _COUNTS = 0, 8
_SLICE_SECONDS = 0.1  # longest native wait, so that Python can handle signals

Vector = NDArray[np.float32]


class GradientAveraging:
    """Memory for the learners' gradients and for one state. Picklable to local processes.

    Args:
        members: number of learners.
        gradient: float32 values of a gradient.
        state: float32 values of the state that a learner needs to continue like the others.
        shared: between processes; otherwise between roles that take turns in one.
    """

    def __init__(self, members: int, gradient: int, state: int, shared: bool = True) -> None:
        self.members, self.gradient, self.state = members, gradient, state
        self._slot_bytes = -(-4 * gradient // _LINE) * _LINE
        self._states_at = _LINE * (1 + members)
        self._gradients_at = self._states_at + -(-4 * state // _LINE) * _LINE
        self._attach(Segment(self._gradients_at + 2 * members * self._slot_bytes))

    def _attach(self, segment: Segment) -> None:
        self._segment = segment
        data = segment.array()  # keeps the memory mapped as long as a vector is used
        self._counts = data[_COUNTS : _COUNTS + 16].view(np.int64)
        self._state = data[self._states_at :][: 4 * self.state].view(np.float32)
        starts = range(self._gradients_at, self._gradients_at + 2 * self.members * self._slot_bytes, self._slot_bytes)
        self._gradients = [data[start : start + 4 * self.gradient].view(np.float32) for start in starts]

    def __getstate__(self) -> dict[str, Any]:
        names = ("members", "gradient", "state", "_slot_bytes", "_states_at", "_gradients_at", "_segment")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach(state["_segment"])

    def member(self, index: int) -> AveragingMember:
        """Learner ``index``, in one process at a time. It opens a new epoch."""
        return AveragingMember(self, index)

    # Words of a member
    def word(self, member: int, which: int) -> int:
        return self._segment.load(_LINE * (1 + member) + which)

    def set_word(self, member: int, which: int, value: int) -> None:
        self._segment.store(_LINE * (1 + member) + which, value)

    def ring(self, but: int) -> None:
        """Wake all members but one."""
        for member in range(self.members):
            if member != but:
                self._segment.ring(_LINE * (1 + member) + _BELL)

    def wait(self, member: int, fine: Callable[[], bool], timeout: float) -> bool:
        """Wait until ``fine()``, which depends on other members' words. False: not within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            seen = self.word(member, _BELL)
            if fine():
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._segment.wait(_LINE * (1 + member) + _BELL, seen, min(left, _SLICE_SECONDS))

    # The state, and gradients
    def give_state(self, epoch: int, state: Vector, version: int, updates: int) -> None:
        self._state[:] = state
        self._counts[:] = version, updates
        self._segment.store(_STATE_EPOCH, epoch)

    def state_of(self, epoch: int) -> tuple[Vector, int, int] | None:
        """(state, version, updates) of that epoch; None: not given yet."""
        if self._segment.load(_STATE_EPOCH) != epoch:
            return None
        version, updates = self._counts.tolist()
        return self._state, version, updates

    def slot(self, member: int, number: int) -> Vector:
        """The slot of a member's gradient ``number``."""
        return self._gradients[2 * member + number % 2]


class AveragingMember:
    """One of the learners."""

    def __init__(self, link: GradientAveraging, index: int) -> None:
        self._link = link
        self._index = index
        self._others = [other for other in range(link.members) if other != index]
        self._offered = 0
        self.joined = False
        """Whether this member has the state of its epoch."""
        self._enter(max(link.word(member, _EPOCH) for member in range(link.members)) + 1)

    def gathered(self, timeout: float) -> bool:
        """Wait until all are in one epoch. ``joined`` becomes False when a newer epoch is seen."""
        return self._link.wait(self._index, self._all_here, timeout)

    def give(self, state: Vector, version: int, updates: int) -> None:
        """(leader) Give the state to the others, with its weights' version and its number of updates."""
        self._link.give_state(self._epoch, state, version, updates)
        self.joined = True
        self._link.ring(but=self._index)

    def take(self, timeout: float) -> tuple[Vector, int, int] | None:
        """The leader's (state, version, updates). The state is the shared memory itself: copy it. None: it was not
        given in time, or a newer epoch began."""
        link, epoch = self._link, self._epoch
        link.wait(self._index, lambda: link.state_of(epoch) is not None or not self._all_here(), timeout)
        found = link.state_of(epoch)
        if found is None or self._epoch != epoch:
            return None
        self.joined = True
        return found

    def offer(self, gradient: Vector) -> None:
        """Publish this member's next gradient."""
        self._offered += 1
        self._link.slot(self._index, self._offered)[:] = gradient
        self._link.set_word(self._index, _OFFERED, self._offered)
        self._link.ring(but=self._index)

    def mean(self, timeout: float) -> Vector | None:
        """The mean of all members' gradients with the last offered number, in a new array. Summed in the order of
        members, it is the same to the last bit for all. None: some are missing, or ``joined`` is False."""
        link, number = self._link, self._offered

        def ready() -> bool:
            return not self._all_here() or all(link.word(other, _OFFERED) >= number for other in self._others)

        if not link.wait(self._index, ready, timeout) or not self.joined:
            return None
        total: Vector = link.slot(0, number).copy()
        for member in range(1, link.members):
            total += link.slot(member, number)
        total /= np.float32(link.members)
        return total if self._all_here() else None

    def _all_here(self) -> bool:
        """Join the newest epoch. True: all members are in it."""
        epochs = [self._link.word(member, _EPOCH) for member in range(self._link.members)]
        newest = max(epochs)
        if newest != self._epoch:
            self._enter(newest)
            epochs[self._index] = newest
        return min(epochs) == newest

    def _enter(self, epoch: int) -> None:
        self._epoch, self._offered, self.joined = epoch, 0, False
        self._link.set_word(self._index, _OFFERED, 0)  # before the epoch, so that no gradient of an earlier one counts
        self._link.set_word(self._index, _EPOCH, epoch)
        self._link.ring(but=self._index)
