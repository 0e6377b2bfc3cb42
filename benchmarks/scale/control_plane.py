"""1,000 and 10,000 actors at one Redis server and one learner's host: what does each second cost, and what gives way?

    python benchmarks/scale/run.py control_plane           # some minutes
    python benchmarks/scale/run.py control_plane --quick   # does it work?

Actors are simulated as hosts of several, as a run has them: 1,000 actors are 125 hosts of 8, 10,000 are 1,000 hosts of
10. Every host has a real lease, a real sender and a real downloader of weights, which are four connections; ten
thousand hosts of one actor would be 40,000, more than this machine's limit of open files. The learner's host has the
real lease, intake, replay and publisher. Two processes have half of the hosts each; those of the first reach the server
through a relay. In turn: all join; they send for a while; 10 MB of weights reach all; the server is killed and comes
back with its append-only file, then empty; the first half is cut off for longer than a lease, and comes back; the
learner's host is killed and another takes over; the pace rises until what is committed falls behind. At the end every
item that was sent must be committed or counted.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import resource
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path += [str(Path(__file__).parents[2] / "tests"), str(Path(__file__).parents[2] / "tests" / "hosts")]

from tcp_relay import Relay

from apexrl.links.redis.checked_values import RunRecord
from benchmarks.hosts import chunks_to_send as material
from benchmarks.lib import report
from benchmarks.scale import learner_side, light_hosts
from redis_server import RedisServer

SIZES: Final = {1_000: (125, 8), 10_000: (1_000, 10)}
"""Actors -> hosts, and actors of each."""
WEIGHTS_BYTES: Final = 10 * 2**20
LEASE_SECONDS: Final = 10.0
PATIENCE: Final = 300.0
JOIN_BAR, CPU_BAR = 60.0, 1.0

Row = dict[str, Any]


class Side:
    """A process and its pipe; an order is answered with figures."""

    def __init__(self, target: Callable[..., None], *words: Any) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(*words, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, order: str, value: float = 0.0) -> Row:
        self.say(order, value)
        return self.hear()

    def say(self, order: str, value: float = 0.0) -> None:
        self.pipe.send((order, value))

    def hear(self) -> Row:
        if not self.pipe.poll(PATIENCE):
            raise TimeoutError(f"no answer within {PATIENCE:g} s")
        heard: Row = self.pipe.recv()
        return heard

    def kill(self) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(10.0)


class Stage:
    """One campaign: the server, the relay, both halves of the hosts, and the learner's host."""

    def __init__(self, actors: int, options: argparse.Namespace, folder: Path) -> None:
        self.hosts, self.each = SIZES.get(actors, (max(2, actors // 8), 8))
        self.actors = self.hosts * self.each
        self.options, self.rows = options, []
        self.server = RedisServer(folder, appendonly="yes", appendfsync="everysec", maxclients=12_000)
        self.relay = Relay(
            ("127.0.0.1", self.server.port), delay_ms=options.delay_ms, mbit=options.mbit, loss=options.loss
        )
        _, schema = material.chunks(material.SHAPES["small"], 1)
        self.record = RunRecord(
            run_id=uuid.uuid4().hex, name="scale", apexrl="0", config="", spec={}, step_spec={}, schema=schema.hex(),
            weights_nbytes=WEIGHTS_BYTES, actor_slots=self.actors, host="here", began=time.time(), local={},
        )  # fmt: skip
        self.learner = self.new_learner()
        self.first_half = self.hosts // 2
        far = f"redis://{self.relay.address[0]}:{self.relay.address[1]}/0"
        shares = ((far, self.first_half), (self.server.url, self.hosts - self.first_half))
        self.crowds = [
            Side(
                light_hosts.serve,
                light_hosts.Crowd(
                    url, self.record, hosts, self.each, LEASE_SECONDS, options.chunks, options.send_seconds, 24
                ),
            )
            for url, hosts in shares
        ]

    def new_learner(self) -> Side:
        side = Side(learner_side.serve, self.server.url, self.record, self.actors, WEIGHTS_BYTES)
        self.taken = side.hear()
        return side

    def all(self, order: str, value: float = 0.0) -> list[Row]:
        for crowd in self.crowds:
            crowd.say(order, value)
        return [crowd.hear() for crowd in self.crowds]

    def info(self) -> Row:
        with closing(self.server.client()) as client:
            told: Any = client.info()
        return {
            "cpu": told["used_cpu_sys"] + told["used_cpu_user"],
            "out": told["total_net_output_bytes"],
            "peak_mib": told["used_memory_peak"] / 2**20,
            "clients": told["connected_clients"],
        }

    def watch(self, what: str, seconds: float, **more: Any) -> Row:
        """Rates, latencies and costs over so many seconds."""
        self.all("look")
        before, learner, server = self.all("look"), self.learner.ask("look"), self.info()
        began = time.monotonic()
        time.sleep(seconds)
        now, learned, served = self.all("look"), self.learner.ask("look"), self.info()
        wall = time.monotonic() - began
        renewals = [one for crowd in now for one in crowd["renewals"]]
        row = {
            "what": what,
            "seconds": wall,
            "steps_per_second": (learned["committed"] - learner["committed"]) / wall,
            "offered_per_second": (_sum(now, "sent") - _sum(before, "sent")) / wall,
            "renewals_per_second": len(renewals) / wall,
            "renew_ms": _percentiles(renewals),
            "commit_ms": _percentiles(learned["latencies"]),
            "learner_renew_ms": _percentiles(learned["renewals"]),
            "learner_cpu": (learned["cpu"] - learner["cpu"]) / wall,
            "server_cpu": (served["cpu"] - server["cpu"]) / wall,
            "hosts_cpu": (_sum(now, "cpu") - _sum(before, "cpu")) / wall,
            "learner_rss_mib": learned["rss_mib"],
            "server_peak_mib": served["peak_mib"],
            "hosts_rss_mib": _sum(now, "rss_mib"),
            **more,
        }
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        return row

    def add(self, what: str, **figures: Any) -> None:
        self.rows.append({"what": what, **figures})
        print(json.dumps(self.rows[-1]), flush=True)

    def until(self, done: Callable[[list[Row]], bool], began: float) -> float:
        """Seconds from ``began`` until it is so."""
        while not done(self.all("look")):
            if time.monotonic() - began > PATIENCE:
                return float("inf")
            time.sleep(0.2)
        return time.monotonic() - began

    def settle(self, what: str, began: float) -> None:
        """After trouble: seconds until every host has renewed its lease, and all that it had sent is committed."""
        self.all("send", 0.0)
        renewed = self.until(lambda crowds: min(one["renewed_at"] for one in crowds) > began, began)
        held = self.until(lambda crowds: _sum(crowds, "slots") == self.actors, began)
        committed = self.until(lambda crowds: _sum(crowds, "uncommitted") == 0, began)
        now, learner = self.all("look"), self.learner.ask("look")
        self.add(
            what, all_renewed_s=renewed, all_slots_s=held, all_committed_s=committed, sent=_sum(now, "sent"),
            told_committed=_sum(now, "committed"), dropped=_sum(now, "dropped"), committed=learner["committed"],
            missing=learner["missing"], repeated=learner["repeated"], lost_slots=_sum(now, "lost_slots"),
            resent_frames=_sum(now, "resent_frames"), failed_calls=_sum(now, "failed"),
        )  # fmt: skip
        self.all("send", 1.0)

    def close(self) -> None:
        for side in (*self.crowds, self.learner):
            side.kill()
        self.relay.close()
        self.server.kill()


def _sum(rows: list[Row], name: str) -> Any:
    return sum(row[name] for row in rows)


def _percentiles(seconds: list[float]) -> list[float]:
    """p50, p99 and the most, in ms."""
    if not seconds:
        return []
    return [round(1000 * float(value), 1) for value in (*np.percentile(seconds, (50, 99)), max(seconds))]


def campaign(actors: int, options: argparse.Namespace, folder: Path) -> list[Row]:
    """All scenarios with so many actors, in one run."""
    stage = Stage(actors, options, folder)
    try:
        began = time.monotonic()
        crowds = stage.all("join")
        stage.add(
            "join", hosts=stage.hosts, actors=stage.actors, all_joined_s=time.monotonic() - began,
            join_ms=_percentiles([one for crowd in crowds for one in crowd["joins"]]),
            failed_calls=_sum(crowds, "failed"), connections=stage.info()["clients"],
        )  # fmt: skip
        stage.all("send", 1.0)
        time.sleep(3.0)
        stage.watch("steady", options.seconds)
        weights(stage, 1)
        for what, keep in (
            ("server killed, back with its append-only file", True),
            ("server killed, back empty", False),
        ):
            began = time.monotonic()
            stage.server.restart(keep_data=keep)
            stage.settle(what, began)
        weights(stage, 2)
        stage.relay.blackhole()
        cut = max(1.5 * LEASE_SECONDS, options.cut_seconds)
        stage.watch("half of the hosts cut off", cut, cut_hosts=stage.first_half)
        stage.relay.restore()
        stage.settle(f"… and back after {cut:g} s", time.monotonic())
        stage.all("send", 0.0)
        exact = stage.learner.ask("look")
        stage.all("send", 1.0)
        time.sleep(1.0)
        began = time.monotonic()
        stage.learner.kill()
        stage.learner = stage.new_learner()
        stage.add("learner's host killed, another has the lease", after_s=time.monotonic() - began, **stage.taken)
        stage.settle("… and commits", began)
        stage.rows[-1]["committed_before"] = exact["committed"]
        pace, behind = 1.0, False
        while not behind and pace < options.most_pace:
            pace *= 2.0
            stage.all("send", pace)
            time.sleep(2.0)
            row = stage.watch("pace", options.seconds / 2, pace=pace)
            behind = row["steps_per_second"] < 0.9 * row["offered_per_second"] or row[
                "offered_per_second"
            ] < 0.9 * pace * (stage.hosts * 64 * options.chunks / options.send_seconds)
        began = time.monotonic()
        stage.settle("end", began)
        stage.all("leave")
        stage.learner.ask("finish")
        return stage.rows
    finally:
        stage.close()


def weights(stage: Stage, version: int) -> None:
    """One version to all."""
    before, began = stage.info(), time.monotonic()
    stage.learner.ask("publish", version)
    stage.until(lambda crowds: all(version in seen for crowd in crowds for seen in crowd["seen"]), began)
    sent = stage.info()["out"] - before["out"]
    at = sorted(seen[version] - began for crowd in stage.all("look") for seen in crowd["seen"] if version in seen)
    figures = {} if not at else {"first_s": at[0], "median_s": float(np.median(at)), "last_s": at[-1]}
    stage.add(
        f"weights, version {version}", have_it=len(at), server_mb_per_second=sent / 1e6 / (at or [1.0])[-1], **figures
    )


def bars(actors: int, rows: list[Row]) -> list[tuple[str, bool]]:
    named = {row["what"]: row for row in rows}
    end = named["end"]
    cpu = max(row["learner_cpu"] for row in rows if row["what"] in ("steady", "half of the hosts cut off"))
    return [
        (f"{actors} actors join within {JOIN_BAR:g} s", named["join"]["all_joined_s"] <= JOIN_BAR),
        (f"learner's host: at most {CPU_BAR:g} core ({cpu:.2f})", cpu <= CPU_BAR),
        (
            "every item sent is committed or counted as dropped",
            end["sent"] == end["told_committed"] + end["dropped"] and end["missing"] == 0,
        ),
    ]


def tables(records: dict[int, Row]) -> str:
    lines = []
    for actors, record in sorted(records.items()):
        rows = record["rows"]
        join = rows[0]
        lines += [
            f"### {actors:,} actors\n",
            f"{record['where']}, append-only file, every second. Each host sends a frame of {record['chunks']} chunks "
            f"(64 steps each) every {record['send_seconds']:g} s; a relay of {record['delay_ms']:g} ms each way"
            f"{_narrow(record)} stands before half of them. Leases of {LEASE_SECONDS:g} s.\n",
            f"{join['hosts']} hosts of {join['actors'] // join['hosts']} joined within **{join['all_joined_s']:.1f} "
            f"s** (one: {_told(join['join_ms'])} ms).\n",
        ]
        rates = [
            [row["what"] + (f" × {row['pace']:g}" if "pace" in row else ""), report.short(row["offered_per_second"]),
             report.short(row["steps_per_second"]), _told(row["commit_ms"]), _told(row["renew_ms"]),
             f"{row['learner_cpu']:.2f}", f"{row['server_cpu']:.2f}", f"{row['hosts_cpu']:.2f}",
             f"{row['learner_rss_mib']:.0f} / {row['server_peak_mib']:.0f} / {row['hosts_rss_mib']:.0f}"]
            for row in rows if "commit_ms" in row
        ]  # fmt: skip
        heads = ["", "steps offered/s", "committed/s", "step to commit, ms", "renewal, ms", "learner's host, cores",
                 "server, cores", "hosts, cores", "their memory, MiB"]  # fmt: skip
        lines += [report.table(heads, rates)]
        spread = [
            [row["what"], row["have_it"], f"{row['server_mb_per_second']:.0f}",
             *(f"{row[name]:.1f}" for name in ("first_s", "median_s", "last_s"))]
            for row in rows if "last_s" in row
        ]  # fmt: skip
        lines += [
            report.table(["10 MB of weights", "hosts", "server, MB/s", "first has it, s", "median", "last"], spread)
        ]
        troubles = [
            [row["what"], f"{row['all_renewed_s']:.1f}", f"{row['all_slots_s']:.1f}", f"{row['all_committed_s']:.1f}",
             row["lost_slots"], row["resent_frames"], f"{row['sent']:,}", f"{row['told_committed']:,}", row["dropped"],
             row["missing"], f"{row['repeated']:,}"]
            for row in rows if "all_renewed_s" in row
        ]  # fmt: skip
        heads = ["", "all have renewed, s", "all have their slots, s", "all is committed, s", "slots lost so far",
                 "frames sent again so far", "items sent", "committed", "dropped", "missing",
                 "repeated, not stored"]  # fmt: skip
        lines += [report.table(heads, troubles)]
        for row in rows:
            if "after_s" in row:
                lines += [f"{row['what']}: after {row['after_s']:.1f} s.\n"]
        lines += [f"- {words}: {'met' if met else 'missed'}" for words, met in bars(actors, rows)] + [""]
    lines += [
        "Latencies are p50 / p99 / most. CPU and memory are of processes: learner's host, server, all light hosts."
    ]
    return "\n".join(lines)


def _narrow(record: Row) -> str:
    """What else the relay does to the link; records of before have none of it."""
    mbit, loss = record.get("mbit"), record.get("loss")
    return (f", {mbit:g} Mbit/s" if mbit else "") + (f", {loss:.1%} of segments lost" if loss else "")


def _told(milliseconds: list[float]) -> str:
    return " / ".join(report.short(value) for value in milliseconds) or "–"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=15.0, help="that a steady state is watched")
    parser.add_argument("--chunks", type=int, default=2, help="of one frame, 64 steps each")
    parser.add_argument("--send-seconds", type=float, default=2.0, help="between two frames of a host")
    parser.add_argument("--cut-seconds", type=float, default=15.0, help="that half of the hosts are cut off")
    parser.add_argument("--most-pace", type=float, default=64.0, help="times the first pace, at most")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="of the relay, each way")
    parser.add_argument("--mbit", type=float, default=0.0, help="that pass the relay a second, each way; 0: any number")
    parser.add_argument("--loss", type=float, default=0.0, help="share of segments that come 200 ms late at the relay")
    parser.add_argument("--quick", action="store_true", help="few actors, short: only to see that it works")
    parser.add_argument("--records", type=Path, default=report.RECORDS / "scale", help="folder of the records")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    if options.quick:
        options.actors, options.seconds, options.most_pace = [80], 4.0, 2.0
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    records: dict[int, Row] = {} if options.quick else earlier(options.records)
    with tempfile.TemporaryDirectory(prefix="apexrl-") as folder:
        with RedisServer(Path(folder) / "version") as server, closing(server.client()) as client:
            redis = str(client.info("server")["redis_version"])
        for actors in options.actors:
            shown = {name: getattr(options, name) for name in ("chunks", "send_seconds", "delay_ms", "mbit", "loss")}
            where = f"{report.machine()}; {report.versions('apexrl', 'redis')}, Redis {redis}"
            rows = campaign(actors, options, Path(folder) / str(actors))
            records[actors] = {"actors": actors, "where": where, **shown, "rows": rows}
            if not options.quick:
                options.records.mkdir(parents=True, exist_ok=True)
                path = options.records / f"control-plane-{actors}.json"
                path.write_text(json.dumps(records[actors]) + "\n", encoding="utf-8")
    name = "scale-control-plane" + ("-quick" if options.quick else "")
    text = tables(records)
    report.save(name, text, {str(actors): record for actors, record in records.items()}, None, options.out)
    return 0 if "missed" not in text else 1


def earlier(folder: Path) -> dict[int, Row]:
    """Records of earlier calls, by their actors."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("control-plane-*.json")]
    return {record["actors"]: record for record in found}
