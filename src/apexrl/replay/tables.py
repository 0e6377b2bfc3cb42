"""Several replays under names, held as one: one handle, one writer, one snapshot, one close."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from apexrl.errors import ConfigError, OwnershipError, SnapshotError
from apexrl.replay.core import Handle
from apexrl.replay.layout import Layout
from apexrl.replay.replay import Replay
from apexrl.replay.snapshot import read_head, taken, write
from apexrl.replay.tables_writer import Rule, TablesWriter, unknown_table
from apexrl.replay.writer import PriorityFn
from apexrl.run.atomic_files import read_text, replace_text

TablesHandle = tuple[tuple[str, Handle], ...]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_FILE = re.compile(r"(.+)-[0-9a-f]{16}\.snapshot")
_LIST = "tables.json"


class Tables:
    """Replays by name. It pickles to other local processes and survives a fork as a ``Replay`` does.

        tables = Tables({"recent": Replay(10_000, fields), "best": Replay(500, fields, remover="min_heap")})
        writer = tables.writer()
        writer.extend(rows)  # into both
        writer.extend(rows, tables="best")
        batch = tables["recent"].sample(256)

    Each table is a ``Replay`` with fields, kind, sampler, remover and capacity of its own, in a segment of its own. A
    process may own one table while another process owns the next.

    Args:
        replays: by name; they belong to this object from now on, which closes them. A name has up to 64 letters,
            digits, ``_``, ``.`` and ``-``, and begins with a letter or digit. Their order is that of every append.

    Raises:
        ConfigError: a name is not of this form, or a value is no open ``Replay`` or stands there twice.
    """

    def __init__(self, replays: Mapping[str, Replay]) -> None:
        if not isinstance(replays, Mapping) or not replays:
            raise ConfigError("tables need at least one replay: a mapping of names to Replay")
        segments: dict[bytes, str] = {}
        for name, replay in replays.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigError(
                    f"table name {name!r} must have 1 to 64 letters, digits, '_', '.' or '-', and begin with a letter "
                    "or digit"
                )
            if not isinstance(replay, Replay):
                raise ConfigError(f"table {name!r} must be a Replay, got {type(replay).__name__}")
            if replay.core.closed or replay.core.native.closed:
                raise ConfigError(f"table {name!r} is a replay that was closed")
            other = segments.setdefault(replay.core.native.segment().uuid, name)
            if other != name:
                raise ConfigError(f"tables {other!r} and {name!r} are one replay: make a replay for each")
        self._replays = dict(replays)

    @staticmethod
    def attach(handle: TablesHandle) -> Tables:
        """The tables of another local process, by their ``handle``. ClosedError: they are gone."""
        return Tables({name: Replay.attach(one) for name, one in handle})

    @property
    def handle(self) -> TablesHandle:
        """Names these tables to other local processes. Unlike pickled tables, it attaches only when asked to."""
        return tuple((name, replay.handle) for name, replay in self._replays.items())

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tables, (self._replays,))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._replays)

    def __getitem__(self, name: str) -> Replay:
        """The table of that name. ConfigError: there is none; the nearest name is told."""
        if isinstance(name, str) and name in self._replays:
            return self._replays[name]
        raise ConfigError(unknown_table(name, self._replays))

    def __contains__(self, name: object) -> bool:
        return name in self._replays

    __iter__ = None  # `names` has the names, and `len` counts items

    def writer(
        self,
        tables: str | Iterable[str] | None = None,
        *,
        streams: int | None = None,
        rules: Mapping[str, Rule] | None = None,
        priority_fns: Mapping[str, PriorityFn] | None = None,
    ) -> TablesWriter:
        """A writer for this process, whose every append goes to one or several tables.

        Args:
            tables: those that it writes to; default: all.
            streams: (streams mode) B, the environments whose steps it appends; default 1.
            rules: table -> ``rule(values) -> [N]`` bool: which rows the table takes where an append does not say.
                ``values`` maps field names to arrays ``[N, ...]``. A table without a rule takes all rows. In streams
                mode a rule is asked when an episode begins, with its first step, and its answer holds for the episode.
            priority_fns: (streams mode) table -> its ``priority_fn``, as of ``Replay.writer``.

        Raises:
            ConfigError: a table is unknown; tables with finished rows and with steps are mixed; or a field of two
                tables differs in shape, dtype or raggedness.
        """
        names = self.names if tables is None else (tables,) if isinstance(tables, str) else tuple(tables)
        for name in (*names, *(rules or ()), *(priority_fns or ())):
            self[name]  # refuses unknown names
        replays = {name: self._replays[name] for name in names}
        _check_alike({name: replay.core.layout for name, replay in replays.items()})
        return TablesWriter(replays, streams, dict(rules or {}), dict(priority_fns or {}))

    def __len__(self) -> int:
        """Items of all tables together."""
        return sum(len(replay) for replay in self._replays.values())

    def __bool__(self) -> bool:
        return True

    @property
    def capacity(self) -> int:
        """Items of all tables together."""
        return sum(replay.capacity for replay in self._replays.values())

    def stats(self) -> dict[str, Any]:
        """Of all tables together, as in ``Replay.stats``: size, capacity, inserted, sampled; and ``tables``, the whole
        ``stats`` of each by its name."""
        each = {name: replay.stats() for name, replay in self._replays.items()}
        totals = {what: sum(one[what] for one in each.values()) for what in ("size", "capacity", "inserted", "sampled")}
        return {**totals, "tables": each}

    def save(self, folder: str | os.PathLike[str], check: Callable[[], None] = lambda: None) -> None:
        """Write all tables into a folder, atomically: until the last is complete, ``load`` finds those of before.

        All are taken at once, before the first is written. This process owns them all from then on, as with
        ``Replay.save``.

        Args:
            check: called after everything is written and before the new snapshot counts; if it raises, the one before
                stays.

        Raises:
            SnapshotError: a file cannot be written.
            OwnershipError: another living process owns a table, which is named.
        """
        folder = Path(folder)
        for name, replay in self._replays.items():
            try:
                if not replay.core.native.owned or replay.core.closed:
                    replay.core.own()
            except OwnershipError as error:
                raise OwnershipError(f"table {name!r}: {error}") from None
            replay.core.publish_local()
        snapshots = [taken(replay.core) for replay in self._replays.values()]
        own = secrets.token_hex(8)
        files = {name: f"{name}-{secrets.token_hex(8)}.snapshot" for name in self._replays}
        if (listed := _listed_files(folder)) is not None:  # what a save that ended early has left takes room
            _remove_all_but(folder, listed)
        try:
            for (name, replay), snapshot in zip(self._replays.items(), snapshots, strict=True):
                table = {"name": name, "snapshot": own, "tables": list(self._replays)}
                write(replay.core, folder / files[name], lambda: None, snapshot, table=table)
            replace_text(folder / _LIST, json.dumps({"version": 1, "snapshot": own, "tables": files}), check)
        except BaseException as error:
            _discard(folder, files.values())
            if not isinstance(error, OSError):
                raise
            raise SnapshotError(
                f"cannot write {folder / _LIST}: {error.strerror}; the snapshot before stays"
            ) from error
        _remove_all_but(folder, set(files.values()))

    @staticmethod
    def load(folder: str | os.PathLike[str], check_memory: bool = True) -> Tables:
        """The tables that ``save`` wrote into a folder.

        Raises:
            SnapshotError: a table's file is missing, damaged, or of another table or snapshot; it is named.
        """
        folder = Path(folder)
        files = _listed(folder)
        with ExitStack() as undo:
            loaded = {}
            for name, path in files.items():
                try:
                    loaded[name] = undo.enter_context(Replay.load(path, check_memory))
                except SnapshotError as error:
                    raise SnapshotError(f"table {name!r}: {error}") from None
            undo.pop_all()
        return Tables(loaded)

    def release(self) -> None:
        """Stop owning the tables, so that other processes may sample them."""
        for replay in self._replays.values():
            replay.release()

    def close(self) -> None:
        """In the process that created the tables: end them and wake every process that waits. Elsewhere: detach."""
        with ExitStack() as each:  # the last of them too if one raises
            for replay in self._replays.values():
                each.callback(replay.close)

    def __enter__(self) -> Tables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Tables({', '.join(f'{name}: {replay!r}' for name, replay in self._replays.items())})"


def _listed_files(folder: Path) -> set[str] | None:
    """The files of the snapshot in a folder; None: there is none, or its list cannot be read."""
    try:
        return set(json.loads(read_text(folder / _LIST))["tables"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _discard(folder: Path, files: Iterable[str]) -> None:
    """Remove the files of a save that failed, unless they may be the folder's snapshot already."""
    listed = _listed_files(folder)
    if listed is None and (folder / _LIST).exists():
        return
    for file in set(files) - (listed or set()):
        with suppress(OSError):
            (folder / file).unlink(missing_ok=True)


