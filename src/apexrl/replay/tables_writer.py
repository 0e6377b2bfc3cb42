"""A writer for several tables: an append is checked for all of them before the first takes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ApexrlError, ConfigError, PriorityError, SpecError, WaitTimeout
from apexrl.replay.deadline import deadline_after
from apexrl.replay.priorities import LARGEST, as_priorities, bad_priority
from apexrl.replay.writer import PriorityFn
from apexrl.spec import Array

if TYPE_CHECKING:
    from apexrl.replay.replay import Replay

Rule = Callable[[Mapping[str, Array]], Any]
Bools = NDArray[np.bool_]

_BEGINS, _WITHIN, _ENDED = 0, 1, 2  # what a stream's next row is: a first step, another, or the final observation


@dataclass
class _Part:
    """What one table takes of an append."""

    place: int
    values: dict[str, Array]
    priorities: Array | None
    streams: NDArray[np.int64] | None


@dataclass
class _Append:
    """An append under way."""

    given: dict[str, Array]
    parts: list[_Part]  # of tables that have not taken theirs
    chosen: Bools  # [tables, rows]
    streams: NDArray[np.int64] | None
    stored: list[str]  # tables that took theirs, at least in part

    def same(self, other: _Append) -> bool:
        """Whether the other is this one, repeated."""
        if self.given.keys() != other.given.keys():
            return False
        return all(
            one.shape == again.shape and one.tobytes() == again.tobytes()
            for one, again in ((self.given[name], other.given[name]) for name in self.given)
        )

    def copy(self) -> None:
        """Keep what the caller may overwrite."""
        self.given = {name: array.copy() for name, array in self.given.items()}
        for part in self.parts:
            part.values = {name: array.copy() for name, array in part.values.items()}
            part.priorities = None if part.priorities is None else part.priorities.copy()


class TablesWriter:
    """Appends to several tables from this process; see ``Tables.writer``. Make one per thread.

    Everything that can be checked is checked for all tables before the first takes an append: one that is refused is
    in none. Tables take it in their order. If the process is killed in between, those before have it and those after do
    not; earlier appends are in all, except what a ``Writer`` loses that is killed.
    """

    def __init__(
        self,
        replays: Mapping[str, Replay],
        streams: int | None,
        rules: Mapping[str, Rule],
        priority_fns: Mapping[str, PriorityFn],
    ) -> None:
        self._arguments = (dict(replays), streams, dict(rules), dict(priority_fns))
        self.names = tuple(replays)
        self._layouts = [replay.core.layout for replay in replays.values()]
        self._fields = [layout.names() for layout in self._layouts]
        for name in (*rules, *priority_fns):
            if name not in replays:
                raise ConfigError(f"table {name!r} is not one of this writer's, {', '.join(map(repr, replays))}")
        for name, rule in rules.items():
            if not callable(rule):
                raise ConfigError(f"the rule of table {name!r} must be a function, got {rule!r}")
        self._steps = self._layouts[0].kind != "rows"
        self._rules = dict(rules)
        self._priority_fn_error: BaseException | None = None
        self._writers = [
            replay.writer(streams, self._noting(priority_fns[name]) if name in priority_fns else None)
            for name, replay in replays.items()
        ]
        self._streams = (1 if streams is None else streams) if self._steps else 0
        self._unfinished: _Append | None = None
        self._begin()

    def __reduce__(self) -> tuple[Any, ...]:
        return (TablesWriter, self._arguments)

    def extend(
        self,
        values: Mapping[str, Any],
        tables: str | Iterable[str] | None = None,
        priorities: Any = None,
        timeout: float = 10.0,
    ) -> None:
        """Append N finished rows to tables of finished rows.

        Args:
            values: field name -> ``[N, ...]``: the fields of all tables that it may go to. Each takes its own.
            tables: those that take all rows; default: as the rules say.
            priorities: as of ``Writer.extend``.
            timeout: seconds to wait for room, in all tables together.

        Raises:
            SpecError, PriorityError: something is wrong with a value or a rule's answer; nothing was stored.
            ConfigError: a table is unknown, or not one of this writer's; nothing was stored.
            WaitTimeout: a table, which is named, had no room in time. Repeat the same call: tables that have taken rows
                do not get them again. Where some did, no other call is taken before.
            ClosedError, ExhaustedError: closed, or no lane is free.
        """
        if self._steps:
            raise ApexrlError("extend() is for tables of kind='rows'; these take steps: use append()")
        self._lease()
        places = self._places(tables)
        arrays = self._checked(values, places, None)
        rows = len(next(iter(arrays.values())))
        if priorities is not None:
            priorities = as_priorities(priorities, rows)
            bad = np.flatnonzero(~((priorities >= 0.0) & (priorities <= LARGEST)))
            if bad.size:
                raise bad_priority(int(bad[0]), priorities)
        chosen = np.zeros((len(self.names), rows), np.bool_)
        for place in places:
            chosen[place] = self._answer(place, arrays, rows) if tables is None else True
        self._store(self._new(arrays, places, chosen, None, priorities), timeout)

    def append(
        self,
        values: Mapping[str, Any],
        tables: str | Iterable[str] | None = None,
        streams: Sequence[int] | None = None,
        timeout: float = 10.0,
    ) -> None:
        """Append one step of each stream to tables of steps, as ``Writer.append`` does.

        An episode goes as a whole to the tables that its first step went to.

        Args:
            values: as of ``Writer.append``: the fields of all tables that it may go to. Each takes its own.
            tables: those that take the steps; default: those of the streams' episodes, and where an episode begins, as
                the rules say.
            streams: which streams the rows belong to; default: all, in order.
            timeout: seconds to wait for room, in all tables together.

        Raises:
            SpecError: as of ``extend``; or ``tables`` differs from those that have an episode's steps before.
            ConfigError, WaitTimeout, ClosedError, ExhaustedError: as of ``extend``.
            Exceptions of a table's ``priority_fn``: all tables have the steps nevertheless, as with ``Writer.append``.
        """
        if not self._steps:
            raise ApexrlError("append() is for tables of steps; these take finished rows: use extend()")
        self._lease()
        first = self._writers[0]
        which = np.arange(self._streams) if streams is None else first._numbers(streams)
        rows = first._rows(which)
        begins = self._next[which] == _BEGINS
        chosen = self._goes[:, which]
        places = self._places(tables)
        if tables is None and not begins.any():
            places = [place for place in places if chosen[place].any()] or places[:1]  # none: as the first takes them
        arrays = self._checked(values, places, rows)
        if not np.isfinite(arrays["reward"]).all():
            bad = int(np.flatnonzero(~np.isfinite(arrays["reward"]))[0])
            raise SpecError(f"field 'reward' of row {bad} is NaN or infinite: rewards must be finite")
        if tables is None:
            for place in places if begins.any() else ():
                chosen[place, begins] = self._answer(place, arrays, rows)[begins]
        else:
            wanted = np.isin(np.arange(len(self.names)), places)
            differs = (chosen != wanted[:, None]).any(0) & ~begins
            if differs.any():
                stream = int(np.flatnonzero(differs)[0])
                has = ", ".join(repr(self.names[place]) for place in np.flatnonzero(chosen[:, stream])) or "none"
                raise SpecError(
                    f"tables= of stream {which[stream]} must stay the same until its episode's final observation: the "
                    f"tables that have its steps are {has}"
                )
            chosen[:] = wanted[:, None]
        self._store(self._new(arrays, places, chosen, which, None), timeout)

    def flush(self, timeout: float = 5.0) -> None:
        """As of ``Writer.flush``, for every table: what was appended can be sampled everywhere."""
        deadline = deadline_after(timeout)
        for name, writer in zip(self.names, self._writers, strict=True):
            try:
                writer.flush(max(0.0, deadline - time.monotonic()))
            except WaitTimeout as error:
                raise WaitTimeout(f"table {name!r}: {error}") from None

    def close(self) -> None:
        """Publish complete items in every table and return the lanes."""
        failed: Exception | None = None
        for writer in self._writers:
            try:
                writer.close()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def __enter__(self) -> TablesWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside

    def _begin(self) -> None:
        """Nothing is known of any stream."""
        self._next = np.full(self._streams, _BEGINS)
        self._goes = np.zeros((len(self.names), self._streams), np.bool_)  # which tables take a stream's episode

    def _lease(self) -> None:
        """Lease a lane in every table before any takes a row."""
        new = [writer.lease() for writer in self._writers]
        if any(new):
            self._begin()
            self._unfinished = None

    def _noting(self, priority_fn: PriorityFn) -> PriorityFn:
        """Remembers its error: steps were stored nevertheless."""
        if not callable(priority_fn):
            return priority_fn  # `Replay.writer` refuses it

        def noted(items: Mapping[str, Array]) -> Any:
            try:
                return priority_fn(items)
            except BaseException as error:
                self._priority_fn_error = error
                raise

        return noted

    def _places(self, tables: str | Iterable[str] | None) -> list[int]:
        if tables is None:
            return list(range(len(self.names)))
        given = [tables] if isinstance(tables, str) else list(tables)
        for name in given:
            if name not in self.names:
                raise ConfigError(unknown_table(name, self.names))
        return sorted({self.names.index(name) for name in given})

    def _checked(self, values: Mapping[str, Any], places: Sequence[int], rows: int | None) -> dict[str, Array]:
        """The fields of these tables as plain arrays. SpecError: names the table."""
        if not isinstance(values, Mapping):
            raise SpecError(f"expected a mapping of field names to arrays, got {type(values).__name__}")
        known = {name for fields in self._fields for name in fields}
        if unknown := [name for name in values if name not in known]:
            raise SpecError(f"unknown field {unknown[0]!r}. These tables take {', '.join(map(repr, sorted(known)))}")
        if not places:
            raise SpecError("tables= names no table")
        arrays: dict[str, Array] = {}
        given = dict(values)
        for place in places:
            own = {name: given[name] for name in self._fields[place] if name in given}
            try:
                plain = self._layouts[place].plain(own, rows)
            except SpecError as error:
                raise SpecError(f"table {self.names[place]!r}: {error}") from None
            rows = len(next(iter(plain.values())))
            given |= plain
            arrays |= plain
        return arrays

    def _answer(self, place: int, arrays: dict[str, Array], rows: int) -> Bools:
        """Which rows a table's rule takes."""
        name = self.names[place]
        if name not in self._rules:
            return np.ones(rows, np.bool_)
        answer = np.asarray(self._rules[name](arrays))
        if answer.dtype != np.bool_ or answer.shape != (rows,):
            raise SpecError(
                f"the rule of table {name!r} answered {answer.dtype} {list(answer.shape)}, expected bool [{rows}]"
            )
        return answer

    def _new(
        self,
        arrays: dict[str, Array],
        places: Sequence[int],
        chosen: Bools,
        streams: NDArray[np.int64] | None,
        priorities: Array | None,
    ) -> _Append:
        parts = []
        for place in np.flatnonzero(chosen.any(1)).tolist():
            rows = chosen[place]
            part = _Part(place, {name: arrays[name] for name in self._fields[place]}, priorities, streams)
            if not rows.all():
                part.values = {name: array[rows] for name, array in part.values.items()}
                part.priorities = None if priorities is None else priorities[rows]
                part.streams = None if streams is None else streams[rows]
            parts.append(part)
        given: dict[str, Array] = {**arrays, "tables=": np.array(places)}
        given |= {} if streams is None else {"streams=": streams}
        given |= {} if priorities is None else {"priorities=": priorities}
        return _Append(given, parts, chosen, streams, [])

    def _store(self, new: _Append, timeout: float) -> None:
        """Have the tables take their parts, one after the other."""
        one, deadline = new, deadline_after(timeout)
        failed: Exception | None = None
        if self._unfinished is not None:
            one = self._unfinished
            if not one.same(new):
                raise ApexrlError(
                    f"the append before is in {', '.join(map(repr, one.stored))}, and parts of it are not yet in "
                    f"{', '.join(repr(self.names[part.place]) for part in one.parts)}: repeat it first"
                )
        try:
            while one.parts:
                part = one.parts[0]
                name = self.names[part.place]
                try:
                    self._store_part(part, max(0.0, deadline - time.monotonic()), one)
                except Exception as error:
                    if not self._is_of_priority_fn(error):
                        if not isinstance(error, WaitTimeout):
                            raise
                        has = f"; it is in {', '.join(map(repr, one.stored))}: repeat the same call" * bool(one.stored)
                        raise WaitTimeout(f"table {name!r}: {error}{has}") from None
                    failed = failed or error
                one.stored.append(name)
                one.parts.pop(0)
        finally:
            self._priority_fn_error = None
            if not one.parts:
                self._unfinished = None
                self._remember(one)
            elif one.stored and self._unfinished is None:
                one.copy()
                self._unfinished = one
        if failed is not None:
            raise failed

    def _is_of_priority_fn(self, error: Exception) -> bool:
        """Whether a ``priority_fn`` raised it, or gave no priorities: the steps were stored before that."""
        return error is self._priority_fn_error or (self._steps and isinstance(error, PriorityError | SpecError))

    def _store_part(self, part: _Part, timeout: float, one: _Append) -> None:
        writer = self._writers[part.place]
        if self._steps:
            writer.append(part.values, cast("Any", part.streams), timeout)
            return
        try:
            writer.extend(part.values, part.priorities, timeout)
        except WaitTimeout:
            stored = writer.stored_rows
            if stored:
                part.values = {name: array[stored:] for name, array in part.values.items()}
                part.priorities = None if part.priorities is None else part.priorities[stored:]
                name = self.names[part.place]
                one.stored += [] if name in one.stored else [name]
            raise

    def _remember(self, one: _Append) -> None:
        """Which tables have the episodes of an append's streams, and what comes next of each."""
        if one.streams is None:
            return
        ended = np.logical_or(one.given["terminated"], one.given["truncated"])
        final = self._next[one.streams] == _ENDED
        self._next[one.streams] = np.where(final, _BEGINS, np.where(ended, _ENDED, _WITHIN))
        self._goes[:, one.streams] = one.chosen


def unknown_table(name: object, names: Iterable[str]) -> str:
    """What to say of a name that no table has."""
    from difflib import get_close_matches

    known = list(names)
    near = get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no table {name!r}: {hint}The tables are {', '.join(map(repr, known))}"
