"""The inference server: chooses the actions of all environment workers, and writes what happened into the replay."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from apexrl.config import Config
from apexrl.errors import WaitTimeout
from apexrl.exploration import slot_exploration
from apexrl.protocols import Agent, Context, StepWriter, WeightsReader
from apexrl.roles.actor import FIRST_VERSION, VERSION, wanted_priorities
from apexrl.roles.learner import torch_device
from apexrl.roles.per_env import PerEnv
from apexrl.spec import Array, EnvSpec, is_observation

if TYPE_CHECKING:
    from apexrl.links.inference import InferenceLink, Requests
    from apexrl.replay import Replay

_REPORT_SECONDS = 0.5
_NOBODY = -1  # generation of a worker that has not asked yet


class InferenceServer:
    """SEED's inference (Espeholt et al. 2020, §3.1): one network for all environments, their recurrent states and
    unfinished steps beside it, and no weights on their way to anybody.

    A batch is whoever waits. The server waits for more only until a third of the environments have asked, or
    ``inference_wait_ms`` has passed (Sample Factory's rule): never for a certain number, which one slow environment
    would hold up.

    A step is written when its results have come, before the answer. Where the replay takes no more, the request stays
    unanswered and is looked at again; each worker has a writer of its own, so that others go on. A worker's new life
    closes its writer: what its streams began is dropped, as its environments' recurrent states are.

    A server that takes a dead one's place answers what it finds. The steps that were under way are lost; recurrent
    states and streams begin anew, in the midst of episodes, the one like the other.
    """

    def __init__(
        self,
        context: Context,
        *,
        config: Config,
        spec: EnvSpec,
        inference: InferenceLink,
        replay: Replay,
        weights: WeightsReader,
    ) -> None:
        import torch

        from apexrl.agents import agent_class

        torch.set_num_threads(max(1, config.learner.learner_threads))
        device = torch_device(config.learner.device)
        slots, envs = config.actor.actor_slots or inference.workers, inference.envs_per_worker
        self._context = context
        self._link = inference
        self._end = inference.server()
        self._replay = replay
        self._weights = weights
        self._agent: Agent = agent_class(config.agent.agent)(spec, config.agent, device, context.seed)
        self._priorities = wanted_priorities(config, self._agent)
        self._random_start = config.actor.random_start
        self._stacked = spec.stack > 1
        self._exploration = np.concatenate(
            [slot_exploration(spec.action, config.actor, slot, slots, envs) for slot in range(inference.workers)]
        )
        self._largest = config.wiring.inference_batch or inference.envs
        self._linger = config.wiring.inference_wait_ms / 1000.0
        self._version = 0

        self._lives = np.full(inference.workers, _NOBODY, np.int64)  # generation of each worker
        self._writers: list[StepWriter | None] = [None] * inference.workers
        self._acted = np.zeros(inference.groups, np.bool_)  # whose last actions are in `_begun`
        self._sizes = np.array([len(rows) for rows in inference.rows_of])
        self._begun = PerEnv(inference.envs)  # steps without their results
        self._state = PerEnv(inference.envs)
        self._refused: set[int] = set()  # groups whose steps the replay did not take at the last try
        self._first = 0  # group that is served first when not all can be
        self._meter = _Meter(context)

    def step(self) -> bool:
        """Answer whoever waits. False: nobody does, no weights are published yet, or the replay takes no more."""
        self._pull()
        if self._version == 0:
            return False
        groups = self._gather()
        if not groups:
            return False
        requests = self._of_the_living(self._end.read(groups))
        requests = self._write(requests)
        if requests.groups:
            self._answer(requests)
        self._meter.report()
        return bool(requests.groups)

    def close(self) -> None:
        """Publish the steps written so far."""
        for writer in self._writers:
            if writer is not None:
                writer.close()
        self._meter.report(last=True)

    # A batch, from its requests to its answers

    def _gather(self) -> list[int]:
        """The groups to answer now."""
        patience = self._context.patience
        waited_until: float | None = None
        while True:
            groups = self._end.pending()
            new = [group for group in groups if group not in self._refused]
            enough = min(self._largest, -(-self._end.expected() // 3))
            asking = int(self._sizes[new].sum())
            now = time.monotonic()
            if not patience or (new and (asking >= enough or now >= (waited_until or now + self._linger))):
                return self._some(groups)
            if new:
                waited_until = waited_until or now + self._linger
                self._end.wait(min(waited_until - now, patience))
            elif groups:
                return self._some(groups)  # perhaps the replay takes them now
            else:
                self._end.wait(patience)
                if not self._end.pending():
                    return []

    def _some(self, groups: list[int]) -> list[int]:
        """As many of ``groups`` as go into one batch, in turn."""
        if not groups or int(self._sizes[groups].sum()) <= self._largest:
            return groups
        order = sorted(groups, key=lambda group: (group < self._first, group))
        fitting = max(1, int(np.searchsorted(np.cumsum(self._sizes[order]), self._largest, side="right")))
        self._first = order[fitting - 1] + 1
        return sorted(order[:fitting])

    def _of_the_living(self, requests: Requests) -> Requests:
        """Note whose life is new, and leave out what their predecessors asked."""
        workers = np.array(requests.groups) // len(self._link.splits)
        for worker, generation in zip(workers.tolist(), requests.generations.tolist(), strict=True):
            if generation > self._lives[worker]:
                self._begin_life(worker, generation)
        alive = requests.generations == self._lives[workers]
        if alive.all():
            return requests
        sizes = self._sizes[requests.groups]
        self._end.dismiss(requests.only(~alive, sizes))
        return requests.only(alive, sizes)

    def _begin_life(self, worker: int, generation: int) -> None:
        """What a worker's environments had begun is nobody's now, and their streams end here."""
        self._lives[worker] = generation
        groups = range(worker * len(self._link.splits), (worker + 1) * len(self._link.splits))
        self._acted[groups.start : groups.stop] = False
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
            assert writer is not None  # its life has begun
            try:
                writer.append({name: values[some] for name, values in steps.items()}, streams, timeout=0.0)
            except WaitTimeout:
                refused.append(worker)  # nothing was taken; the same steps are offered again
        mine = np.array(requests.groups) // len(self._link.splits)
        taken = ~np.isin(mine, refused)
        self._refused.difference_update(requests.groups)
        if taken.all():
            return requests
        self._refused.update(np.array(requests.groups)[~taken].tolist())
        return requests.only(taken, sizes)

    def _answer(self, requests: Requests) -> None:
        """Choose actions for all of a batch at once."""
        which = requests.rows
        seen = {name: values for name, values in requests.columns.items() if is_observation(name)}
        exploration = self._exploration[which]
        if self._random_start and self._version == FIRST_VERSION:
            exploration = np.full_like(exploration, np.inf)
        self._state.clear(which, np.asarray(requests.columns["starts"], np.bool_))
        actions, extras, state = self._agent.act(seen, self._state.take(which) or None, exploration)
        self._state.put(which, state or {})
        newest = {name: values[:, -1] for name, values in seen.items()} if self._stacked else seen
        versions = np.full(len(which), self._version, np.int64)
        self._begun.put(which, {**newest, "action": actions, **extras, VERSION: versions})
        self._acted[requests.groups] = True
        self._end.answer(requests, {"action": actions})
        self._context.count(batches=1)
        self._meter.add(len(which), requests.waited_since)

    def _pull(self) -> None:
        newest = self._weights.latest(newer_than=self._version)
        if newest is not None:
            self._version, arrays = newest
            self._agent.load(arrays)
            self._context.count(weights_pulled=1)


class _Meter:
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
