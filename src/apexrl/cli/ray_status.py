"""A run on a Ray cluster, as anybody sees it who can reach the cluster or the run's folder: `apexrl status`."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from apexrl.cli.redraw import redraw
from apexrl.config.placement import Ray
from apexrl.errors import ApexrlError, ConfigError, LinkError
from apexrl.launch.ray.resources import here
from apexrl.links.printable import printable
from apexrl.report.number_format import clock, count, number
from apexrl.report.plain_lines import line
from apexrl.report.table_parts import columns_table, counted, figures_table
from apexrl.report.worker_overview import overview
from apexrl.run import worker_list
from apexrl.run.atomic_files import read_text
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import read_rows
from apexrl.run.status import PolicyLag, RunStatus, WorkerStatus

if TYPE_CHECKING:
    from apexrl.launch.ray.ray_metrics import Record

ANSWER_SECONDS: Final = 5.0

ROWS_PRINTED: Final = 64
"""Lines of a picture that is printed once."""
_LINES_ABOUT: Final = 14  # of a run's picture, beside its groups and workers
_LOG_BYTES: Final = 1 << 20  # of a run's log, in which its last status is looked for
_RUNS: Final = ("run", "state", "driver", "steps", "steps/s", "updates/s", "return", "shards", "nodes", "restarts")
_FEW_RUNS: Final = ("run", "state", "steps", "steps/s", "return", "shards", "nodes")
_WORKERS: Final = ("worker", "state", "node", "pid", "rate", "heard of", "restarts")
_FEW_WORKERS: Final = ("worker", "state", "node", "rate", "heard of")
_LEFT: Final = frozenset(("run", "group", "worker", "state", "driver", "node"))
_WIDE: Final = 100
_SILENT_SECONDS: Final = 10.0
_COLOURS: Final = {
    "up": "green",
    "starting": "cyan",
    "waiting": "dim",
    "lost": "yellow",
    "finished": "dim",
    "failed": "bold red",
}
_WAITING: Final = ("waiting", "starting", "restarting")


def show_cluster(address: str, run: str = "", watch: bool = False, console: Console | None = None) -> int:
    """Print the run ``run`` on the Ray cluster at ``address``, or without a name all runs there; with ``watch`` again
    and again until Ctrl-C.

    Returns:
        0, or 1 when there is no such run.

    Raises:
        ConfigError: ``address`` is invalid, or is ``local``, which means a new cluster.
        LinkError: there is no such cluster.
    """
    console = console or Console()
    rows = console.height - 1 if watch else ROWS_PRINTED
    if address == "local":
        raise ConfigError("--ray local means a new cluster, on which nothing runs yet: say auto, HOST:PORT, or RUN")

    def picture(records: dict[str, Record], silent: int) -> tuple[RenderableType, bool]:
        if not run:
            return _table_of_runs(list(records.values()), silent, address, console.width), True
        for record in records.values():
            if record.name == run:
                return _picture(record, console.width, rows), True
        names = ", ".join(sorted(record.name for record in records.values()))
        return Text(f"there is no run {run} on the Ray cluster {address}; {_there(names, silent)}"), False

    return _look(address, picture, watch, console)


def show_folder(path: str | Path, watch: bool = False, console: Console | None = None, address: str = "") -> int:
    """Print the run in folder ``path``: from its Ray cluster, else from its own log.

    Args:
        address: of the cluster, which may be on another machine; empty: the folder's, if it is on this machine. A
            folder may come from an untrusted source, and a cluster that is asked receives the user's token.

    Returns:
        0.

    Raises:
        ConfigError: it is not a run folder.
    """
    console = console or Console()
    folder = RunFolder.open(path)
    note = _note(folder)
    rows = console.height - 1 if watch else ROWS_PRINTED

    def of_folder(trouble: str) -> RenderableType:
        return picture_of_folder(folder, trouble, console.width, rows)

    def picture(records: dict[str, Record], silent: int) -> tuple[RenderableType, bool]:
        record = records.get(note["namespace"])
        return _picture(record, console.width, rows) if record is not None else of_folder(""), True

    trouble = ""
    if note and not _ended_since(folder):
        where = address or note["address"]
        if not address and not here(where):
            trouble = (
                f"it says that its Ray cluster is at {where}, on another machine, which was not asked. If that is "
                f"yours: apexrl status {path} --ray {where}"
            )
        else:
            if note["auth"] == "token":
                os.environ.setdefault("RAY_AUTH_MODE", "token")  # before Ray is imported
            try:
                return _look(where, picture, watch, console)
            except ApexrlError as error:
                console.print(of_folder(f"its Ray cluster at {where} does not answer: {error}"))
                return 0
    _show(lambda: (of_folder(trouble), True), watch, console)
    return 0


def _look(
    address: str,
    picture: Callable[[dict[str, Record], int], tuple[RenderableType, bool]],
    watch: bool,
    console: Console,
) -> int:
    from ray.exceptions import RayError

    from apexrl.launch.ray.cluster import Cluster
    from apexrl.launch.ray.ray_metrics import records

    try:
        cluster = Cluster(Ray(address), 0.0)
    except LinkError as error:
        raise LinkError(str(error).partition(". Start one")[0] + ": start apexrl status on a node of one") from error
    with closing(cluster):
        try:
            return _show(lambda: picture(*records(ANSWER_SECONDS)), watch, console)
        except RayError as error:
            raise LinkError(f"the Ray cluster at {address} does not answer any more: {error}") from error


def _show(picture: Callable[[], tuple[RenderableType, bool]], watch: bool, console: Console) -> int:
    drawn, found = picture()
    if not watch:
        console.print(drawn)
        return 0 if found else 1
    redraw(console, lambda: (picture()[0], None))
    return 0


def _note(folder: RunFolder) -> dict[str, str]:
    """The last Ray cluster of the run; empty: none."""
    try:
        values = json.loads(read_text(folder.ray_path))
        known = {"address": printable(values["address"]), "namespace": str(values["namespace"])}
        return known | {"auth": str(values.get("auth", ""))}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder.ray_path} does not name a cluster ({error}): delete it") from error


def _ended_since(folder: RunFolder) -> bool:
    """Whether the run's newest generation on Ray has written its summary."""
    try:
        return folder.summary_path.stat().st_mtime_ns >= folder.ray_path.stat().st_mtime_ns
    except OSError:
        return False


