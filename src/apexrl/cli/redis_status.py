"""``apexrl status`` and ``apexrl stop`` for runs on a Redis server."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final, cast, get_args

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from apexrl.cli.redraw import redraw
from apexrl.cli.say import Say
from apexrl.errors import LinkError
from apexrl.links.backoff import Backoff
from apexrl.links.printable import printable
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import check_name
from apexrl.links.redis.run_listing import MemberView, RunView, look, runs
from apexrl.links.redis.run_record import stop_run
from apexrl.links.redis.server import Server
from apexrl.report.number_format import clock, count, number
from apexrl.report.table_parts import columns_table, counted, figures_table, fill_bar
from apexrl.report.worker_overview import overview
from apexrl.run.status import Work, WorkerState, WorkerStatus
from apexrl.run.worker_health import Trouble

_RUNS: Final = ("run", "state", "learner", "steps", "steps/s", "return", "hosts", "actors")
_NARROW: Final = ("host", "state", "slots", "steps/s", "heard of")
_MIDDLE: Final = ("host", "state", "slots", "steps/s", "behind", "unsent", "heard of")
_WIDE: Final = (
    "host", "state", "slots", "actors", "steps", "steps/s", "weights", "behind", "unsent", "dropped", "restarts",
    "heard of",
)  # fmt: skip

_ROWS_PRINTED: Final = 32
_LINES_ABOUT: Final = 17  # of a run's picture, without its members
_LINES_OF_NUMBERS: Final = 11  # of these, which a crowd of members takes for itself
_SILENT_SECONDS: Final = 3.0
_LONG_QUEUE: Final = 1000  # frames
_COLOURS: Final = {"alive": "green", "waiting": "yellow", "lost": "red", "left": "dim"}


def show_status(url: str, run: str = "", watch: bool = False, console: Console | None = None) -> int:
    """Print the run ``run``, or without a name all runs at the server; with ``watch`` again and again until Ctrl-C.

    Returns:
        0, or 1 when there is no such run.

    Raises:
        ConfigError: the URL or the name is invalid.
        LinkError: the server cannot be reached (with ``watch`` it is tried again).
    """
    console = console or Console()
    server = Server(url)
    if run:
        check_name(run)
    connection = Connection(server)

    def picture(rows: int) -> tuple[RenderableType, bool]:
        if not run:
            views = [look(connection, name) for name in runs(server)]
            return table_of_runs(views, server.address, console.width), True
        view = look(connection, run)
        if view.record is None and not view.phase and not view.learner_alive and not view.members:
            names = runs(server)
            there = f"runs there: {', '.join(names)}" if names else "no run is there"
            return Text(f"there is no run {run} at {server.address}; {there}"), False
        return picture_of_run(view, console.width, rows), True

    try:
        if watch:
            _watch(console, picture)
            return 0
        drawn, found = picture(_ROWS_PRINTED)
        console.print(drawn)
        return 0 if found else 1
    finally:
        connection.close()


def stop(url: str, run: str, wait_seconds: float = 60.0, console: Console | None = None) -> int:
    """Ask a run to stop, and wait until its learner has ended it.

    Returns:
        0 when it has ended; 1 when there is no such run, or it still runs after ``wait_seconds``.

    Raises:
        ConfigError: the URL or the name is invalid.
        LinkError: the server cannot be reached.
    """
    server, say = Server(url), Say(console)
    where = f"run {check_name(run)} at {server.address}"
    asked = stop_run(server, run)
    words = {
        "none": f"there is no {where}; see: apexrl status --redis URL",
        "finished": f"{where} had ended before",
        "deserted": f"nobody works at {where} any more; it counts as ended now",
    }
    if asked != "asked":
        return say(words[asked], 1 if asked == "none" else 0)
    say(f"{where} was asked to stop")
    connection, ends = Connection(server), time.monotonic() + wait_seconds
    try:
        while True:
            view = look(connection, run)
            if not view.learner_alive and (view.phase == "finished" or not view.alive):
                return say(f"{where} has ended")
            if time.monotonic() > ends:
                break
            time.sleep(0.2)
    finally:
        connection.close()
    still = (["its learner"] if view.learner_alive else []) + [f"{member.host}:{member.pid}" for member in view.alive]
    return say(
        f"{where} still runs after {wait_seconds:.0f} s: {', '.join(still[:8]) or 'its learner'}. It may still be "
        "evaluating; see: apexrl status --watch",
        1,
    )


def picture_of_run(view: RunView, width: int, rows: int = _ROWS_PRINTED) -> RenderableType:
    """One run and its members, for ``width`` columns and at most ``rows`` members: of more, the worst."""
    width = min(width, 140)
    parts: list[RenderableType] = [_state(view), Text(""), _numbers(view, width)]
    if len(view.members) > rows:
        parts = [_state(view), *_crowd(view, width - 4, rows + _LINES_OF_NUMBERS)]
    elif view.members or view.phase != "finished":
        parts += [Text(""), _members(view, width - 4)]
    parts += [Text(text, style="yellow") for text in _troubles(view)]
    if view.unreadable:
        parts.append(
            Text(f"{view.unreadable} keys or entries at the server are not this run's; left out", style="yellow")
        )
    began = f"since {time.strftime('%Y-%m-%d %H:%M', time.localtime(view.record.began))}" if view.record else ""
    title = Text.assemble((f"apexrl  {view.name}", "bold"), (f"  ·  {view.address}", ""))
    version = f"apexrl {view.record.apexrl}" if view.record else ""
    return Panel(
        Padding(Group(*parts), (0, 1)),
        title=title,
        title_align="left",
        subtitle=Text("  ·  ".join(word for word in (began, version) if word), style="dim"),
        subtitle_align="left",
        border_style="blue" if view.learner_alive or view.phase == "finished" else "red",
        width=width,
    )


def table_of_runs(views: Sequence[RunView], address: str, width: int) -> RenderableType:
    """A line for each run at a server."""
    if not views:
        return Text(f"no run is at {address}; start one: apexrl learner PRESET --redis URL --run NAME")
    columns = _RUNS if width >= 76 else [name for name in _RUNS if name not in ("learner", "hosts")]
    least = {**{name: len(name) for name in columns}, "run": 10, "state": 12}
    table = columns_table(columns, ("run", "state", "learner"), least)
    for view in views:
        digest = view.digest
        word, colour = _phase(view)
        cells: dict[str, RenderableType] = {
            "run": Text(view.name),
            "state": Text(f"● {word}", style=colour),
            "learner": Text(view.learner_host or "–"),
            "steps": count(digest.env_steps),
            "steps/s": count(digest.env_steps_per_second) if view.learner_alive else "–",
            "return": number(digest.train_return),
            "hosts": str(len(view.alive)),
            "actors": str(digest.actors + sum(len(member.slots) for member in view.alive)),
        }
        table.add_row(*(cells[name] for name in columns))
    return table


def _watch(console: Console, picture: Callable[[int], tuple[RenderableType, bool]]) -> None:
    """Redraw until Ctrl-C. While the server is away, the last picture stays."""
    last: RenderableType = Text("")
    backoff = Backoff()

    def next_picture() -> tuple[RenderableType, float | None]:
        nonlocal last
        try:
            last, _ = picture(max(3, console.height - _LINES_ABOUT))
        except LinkError as error:
            return Group(last, Text(f"{error}; trying again", style="bold red")), backoff.next()
        backoff.reset()
        return last, None

    redraw(console, next_picture)


def _phase(view: RunView) -> tuple[str, str]:
    if view.phase == "finished":
        return "finished", "dim"
    if not view.learner_alive:
        return "no learner", "bold red"
    if view.stopping:
        return "stopping", "yellow"
    word = "".join(c for c in view.digest.phase if c.isalnum())[:12]
    return word, "red" if word == "failed" else "green" if word in ("training", "evaluating") else "cyan"


def _state(view: RunView) -> Text:
    word, colour = _phase(view)
    line = Text.assemble((f"● {word}", colour), f"  {clock(view.digest.elapsed_seconds)}")
    if not view.learner_host:
        return line
    where = f"   learner on {view.learner_host} ({view.learner_pid})"
    heard = f", heard of {_age(view.learner_age_seconds)} ago" if view.phase != "finished" else ""
    line.append(where + heard, style="dim" if view.learner_alive or view.phase == "finished" else "red")
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _numbers(view: RunView, width: int) -> Table:
    digest = view.digest
    room = max(8, min(40, width - 62))
    table = figures_table()
    best = Text(f"eval {number(digest.eval_return)}   best {number(digest.best_eval_return)}", style="dim")
    table.add_row("return, training", number(digest.train_return), best)
    rate = "cyan" if view.learner_alive else "dim"
    table.add_row("env steps", count(digest.env_steps), Text(f"{count(digest.env_steps_per_second)}/s", style=rate))
    updates = Text(f"{count(digest.updates_per_second)}/s", style=rate)
    updates.append(f"   weights {digest.weights_version}", style="dim")
    table.add_row("updates", count(digest.updates), updates)
    bar = fill_bar(digest.replay_size, digest.replay_capacity, room)
    table.add_row("replay", count(digest.replay_size), bar)
    table.add_row("updates per step", f"{digest.updates_per_step:.3g}", "")
    p95 = f"p95 {number(digest.policy_lag_p95)}  updates" if digest.policy_lag_p95 is not None else ""
    table.add_row("policy lag", number(digest.policy_lag), Text(p95, style="dim"))
    queue = Text(f"items   {count(view.queue)} frames queued", style="yellow" if view.queue > _LONG_QUEUE else "dim")
    table.add_row("from other hosts", count(digest.committed_items), queue)
    odd = Text(f"{count(digest.duplicate_items)} duplicate", style="dim")
    odd.append(f"   {count(digest.refused_frames)} frames refused", style="yellow" if digest.refused_frames else "dim")
    missing = Text(count(digest.missing_items), style="yellow" if digest.missing_items else "")
    table.add_row("missing items", missing, odd)
    return table


def _crowd(view: RunView, width: int, rows: int) -> list[RenderableType]:
    """More members than lines: figures in two of them, and the members in trouble, the worst first."""
    digest = view.digest
    there = [member for member in view.members if member.state != "left"]
    workers = [worker for member in there for worker in _actors(member)]
    names = {worker.name: member.host for member in there for worker in _actors(member)}
    known = {worker.name: _trouble(member) for member in there for worker in _actors(member)}
    troubles = {name: trouble for name, trouble in known.items() if trouble is not None}
    figures = (
        f"steps {count(digest.env_steps)} ({count(digest.env_steps_per_second)}/s)",
        f"updates {count(digest.updates)} ({count(digest.updates_per_second)}/s)",
        f"return {number(digest.train_return)}",
        f"eval {number(digest.eval_return)} (best {number(digest.best_eval_return)})",
        f"lag {number(digest.policy_lag)}",
        f"{count(view.queue)} frames queued",
        f"{count(digest.missing_items)} items missing",
    )
    left = len(view.members) - len(there)
    words = f"{len(view.alive)} hosts alive" + f", {left} left" * (left > 0)
    about: list[RenderableType] = [Text("  ".join(figures)), Text(words, style="dim"), Text("")]
    return [*about, overview(workers, names, width, rows - len(about), troubles)]


def _trouble(member: MemberView) -> Trouble | None:
    """What no status of a worker tells of a member's trouble."""
    digest = member.digest
    if member.state == "lost":
        return "dead"
    if digest.weights_trouble:
        return "stale"
    return "dropping" if digest.dropped_items or digest.dropped_messages else None


