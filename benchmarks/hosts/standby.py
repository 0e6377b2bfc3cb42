"""How long is a run without a learner when the learner's whole host dies, and a standby takes over?

    python benchmarks/hosts/run.py standby               # a few minutes
    python benchmarks/hosts/run.py standby --rounds 1    # does it work?

CartPole with one actor host. Two standbys wait; every process of the learner's host gets SIGKILL. Then: the time until
a standby has the lease, until it commits experience of the actor host, and until it makes updates. The run goes on
until the task is solved. Clocks are read from the Redis server, which stands for itself.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.lib import hosts as rig
from benchmarks.lib import report

Result = dict[str, Any]
BAR_SECONDS = 10.0


def fail_over(number: int, options: argparse.Namespace) -> Result:
    """One run whose learner's host dies."""
    with rig.Places("loopback", 1, rig.folder(f"standby-{number}")) as places:
        learner = places.learner("cartpole", "--checkpoint-seconds", "5", "--seed", str(number), *options.flags)
        actor = places.actor(0, "--actors", "1")
        words = ("learner", "--standby", "--run", rig.RUN, "--out", str(places.folder / "runs"))
        standbys = [places.apexrl(*words) for _ in range(options.standbys)]
        for one in standbys:
            one.says("standing by")
        rig.wait_for("learning", lambda: places.look().digest.updates > 1000)
        time.sleep(number % 3 * 0.4 + 2.0)  # not always as long after a renewal
        before = places.look()
        learner.kill()
        died = time.monotonic()
        told: dict[str, float] = {}
        first: dict[str, int] = {}

        def went_on() -> bool:
            now = places.look()
            if now.learner_pid == before.learner_pid or not now.learner_alive:
                return False
            told.setdefault("lease", time.monotonic() - died)
            if not now.digest.committed_items:
                first.clear()
                return False
            told.setdefault("committed", time.monotonic() - died)
            return now.digest.updates > first.setdefault("updates", now.digest.updates)

        rig.wait_for("updates", went_on)
        told["updates"] = time.monotonic() - died
        heirs = [one for one in standbys if "goes on with it" in one.said]
        ends = [one.finish(600) for one in (*standbys, actor)]
        summary = places.summary()
    carried = summary["hosts"]
    return {
        **told, "heirs": len(heirs), "ends": ends, "updates_before": before.digest.updates,
        "updates_restored": restored(heirs[0].said), "stopped_by": summary["stopped_by"],
        "final": summary["final_eval_return"], "repeated": carried["repeated"], "missing": carried["missing"],
    }  # fmt: skip


def restored(said: str) -> int:
    """The number of updates of the checkpoint that a learner went on from."""
    return int(said.rpartition("-update-")[2].partition(".")[0])


def as_table(results: list[Result]) -> str:
    rows = [
        [
            f"{number}", *(f"{one[name]:.1f} s" for name in ("lease", "committed", "updates")),
            f"{one['updates_before']:,}", f"{one['updates_restored']:,}", one["heirs"], one["repeated"], one["missing"],
            f"{one['final']:.0f}",
        ]
        for number, one in enumerate(results, 1)
    ]  # fmt: skip
    header = ["seed", "lease taken after", "experience committed", "updates made"]
    header += ["updates at the kill, by the last heartbeat", "of the checkpoint restored", "took over"]
    return report.table([*header, "chunks twice (dropped)", "items missing", "final return"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="runs, with seeds 1, 2, … (default: 5)")
    parser.add_argument("--standbys", type=int, default=2, help="standbys of each run (default: 2)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl learner")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all hosts are stopped too
    results = []
    for number in range(1, options.rounds + 1):
        results.append(fail_over(number, options))
        print(results[-1], flush=True)
    met = all(
        one["updates"] <= BAR_SECONDS and one["heirs"] == 1 and not one["missing"] and one["final"] >= 475
        and not any(one["ends"])
        for one in results
    )  # fmt: skip
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'redis', 'torch', 'gymnasium')}.",
        f"Default leases; {options.standbys} standbys; a checkpoint every 5 s.\n",
        as_table(results),
        f"Bar (updates again within {BAR_SECONDS:g} s, one standby took over, nothing missing, solved): "
        f"{'met' if met else 'missed'}.\n",
    ]
    report.save("hosts-standby", "\n".join(lines), results, None, options.out)
    return 0 if met else 1
