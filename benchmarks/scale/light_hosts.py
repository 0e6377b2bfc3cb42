"""Light actor hosts: many in one process, each with the lease, the sender and the downloader that a real host has.

What is left out are actors, replay and supervisor: a frame is made of chunks that were stored before. A few threads
serve all hosts by their due times; every host has a thread of its own that waits for weights, as an uplink has.
"""

from __future__ import annotations

import heapq
import random
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

from apexrl._native import ChunkHeads
from apexrl.errors import ApexrlError, LinkError
from apexrl.links.redis.checked_values import HostDigest, RunRecord
from apexrl.links.redis.experience_stream import ExperienceSender
from apexrl.links.redis.members import HostLease, renewal_pause
from apexrl.links.redis.run_record import find_run
from apexrl.links.redis.server import Server
from apexrl.links.redis.weights_downloader import WeightsDownloader
from benchmarks.hosts import chunks_to_send as material

SERVER_SECONDS = 10.0
"""Timeout of a reply, as hosts have it. Here they share threads: one that hears nothing holds up others that long."""
AGAIN_SECONDS = 0.5
SENT_AT = "sent_ms"
"""A counter that travels with every frame: when it was offered, by this machine's monotonic clock."""


class Crowd(NamedTuple):
    """Hosts of one process."""

    url: str
    record: RunRecord
    hosts: int
    actors: int  # of each host
    lease_seconds: float
    chunks: int  # of a frame; 64 steps each
    send_seconds: float  # between two frames of a host
    threads: int


class _Host:
    def __init__(self, crowd: Crowd, server: Server, lease: HostLease, schema: bytes) -> None:
        self.lease = lease
        self.sender = ExperienceSender(
            server, lease.keys, run_id=crowd.record.run_id, member=lease.member, generation=1000 * lease.generation,
            schema=schema, window_bytes=64 * 2**20,
        )  # fmt: skip
        self.weights = WeightsDownloader(server, lease.keys, run_id=crowd.record.run_id)
        self.seen: dict[int, float] = {}
        self.renewed_at = time.monotonic()
        self.lost_slots = 0


class Process:
    """Serves the hosts of one ``Crowd``, and answers orders that come through ``pipe``."""

    def __init__(self, crowd: Crowd, pipe: Pipe) -> None:
        self._crowd, self._pipe = crowd, pipe
        self._server = Server(crowd.url, SERVER_SECONDS)
        made, self._schema = material.chunks(material.SHAPES["small"], crowd.chunks)
        self._heads, self._body = ChunkHeads([one.head for one in made]), b"".join(one.body for one in made)
        self._hosts: list[_Host] = []
        self._due: list[tuple[float, int, bool]] = []  # when, host, whether to renew (else to send)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._sending, self._pace = False, 1.0
        self._joins: list[float] = []
        self._renewals: list[float] = []
        self._failed = 0

    def serve(self) -> None:
        """Until told to leave."""
        threads: list[threading.Thread] = []
        while True:
            order, value = self._pipe.recv()
            if order == "join":
                self._join()
                threads = [threading.Thread(target=self._read, args=(host,), daemon=True) for host in self._hosts]
                for thread in threads:
                    thread.start()
            elif order == "send":
                self._pace, self._sending = value or 1.0, value > 0
            elif order == "leave":
                self._over.set()
                for thread in threads:
                    thread.join(30.0)
                with ThreadPoolExecutor(16) as pool:
                    list(pool.map(lambda host: (host.sender.close(0.0), host.lease.leave()), self._hosts))
            self._pipe.send(self._figures())
            if order == "leave":
                return

    def _join(self) -> None:
        def join(number: int) -> _Host:
            began = time.monotonic()
            while True:
                try:
                    record = find_run(self._server, self._crowd.record.name, 60.0)
                    lease = HostLease.join(self._server, record, self._crowd.actors, ttl=self._crowd.lease_seconds)
                    break
                except LinkError:
                    self._failed += 1
                    time.sleep(AGAIN_SECONDS)
            host = _Host(self._crowd, self._server, lease, self._schema)
            self._joins.append(time.monotonic() - began)
            with self._lock:
                self._hosts.append(host)
                heapq.heappush(self._due, (time.monotonic() + random.random(), len(self._hosts) - 1, True))
                heapq.heappush(self._due, (time.monotonic() + random.random(), len(self._hosts) - 1, False))
            return host

        for _ in range(self._crowd.threads):  # those who are in already renew meanwhile
            threading.Thread(target=self._work, daemon=True).start()
        with ThreadPoolExecutor(self._crowd.threads) as pool:
            list(pool.map(join, range(self._crowd.hosts)))

    def _work(self) -> None:
        while not self._over.is_set():
            with self._lock:
                due = heapq.heappop(self._due) if self._due and self._due[0][0] <= time.monotonic() else None
            if due is None:
                time.sleep(0.005)
                continue
            _, number, renews = due
            host = self._hosts[number]
            pause = self._renew(host) if renews else self._send(host)
            with self._lock:
                heapq.heappush(self._due, (time.monotonic() + pause, number, renews))

    def _renew(self, host: _Host) -> float:
        began = time.monotonic()
        try:
            orders = host.lease.renew(HostDigest(state="acting", env_steps=host.sender.sent_items))
        except LinkError:
            self._failed += 1
            return AGAIN_SECONDS
        self._renewals.append(time.monotonic() - began)
        host.renewed_at = time.monotonic()
        host.lost_slots += len(orders.lost_slots)
        return renewal_pause(orders, self._crowd.lease_seconds)

    def _send(self, host: _Host) -> float:
        sender = host.sender
        sender.step(0.0)
        if self._sending and sender.met and sender.room >= len(self._body):
            counts = {"env_steps": sender.sent_items, SENT_AT: int(1000 * time.monotonic())}
            sender.offer(self._heads, self._body, counts)
            sender.step(0.0)
            return self._crowd.send_seconds / self._pace * random.uniform(0.9, 1.1)
        return min(AGAIN_SECONDS, self._crowd.send_seconds / self._pace)

    def _read(self, host: _Host) -> None:
        version = 0
        while not self._over.is_set():
            try:
                newest = host.weights.wait(version, 1.0)
            except ApexrlError:
                continue
            if newest is not None:
                version = newest[0]
                host.seen[version] = time.monotonic()
            newest = None
        host.weights.close()

    def _figures(self) -> dict[str, Any]:
        """What these hosts have seen; latencies since the last call."""
        renewals, self._renewals = self._renewals, []
        hosts = list(self._hosts)
        senders = [host.sender for host in hosts]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "joins": self._joins,
            "renewals": renewals,
            "failed": self._failed,
            "renewed_at": min((host.renewed_at for host in hosts), default=0.0),
            "slots": sum(len(host.lease.slots) for host in hosts),
            "lost_slots": sum(host.lost_slots for host in hosts),
            "sent": sum(sender.sent_items for sender in senders),
            "committed": sum(sender.committed_items for sender in senders),
            "dropped": sum(sender.dropped_items for sender in senders),
            "uncommitted": sum(sender.uncommitted_items for sender in senders),
            "resent_frames": sum(sender.resent_frames for sender in senders),
            "seen": [dict(host.seen) for host in hosts],
            "cpu": time.process_time(),
            "rss_mib": usage.ru_maxrss / 1024,
        }


def serve(crowd: Crowd, pipe: Pipe) -> None:
    """In a process of its own."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    threading.stack_size(256 * 1024)
    Process(crowd, pipe).serve()