def _actors(member: MemberView) -> list[WorkerStatus]:
    """A host's actors, each with its share of what the host tells of all."""
    digest = member.digest
    state = digest.state if digest.state in get_args(WorkerState) else "waiting"
    return [
        WorkerStatus(
            name=f"{member.host}:{member.pid}/{slot}",
            role="client" if member.kind == "client" else "actor",
            index=slot,
            pid=member.pid,
            state=cast("WorkerState", state),
            restarts=0 if place else digest.restarts,
            rate=digest.env_steps_per_second / max(1, len(member.slots)) if member.state == "alive" else 0.0,
            heartbeat_age_seconds=member.age_seconds,
            work=Work("env_steps", "steps/s", "acting"),
        )
        for place, slot in enumerate(member.slots or [0])
    ]


def _members(view: RunView, width: int) -> RenderableType:
    if not view.members:
        return Text("no other host is here; start one: apexrl actor --redis URL --run " + view.name, style="dim")
    columns = _WIDE if width >= 100 else _MIDDLE if width >= 74 else _NARROW
    most = {"host": 32, "slots": 20} if columns is _WIDE else {"host": 18, "slots": 9}
    table = columns_table(columns, ("host", "state", "slots"), most=most)
    for member in view.members:
        cells = _cells(member, view.digest.weights_version)
        table.add_row(*(cells[name] for name in columns))
    together = sum(member.digest.env_steps_per_second for member in view.alive)
    actors = sum(len(member.slots) for member in view.alive)
    total = f"{len(view.alive)} alive, {actors} actor{'s' if actors != 1 else ''}, {count(together)} steps/s together"
    return Group(table, Text(total, style="dim", no_wrap=True, overflow="ellipsis"))


