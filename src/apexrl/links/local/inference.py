"""Inference requests over shared memory: environment workers ask for actions, inference servers answer.

The environments of a worker are split into *groups* with separate requests: one group steps while the others wait. A
request or reply is a set of columns with one row per environment; the topology declares the columns. Every request
carries the generation of its worker.

The memory:

    bell of each server | serving [servers] | bell of each worker | here [workers] | asked [groups] | answered [groups]
    (words of 4 bytes)
    generation [2, groups] | asked_at [2, groups] | beats [workers]
    request columns [2, environments, ...] | reply columns [2, environments, ...]

``asked`` counts a group's requests; only its worker writes it. ``answered`` is the number of the last answered request;
only the server writes it. Where they differ, the worker waits. Request k and its reply use half k mod 2 of the columns.
So the successor of a dead worker writes its first request beside the one that the server may be reading, and an answer
to the dead worker's request has another number. The successor of a dead server finds the unanswered requests. There are
no locks: a process that dies between two stores blocks no other.

Several servers share the groups by *partitions*, as many as servers: group g is in partition g mod N.
``server_assignment`` decides which server answers a partition; ``serving`` tells workers, so that they ring the right
bell.

With ``--serial``, the same memory serves roles that take turns in one process. For workers of other hosts, a gateway
writes here (``links.tcp.gateway_server``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl._native import Segment
from apexrl.errors import SpecError
from apexrl.spec import Array, Field

_LINE = 64  # bytes: words of different processes are on different cache lines
_WORDS = 2**32


class InferenceLink:
    """The layout of the memory. Picklable to local processes while its creator lives.

    Args:
        request: columns of a request: name -> Field.
        reply: columns of a reply: name -> Field.
        workers: number of workers; each has the same groups.
        splits: environments in each group of a worker.
        servers: the most servers.
        segment: created by another process; default: a new one.
        slots: of the run in which the workers serve, where others serve elsewhere; empty: 0 … ``workers`` - 1.

    Raises:
        SpecError: there are no workers, no environments in a group, or more servers than groups.
    """

    def __init__(
        self,
        request: Mapping[str, Field],
        reply: Mapping[str, Field],
        workers: int,
        splits: Sequence[int],
        servers: int = 1,
        segment: Segment | None = None,
        slots: Sequence[int] = (),
    ) -> None:
        if workers < 1 or not splits or min(splits) < 1:
            raise SpecError(f"{workers} workers with groups of {list(splits)} environments: both must be at least 1")
        self.request, self.reply = dict(request), dict(reply)
        self.workers, self.splits = workers, tuple(splits)
        self.slots = tuple(slots)
        self.groups = workers * len(self.splits)
        if not 1 <= servers <= self.groups:
            raise SpecError(
                f"{servers} inference servers for {self.groups} groups of environments: use 1 to {self.groups} servers"
            )
        self.servers = servers
        self.envs_per_worker = sum(self.splits)
        self.envs = workers * self.envs_per_worker
        ends = np.cumsum(np.tile(self.splits, workers))
        self.rows_of = [np.arange(end - size, end) for end, size in zip(ends, self.splits * workers, strict=True)]
        """The numbers of each group's environments in the whole run."""

        self._end = 0
        self.server_bells = [self._take(4) for _ in range(servers)]
        self.serving = self._take(4 * servers)
        self.worker_bells = [self._take(4) for _ in range(workers)]
        self.here = self._take(4 * workers)
        self.asked, self.answered = self._take(4 * self.groups), self._take(4 * self.groups)
        heads, beats = [self._take(2 * 8 * self.groups) for _ in range(2)], self._take(8 * workers)
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
        self.beats = self._over((workers,), "int64", beats)
        """Of other hosts' slots, for the successor of a gateway that was killed."""
        self.request_columns, self.reply_columns = (
            {
                name: self._over((2 * self.envs, *field.shape), field.dtype, offsets[name])
                for name, field in fields.items()
            }
            for fields, offsets in zip((self.request, self.reply), columns, strict=True)
        )

    @staticmethod
    def make(shared: bool, **options: Any) -> InferenceLink:
        """A link between processes, or between roles that take turns in one; both use the same memory."""
        return InferenceLink(**options)

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            InferenceLink,
            (self.request, self.reply, self.workers, self.splits, self.servers, self.segment, self.slots),
        )

    def place(self, slot: int) -> int:
        """The number, on this link, of the worker that serves in ``slot`` of the run."""
        return self.slots.index(slot) if self.slots else slot

    def worker(self, slot: int, generation: int) -> RequestClient:
        """The client of the worker in ``slot`` in its ``generation``, for one process at a time."""
        return RequestClient(self, self.place(slot), generation)

    def server(self, index: int = 0) -> RequestServer:
        """The server side of server ``index``, for one process at a time."""
        return RequestServer(self, index)

    def _take(self, nbytes: int) -> int:
        offset, self._end = self._end, -(-(self._end + nbytes) // _LINE) * _LINE
        return offset

    def _over(self, shape: tuple[int, ...], dtype: str, offset: int) -> Any:
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self._bytes[offset : offset + nbytes].view(dtype).reshape(shape)


class RequestClient:
    """Sends the requests of one worker's groups, which are numbered from 0, and reads the answers."""

    def __init__(self, link: InferenceLink, worker: int, generation: int) -> None:
        self._link, self._segment = link, link.segment
        self._generation = generation
        self._bell, self._here = link.worker_bells[worker], link.here + 4 * worker
        self._seen = 0  # the bell's value at the last check
        groups = [worker * len(link.splits) + split for split in range(len(link.splits))]
        self._groups = groups
        self._asked = [
            self._segment.load(link.asked + 4 * group) for group in groups
        ]  # at first those of a dead predecessor
        self._waiting = [False] * len(groups)  # for an answer

    def room(self, split: int) -> dict[str, Array] | None:
        """Columns [E, ...] to write the next request of a group into. None: the server may still read there what a dead
        predecessor wrote, or the group waits for an answer."""
        link, group = self._link, self._groups[split]
        answered = self._segment.load(link.answered + 4 * group)
        if self._waiting[split] or (self._asked[split] - answered) % _WORDS > 1:
            return None
        return self._half(link.request_columns, split, self._asked[split] + 1)

    def ask(self, split: int, now: float) -> None:
        """Send the request whose columns are written. ``now``: seconds, to measure how long answers take."""
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
        """Tell the server to expect no request of this worker until it asks again."""
        self._segment.store(self._here, 0)

    def answered(self) -> list[int]:
        """The groups whose answer has arrived and was not taken."""
        self._seen = self._segment.load(self._bell)
        return [split for split, waiting in enumerate(self._waiting) if waiting and self._has_come(split)]

    def take(self, split: int) -> dict[str, Array]:
        """The answer that has arrived: views [E, ...], valid until the group's second next ``ask``."""
        self._waiting[split] = False
        return self._half(self._link.reply_columns, split, self._asked[split])

    def wait(self, timeout: float) -> None:
        """Sleep until an answer arrives after the last ``answered``, at most ``timeout`` seconds; may wake early."""
        self._segment.wait(self._bell, self._seen, timeout)

    def _has_come(self, split: int) -> bool:
        return self._segment.load(self._link.answered + 4 * self._groups[split]) == self._asked[split]

    def _half(self, columns: Mapping[str, Array], split: int, number: int) -> dict[str, Array]:
        rows = self._link.rows_of[self._groups[split]]
        begin = int(rows[0]) + number % 2 * self._link.envs
        return {name: column[begin : begin + len(rows)] for name, column in columns.items()}


class Requests(NamedTuple):
    """Requests of G groups, concatenated; R environments in all."""

    groups: list[int]
    generations: NDArray[np.int64]  # [G], of their workers
    waited_since: NDArray[np.float64]  # [G], seconds
    rows: NDArray[np.int64]  # [R], numbers of the environments in the whole run
    columns: dict[str, Array]  # name -> [R, ...], copies
    numbers: list[int]  # [G], of the group's request
    column_rows: NDArray[np.int64]  # [R], rows of the columns

    def only(self, chosen: NDArray[np.bool_], sizes: NDArray[np.int64]) -> Requests:
        """The requests of the groups for which ``chosen`` [G] is true; ``sizes`` [G]: environments of each."""
        rows = np.repeat(chosen, sizes)
        return Requests(
            [self.groups[i] for i in np.flatnonzero(chosen)],
            self.generations[chosen],
            self.waited_since[chosen],
            self.rows[rows],
            {name: column[rows] for name, column in self.columns.items()},
            [self.numbers[i] for i in np.flatnonzero(chosen)],
            self.column_rows[rows],
        )


class RequestServer:
    """Answers all groups, or with several servers those of its partitions. Group number = worker · splits + split."""

    def __init__(self, link: InferenceLink, index: int = 0) -> None:
        self._link, self._segment = link, link.segment
        self._index, self._bell = index, link.server_bells[index]
        self._seen = 0  # the bell's value at the last check
        self._sizes = np.array([len(rows) for rows in link.rows_of])
        self._mine = np.full(link.groups, link.servers == 1)

    def answer_partitions(self, partitions: Collection[int]) -> None:
        """Answer the groups of these partitions from now on; no other server does any more."""
        link = self._link
        for partition in partitions:
            self._segment.store(link.serving + 4 * partition, self._index)
        self._mine = np.isin(np.arange(link.groups) % link.servers, list(partitions))

    def pending(self) -> list[int]:
        """The groups that wait for an answer, in ascending order."""
        self._seen = self._segment.load(self._bell)
        asking = (self._link.asked_words != self._link.answered_words) & self._mine
        waiting: list[int] = np.flatnonzero(asking).tolist()
        return waiting

    def expected(self) -> int:
        """Number of environments of workers that have asked and not left since."""
        here = np.repeat(self._link.here_words != 0, len(self._link.splits)) & self._mine
        return int(self._sizes[here].sum())

    def wait(self, timeout: float) -> None:
        """Sleep until a request arrives after the last ``pending``, at most ``timeout`` seconds; may wake early."""
        self._segment.wait(self._bell, self._seen, timeout)

    def read(self, groups: Sequence[int]) -> Requests:
        """The newest requests of groups that are pending."""
        link = self._link
        numbers = [
            self._segment.load(link.asked + 4 * group) for group in groups
        ]  # loaded before the columns, which are complete then
        halves = np.array(numbers) % 2
        rows = np.concatenate([link.rows_of[group] for group in groups])
        column_rows = rows + np.repeat(halves * link.envs, self._sizes[groups])
        return Requests(
            list(groups),
            link.generations[halves, list(groups)],
            link.asked_at[halves, list(groups)],
            rows,
            {name: column.take(column_rows, axis=0) for name, column in link.request_columns.items()},
            numbers,
            column_rows,
        )

    def answer(self, requests: Requests, reply: Mapping[str, Array]) -> None:
        """Answer what was ``read``: ``reply`` name -> [R, ...]."""
        for name, column in self._link.reply_columns.items():
            column[requests.column_rows] = reply[name]
        self.dismiss(requests)

    def dismiss(self, requests: Requests) -> None:
        """Mark requests as answered whose worker has died."""
        link = self._link
        for group, number in zip(requests.groups, requests.numbers, strict=True):
            self._segment.store(link.answered + 4 * group, number)
        for worker in {group // len(link.splits) for group in requests.groups}:
            self._segment.ring(link.worker_bells[worker])
