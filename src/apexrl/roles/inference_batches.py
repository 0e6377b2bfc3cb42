"""Batches of environments that wait for actions: gathered, recorded as steps, answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.config import Config
from apexrl.errors import WaitTimeout
from apexrl.protocols import Acted, Context, State, StepWriter
from apexrl.roles.action_check import ActionCheck
from apexrl.roles.actor import FIRST_VERSION, VERSION, PriorityFn
from apexrl.roles.env_arrays import EnvArrays
from apexrl.roles.env_worker import IDLE
from apexrl.roles.lag_throttle import LagThrottle
from apexrl.roles.schedules import Exploration
from apexrl.spec import Array, EnvSpec, Field, is_observation

if TYPE_CHECKING:
    from apexrl.links.local.inference import InferenceLink, Requests, RequestServer
    from apexrl.replay import Replay

_REPORT_SECONDS = 0.5
_RETRY_SECONDS = 0.005  # between tries to write what the replay did not take: ours, as workers look at it
_NOBODY = -1  # generation of a worker that has not asked yet


class InferenceBatch(NamedTuple):
    """Environments to choose actions for, R in all."""

    requests: Requests
    seen: dict[str, Array]  # observations, name -> [R, (stack,) ...]
    state: State  # of an agent with a memory, [R, ...] each; zeros where an episode begins
    exploration: NDArray[np.float32]  # [R]


class Waiting:
    """Says which groups are to be answered now: whoever waits.

    It waits for more only until a third of the environments have asked, or ``inference_wait_ms`` has passed (Sample
    Factory's rule): never for a certain number, which one slow environment would hold up.

    Args:
        link: whose requests ``end`` sees.
        idle: called with seconds, waits for at most so long while nobody may be answered; None: for a request.
    """

    def __init__(
        self,
        context: Context,
        config: Config,
        link: InferenceLink,
        end: RequestServer,
        idle: Callable[[float], None] | None = None,
    ) -> None:
        self._context = context
        self._end = end
        self._idle = idle or end.wait
        self._sizes = np.array([len(rows) for rows in link.rows_of])
        self._largest = config.wiring.inference_batch or link.envs
        self._linger = config.wiring.inference_wait_ms / 1000.0
        self._first = 0  # group that is served first when not all can be

    def groups(self, pending: Callable[[], list[int]], put_off: Container[int]) -> list[int]:
        """Numbers of groups, by rising number; none: nobody has asked.

        Args:
            pending: which groups wait at this moment (``RequestServer.pending``), and may be taken.
            put_off: of these, who could not be answered at the last try: nobody else is made to wait with them.
        """
        patience = self._context.patience
        waited_until: float | None = None
        while True:
            groups = pending()
            new = [group for group in groups if group not in put_off]
            enough = min(self._largest, -(-self._end.expected() // 3))
            asking = int(self._sizes[new].sum())
            now = time.monotonic()
            if not patience or (new and (asking >= enough or now >= (waited_until or now + self._linger))):
                return self._some(groups)
            if new:
                waited_until = waited_until or now + self._linger
                self._end.wait(min(waited_until - now, patience))
            elif groups:
                self._end.wait(min(_RETRY_SECONDS, patience))
                return self._some(pending())  # perhaps the replay takes them now
            else:
                self._idle(patience)
                if not pending():
                    return []

    def _some(self, groups: list[int]) -> list[int]:
        """As many of ``groups`` as go into one batch, in turn."""
        if not groups or int(self._sizes[groups].sum()) <= self._largest:
            return groups
        order = sorted(groups, key=lambda group: (group < self._first, group))
        fitting = max(1, int(np.searchsorted(np.cumsum(self._sizes[order]), self._largest, side="right")))
        self._first = order[fitting - 1] + 1
        return sorted(order[:fitting])


class InferenceBatches:
    """Batches of whoever waits (``Waiting``), for one thread or several that choose actions.

    A step is written when its results have come, before the answer. Where the replay takes no more, the request stays
    unanswered and is tried again; each worker has a writer of its own, so that others continue. A new generation of a
    worker closes its writer: unfinished items and recurrent states of its environments are dropped.

    One thread gathers at a time. No thread waits for environments, or chooses actions, while it holds the lock.

    Args:
        priorities: what the replay's writers call for new items.
        most_waiting: unrolls in the queue with which others begin (``LagThrottle``).
    """

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        inference: InferenceLink,
        replay: Replay,
        records: Mapping[str, Field],
        priorities: PriorityFn | None = None,
        most_waiting: int = 0,
    ) -> None:
        slots, envs = config.actor.actor_slots or inference.workers, inference.envs_per_worker
        self._context = context
        self._link = inference
        self._end = inference.server()
        self._replay = replay
        self._priorities = priorities
        self._stacked = spec.stack > 1
        self._check = ActionCheck(config.agent.agent, spec.action, records)
        self._exploration = Exploration(context, config, spec.action, range(inference.workers), slots, envs)
        self._waiting = Waiting(context, config, inference, self._end, self._idle)
        self._turn = threading.Lock()  # to gather
        self._lock = threading.Lock()  # of all that follows

        self._generations = np.full(inference.workers, _NOBODY, np.int64)  # generation of each worker
        self._writers: list[StepWriter | None] = [None] * inference.workers
        self._acted = np.zeros(inference.groups, np.bool_)  # whose last actions are in `_begun`
        self._sizes = np.array([len(rows) for rows in inference.rows_of])
        self._begun = EnvArrays(inference.envs)  # steps without their results
        self._state = EnvArrays(inference.envs)
        self._rows = np.zeros(inference.groups, np.int64)  # written for each environment of a group
        self._throttle = LagThrottle(context, config, replay, most_waiting)
        self._refused: set[int] = set()  # groups whose steps the replay did not take at the last try
        self._under_way: set[int] = set()  # groups whose actions are being chosen
        self._meter = InferenceMeter(context)

    def next(self, random: bool = False) -> InferenceBatch | None:
        """Whom to choose for, their results written. None: nobody waits, or the replay takes no more. Must be followed
        by ``answer``.

        Args:
            random: actions are to be drawn uniformly (``exploration`` is infinite).
        """
        if not self._turn.acquire(timeout=self._context.patience):
            return None
        try:
            groups = self._waiting.groups(self._pending, self._refused)
            if not groups:
                return None
            with self._lock:
                requests = self._write(self._of_the_living(self._end.read(groups)))
                self._under_way.update(requests.groups)
                return self._batch(requests, random) if requests.groups else None
        finally:
            self._turn.release()

    def answer(self, batch: InferenceBatch, acted: Acted, version: int) -> None:
        """Send what was chosen, by weights of ``version``, to those who asked.

        Raises:
            AgentError: the first actions are none that the environments take, or what it records is not as declared.
        """
        acted = Acted(*self._check.parts(acted, len(batch.exploration)))
        self._check.first(acted.actions, len(batch.exploration), version == FIRST_VERSION)
        with self._lock:
            self._under_way.difference_update(batch.requests.groups)
            requests, rows = self._still_living(batch.requests)
            if not requests.groups:
                return
            which = requests.rows
            self._state.put(which, {name: array[rows] for name, array in (acted.state or {}).items()})
            newest = {name: values[rows, -1] if self._stacked else values[rows] for name, values in batch.seen.items()}
            steps = {**newest, "action": acted.actions[rows]}
            extras = {name: array[rows] for name, array in acted.extras.items()}
            self._begun.put(which, {**steps, **extras, VERSION: np.full(len(which), version, np.int64)})
            self._acted[requests.groups] = True
            self._end.answer(requests, {"action": steps["action"]})
            self._context.count(batches=1)
            self._meter.add(len(which), requests.waited_since)

    def report(self, last: bool = False) -> None:
        """Tell how large batches are, and how long requests wait, a few times a second."""
        with self._lock:
            self._meter.report(last)

    def close(self) -> None:
        """Publish the steps written so far."""
        with self._lock:
            for writer in self._writers:
                if writer is not None:
                    writer.close()
            self._meter.report(last=True)

    def _pending(self) -> list[int]:
        with self._lock:
            groups = [group for group in self._end.pending() if group not in self._under_way]
            return [group for group in groups if not self._held(group)]

    def _idle(self, seconds: float) -> None:
        """Wait until those who have asked may begin unrolls, as nothing else may come; or for a request."""
        with self._lock:
            groups = [group for group in self._end.pending() if group not in self._under_way]
            held = [group for group in groups if self._held(group)]
        if not groups:
            self._end.wait(seconds)
        elif len(held) == len(groups):  # else somebody has asked since the last look
            self._throttle.wait(held[0])

    def _held(self, group: int) -> bool:
        """Whether a group is to begin no unrolls now."""
        return self._throttle.begins(self._rows[group] + self._acted[group]) and self._throttle.holds(group)

    # State

    def _batch(self, requests: Requests, random: bool) -> InferenceBatch:
        which = requests.rows
        seen = {name: values for name, values in requests.columns.items() if is_observation(name)}
        self._state.clear(which, np.asarray(requests.columns["starts"], np.bool_))
        exploration = self._exploration()[which]
        return InferenceBatch(
            requests,
            seen,
            self._state.take(which) or None,
            np.full_like(exploration, np.inf) if random else exploration,
        )

    def _of_the_living(self, requests: Requests) -> Requests:
        """Record new generations of workers, and drop requests of earlier ones."""
        workers = np.array(requests.groups) // len(self._link.splits)
        for worker, generation in zip(workers.tolist(), requests.generations.tolist(), strict=True):
            if generation > self._generations[worker]:
                self._begin_generation(worker, generation)
        return self._still_living(requests)[0]

    def _still_living(self, requests: Requests) -> tuple[Requests, NDArray[np.bool_] | slice]:
        """The requests of present generations, and which rows they are."""
        workers = np.array(requests.groups) // len(self._link.splits)
        alive = requests.generations == self._generations[workers]
        if alive.all():
            return requests, slice(None)
        sizes = self._sizes[requests.groups]
        self._context.count(late_requests=int(np.count_nonzero(~alive)))
        self._end.dismiss(requests.only(~alive, sizes))
        return requests.only(alive, sizes), np.repeat(alive, sizes)

    def _begin_generation(self, worker: int, generation: int) -> None:
        """Drop a worker's unfinished steps and states, and end its streams."""
        self._generations[worker] = generation
        groups = range(worker * len(self._link.splits), (worker + 1) * len(self._link.splits))
        self._acted[groups.start : groups.stop] = False
        self._rows[groups.start : groups.stop] = 0
        self._refused.difference_update(groups)
        envs = self._link.envs_per_worker
        self._state.clear(np.arange(worker * envs, (worker + 1) * envs), np.ones(envs, np.bool_))
        writer = self._writers[worker]
        if writer is not None:
            writer.close()
        self._writers[worker] = self._replay.writer(streams=envs, priority_fn=self._priorities)

    def _write(self, requests: Requests) -> Requests:
        """Write the steps whose results have come. Returns the requests that can be answered: those of workers whose
        steps were taken."""
        if not requests.groups:
            return requests
        envs, sizes = self._link.envs_per_worker, self._sizes[requests.groups]
        complete = np.repeat(self._acted[requests.groups], sizes)
        if IDLE in requests.columns:
            complete &= ~np.asarray(requests.columns[IDLE], np.bool_)
        workers = requests.rows // envs
        steps: dict[str, Array] = {}
        if complete.any():
            results = {name: requests.columns[name] for name in ("reward", "terminated", "truncated")}
            steps = {**self._begun.take(requests.rows), **results}
        refused: list[int] = []
        bounds = np.flatnonzero(np.diff(workers, prepend=_NOBODY, append=self._link.workers)).tolist()
        for begin, end in pairwise(bounds):  # the rows of one worker
            worker = int(workers[begin])
            some: slice | NDArray[np.int64] = slice(begin, end)
            if not complete[begin:end].all():
                some = begin + np.flatnonzero(complete[begin:end])
                if not len(some):
                    continue
            streams = (requests.rows[some] - worker * envs).tolist()
            writer = self._writers[worker]
            assert writer is not None  # its generation has begun
            try:
                writer.append({name: values[some] for name, values in steps.items()}, streams, timeout=0.0)
            except WaitTimeout:
                refused.append(worker)  # nothing was taken; the same steps are offered again
        mine = np.array(requests.groups) // len(self._link.splits)
        taken = ~np.isin(mine, refused)
        self._refused.difference_update(requests.groups)
        written = np.array(requests.groups)[taken]
        self._rows[written] += self._acted[written]
        for group in written.tolist():
            self._throttle.began(group)
        if taken.all():
            return requests
        self._refused.update(np.array(requests.groups)[~taken].tolist())
        return requests.only(taken, sizes)


class InferenceMeter:
    """How large batches are and how long requests wait for an answer, told a few times a second."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batches = self._envs = self._requests = 0
        self._waited = 0.0  # seconds, of all requests
        self._next_report = context.clock() + _REPORT_SECONDS

    def add(self, envs: int, waited_since: NDArray[np.float64]) -> None:
        self._batches += 1
        self._envs += envs
        self._requests += len(waited_since)
        self._waited += float((self._context.clock() - waited_since).sum())

    def report(self, last: bool = False) -> None:
        """``batch``: environments per batch; ``wait_ms``: milliseconds from a request to its answer; means."""
        now = self._context.clock()
        if not self._batches or (now < self._next_report and not last):
            return
        mean_ms = 1000.0 * self._waited / self._requests
        self._context.send("inference", batch=self._envs / self._batches, wait_ms=mean_ms)
        self._batches = self._envs = self._requests = 0
        self._waited, self._next_report = 0.0, now + _REPORT_SECONDS