def _there(names: str, silent: int) -> str:
    more = f"; {silent} did not answer, or belong to another version of apexrl" if silent else ""
    return (f"runs there: {names}" if names else "no run is there") + more


def _table_of_runs(records: Sequence[Record], silent: int, address: str, width: int) -> RenderableType:
    """A line for each run of a cluster."""
    if not records:
        how = "" if silent else ". Start one: apexrl train PRESET --ray auto"
        return Text(f"the Ray cluster {address}: {_there('', silent)}{how}")
    table = _columns(_RUNS if width >= _WIDE else _FEW_RUNS)
    for record in sorted(records, key=lambda record: record.name):
        status: RunStatus = record.status
        cells: dict[str, RenderableType] = {
            "run": Text(record.name),
            "state": _state(record),
            "driver": Text(f"{record.host}:{record.pid}"),
            "steps": count(status.env_steps),
            "steps/s": count(status.env_steps_per_second),
            "updates/s": count(status.updates_per_second),
            "return": number(status.train_return),
            "shards": str(sum(group.state == "up" for group in record.groups[1:])),
            "nodes": str(len({group.host for group in record.groups} - {""})),
            "restarts": counted(sum(status.restarts.values())),
        }
        table.add_row(*(cells[str(column.header)] for column in table.columns))
    rest = Text(f"{silent} more did not answer, or belong to another version of apexrl", style="yellow")
    return Group(table, rest) if silent else table


def _picture(record: Record, width: int, rows: int = ROWS_PRINTED) -> RenderableType:
    """One run: its figures, its groups and their workers. Of more than ``rows`` lines, a summary with the worst."""
    head = Text.assemble((f"{record.name}  ", "bold"), _state(record), f"  {clock(record.status.elapsed_seconds)}")
    head.append(f"  driver on {record.host} ({record.pid})  {record.folder}", style="dim")
    hosts = {name: group.host for group in record.groups for name in group.workers}
    if len(record.groups) + len(record.status.workers) > rows - _LINES_ABOUT:
        states = Counter(group.state for group in record.groups)
        words = Text("groups: ").append("  ".join(f"{n} {state}" for state, n in sorted(states.items())))
        return Group(head, line(record.status), words, "", overview(record.status.workers, hosts, width, rows - 7))
    groups = _columns(("group", "state", "node", "items", "of", "in/s", "out/s", "restarts"))
    for group in record.groups:
        shard = group.capacity > 0
        groups.add_row(
            Text(group.name),
            Text(f"● {group.state}", style=_COLOURS[group.state]),
            Text(group.host or "–"),
            *(
                count(value) if shard else "–"
                for value in (group.size, group.capacity, group.inserted_per_second, group.sampled_per_second)
            ),
            counted(group.restarts),
        )
    return Group(head, "", _numbers(record.status), "", groups, "", _workers(record.status.workers, hosts, width))


def _workers(workers: Sequence[WorkerStatus], hosts: Mapping[str, str], width: int) -> Table:
    """A line for each worker."""
    table = _columns(_WORKERS if width >= _WIDE else _FEW_WORKERS)
    for worker in workers:
        cells = _worker(worker, hosts.get(worker.name, ""))
        table.add_row(*(cells[str(column.header)] for column in table.columns))
    return table


