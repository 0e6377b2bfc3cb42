"""A run that grows, shrinks and loses its server, and the books of all that happened.

    python benchmarks/hosts/run.py elastic          # some minutes
    python benchmarks/hosts/run.py elastic --quick  # does it work?

One actor at first, then 8, each an actor host of its own in one of four network namespaces; 4 are killed with -9 at
once, 2 more come, and the Redis server is killed and started again, having forgotten everything. The run must end
solved.

The books rest on no counter of ours. The environment writes down every step it makes; afterwards every item of the
learner's replay, which keeps all, is looked up there. *made* = *committed* + *under way at the end of its host* +
*holes*. Under way: after the last committed step of an environment, as when its host was killed, or when the run was
over (the last three steps of a stream never become items). A hole before that is a loss; with ``--when-full wait``
nothing is ever dropped on purpose. Beside them stand the intake's own books and the uplinks' last heartbeats.
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
from benchmarks.lib.hosts import audit

HOSTS = 4
Result = dict[str, Any]


class Crew:
    """Actor hosts, one actor each; every second one in turn on another machine."""

    def __init__(self, places: rig.Places) -> None:
        self._places = places
        self.steps = places.folder / "steps"
        self.steps.mkdir()
        self.members: dict[str, rig.Command] = {}
        self.sent: dict[str, dict[str, int]] = {}

    def start(self, count: int) -> None:
        for _ in range(count):
            number = len(self.members)
            env = {audit.FOLDER: str(self.steps), audit.WHO: f"actor-{number:02d}"}
            flags = "--actors", "1", "--trust", audit.__name__
            self.members[f"actor-{number:02d}"] = self._places.actor(number % HOSTS, *flags, **env)
        self.wait()

    def kill(self, count: int) -> list[str]:
        """The oldest but the first."""
        victims = [name for name, member in self.members.items() if member.running][1 : count + 1]
        self.look()
        for name in victims:
            self.members[name].kill()
        return victims

    def wait(self) -> None:
        """Until all that run serve, and something of each has come."""
        running = {member.pid for member in self.members.values() if member.running}

        def serving() -> bool:
            self.look()
            return running <= {one.pid for one in self._places.look().alive if one.digest.sent_items > 0}

        rig.wait_for(f"{len(running)} actor hosts", serving, 120)

    def look(self) -> None:
        """What the hosts say of themselves."""
        names = {member.pid: name for name, member in self.members.items()}
        for one in self._places.look().members:
            if one.pid in names:
                digest = one.digest
                self.sent[names[one.pid]] = {
                    "sent": digest.sent_items, "uncommitted": digest.uncommitted_items, "dropped": digest.dropped_items
                }  # fmt: skip


def run(options: argparse.Namespace) -> Result:
    events: list[tuple[float, str]] = []
    with rig.Places(options.kind, HOSTS, rig.folder("elastic"), options.delay_ms) as places:
        began = time.monotonic()

        def mark(what: str) -> None:
            row = rig.status(places.run_folder)
            events.append((time.monotonic() - began, what))
            print(f"{events[-1][0]:6.1f} s  {what}  ({row.get('env_steps', 0):,} steps)", flush=True)

        flags = ["--env", audit.ENV, "--env-kwargs", "seconds", str(options.step_ms / 1000), "--save-replay"]
        flags += ["--capacity", str(options.capacity), "--actor-slots", "16", "--envs-per-actor", "4"]
        flags += ["--lease-seconds", "5", "--seed", str(options.seed), "--minutes", str(options.limit / 60)]
        flags += ["--stop-at-return", "None"]  # not before all has happened
        learner = places.learner("cartpole", *flags, *options.flags)
        crew = Crew(places)
        crew.start(1)
        mark("1 actor")
        crew.start(7)
        mark("8 actors")
        time.sleep(options.pause)
        killed = crew.kill(4)
        mark("4 killed")
        time.sleep(options.pause)
        crew.start(2)
        mark("2 more")
        places.server.kill()
        places.server.start()
        crew.wait()
        mark("server killed and started, empty")
        best = rig.wait_for("solved", lambda: solved(places, learner), options.limit)
        crew.look()
        stop = places.apexrl("stop", "--run", rig.RUN)
        code = learner.finish(120)
        stop.finish(60)
        mark(f"ended, best return {best:.0f}")
        ends = {name: member.finish(60) for name, member in crew.members.items() if name not in killed}
        summary = places.summary()
        books = audit.close_books(crew.steps, audit.all_items(places.run_folder / "checkpoints" / "replay"))
    return {
        "events": events, "best": best, "exit_code": code, "actor_hosts_ended": ends, "killed": killed,
        "summary": summary, "strangers": books.strangers, "twice": books.twice, "heartbeats": crew.sent,
        "hosts": {name: books.total(name)._asdict() for name in crew.members}, "total": books.total()._asdict(),
        "streams": [stream._asdict() for stream in books.streams],
    }  # fmt: skip


def solved(places: rig.Places, learner: rig.Command) -> float:
    """The best evaluation, once it is 475 or the run has ended."""
    over = not learner.running
    best = max((row["mean"] for row in rig.rows(places.run_folder, "evaluation")), default=0.0)
    return best if best >= 475 or over else 0.0


def as_table(result: Result) -> str:
    rows = []
    for name, host in result["hosts"].items():
        end = "killed with -9" if name in result["killed"] else f"ended, exit code {result['actor_hosts_ended'][name]}"
        said = result["heartbeats"].get(name, {})
        rows.append([name, end, f"{host['made']:,}", f"{host['committed']:,}", f"{host['tail']:,}", host["holes"],
                     f"{said.get('sent', 0):,}", f"{said.get('dropped', 0):,}"])  # fmt: skip
    total = result["total"]
    rows.append(["**all**", "", f"{total['made']:,}", f"{total['committed']:,}", f"{total['tail']:,}", total["holes"],
                 "", ""])  # fmt: skip
    header = ["actor host", "", "made", "committed", "under way at its end", "holes"]
    return report.table([*header, "sent, by its last heartbeat", "dropped"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=5.0, help="of the simulator (default: 5)")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="of the links, one way (default: 20)")
    parser.add_argument("--pause", type=float, default=10.0, help="seconds between the events (default: 10)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of the run (default: 600)")
    parser.add_argument("--capacity", type=int, default=1_000_000, help="of the replay; it must keep all")
    parser.add_argument("--quick", action="store_true", help="does not wait until it is solved")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="all that follows goes to apexrl learner")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all hosts are stopped too
    options.kind = rig.kind()
    if options.quick:
        options.pause, options.limit = 2.0, 45.0
    result = run(options)
    total, carried = result["total"], result["summary"]["hosts"]
    closed = (
        total["made"] == total["committed"] + total["tail"] + total["holes"]
        and not (total["holes"] or result["strangers"] or result["twice"] or carried["missing"])
        and carried["committed"] == total["committed"]
    )
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'redis', 'torch', 'gymnasium')}.",
        f"CartPole of {options.step_ms:g} ms a step, 4 environments an actor, {rig.meant(options.kind)}, links of "
        f"{options.delay_ms:g} ms each way. {'; '.join(f'{at:.0f} s: {what}' for at, what in result['events'])}.\n",
        as_table(result),
        f"Items committed twice: {result['twice']}; items in the replay that nobody made: {result['strangers']}. The "
        f"intake's own books: committed {carried['committed']:,}, missing {carried['missing']:,}, chunks that came "
        f"again and were dropped {carried['repeated']:,}, frames refused {carried['refused']}. Best greedy return "
        f"{result['best']:.0f}; final {result['summary']['final_eval_return']:.0f}.",
        f"Bar (ends solved, books close, nothing twice): {'met' if closed and result['best'] >= 475 else 'missed'}.\n",
    ]
    name = "hosts-elastic-quick" if options.quick else "hosts-elastic"
    report.save(name, "\n".join(lines), result, None, options.out)
    return 0 if closed else 1
