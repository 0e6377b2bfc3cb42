"""``kill -9`` of each kind of role in each topology: what becomes of the run, and what it leaves behind.

    python benchmarks/topologies/run.py kills                     # topology × role × what became of the run: hours
    python benchmarks/topologies/run.py kills --topologies gorila

Roles are those that the run's own status names. Each row is a CartPole run of its own in which workers of one role are
killed three times while it learns (whoever of them is alive, by turns); two more rows kill the fork server, the
parent of all workers, and the supervisor. The contract: roles come back and the run ends solved; without the fork
server it ends with a clear error within 10 s; without the supervisor everybody ends within 10 s; and nothing is left
running or in /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from apexrl.topologies import TOPOLOGIES
from benchmarks.lib import processes, report

BAR, SECONDS = 475.0, 10.0  # final return; from the kill to the end, where the run cannot go on
LIMIT = 420.0  # seconds of one run: longer is taken for hung
NOBODY, FORK_SERVER, SUPERVISOR = "–", "fork server", "supervisor"
Row = dict[str, Any]


class Variant(NamedTuple):
    """A topology, and what makes it have all of its roles."""

    topology: str
    settings: dict[str, Any] = {}  # noqa: RUF012

    @property
    def name(self) -> str:
        words = [f"{value} {name}" if value is not False else f"no {name}" for name, value in self.settings.items()]
        return ", ".join([self.topology, *words]).replace("_", " ")


_MORE = (
    Variant("impala", {"learners": 2}),
    Variant("gorila", {"learners": 2, "parameter_servers": 2}),
    Variant("a3c", {"hogwild": False, "parameter_servers": 2}),
)


def variants(wanted: list[str]) -> list[Variant]:
    """Every topology as it comes, and those that have more roles, or several of one."""
    every = [Variant(name) for name in TOPOLOGIES] + [more for more in _MORE if more.topology in TOPOLOGIES]
    return [variant for variant in every if not wanted or variant.topology in wanted]


def measure(options: argparse.Namespace) -> None:
    """All rows that are missing, then the table."""
    path = options.out / "topologies-kills.json"
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    options.out.mkdir(parents=True, exist_ok=True)
    for variant in [] if options.table else variants(options.topologies):
        roles, left = [NOBODY], []
        while roles:
            role = roles.pop(0)
            found = next((row for row in rows if (row["variant"], row["role"]) == (variant.name, role)), None)
            if found is None or options.again:
                rows = [row for row in rows if row is not found]
                found = killed(variant, role)
                rows.append(found)
                path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
                print(f"kills: {variant.name}, {role}: {found['outcome']}", flush=True)
            if role == NOBODY:
                left = [*found["roles"], FORK_SERVER, SUPERVISOR]
                roles = [name for name in left if not options.roles or name in options.roles]
    if rows:
        _write(rows, options)


def killed(variant: Variant, role: str) -> Row:
    """One run whose workers of ``role`` are killed."""
    mark, before = uuid.uuid4().hex, _shared()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        said, complaint = Path(folder, "said"), Path(folder, "complaint")
        command = [sys.executable, str(Path(__file__).with_name("killed_run.py")), variant.topology, role, folder]
        with said.open("w") as out, complaint.open("w") as err:  # no pipes: whoever is left would keep them open
            environ = {**os.environ, processes.MARK: mark}
            run = subprocess.Popen([*command, json.dumps(variant.settings)], stdout=out, stderr=err, env=environ)
        try:
            code: int | None = run.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = None
            processes.reap(mark)
            run.wait()
        except BaseException:
            processes.reap(mark)
            raise
        ended = time.monotonic()
        left = processes.gone(mark, SECONDS)
        after = time.monotonic() - ended
        processes.reap(mark)
        lines = [line for line in said.read_text().splitlines() if line.startswith("{")]
        last = complaint.read_text().strip()[-300:]
    row: Row = json.loads(lines[-1]) if lines else {"roles": [], "kills": [], "end": ""}
    row |= {"variant": variant.name, "role": role, "left": len(left), "shared": sorted(_shared() - before)}
    row["outcome"], row["met"] = _judged(row, code, last, after)
    return row


def _judged(row: Row, code: int | None, complaint: str, after: float) -> tuple[str, bool]:
    """What became of it in words, and whether that is what the contract says; exit code None: it was cut short."""
    clean = not row["left"] and not row["shared"]
    if code is None:
        return f"hung: not over after {LIMIT:g} s", False
    if row["role"] == SUPERVISOR:
        return (f"everybody gone after {after:.1f} s" if clean else "left something behind"), clean and after <= SECONDS
    if not row["end"]:
        return f"ended without a word (exit code {code}): {complaint}", False
    if row["end"] == "error":
        prompt = row["error_seconds"] <= SECONDS
        said = f"error {row['error_seconds']:.1f} s after the kill: {row['error']}"
        return said, clean and prompt and row["role"] == FORK_SERVER
    solved = (row["final"] or 0.0) >= BAR
    came = not row["kills"] or row["restarts"].get(row["role"], 0) >= len(row["kills"])
    what = (
        f"{'solved' if solved else 'NOT solved'}, {row['final']:.1f}" if row["final"] is not None else "not evaluated"
    )
    if row["role"] != NOBODY and len(row["kills"]) < row["wanted"]:
        what += f"; over before all {row['wanted']} kills"
    return what + ("" if came else "; nobody came back"), solved and clean and came and bool(
        row["kills"] or row["role"] == NOBODY
    )


def _shared() -> set[str]:
    shm = Path("/dev/shm")
    return {path.name for path in shm.iterdir()} if shm.exists() else set()


def _write(rows: list[Row], options: argparse.Namespace) -> None:
    order = [variant.name for variant in variants([])]
    rows = sorted((row for row in rows if row["variant"] in order), key=lambda row: order.index(row["variant"]))
    table = [
        [
            row["variant"],
            row["role"],
            f"{len(row['kills'])}",
            ", ".join(f"{count} {name}" for name, count in row.get("restarts", {}).items() if count) or "–",
            row["outcome"] + ("" if row["met"] else " ✗"),
            f"{row['env_steps']:,}" if row.get("env_steps") else "–",
            f"{row['left']}, {len(row['shared'])}",
        ]
        for row in rows
    ]
    good = sum(row["met"] for row in rows)
    text = (
        f"{report.machine()}; {report.versions('apexrl', 'torch', 'gymnasium')}.\n"
        f"CartPole-v1 with each topology's own agent, one run a row. "
        f"As the contract says: {good} of {len(rows)}; ✗: not.\n\n"
    )
    header = ["topology", "killed", "kills", "restarts", "outcome", "env steps", "left running, in /dev/shm"]
    report.save("topologies-kills", text + report.table(header, table), rows, None, options.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", nargs="+", choices=TOPOLOGIES, default=[], help="only these (default: all)")
    parser.add_argument("--roles", nargs="+", default=[], help="only these (default: all that there are)")
    parser.add_argument("--again", action="store_true", help="also what was run before")
    parser.add_argument("--table", action="store_true", help="run nothing; make the table of what there is")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for the table")
    options = parser.parse_args()
    processes.end_in_order()
    measure(options)
