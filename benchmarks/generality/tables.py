"""The tables of the suite, from its records: agents beside the peer's, every task, failures, and the suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

from apexrl.evaluation.scores import Interval, bootstrapped_iqm
from benchmarks.generality import cells
from benchmarks.generality.cells import Record
from benchmarks.generality.scores import at_seconds, normalised
from benchmarks.generality.tasks import TASKS, Task
from benchmarks.lib import report

HALVES = {"report": "reported on", "tune": "tuned on"}
Group = dict[str, list[Record]]  # of one agent: the records of each task


def write(records: Sequence[Record], out: Path) -> None:
    """``generality.md``, ``generality-tasks.md``, ``generality-suite.md`` and their figures."""
    shown = [record for record in records if _of_the_suite(record)]
    report.save("generality-suite", suite(), [{"name": name} | vars(task) for name, task in TASKS.items()], None, out)
    if shown:
        report.save("generality", agents(shown), shown, None, out)
        report.save("generality-tasks", tasks(shown), shown, None, out)


def suite() -> str:
    """What is played, how long, and between which returns a score is normalised."""
    rows = [
        (
            HALVES[task.half],
            f"`{name}`",
            task.actions,
            f"{report.short(task.replay_steps)} / {report.short(task.unroll_steps)}",
            f"{task.random:.4g}",
            f"{task.good:.6g}",
            task.source,
        )
        for name, task in TASKS.items()
    ]
    header = ["half", "task", "actions", "steps: replay / unrolls", "random return", "good return", "source of that"]
    return report.table(header, rows)


def agents(records: Sequence[Record]) -> str:
    """Agent by agent: the interquartile mean of both sides, over the tasks and seeds that both have run."""
    peers = _groups(record for record in records if record["system"] == "sb3")
    rows = []
    for key, ours in _groups(record for record in records if record["system"] == "apexrl").items():
        agent, topology, recipe, share = key
        theirs = peers.get((agent, "", "default", share), {})
        for half, words in HALVES.items():
            mine = {name: of for name, of in ours.items() if TASKS[name].half == half}
            both = [name for name in mine if name in theirs]
            timed = [name for name in both if not any(record["shared"] for record in (*mine[name], *theirs[name]))]
            if mine:
                rows.append(
                    [
                        words + _of_share(share),
                        f"`{agent}`, `{topology}`" + ("" if recipe == "default" else f", recipe {recipe}"),
                        f"{_count(mine)}: {_interval(mine, list(mine), _final)}",
                        _count({name: mine[name] for name in both}) if both else "–",
                        _interval(mine, both, _final),
                        _interval(theirs, both, _final),
                        _interval(mine, both, _last),
                        _interval(theirs, both, _last),
                        *_at_equal_time(mine, theirs, timed),
                    ]
                )
    order = [words + _of_share(share) for share in cells.SHARES for words in HALVES.values()]
    rows.sort(key=lambda row: order.index(row[0]))
    header = [
        "tasks", "agent, topology", "all that was run: IQM", "shared with SB3", "IQM, equal steps", "SB3's",
        "last weights", "SB3's", "IQM, equal wall time", "SB3's",
    ]  # fmt: skip
    return "\n".join([_head(records), report.table(header, rows), *_failures(records)])


def tasks(records: Sequence[Record]) -> str:
    """Every task and agent: mean returns over seeds of both sides."""
    found: dict[tuple[str, str, float], dict[str, list[Record]]] = {}
    for record in records:
        side = "SB3" if record["system"] == "sb3" else f"`{record['topology']}`"
        side += "" if record["recipe"] == "default" else f", recipe {record['recipe']}"
        key = (record["task"], record["agent"], cells.share(record) or 1.0)
        found.setdefault(key, {}).setdefault(side, []).append(record)
    rows = [
        (
            f"`{name}`",
            HALVES[task.half] + _of_share(share),
            f"`{agent}`",
            side,
            len(each),
            f"{fmean(_final(task, record) for record in each):.2f}",
            _mean(each, "final"),
            _mean(each, "last"),
            _median_seconds(each),
        )
        for name, task in TASKS.items()
        for (of, agent, share), sides in sorted(found.items())
        if of == name
        for side, each in sorted(sides.items())
    ]
    header = [
        "task", "half", "agent", "topology, or peer", "seeds", "score", "return, best weights", "last weights",
        "seconds",
    ]  # fmt: skip
    return report.table(header, rows)


def _of_the_suite(record: Record) -> bool:
    """Not a trial: no further flags, and the task's own steps or a share of them that tables show."""
    return record["task"] in TASKS and not record["flags"] and cells.share(record) is not None