def picture_of_folder(folder: RunFolder, trouble: str, width: int, rows: int = ROWS_PRINTED) -> RenderableType:
    """A run by what its folder says: summary, log, and the workers that its main process saw last."""
    logged = read_rows(folder.metrics_path, _LOG_BYTES) if folder.metrics_path.is_file() else []
    last: dict[str, Any] = next((row for row in reversed(logged) if row.get("kind") == "status"), {})
    summary = folder.summary()
    ended = bool(summary) and int(summary.get("env_steps") or 0) >= int(last.get("env_steps") or 0)
    word = f"ended: {summary.get('stopped_by')}" if ended else f"{last.get('phase', 'starting')}, says its log"
    lag = [float("nan") if last.get(f"policy_lag_{x}") is None else last[f"policy_lag_{x}"] for x in PolicyLag._fields]
    status = RunStatus(
        env_steps=int(last.get("env_steps") or 0),
        env_steps_per_second=0.0 if ended else float(last.get("env_steps_per_second") or 0.0),
        updates=int(last.get("updates") or 0),
        updates_per_second=0.0 if ended else float(last.get("updates_per_second") or 0.0),
        train_return=last.get("train_return"),
        eval_return=last.get("eval_return"),
        best_eval_return=last.get("best_eval_return"),
        replay_size=int(last.get("replay_size") or 0),
        updates_per_step=float(last.get("updates_per_step") or 0.0),
        policy_lag=PolicyLag(*lag),
        weights_version=int(last.get("weights_version") or 0),
        restarts=dict(summary.get("restarts") or {}) if ended else {"workers": int(last.get("restarts") or 0)},
        dropped=dict(summary.get("dropped") or {}) if ended else {"things": int(last.get("dropped") or 0)},
    )
    head = Text.assemble(
        (f"{folder.path.name}  ", "bold"), f"● {printable(word)}  {clock(float(last.get('wall_seconds') or 0))}"
    )
    said = [Text(trouble, style="yellow")] if trouble else []
    seen = None if ended else worker_list.read(folder.path)
    if seen is None:
        return Group(head, *said, "", _numbers(status))
    age = max(0.0, time.time() - seen.at)
    late = age > _SILENT_SECONDS + worker_list.PERIOD_SECONDS
    words = f"workers as of {clock(age)} ago" + ": the run's main process is silent" * late
    if seen.actors is not None and seen.actors.most > 1 and not seen.actors.fixed:
        words += f"; {seen.actors.serving} actors of at most {seen.actors.most} (apexrl scale)"
    said.append(Text(words, style="red" if late else "dim"))
    hosts = {worker.name: seen.host for worker in seen.workers}
    if len(seen.workers) > rows - _LINES_ABOUT:
        return Group(head, *said, line(status), "", overview(seen.workers, hosts, width, rows - 7))
    return Group(head, *said, "", _numbers(status), "", _workers(seen.workers, hosts, width))


def _numbers(status: RunStatus) -> Table:
    table = figures_table()
    table.columns[2].style, table.columns[2].no_wrap = "dim", False
    best = f"eval {number(status.eval_return)}   best {number(status.best_eval_return)}"
    table.add_row("return, training", number(status.train_return), best)
    table.add_row("env steps", count(status.env_steps), f"{count(status.env_steps_per_second)}/s")
    version = f"{count(status.updates_per_second)}/s   weights {status.weights_version}"
    table.add_row("updates", count(status.updates), version)
    full = f"of {count(status.replay_capacity)}" if status.replay_capacity else ""
    table.add_row("replay", count(status.replay_size), full)
    table.add_row("updates per step", f"{status.updates_per_step:.3g}", "")
    table.add_row("policy lag", number(status.policy_lag.mean), f"p95 {number(status.policy_lag.p95)} updates")
    for what, found in (("restarts", status.restarts), ("dropped", status.dropped)):
        words = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in found.items() if n)
        table.add_row(what, counted(sum(found.values())), words)
    return table


def _worker(worker: WorkerStatus, host: str) -> dict[str, RenderableType]:
    bad = worker.state in ("failed", "hung")
    colour = "red" if bad else "yellow" if worker.state in _WAITING else "green"
    late = worker.heartbeat_age_seconds > _SILENT_SECONDS
    return {
        "worker": Text(worker.name),
        "state": Text(f"● {worker.state}", style=colour),
        "node": Text(host or "–"),
        "pid": Text(str(worker.pid or "–"), style="dim"),
        "rate": number(worker.rate) if worker.rate else "–",
        "heard of": Text(f"{worker.heartbeat_age_seconds:.1f} s ago", style="red" if late else "dim"),
        "restarts": counted(worker.restarts),
    }


def _state(record: Record) -> Text:
    age = max(0.0, time.time() - record.at)
    if age > _SILENT_SECONDS:
        return Text(f"● silent for {clock(age)}", style="bold red")
    phase = record.status.phase
    return Text(f"● {phase}", style=_COLOURS.get(phase, "green" if phase == "training" else "cyan"))


def _columns(names: Sequence[str]) -> Table:
    least = {**{name: len(name) for name in names}, "run": 12, "worker": 10, "state": 12}
    return columns_table(names, _LEFT, least, {"node": 20, "driver": 26})