def _remove_all_but(folder: Path, kept: set[str]) -> None:
    """Remove files of tables that are not ``kept``."""
    for path in folder.iterdir():
        if _FILE.fullmatch(path.name) and path.name not in kept:
            with suppress(OSError):
                path.unlink()


def _listed(folder: Path) -> dict[str, Path]:
    """The file of each table of a snapshot. SnapshotError: one is missing, or of another table or snapshot."""
    path = folder / _LIST
    try:
        listed = json.loads(read_text(path))
        version, own, files = listed["version"], listed["snapshot"], dict(listed["tables"])
    except FileNotFoundError:
        raise SnapshotError(f"{folder} holds no snapshot of tables: there is no {path}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{path} is not the list of a snapshot of tables ({error})") from None
    if version != 1 or not files:
        raise SnapshotError(f"{path} is of another version of apexrl, or lists no tables")
    found: dict[str, Path] = {}
    for name, file in files.items():
        whose = _FILE.fullmatch(str(file))
        if not _NAME.fullmatch(name) or not whose or whose[1] != name:
            raise SnapshotError(f"{path} is damaged: {file!r} is no file of table {name!r}")
        found[name] = folder / file
        try:
            with found[name].open("rb", buffering=0) as opened:
                head = read_head(opened, found[name])[0].get("table")
        except FileNotFoundError:
            raise SnapshotError(f"table {name!r} of the snapshot in {folder} is missing: no file {file}") from None
        except (OSError, ValueError, SnapshotError) as error:
            raise SnapshotError(f"table {name!r}: {found[name]} cannot be read ({error})") from None
        if not isinstance(head, dict) or head.get("name") != name:
            other = f"table {head.get('name')!r}" if isinstance(head, dict) else "no table"
            raise SnapshotError(f"{found[name]} is {other}, and not table {name!r}: the files were swapped")
        if head.get("snapshot") != own:
            raise SnapshotError(f"{found[name]} is table {name!r} of another snapshot than {path}")
        if missing := [one for one in head.get("tables", ()) if one not in files]:
            raise SnapshotError(f"table {missing[0]!r} of the snapshot in {folder} is missing in {path}")
    return found


def _check_alike(layouts: Mapping[str, Layout]) -> None:
    """ConfigError: one append cannot go to all of them."""
    if not layouts:
        raise ConfigError("a writer of tables needs at least one table")
    (first, layout), *_ = layouts.items()
    seen: dict[str, tuple[str, tuple[Any, ...]]] = {}
    for name, other in layouts.items():
        if (other.kind == "rows") != (layout.kind == "rows"):
            raise ConfigError(
                f"tables {first!r} (kind={layout.kind!r}) and {name!r} (kind={other.kind!r}) have no writer in common: "
                "one takes finished rows and the other steps. Make a writer for each, with tables="
            )
        for column in other.columns:
            field = column.field
            own = (field.dtype, field.shape, field.ragged)
            whose, theirs = seen.setdefault(column.name, (name, own))
            if own != theirs:
                raise ConfigError(
                    f"tables {whose!r} and {name!r} have no writer in common: field {column.name!r} is "
                    f"{_spelled(*theirs)} and {_spelled(*own)}. Make a writer for each, with tables="
                )


def _spelled(dtype: str, shape: Sequence[int], ragged: bool) -> str:
    return f"{dtype} {list(shape)}{' ragged' if ragged else ''}"
