"""Environments in threads, for simulators that wait rather than compute."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import gymnasium as gym
import numpy as np

from apexrl.envs.action_spaces import action_spec
from apexrl.envs.lockstep import (
    Bools,
    Changes,
    EnvCall,
    Rows,
    Single,
    Which,
    each_of,
    empty_rows,
    refuse_not_finite,
    singles,
)
from apexrl.envs.spaces import LIMIT, observation_leaves
from apexrl.errors import EnvError
from apexrl.run.env_changes import EnvChange
from apexrl.space_values import LengthLimit
from apexrl.spec import Array

CLOSE_SECONDS = 3.0
"""Limit for closing environments; less than the supervisor's shortest limit at a stop."""

_SLICE_SECONDS = 1.0

Work = Callable[[], None]
Inbox = SimpleQueue[Work | None]
Done = SimpleQueue[tuple[int, BaseException | None]]


class ThreadRows:
    """B single environments, each made, stepped and closed in its own thread.

    ``receive`` returns the environments that are ready, so a slow one delays no other. (Waiting a little for more of
    them gained nothing.) A thread writes only into its environment's row, and only during a call.

    Args:
        makers: one for each environment; called one after the other, as not all constructors are thread-safe.
        name: of the environment, for errors.
        call: entered around every call, in its thread; it measures the call.
        info_metrics: keys of an info that are told of an episode (``told_metrics``).

    Raises:
        EnvError: an environment cannot be made, or is not like the others.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], gym.Env[Any, Any]]],
        name: str,
        call: EnvCall = nullcontext,
        info_metrics: Sequence[str] = (),
        changes: Changes = EnvChange,
        limit: LengthLimit = LIMIT,
    ) -> None:
        self._name = name
        self.num_envs, self.lockstep = len(makers), False
        self._inboxes: list[Inbox] = [SimpleQueue() for _ in makers]
        self._done: Done = SimpleQueue()
        self._busy: set[int] = set()  # sent, and not handed out yet
        self._ready: list[int] = []  # those of them that have returned
        self._threads = [
            threading.Thread(target=_serve, args=(n, inbox, self._done, call), name=f"{name}-{n}", daemon=True)
            for n, inbox in enumerate(self._inboxes)
        ]
        for thread in self._threads:
            thread.start()
        weakref.finalize(self, _dismiss, self._inboxes)

        envs: list[Any] = [None] * self.num_envs
        for number, maker in enumerate(makers):
            self._begin(number, partial(_make, envs, number, maker))
            self._all_returned()
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.leaves = observation_leaves(self.observation_space, limit)
        self._each = each_of(action_spec(self.action_space))
        self._singles: list[Single] = singles(envs, self.leaves, name, info_metrics, changes)
        self._rows = empty_rows(self.leaves, self.num_envs)

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]:
        """Begin anew everywhere, at the same time; steps in progress are waited for and dropped."""
        self._all_returned()
        for number, (single, seed) in enumerate(zip(self._singles, seeds, strict=True)):
            self._begin(number, partial(single.reset, seed, self._rows))
        self._all_returned()
        refuse_not_finite(self._rows, self.leaves, self._name)
        return {name: array.copy() for name, array in self._rows.observation.items()}

    def send(self, actions: Array, starting: Bools, which: Which = None) -> None:
        """Begin a step of environments ``which``, of which none may be under way. Returns at once."""
        numbers = range(self.num_envs) if which is None else which.tolist()
        own = actions.copy()  # whoever chose them may write into the array again
        for number, action, starts in zip(numbers, self._each(own), starting.tolist(), strict=True):
            self._begin(number, partial(self._singles[number].step, action, starts, self._rows))

    def receive(self, least: int = 1, timeout: float = 0.0) -> Rows | None:
        """The steps that are done, by rising number; at least ``least`` of them, or as many as are under way.

        Raises:
            EnvError: an environment raised an error, or returned what its space does not hold.
        """
        least = min(least, len(self._busy))
        if not self._returned(least, time.monotonic() + timeout) or not least:
            return None
        self._returned(len(self._busy), 0.0)  # all others that are ready by now
        which = np.array(sorted(self._ready), np.int64)
        self._busy.difference_update(self._ready)
        self._ready.clear()
        all_rows = self._rows
        assert all_rows.life_lost is not None
        assert all_rows.metrics is not None
        told = {number: all_rows.metrics.pop(number) for number in which.tolist() if number in all_rows.metrics}
        rows = Rows(
            {name: array[which] for name, array in all_rows.observation.items()},
            all_rows.reward[which],
            all_rows.terminated[which],
            all_rows.truncated[which],
            all_rows.life_lost[which],
            which,
            told,
        )
        refuse_not_finite(rows, self.leaves, self._name)
        return rows

    @property
    def ignores_mask(self) -> bool:
        """As of ``lockstep.Single``."""
        return self._singles[0].ignores_mask

    def close(self) -> None:
        """Close every environment after its current call, whose result is dropped.

        Raises:
            EnvError: one raised an error, or did not return within ``CLOSE_SECONDS`` and is abandoned.
        """
        deadline = time.monotonic() + CLOSE_SECONDS
        failed: list[EnvError] = []
        for inbox, single in zip(self._inboxes, self._singles, strict=True):
            inbox.put(partial(_close, single, failed))
        _dismiss(self._inboxes)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [number for number, thread in enumerate(self._threads) if thread.is_alive()]
        if failed:
            raise failed[0]
        if stuck:
            raise EnvError(
                f"{self._name}: of {self.num_envs} environments, number {', '.join(map(str, stuck))} did not return "
                f"within {CLOSE_SECONDS:g} s of the end and could not be closed"
            )

    def _begin(self, number: int, work: Work) -> None:
        assert number not in self._busy, f"environment {number} is in a call already"
        self._busy.add(number)
        self._inboxes[number].put(work)

    def _returned(self, count: int, deadline: float) -> bool:
        """Wait until ``count`` calls in progress have returned; False: not in time. Raises an environment's error."""
        while len(self._ready) < count:
            try:
                number, error = self._done.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return False
            if error is not None:
                self._busy.discard(number)
                raise error
            self._ready.append(number)
        return True

    def _all_returned(self) -> None:
        """Wait for all calls in progress and drop their results; the supervisor notices a call that hangs."""
        while not self._returned(len(self._busy), time.monotonic() + _SLICE_SECONDS):
            pass
        self._busy.clear()
        self._ready.clear()


def _serve(number: int, inbox: Inbox, done: Done, call: EnvCall) -> None:
    """An environment's thread. It holds no reference to ``ThreadRows``, which may be freed meanwhile."""
    while (work := inbox.get()) is not None:
        done.put((number, _try(work, call)))
        del work


def _try(work: Work, call: EnvCall) -> BaseException | None:
    try:
        with call():
            work()
    except BaseException as error:  # also SystemExit: ``receive`` raises it
        return error
    return None


def _make(envs: list[Any], number: int, maker: Callable[[], gym.Env[Any, Any]]) -> None:
    envs[number] = maker()


def _close(single: Single, failed: list[EnvError]) -> None:
    try:
        single.close()
    except EnvError as error:
        failed.append(error)


def _dismiss(inboxes: Sequence[Inbox]) -> None:
    for inbox in inboxes:
        inbox.put(None)
