"""Inference as a message: environments ask what to do, a server answers, through shared memory of one machine.

The environments of a worker are split into *groups*, which ask by themselves: one group steps while the others wait. A
message is numbers in columns, one row for each environment of all workers; what the columns are is said by who makes
the link. Every request carries the generation of the worker's life.

The memory:

    bell of each server | serving [servers] | bell of each worker | here [workers] | asked [groups] | answered [groups]
    (words of 4 bytes)
    generation [2, groups] | asked_at [2, groups]
    request columns [2, environments, ...] | reply columns [2, environments, ...]

``asked`` counts a group's requests and only its worker writes it; ``answered`` is the number of the last request that
was answered and only the server writes it. Where they differ, somebody waits. Request k and its reply lie in half k mod
2 of the columns. So a worker that takes a dead one's place writes its first request beside the one that the server may
be reading at this moment, and what the server answers to the dead one's request has another number. A server that takes
a dead one's place finds what was not answered. No lock is taken, and whoever dies between two stores blocks nobody.

Several servers share the groups by *seats*, of which there are as many as servers: group g has seat g mod N. Who has a
seat, and alone answers its groups, is for ``seats.Seats`` to say; ``serving`` says it to those who ask, so that they
ring the right bell.

In one process (``--serial``) the same memory serves roles that take turns. For workers of other hosts a gateway writes
here (``inference_gateway``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl._native import Segment
from apexrl.errors import SpecError
from apexrl.spec import Array, Field

_LINE = 64  # bytes: what different processes write shares no cache line
_WORDS = 2**32


class InferenceLink:
    """Where everything stands in the memory. Picklable to local processes while its maker lives.

    Args:
        request: what a worker writes for each environment: name -> Field.
        reply: what the server answers for each: name -> Field.
        workers: how many; each has the same groups.
        splits: environments in each group of a worker.
        servers: that there may be.
        segment: made by another process; default: a new one.

    Raises:
        SpecError: there are no workers, a group has no environments, or servers would be without groups.
    """

    def __init__(
        self,
        request: Mapping[str, Field],
        reply: Mapping[str, Field],
        workers: int,
        splits: Sequence[int],
        servers: int = 1,
        segment: Segment | None = None,
    ) -> None:
        if workers < 1 or not splits or min(splits) < 1:
            raise SpecError(f"{workers} workers with groups of {list(splits)} environments: each must be at least 1")
        self.request, self.reply = dict(request), dict(reply)
        self.workers, self.splits = workers, tuple(splits)
        self.groups = workers * len(self.splits)
        if not 1 <= servers <= self.groups:
            raise SpecError(
                f"{servers} inference servers for {self.groups} groups of environments: 1 to as many as groups"
            )
        self.servers = servers
        self.envs_per_worker = sum(self.splits)
        self.envs = workers * self.envs_per_worker
        ends = np.cumsum(np.tile(self.splits, workers))
        self.rows_of = [np.arange(end - size, end) for end, size in zip(ends, self.splits * workers, strict=True)]
        """Numbers of each group's environments in the whole run."""

        self._end = 0
        self.server_bells = [self._take(4) for _ in range(servers)]
        self.serving = self._take(4 * servers)
        self.worker_bells = [self._take(4) for _ in range(workers)]
        self.here = self._take(4 * workers)
        self.asked, self.answered = self._take(4 * self.groups), self._take(4 * self.groups)
        heads = [self._take(2 * 8 * self.groups) for _ in range(2)]
        columns = [
            {name: self._take(2 * self.envs * field.nbytes) for name, field in fields.items()}
            for fields in (self.request, self.reply)
        ]
        self.segment = Segment(self._end) if segment is None else segment
        self._bytes = self.segment.array()  # keeps the memory mapped as long as a view of it is held
        self.here_words = self._over((workers,), "uint32", self.here)
        self.asked_words = self._over((self.groups,), "uint32", self.asked)
        self.answered_words = self._over((self.groups,), "uint32", self.answered)
        self.generations = self._over((2, self.groups), "int64", heads[0])
        self.asked_at = self._over((2, self.groups), "float64", heads[1])
        self.request_columns, self.reply_columns = (
            {
                name: self._over((2 * self.envs, *field.shape), field.dtype, offsets[name])
                for name, field in fields.items()
            }
            for fields, offsets in zip((self.request, self.reply), columns, strict=True)
        )

    @staticmethod
    def make(shared: bool, **options: Any) -> InferenceLink:
        """For processes, or for roles that take turns in one: both have the same memory."""
        return InferenceLink(**options)

    def __reduce__(self) -> tuple[Any, ...]:
        return (InferenceLink, (self.request, self.reply, self.workers, self.splits, self.servers, self.segment))

    def worker(self, index: int, generation: int) -> WorkerEnd:
        """The end of worker ``index`` in its ``generation``-th life. One process has it at a time."""
        return WorkerEnd(self, index, generation)

    def server(self, index: int = 0) -> ServerEnd:
        """The end of a server. One process has it at a time."""
        return ServerEnd(self, index)

    def _take(self, nbytes: int) -> int:
        offset, self._end = self._end, -(-(self._end + nbytes) // _LINE) * _LINE
        return offset

    def _over(self, shape: tuple[int, ...], dtype: str, offset: int) -> Any:
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self._bytes[offset : offset + nbytes].view(dtype).reshape(shape)


class WorkerEnd:
    """Asks for the groups of one worker, which are numbered from 0."""

    def __init__(self, link: InferenceLink, worker: int, generation: int) -> None:
        self._link, self._segment = link, link.segment
        self._generation = generation
        self._bell, self._here = link.worker_bells[worker], link.here + 4 * worker
        self._seen = 0  # of the bell, at the last look
        groups = [worker * len(link.splits) + split for split in range(len(link.splits))]
        self._groups = groups
        self._asked = [self._segment.load(link.asked + 4 * group) for group in groups]  # a dead predecessor's, at first
        self._waiting = [False] * len(groups)  # for an answer

    def room(self, split: int) -> dict[str, Array] | None:
        """Columns [E, ...] for the next request of a group, to write into; None while the server may still read what a
        dead predecessor wrote there. A group that waits for an answer has none either."""
        link, group = self._link, self._groups[split]
        answered = self._segment.load(link.answered + 4 * group)
        if self._waiting[split] or (self._asked[split] - answered) % _WORDS > 1:
            return None
        return self._half(link.request_columns, split, self._asked[split] + 1)

    def ask(self, split: int, now: float) -> None:
        """Ask what to do; the columns are written. ``now``: seconds, for whoever measures how long answers take."""
        link, group = self._link, self._groups[split]
        number = (self._asked[split] + 1) % _WORDS
        link.generations[number % 2, group] = self._generation
        link.asked_at[number % 2, group] = now
        self._asked[split] = number
        self._waiting[split] = True
        self._segment.store(self._here, 1)
        self._segment.store(link.asked + 4 * group, number)
        serving = self._segment.load(link.serving + 4 * (group % link.servers))
        self._segment.ring(link.server_bells[serving])

    def leave(self) -> None:
        """Let the server expect nothing of this worker, until it asks again."""
        self._segment.store(self._here, 0)

    def answered(self) -> list[int]:
        """The groups whose answer has come and was not taken yet."""
        self._seen = self._segment.load(self._bell)
        return [split for split, waiting in enumerate(self._waiting) if waiting and self._has_come(split)]

    def take(self, split: int) -> dict[str, Array]:
        """The answer that has come: views [E, ...], which hold until the group's next ``ask`` but one."""
        self._waiting[split] = False
        return self._half(self._link.reply_columns, split, self._asked[split])

    def wait(self, timeout: float) -> None:
        """Sleep until an answer has come since the last ``answered``, at most ``timeout`` seconds; may wake early."""
        self._segment.wait(self._bell, self._seen, timeout)

    def _has_come(self, split: int) -> bool:
        return self._segment.load(self._link.answered + 4 * self._groups[split]) == self._asked[split]

    def _half(self, columns: Mapping[str, Array], split: int, number: int) -> dict[str, Array]:
        rows = self._link.rows_of[self._groups[split]]
        begin = int(rows[0]) + number % 2 * self._link.envs
        return {name: column[begin : begin + len(rows)] for name, column in columns.items()}


class Requests(NamedTuple):
    """Requests of G groups, one after the other; R environments in all."""

    groups: list[int]
    generations: NDArray[np.int64]  # [G], of their workers' lives
    waited_since: NDArray[np.float64]  # [G] seconds, when they asked
    rows: NDArray[np.int64]  # [R], numbers of the environments in the whole run
    columns: dict[str, Array]  # name -> [R, ...], copies
    numbers: list[int]  # [G], which request of the group it is
    places: NDArray[np.int64]  # [R], where the environments' halves of the columns lie

    def only(self, chosen: NDArray[np.bool_], sizes: NDArray[np.int64]) -> Requests:
        """Those of the groups for which ``chosen`` [G] is true; ``sizes`` [G] are their environments."""
        rows = np.repeat(chosen, sizes)
        return Requests(
            [self.groups[i] for i in np.flatnonzero(chosen)],
            self.generations[chosen],
            self.waited_since[chosen],
            self.rows[rows],
            {name: column[rows] for name, column in self.columns.items()},
            [self.numbers[i] for i in np.flatnonzero(chosen)],
            self.places[rows],
        )


class ServerEnd:
    """Answers all groups; of several servers each those of its seats. A group's number is worker · splits + split."""

    def __init__(self, link: InferenceLink, index: int = 0) -> None:
        self._link, self._segment = link, link.segment
        self._index, self._bell = index, link.server_bells[index]
        self._seen = 0  # of the bell, at the last look
        self._sizes = np.array([len(rows) for rows in link.rows_of])
        self._mine = np.full(link.groups, link.servers == 1)

    def sit(self, seats: Collection[int]) -> None:
        """From now on answer the groups of these seats, which nobody else answers any more."""
        link = self._link
        for seat in seats:
            self._segment.store(link.serving + 4 * seat, self._index)
        self._mine = np.isin(np.arange(link.groups) % link.servers, list(seats))

    def pending(self) -> list[int]:
        """The groups that wait for an answer, by rising number."""
        self._seen = self._segment.load(self._bell)
        asking = (self._link.asked_words != self._link.answered_words) & self._mine
        waiting: list[int] = np.flatnonzero(asking).tolist()
        return waiting

    def expected(self) -> int:
        """Environments of the workers that have asked and did not leave since."""
        here = np.repeat(self._link.here_words != 0, len(self._link.splits)) & self._mine
        return int(self._sizes[here].sum())

    def wait(self, timeout: float) -> None:
        """Sleep until somebody has asked since the last ``pending``, at most ``timeout`` seconds; may wake early."""
        self._segment.wait(self._bell, self._seen, timeout)

    def read(self, groups: Sequence[int]) -> Requests:
        """The newest requests of groups that are pending."""
        link = self._link
        numbers = [self._segment.load(link.asked + 4 * group) for group in groups]  # what they name is written by now
        halves = np.array(numbers) % 2
        rows = np.concatenate([link.rows_of[group] for group in groups])
        places = rows + np.repeat(halves * link.envs, self._sizes[groups])
        return Requests(
            list(groups),
            link.generations[halves, list(groups)],
            link.asked_at[halves, list(groups)],
            rows,
            {name: column.take(places, axis=0) for name, column in link.request_columns.items()},
            numbers,
            places,
        )

    def answer(self, requests: Requests, reply: Mapping[str, Array]) -> None:
        """Answer what was ``read``: ``reply`` name -> [R, ...]."""
        for name, column in self._link.reply_columns.items():
            column[requests.places] = reply[name]
        self.dismiss(requests)

    def dismiss(self, requests: Requests) -> None:
        """Answer with nothing, where nobody lives who asked."""
        link = self._link
        for group, number in zip(requests.groups, requests.numbers, strict=True):
            self._segment.store(link.answered + 4 * group, number)
        for worker in {group // len(link.splits) for group in requests.groups}:
            self._segment.ring(link.worker_bells[worker])
