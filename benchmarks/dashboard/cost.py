"""How much slower is training while the page of a live run of 1,000 workers, among 200 runs, is open?

    python benchmarks/dashboard/run.py cost
    python benchmarks/dashboard/run.py cost --browser        # the browser too runs on the cores that train

One run of CartPole trains as fast as the machine lets it. Every ten seconds the dashboard is stopped (SIGSTOP) or goes
on, in the order off, on, on, off. Who looks asks what the page asks, every two seconds, from a process that is stopped
with it; with ``--browser`` it is a Chromium that also draws. Of each pair of windows the ratio of rates counts. Beside
it stands the processor time of who was stopped, as a share of all cores: other work of the machine does not move that.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import apexrl
from apexrl.run.status import RunStatus
from benchmarks.dashboard.browser import Browser
from benchmarks.dashboard.many_runs import LIVE, growing, make_runs, served
from benchmarks.lib import report, runs

BAR = 0.99  # of the rate without
WINDOW = 10.0  # seconds
_SETTLED = 2.0  # of a window, before it counts
_LOOKER = """
import json, sys, time, urllib.parse, urllib.request
cursor, asked_at = "", dict.fromkeys(("workers", "diagnosis"), 0.0)
def ask(question, **more):
    words = urllib.parse.urlencode({"run": sys.argv[2], **more})
    with urllib.request.urlopen(f"{sys.argv[1]}answers/{question}?{words}", timeout=20) as answer:
        return json.load(answer)
while True:
    cursor = ask("curves", cursor=cursor)["cursor"]
    for question, seconds in (("workers", 5.0), ("diagnosis", 60.0)):
        if time.monotonic() - asked_at[question] >= seconds:
            asked_at[question] = time.monotonic()
            ask(question)
    time.sleep(2.0)
"""


class Window(NamedTuple):
    """What a run did in one."""

    watched: bool
    env_steps_per_second: float
    updates_per_second: float
    shares: tuple[float, ...]
    """Of all cores, that each process group used."""


class Windows(apexrl.Callback):
    """Stops process groups and lets them go on by turns, and notes how fast the run was in each window.

    Args:
        groups: process groups.
    """

    def __init__(self, groups: list[int], pairs: int) -> None:
        self.found: list[Window] = []
        self._groups = groups
        self._left = [turn % 4 in (1, 2) for turn in range(2 * pairs)]  # of each window: whether they are at work
        self._began: float | None = None
        self._start: tuple[float, int, int, list[float]] | None = None

    def on_status(self, status: RunStatus) -> str | None:
        now = time.monotonic()
        if status.phase != "training" or not status.updates:
            return None
        if self._began is not None and self._start is None and now - self._began >= _SETTLED:
            self._start = (now, status.env_steps, status.updates, self._busy())
        if self._began is not None and now - self._began < WINDOW:
            return None
        if self._start is not None:
            self._note(now, status, *self._start)
        if not self._left:
            return "measured"
        for group in self._groups:
            os.killpg(group, signal.SIGCONT if self._left[0] else signal.SIGSTOP)
        self._began, self._start = now, None
        return None

    def _note(
        self, now: float, status: RunStatus, then: float, env_steps: int, updates: int, busy: list[float]
    ) -> None:
        seconds, cores = now - then, os.cpu_count() or 1
        shares = tuple((new - old) / seconds / cores for new, old in zip(self._busy(), busy, strict=True))
        rates = ((status.env_steps - env_steps) / seconds, (status.updates - updates) / seconds)
        self.found.append(Window(self._left.pop(0), *rates, shares))
        print(self.found[-1], flush=True)

    def _busy(self) -> list[float]:
        """Processor seconds of each group until now."""
        found = dict.fromkeys(self._groups, 0)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    words = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(words[2]) in found:
                        found[int(words[2])] += int(words[11]) + int(words[12])
        return [ticks / os.sysconf("SC_CLK_TCK") for ticks in found.values()]


@contextmanager
def looking(url: str) -> Iterator[int]:
    """Somebody elsewhere has the live run's page open: the process group that asks for it."""
    asker = subprocess.Popen([sys.executable, "-c", _LOOKER, url, LIVE], start_new_session=True)
    try:
        yield asker.pid
    finally:
        os.killpg(asker.pid, signal.SIGKILL)
        asker.wait()


def interval(ratios: list[float]) -> tuple[float, float]:
    """Of the median, 95 %, by bootstrap."""
    chance = random.Random(1)
    medians = sorted(median(chance.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[100], medians[-101]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument(
        "--browser", action="store_true", help="a Chromium on these cores looks, not a client elsewhere"
    )
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        live = make_runs(folder, options.runs, options.workers)
        stack.enter_context(growing(live, options.workers))
        server, url = stack.enter_context(served(folder))
        if options.browser:
            browser = stack.enter_context(Browser())
            browser.open(f"{url}#/run/{LIVE}")
            looker = browser.group
        else:
            looker = stack.enter_context(looking(url))
        windows = Windows([server, looker], options.pairs)
        minutes = (2 * options.pairs + 6) * WINDOW / 60.0  # no longer, whatever happens
        train(windows, minutes)
    load = max(load, os.getloadavg()[0])
    pairs = list(zip(windows.found[::2], windows.found[1::2], strict=True))
    rows, least = [], []
    for name in ("env_steps_per_second", "updates_per_second"):
        with_it, without = ([getattr(one, name) for one in windows.found if one.watched is at] for at in (True, False))
        each = [getattr(seen, name) / getattr(alone, name) for alone, seen in map(sorted, pairs)]
        low, high = interval(each)
        least.append(low)
        title = name.replace("_", " ").replace(" per second", "/s")
        ratio = f"**{median(each):.3f}** ({low:.3f}–{high:.3f})"
        rows.append([title, report.spread(without), report.spread(with_it), ratio])
    shares = [mean(one.shares[place] for one in windows.found if one.watched) for place in (0, 1)]
    who = "the browser" if options.browser else "who asks"
    verdict = "met" if min(least) >= BAR else "not decided by the rates, whose intervals are too wide or too low"
    text = f"{report.machine()}; {report.versions('apexrl', 'torch', 'uvicorn')}; load up to {load:.1f}.\n\n"
    text += f"{options.runs} runs and a live one of {options.workers:,} workers; {len(pairs)} pairs of {WINDOW:g} s. "
    text += f"While it is open the dashboard uses {shares[0]:.2%} of all cores, {who} {shares[1]:.2%}. "
    text += f"Bar: {BAR:g} of the rate: {verdict}.\n\n"
    text += report.table(["", "without", "with", "ratio of a pair, median (95 % interval)"], rows)
    name = "dashboard-cost-browser" if options.browser else "dashboard-cost"
    report.save(name, text, [one._asdict() for one in windows.found], None, options.out)


def train(windows: Windows, minutes: float) -> None:
    """CartPole as fast as the machine lets it, until the windows are measured."""
    apexrl.train(
        "cartpole",
        callbacks=[windows],
        show=False,
        out=str(runs.RUNS),
        stop_at_return=None,
        minutes=minutes,
        eval_period_seconds=60.0 * minutes,
        eval_episodes=1,
    )
