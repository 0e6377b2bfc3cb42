"""One Redis server and a thousand hosts, simulated by light clients in one process: what does it hold, how busy is it?

    python benchmarks/hosts/run.py thousand_hosts          # some minutes
    python benchmarks/hosts/run.py thousand_hosts --quick  # does it work?

Weights: a server that may hold 400 MB; the run's uploader publishes 32 MiB, and each of N hosts is a thread with the
downloader that an uplink has. First one version, then a new one as soon as the last can be published, until every host
has had a second one. Meanwhile somebody appends to a stream, as senders do: whatever is refused counts. The most that
the server ever held comes from the server itself; the largest buffer of a client is sampled.

Members: N actor hosts with eight slots each, as their places on the server and what they say: every renewal tells of
fifty episodes and of a warning. A learner renews its place and reads messages once a second, as beacon and intake do.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import sys
import tempfile
import threading
import time
import uuid
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import redis
from rich.console import Console

from benchmarks.lib import report

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from apexrl.cli.redis_status import picture_of_run
from apexrl.links.local.role_context import InlineContext, InlineRun, WorkerIdentity
from apexrl.links.redis import weights_downloader as of_weights
from apexrl.links.redis.checked_values import HostDigest, LearnerDigest, RunRecord
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.members import HostLease, MessageReader, renewal_pause
from apexrl.links.redis.run_listing import look
from apexrl.links.redis.run_record import LearnerLease, Orders
from apexrl.links.redis.server import Server
from apexrl.links.redis.weights_downloader import WeightsDownloader
from apexrl.links.redis.weights_uploader import WeightsUploader
from apexrl.roles.host_messages import HostMessages
from redis_server import RedisServer

MIB: Final = 2**20
RUN_ID: Final = "one-run-of-many"
STREAM_BYTES: Final = MIB  # of the stream beside the weights, at most
LEASE_SECONDS: Final = 10.0
BAR_VERSIONS: Final = 4


class Watch:
    """What a server says of itself while something goes on, and whether it refuses what senders append."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.largest_buffer = self.refused = self.appended = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(self._server.client()) as client:
            while not self._over.wait(0.01):
                told: Any = client.info("clients")
                self.largest_buffer = max(self.largest_buffer, int(told["client_recent_max_output_buffer"]))
                try:
                    client.xadd("beside", {"f": bytes(1000)}, maxlen=STREAM_BYTES // 1024)
                    self.appended += 1
                except redis.exceptions.OutOfMemoryError:
                    self.refused += 1


def fan_out(hosts: int, mib: int, readers: int, folder: Path) -> dict[str, Any]:
    """One version to ``hosts``, then new ones without pause until each has had a second."""
    of_weights.READERS = readers
    first: list[float] = []
    second: list[float] = []
    array = {"w": np.zeros(mib * MIB // 4, np.float32)}
    options = {"maxmemory": "400mb", "maxmemory_policy": "noeviction"}
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(folder, **options))
        keys, link = RunKeys("scale"), server.server(60.0)
        client = stack.enter_context(closing(server.client()))
        client.hset(keys.state, "run_id", RUN_ID)

        def read(downloader: WeightsDownloader) -> None:
            version = 0
            for times in (first, second):
                while (got := downloader.wait(version, 1.0)) is None:
                    pass
                version = got[0]
                times.append(time.monotonic())
                got = None

        made = [WeightsDownloader(link, keys, run_id=RUN_ID) for _ in range(hosts)]
        threads = [threading.Thread(target=read, args=(one,), daemon=True) for one in made]
        for thread in threads:
            thread.start()
        while int(client.pubsub_numsub(keys.doorbell)[0][1]) < hosts:
            time.sleep(0.05)
        base = int(client.info("memory")["used_memory"])
        watch = stack.enter_context(closing(Watch(server)))
        uploader = stack.enter_context(closing(WeightsUploader(link, keys, run_id=RUN_ID)))
        began = time.monotonic()
        uploader.publish(array, 1)
        while len(first) < hosts:
            time.sleep(0.05)
        one_peak, version, again = int(client.info("memory")["used_memory_peak"]), 1, time.monotonic()
        while len(second) < hosts:
            version += uploader.publish(array, version + 1) is not False
            time.sleep(0.05)
        for thread in threads:
            thread.join(60.0)
        for one in made:
            one.close()
        peak = int(client.info("memory")["used_memory_peak"])
        return {
            "hosts": hosts,
            "mib": mib,
            "readers": readers,
            "base_mib": base / MIB,
            "one_peak_mib": one_peak / MIB,
            "peak_mib": peak / MIB,
            "buffer_mib": watch.largest_buffer / MIB,
            "refused": watch.refused,
            "appended": watch.appended,
            "first_s": min(first) - began,
            "median_s": median(first) - began,
            "last_s": max(first) - began,
            "versions": version - 1,
            "second_s": max(second) - again,
        }


def membership(hosts: int, seconds: float, adapted: bool, folder: Path) -> dict[str, Any]:
    """``hosts`` members for so long; with ``adapted`` they renew as often as the server's answers say."""
    slots = 8 * hosts
    record = RunRecord(
        run_id=uuid.uuid4().hex, name="scale", apexrl="0", config="", spec={}, step_spec={}, schema="",
        weights_nbytes=1, actor_slots=slots, host="here", began=time.time(), local={},
    )  # fmt: skip
    with RedisServer(folder) as server, closing(server.client()) as client:
        link = Server(server.url, 60.0)
        learner = LearnerLease.take(link, record, LEASE_SECONDS)
        learner.renew(LearnerDigest())
        over, taken = threading.Event(), threading.Lock()
        began = time.monotonic()
        keeping = threading.Thread(target=_keep, args=(learner, over, (waits := [])), daemon=True)
        keeping.start()
        members: list[HostLease] = []
        due: list[tuple[float, int]] = []
        latencies: list[float] = []

        def renew() -> None:
            orders = Orders()
            while not over.is_set():
                with taken:
                    at, number = heapq.heappop(due) if due else (time.monotonic() + 0.01, -1)
                time.sleep(max(0.0, at - time.monotonic()))
                if number < 0:
                    continue
                place = members[number]
                place.outbox.episodes([float(number)] * 50, [100] * 50)
                place.outbox.warning(f"actor-{number % 50}: starting it again", "warning")
                start = time.monotonic()
                orders = place.renew(HostDigest(state="acting", env_steps=number, weights_version=7))
                latencies.append(time.monotonic() - start)
                pause = renewal_pause(orders if adapted else Orders(), LEASE_SECONDS)
                with taken:
                    heapq.heappush(due, (start + pause, number))

        workers = [threading.Thread(target=renew, daemon=True) for _ in range(8)]
        for thread in workers:
            thread.start()
        for number in range(hosts):
            members.append(HostLease.join(link, record, 8, ttl=LEASE_SECONDS))
            with taken:
                heapq.heappush(due, (time.monotonic(), number))
        joined_s = time.monotonic() - began

        heard: list[str] = []
        run = InlineRun(lambda name, kind, values: heard.append(kind), steps_per_second=1000.0)
        context = InlineContext(run, WorkerIdentity("i", "intake", 0, 0, 0, folder))
        messages, passing, reads = MessageReader(link, learner.keys), HostMessages(context), []

        def read() -> None:
            start = time.thread_time()
            passing.pass_on(messages.read())
            reads.append(time.thread_time() - start)

        for _ in range(5):  # what came while they joined
            read()
            time.sleep(1.0)
        renewals, cpu, wall = len(latencies), _cpu(client), time.monotonic()
        waits.clear()
        reads.clear()
        heard.clear()
        while time.monotonic() < wall + seconds:
            time.sleep(1.0)
            read()
        wall, cpu, renewals = time.monotonic() - wall, _cpu(client) - cpu, len(latencies) - renewals
        lines = len(heard) / len(reads)
        over.set()
        for thread in (*workers, keeping):
            thread.join(60.0)
        looks = [_status(link) for _ in range(5)]
        for place in members:
            while place.outbox.waiting:  # a queue that was full takes it after the next reading
                place.renew(HostDigest())
                read()
            place.leave()
        read()
        said = sum(place.outbox.said for place in members)
        messages.close()
        learner.finish({}, timeout=1.0)
        return {
            "hosts": hosts,
            "period": "by their number" if adapted else "1 s",
            "joined_s": joined_s,
            "renewals": renewals / wall,
            "server_cpu": cpu / wall,
            "renewal_ms": 1000 * float(np.percentile(latencies[-renewals:], 99)),
            "learner_ms": 1000 * max(waits),
            "intake_ms": 1000 * median(reads[: int(seconds)]),
            "messages": lines,
            "status_ms": 1000 * median(seconds_ for seconds_, _ in looks),
            "status_lines": looks[0][1],
            "said": said,
            "heard": passing.heard,
            "counted_drops": passing.dropped + messages.unreadable,
        }


def _keep(learner: LearnerLease, over: threading.Event, waits: list[float]) -> None:
    while not over.wait(1.0):
        start = time.monotonic()
        learner.renew(LearnerDigest(weights_version=7))
        waits.append(time.monotonic() - start)


def _status(link: Server) -> tuple[float, int]:
    """Seconds that `apexrl status` looks and draws, and its lines."""
    console, connection = Console(width=120, file=open("/dev/null", "w")), Connection(link)  # noqa: SIM115
    with closing(connection), closing(console.file):
        start = time.monotonic()
        view = look(connection, "scale")
        lines = console.render_lines(picture_of_run(view, 120), pad=False)
        return time.monotonic() - start, len(lines)


def _cpu(client: redis.Redis) -> float:
    told: Any = client.info("cpu")
    return float(told["used_cpu_sys"]) + float(told["used_cpu_user"])


def tables(fans: list[dict[str, Any]], crowds: list[dict[str, Any]], version: str) -> str:
    weights = [
        [one["hosts"], one["mib"], one["readers"], f"{one['base_mib']:.0f}", f"**{one['one_peak_mib']:.0f}**",
         f"**{one['peak_mib']:.0f}**", f"{one['buffer_mib']:.2f}", f"{one['refused']} of {one['appended']}",
         f"{one['first_s']:.2f}", f"{one['median_s']:.1f}", f"{one['last_s']:.1f}",
         f"{one['versions']} in {one['second_s']:.1f}"]
        for one in fans
    ]  # fmt: skip
    heads = ["hosts", "a version, MiB", "read at once", "connected, MiB", "peak, one version, MiB",
             "peak, many versions, MiB", "largest buffer, MiB", "XADD refused", "first has it, s", "median, s",
             "last, s", "versions until all had a second, s"]  # fmt: skip
    members = [
        [one["hosts"], one["period"], f"{one['renewals']:.0f}", f"{one['server_cpu']:.0%}", f"{one['renewal_ms']:.1f}",
         f"{one['learner_ms']:.1f}", f"{one['intake_ms']:.1f}", f"{one['messages']:.1f}",
         f"{one['status_ms']:.0f} / {one['status_lines']}", f"{one['said']:,}", f"{one['heard']:,}",
         f"{one['counted_drops']:,}", f"{one['joined_s']:.1f}"]
        for one in crowds
    ]  # fmt: skip
    crowd = ["hosts", "period", "renewals/s", "server's CPU", "renewal, p99, ms", "learner's renewal, most, ms",
             "intake, ms a second", "messages to the supervisor a second", "status, ms / lines", "said", "heard",
             "counted as dropped", "all joined after, s"]  # fmt: skip
    fine = all(one["peak_mib"] <= BAR_VERSIONS * one["mib"] + STREAM_BYTES / MIB for one in fans)
    whole = all(one["said"] == one["heard"] + one["counted_drops"] for one in crowds)
    return "\n".join(
        [
            f"{report.machine()}; {report.versions('apexrl', 'redis')}, Redis {version}.\n",
            "Weights, each version of so many MiB, maxmemory 400 MB:\n",
            report.table(heads, weights),
            f"Bar (never more than {BAR_VERSIONS} versions and the 1 MiB of the stream, however many hosts there are)"
            f": {'met' if fine else 'missed'}.\n",
            "Members with eight slots each, and what they say:\n",
            report.table(crowd, members),
            f"Bar (all that was said was heard or counted as dropped): {'met' if whole else 'missed'}.\n",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 48, 500])
    parser.add_argument("--members", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--mib", type=int, default=32, help="of one version")
    parser.add_argument("--readers", type=int, nargs="+", default=[of_weights.READERS], help="hosts that read at once")
    parser.add_argument("--seconds", type=float, default=20.0, help="that members are watched")
    parser.add_argument("--quick", action="store_true", help="only to see that it works")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for tables and figures")
    options = parser.parse_args()
    if options.quick:
        options.hosts, options.members, options.mib, options.seconds = [1, 20], [50], 4, 3.0
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory(prefix="apexrl-") as name:
        folder = Path(name)
        fans = [
            fan_out(hosts, options.mib, readers, folder / f"w{hosts}-{readers}")
            for hosts in options.hosts
            for readers in options.readers
        ]
        crowds = [
            membership(hosts, options.seconds, adapted, folder / f"m{hosts}-{adapted}")
            for hosts in options.members
            for adapted in (False, True)
        ]
        with RedisServer(folder / "version") as server, closing(server.client()) as client:
            version = str(client.info("server")["redis_version"])
    name = "redis-scale-quick" if options.quick else "redis-scale"
    text = tables(fans, crowds, version)
    report.save(name, text, {"weights": fans, "members": crowds}, None, options.out)
    return 0 if text.count("missed") == 0 else 1
