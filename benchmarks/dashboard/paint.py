"""How soon does a browser show something, and everything, of 200 runs and a live one of 1,000 workers?

    python benchmarks/dashboard/run.py paint

Each round starts the dashboard anew, so that its first answer reads every run, and opens the page of all runs, the live
run's page, and both once more. Seconds count from the navigation. The browser runs on the same machine, without a GPU.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.dashboard.browser import Browser
from benchmarks.dashboard.many_runs import LIVE, growing, make_runs, served
from benchmarks.lib import report

BAR = 1.0  # seconds to the first paint
PAGES = {"all runs": "", "the live run": f"#/run/{LIVE}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        live = make_runs(Path(folder), options.runs, options.workers)
        with growing(live, options.workers), Browser() as browser:
            browser.open("data:text/html,<script>performance.mark('drawn')</script>begin")
            for _ in range(options.rounds):
                with served(Path(folder)) as (_, url):
                    for again in ("", ", again"):
                        for name, place in PAGES.items():
                            found.setdefault(name + again, []).append(browser.open(url + place))
                            print(name + again, found[name + again][-1], flush=True)
    rows = [[name, *(report.spread(times, " s") for times in zip(*each, strict=True))] for name, each in found.items()]
    worst = max(first for each in found.values() for first, _ in each)
    text = f"{report.machine()}; {report.versions('apexrl', 'uvicorn', 'starlette')}; load at the start {load:.1f}.\n\n"
    text += (
        f"{options.runs} runs and a live one of {options.workers:,} workers; {options.rounds} starts of the dashboard. "
    )
    text += (
        f"The latest first paint came after {worst:.2f} s (bar: {BAR:g} s): {'met' if worst <= BAR else 'missed'}.\n\n"
    )
    text += report.table(["page", "first paint", "all of it is shown"], rows)
    report.save("dashboard-paint", text, found, None, options.out)