def _of_share(share: float) -> str:
    return "" if share == 1.0 else f", {share:.0%} of the steps"


def _groups(records: Iterable[Record]) -> dict[tuple[str, str, str, float], Group]:
    """By agent, topology, recipe and share of the steps, then by task."""
    groups: dict[tuple[str, str, str, float], Group] = {}
    for record in records:
        key = (record["agent"], record["topology"], record["recipe"], cells.share(record) or 1.0)
        groups.setdefault(key, {}).setdefault(record["task"], []).append(record)
    return dict(sorted(groups.items()))


def _final(task: Task, record: Record) -> float:
    return normalised(task, None if record["failure"] else record["final"])


def _last(task: Task, record: Record) -> float:
    return normalised(task, None if record["failure"] else record["last"])


def _interval(group: Group, names: Sequence[str], score: Callable[[Task, Record], float]) -> str:
    if not names:
        return "–"
    return _words(bootstrapped_iqm([[score(TASKS[name], record) for record in group[name]] for name in names]))


def _at_equal_time(ours: Group, theirs: Group, names: Sequence[str]) -> tuple[str, str]:
    """Both as they were when the faster of the two had made its steps, task by task."""
    ends = {name: min(_seconds(ours[name]), _seconds(theirs[name])) for name in names}

    def score(task: Task, record: Record) -> float:
        curve = [] if record["failure"] else record["curve"]
        return normalised(task, at_seconds(curve, ends[task.name] + 0.01))

    return _interval(ours, names, score), _interval(theirs, names, score)


def _seconds(each: Sequence[Record]) -> float:
    done = [record["seconds"] for record in each if not record["failure"]]
    return median(done) if done else float("inf")


def _words(interval: Interval) -> str:
    return f"**{interval.value:.2f}** ({interval.low:.2f}–{interval.high:.2f})"


def _count(group: Group) -> str:
    return f"{len(group)} tasks, {sum(map(len, group.values()))} runs"


def _mean(each: Sequence[Record], what: str) -> str:
    values = [record[what] for record in each if not record["failure"] and record[what] is not None]
    return f"{fmean(values):.4g}" if values else "–"


def _median_seconds(each: Sequence[Record]) -> str:
    seconds = _seconds(each)
    if seconds == float("inf"):
        return "failed"
    return f"{seconds:.0f}" + (", beside other work" if any(record["shared"] for record in each) else "")


def _head(records: Sequence[Record]) -> str:
    return (
        f"{report.made_with(records)}.\n"
        "IQM: interquartile mean of normalised scores over tasks and seeds; in brackets the 95 % interval of a "
        "bootstrap stratified by task. Score: 0 is a random agent, 1 the published return; of the weights that did "
        "best in the run's own evaluations, or of the last ones, in 20 greedy episodes on fresh seeds. A run that "
        "failed counts as random. "
        "Equal wall time: the last evaluation of either before the faster of the two had made its steps, on tasks "
        "whose seconds were measured without other work.\n"
    )


def _failures(records: Sequence[Record]) -> list[str]:
    lines = [
        f"- `{record['agent']}`{' of SB3' if record['system'] == 'sb3' else ''} on `{record['task']}`, seed "
        f"{record['seed']}: {record['failure'].strip().splitlines()[-1]}"
        for record in records
        if record["failure"]
    ]
    return ["Failed:\n", *lines, ""] if lines else []