def _troubles(view: RunView) -> list[str]:
    """Problems with the run's weights and messages, in sentences."""
    digest, texts = view.digest, []
    if digest.weights_trouble:
        behind = max(0, digest.weights_version - digest.weights_published)
        texts.append(f"the learner cannot publish its weights ({behind} versions behind): {digest.weights_trouble}")
    without = [member for member in view.alive if member.digest.weights_trouble]
    if without:
        first = without[0]
        hosts = "host" if len(without) == 1 else "hosts"
        texts.append(f"{len(without)} {hosts} cannot get new weights; {first.host}: {first.digest.weights_trouble}")
    if digest.dropped_messages:
        texts.append(f"{count(digest.dropped_messages)} episodes and warnings of hosts were not told of")
    return [printable(text, 400) for text in texts]


def _cells(member: MemberView, version: int) -> dict[str, RenderableType]:
    digest, alive = member.digest, member.state == "alive"
    word = "".join(c for c in digest.state if c.isalnum())[:10] if alive else member.state
    colour = _COLOURS["waiting" if alive and word in ("waiting", "starting", "restarting") else member.state]
    name = Text(f"{member.host}:{member.pid}")
    if member.kind == "client":
        name.append(" client", style="dim")
    late = alive and member.age_seconds > _SILENT_SECONDS

    return {
        "host": name,
        "state": Text(f"● {word}", style=colour),
        "slots": Text(ranges(member.slots)),
        "actors": str(len(member.slots)),
        "steps": count(digest.env_steps),
        "steps/s": count(digest.env_steps_per_second) if alive else "–",
        "weights": count(digest.weights_version),
        "behind": count(max(0, version - digest.weights_version)) if alive else "–",
        "unsent": Text(count(digest.uncommitted_items), style="" if alive else "dim"),
        "dropped": counted(digest.dropped_items),
        "restarts": counted(digest.restarts),
        "heard of": Text(_age(member.age_seconds), style="red" if late else "dim"),
    }


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers as ranges: ``0-3 7 9-10``."""
    words = []
    for _, group in itertools.groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0]):
        run = [number_ for _, number_ in group]
        words.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    return " ".join(words)


def _age(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    return clock(seconds) if seconds < 360000 else "long"
