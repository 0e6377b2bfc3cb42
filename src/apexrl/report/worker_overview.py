"""Many workers at a glance: sums by role and by host, a line for each of the worst, and how many more are well."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from apexrl.report.number_format import count, number
from apexrl.report.table_parts import columns_table, counted
from apexrl.run.status import WorkerStatus
from apexrl.run.worker_health import Trouble, Troubled, in_trouble, medians

COLOURS: Final[dict[Trouble, str]] = {
    "dead": "bold red",
    "silent": "red",
    "stalled": "red",
    "slow": "yellow",
    "stale": "yellow",
    "dropping": "yellow",
    "restarted": "cyan",
}

_HEADS: Final = 9  # lines beside those of roles, hosts and workers: headers, blank lines, what more there is
_LEAST_HOSTS: Final = 3
_LEAST_WORST: Final = 4
_HOSTS_SHARE: Final = 3  # of the lines, one in so many is a host's
_NAME: Final = 24
_SHORT_NAME: Final = 16
_WIDE: Final = 90  # columns


def overview(
    workers: Sequence[WorkerStatus],
    hosts: Mapping[str, str],
    width: int,
    rows: int,
    known: Mapping[str, Trouble] = MappingProxyType({}),
) -> RenderableType:
    """A picture of ``width`` columns and about ``rows`` lines.

    Args:
        hosts: worker's name -> its host.
        known: worker's name -> a trouble of its that no status tells.
    """
    worst = in_trouble(workers, known)
    bad = {one.worker.name: one for one in worst}
    roles = sorted({worker.role for worker in workers})
    room = max(_LEAST_HOSTS + _LEAST_WORST, rows - _HEADS - len(roles))
    parts: list[RenderableType] = [_roles(workers, roles, bad, width), Text("")]
    if 1 < len({hosts.get(worker.name, "") for worker in workers}) < len(workers):
        of_hosts = max(_LEAST_HOSTS, room // _HOSTS_SHARE)
        room -= of_hosts
        parts += _hosts(workers, hosts, bad, of_hosts)
    return Group(*parts, *_worst(worst, hosts, len(workers), width, max(_LEAST_WORST, room)))


def _roles(
    workers: Sequence[WorkerStatus], roles: Sequence[str], bad: Mapping[str, Troubled], width: int
) -> RenderableType:
    """A line for each role."""
    names: tuple[str, ...] = ("role", "workers", "well", "median", "together", "unit", "in trouble")
    names = names if width >= _WIDE else tuple(name for name in names if name != "unit")
    usual = medians(workers)
    rows = []
    for role in roles:
        some = [worker for worker in workers if worker.role == role]
        middle = usual.get(role) or statistics.median(worker.rate for worker in some)
        cells = {
            "role": role,
            "workers": str(len(some)),
            "well": str(sum(worker.name not in bad for worker in some)),
            "median": number(middle),
            "together": count(sum(worker.rate for worker in some)),
            "unit": some[0].work.unit,
        }
        rows.append((cells, _troubles(bad[worker.name] for worker in some if worker.name in bad)))
    least = {name: max([len(name), *(len(cells[name]) for cells, _ in rows)]) for name in names[:-1]}
    table = columns_table(names, ("role", "unit", "in trouble"), least)
    for cells, troubles in rows:
        table.add_row(*(cells[name] for name in names[:-1]), troubles)
    return table


def _hosts(
    workers: Sequence[WorkerStatus], hosts: Mapping[str, str], bad: Mapping[str, Troubled], rows: int
) -> list[RenderableType]:
    """A line for each of the worst hosts."""
    found: dict[str, list[WorkerStatus]] = {}
    for worker in workers:
        found.setdefault(hosts.get(worker.name) or "–", []).append(worker)
    troubles = {host: Counter(bad[one.name].trouble for one in some if one.name in bad) for host, some in found.items()}
    worse = sorted(
        (host for host in found if troubles[host]),
        key=lambda host: ([-troubles[host][trouble] / len(found[host]) for trouble in COLOURS], host),
    )
    table = columns_table(("host", "workers", "together", "in trouble"), ("host", "in trouble"), most={"host": _NAME})
    for host in worse[:rows]:
        rate = sum(worker.rate for worker in found[host] if worker.work.counter == "env_steps")
        shown = _troubles(bad[worker.name] for worker in found[host] if worker.name in bad)
        table.add_row(Text(host), str(len(found[host])), f"{count(rate)} steps/s", shown)
    left_out, well = max(0, len(worse) - rows), len(found) - len(worse)
    words = [f"{left_out} more hosts with workers in trouble"] * (left_out > 0) + [f"{well} hosts are well"] * (
        well > 0
    )
    return [*([table] if worse else []), Text("… " + ", ".join(words) if words else "", style="dim"), Text("")]


def _worst(
    worst: Sequence[Troubled], hosts: Mapping[str, str], workers: int, width: int, rows: int
) -> list[RenderableType]:
    """A line for each of the worst workers, those of one host with the same trouble together, and how many more there
    are."""
    names: tuple[str, ...] = ("worker", "host", "trouble", "state", "rate", "of median", "heard of", "restarts")
    names = names if width >= _WIDE else tuple(name for name in names if name not in ("state", "rate"))
    groups: dict[tuple[str, str, str], list[Troubled]] = {}
    for one in worst:
        groups.setdefault((one.trouble, hosts.get(one.worker.name) or "–", one.worker.role), []).append(one)
    table = columns_table(
        names,
        ("worker", "host", "trouble", "state"),
        {name: len(name) for name in names[3:]} | {"worker": 12, "trouble": 9},
        {"worker": _NAME, "host": _NAME if width >= _WIDE else _SHORT_NAME},
    )
    shown = list(groups.items())[:rows]
    for (trouble, host, _), some in shown:
        (worker, kind, share), more = some[0], f" +{len(some) - 1}" * (len(some) > 1)
        cells: dict[str, RenderableType] = {
            "worker": Text(worker.name + more),
            "host": Text(host),
            "trouble": Text(trouble, style=COLOURS[kind]),
            "state": worker.state,
            "rate": number(worker.rate) if worker.rate else "–",
            "of median": f"{share:.0%}" if trouble in ("slow", "stalled") else "",
            "heard of": Text(
                f"{worker.heartbeat_age_seconds:.0f} s ago", style="red" if trouble == "silent" else "dim"
            ),
            "restarts": counted(worker.restarts),
        }
        table.add_row(*(cells[name] for name in names))
    left_out, well = len(worst) - sum(len(some) for _, some in shown), workers - len(worst)
    words = [f"{left_out} more in trouble"] * (left_out > 0) + [f"{well} {'more ' * bool(worst)}are well"]
    return [*([table] if worst else []), Text("… " + ", ".join(words), style="dim")]


def _troubles(found: Iterable[Troubled]) -> Text:
    """``2 dead  1 slow``, coloured."""
    counts = Counter(one.trouble for one in found)
    return Text("  ").join(
        Text(f"{counts[trouble]} {trouble}", style=COLOURS[trouble]) for trouble in COLOURS if counts[trouble]
    )
