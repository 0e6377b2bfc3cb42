"""apexrl.replay beside its peers: one process, then many writers with one learner, then growing sizes.

    python benchmarks/replay/run.py speed                            # small rows, 1M, 0 and 4 writers: some minutes
    python benchmarks/replay/run.py speed --rows atari               # image stacks
    python benchmarks/replay/run.py speed --parts sizes              # 10⁴ to 10⁷ rows
    python benchmarks/replay/run.py speed --check                    # does every contestant do what it should?
    python benchmarks/replay/run.py speed --python reverb=/path/to/venv/bin/python
    python benchmarks/replay/run.py speed --help

Each contestant lives in a process of its own, stopped while others have their turn. They take turns within every
round, in alternating order; figures are medians with their range, ratios are of the medians and within rounds. A
contestant that is not installed is named and left out. How each is set up: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.lib import report
from benchmarks.replay import parts
from benchmarks.replay.contestant_process import Failed, Missing, Process
from benchmarks.replay.contestants import ENTRIES, Shape
from benchmarks.replay.rows import ROWS

PARTS = {"one": parts.one_process, "writers": parts.many_processes, "sizes": parts.sizes}
CHECKED_ROWS = 4000


def check(options: argparse.Namespace) -> None:
    """Does every contestant do what it should? Exit code 1 when one does not."""
    shape = Shape(options.rows, CHECKED_ROWS, options.batch, options.chunk)
    options.out.mkdir(parents=True, exist_ok=True)
    rows, failed = [], False
    for name in options.contestants:
        with Process(name, options.python.get(name), options.out / "replay.log") as process:
            try:
                answer = process.ask(180.0, "check", shape=asdict(shape))
                result, versions = answer["wrong"] or "right", report.stack(answer["versions"])
                failed |= bool(answer["wrong"])
            except (Missing, Failed) as error:
                result, versions = f"left out: {error}", ""
        rows.append([name, result, versions])
        print(f"{name}: {result}", flush=True)
    print("\n" + report.table(["contestant", f"{options.rows} rows", "versions"], rows))
    sys.exit(failed)


def interpreter(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if name not in ENTRIES or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH of a contestant and an interpreter")
    return name, path


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--parts", nargs="+", choices=list(PARTS), default=["one", "writers"], help="default: one writers")
    add("--rows", choices=list(ROWS), default="small", help="what a transition holds (default: small)")
    add("--capacity", type=int, default=0, help="transitions (default: 1M; 20k for atari)")
    add("--batch", type=int, default=512, help="transitions sampled at once (default: 512)")
    add("--chunk", type=int, default=50, help="transitions inserted at once (default: 50)")
    add("--rounds", type=int, default=5, help="turns of every contestant (default: 5)")
    add("--seconds", type=float, default=0.5, help="of one operation in one round (default: 0.5)")
    add("--fill-seconds", type=float, default=20.0, help="at most, to fill one contestant (default: 20)")
    add("--writers", type=int, nargs="+", default=[0, 4], help="unpaced writer processes (default: 0 4)")
    add("--paced-writers", type=int, nargs="*", default=[4], help="writer processes that keep a pace (default: 4)")
    add("--pace", type=float, help="transitions/s of all paced writers together (default: 200k; 4k for atari)")
    add("--window", type=float, default=2.5, help="seconds of many processes a round (default: 2.5)")
    add("--sizes", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7], help="rows (default: 10⁴ … 10⁷)")
    add("--contestants", nargs="+", choices=list(ENTRIES), default=list(ENTRIES), help="default: all installed")
    add(
        "--python",
        type=interpreter,
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a contestant's interpreter",
    )
    add("--check", action="store_true", help="check the contestants instead of timing them")
    add("--out", type=Path, default=report.OUT, help="folder for tables, figures and pictures")
    options = parser.parse_args()
    options.python = dict(options.python)
    options.capacity = options.capacity or ROWS[options.rows].capacity
    options.pace = ROWS[options.rows].pace if options.pace is None else options.pace
    if min(options.writers) < 0 or min(options.paced_writers, default=1) < 1:
        parser.error("writers are counted from 0, paced writers from 1")
    return options


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contestants end too
    if options.check:
        check(options)
    for part in options.parts:
        PARTS[part](options)
