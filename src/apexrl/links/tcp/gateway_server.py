"""The inference gateway: copies requests of remote workers into the inference link's memory, and replies back.

Peers must know the run's token. Every frame is authenticated; it is encrypted only with TLS.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from apexrl.errors import FrameError, LinkError
from apexrl.links.local.inference import InferenceLink
from apexrl.links.tcp import frames
from apexrl.links.tcp.connected_hosts import ConnectedHosts, HostCounts, Tell
from apexrl.links.tcp.gateway_messages import Record
from apexrl.links.tcp.handshake import HOST, Caller, Hello, challenge, refuse, welcome
from apexrl.links.tcp.handshake_limits import HandshakeLimits
from apexrl.links.tcp.slot_leases import LEASE_BITS, SlotLeases

_SLICE = 0.1  # seconds between checks whether to end
_ROOM_SECONDS = 0.001  # between checks whether the server has read a predecessor's request
_OVER = "this run has ended"


class Counts(NamedTuple):
    """A gateway's counters."""

    hosts: int
    """Connected now."""
    workers: int
    """Connected now."""
    worker_connections: int
    """Accepted connections of workers."""
    refused: int
    """Refused connections."""
    worker_restarts: int
    """On their hosts."""


class Gateway:
    """Connects workers of other hosts to an inference link of this one.

    Args:
        link: to connect them to.
        token: that they must know.
        record: of the run, for hosts. None: only workers may connect.
        host, port: where to listen; port 0 lets the system choose (``address``).
        first: slot of a remote worker; those before it are this host's.
        lease_seconds: of silence after which a host's slots are free.
        tell: called by threads with messages about peers that join, leave or are refused.
        tls: for all connections; None: no TLS.

    Raises:
        OSError: cannot listen there.
    """

    def __init__(
        self,
        link: InferenceLink,
        token: str,
        record: Record | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        first: int = 0,
        lease_seconds: float = 10.0,
        tell: Tell = lambda text, level: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._link, self._token, self._tell, self._tls = link, token, tell, tls
        self._run = "" if record is None else record.run_id
        self._schema = frames.schema_of(link.request, link.reply, link.splits)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[int, _Connection] = {}  # worker -> its newest connection
        self._greetings = HandshakeLimits(tell)
        self._accepted = 0
        self._news = HostCounts()
        self._leases = SlotLeases(link, first, lease_seconds)
        self.members = ConnectedHosts(record, self._leases, self._news, tell)
        for worker in range(first, link.workers):
            link.worker(worker, 0).leave()  # of an earlier gateway that was killed
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=128)
        self._socket.settimeout(_SLICE)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="inference-gateway", daemon=True)
        self._thread.start()

    def close(self, patience: float = 0.0) -> None:
        """Stop listening, tell the hosts that the run is over, wait up to ``patience`` seconds for them to leave, and
        close every connection."""
        self.members.finish(patience)
        self._closing.set()
        self._thread.join()
        self._socket.close()
        with self._lock:
            connections = list(self._open.values())
        for connection in connections:
            connection.end()
        self.members.close()

    @property
    def counts(self) -> Counts:
        hosts, restarts = self.members.counts
        with self._lock:
            workers = sum(connection.alive for connection in self._open.values())
            return Counts(hosts, workers, self._accepted, self._greetings.failed, restarts)

    def news(self) -> tuple[int, list[float], list[int]]:
        """Since the last call: environment steps, and returns and lengths of episodes."""
        return self._news.take()

    def _accept(self) -> None:
        while not self._closing.is_set():
            self._greetings.look()
            try:
                connection, where = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:  # no free descriptor: existing connections continue
                self._tell(f"a connection could not be taken: {error}", "warning")
                self._closing.wait(_SLICE)
                continue
            if not self._greetings.begin(where[0]):
                connection.close()
                continue
            threading.Thread(target=self._greet, args=(connection, where), name="inference-hello", daemon=True).start()

    def _greet(self, connection: socket.socket, where: Any) -> None:
        """Admit a worker or a host, or refuse it with a reason."""
        address, caller_at = where[0], f"{where[0]}:{where[1]}"
        who, replaced = "somebody", b""
        peer = frames.Connection(connection)
        try:
            caller = challenge(peer, self._token, self._tls)
            hello = caller.hello
            who = "a host" if hello.worker == HOST else f"worker {hello.worker}"
            if hello.run and hello.run != self._run:
                replaced = caller.replaced
                raise LinkError("it works for another run than the one that is here now")
            if hello.worker == HOST:
                self.members.admit(peer, caller, caller_at)
            else:
                self._let_in(peer, caller, f"{who} at {caller_at}", address)
        except ssl.SSLError as error:
            self._greetings.fail(address, f"{who} at {caller_at}", f"TLS failed ({error.reason or error})")
            peer.close(_SLICE)  # it may still read the reason
        except (OSError, FrameError, LinkError) as error:
            self._greetings.fail(address, f"{who} at {caller_at}", str(error))
            refuse(peer, str(error), replaced)
        finally:
            self._greetings.end(address)

    def _let_in(self, peer: frames.Connection, caller: Caller, who: str, address: str) -> None:
        hello = caller.hello
        if hello.schema != self._schema:
            raise LinkError("its environments, or their groups, are not those of this run")
        self._leases.enter(hello.member, hello.worker, hello.generation >> LEASE_BITS)
        with self._lock:
            self._previous(hello)
        welcome(peer, caller)  # outside the lock: a slow peer must not delay others
        with self._lock:
            try:
                old = self._previous(hello)
            except LinkError as error:
                peer.shutdown()  # it was accepted, so it cannot be refused any more
                raise ConnectionAbortedError(str(error)) from None
            if old is not None:
                old.end()  # two connections must not write into the same columns
            self._accepted += 1
            self._open[hello.worker] = _Connection(
                self._link,
                peer,
                hello.worker,
                hello.generation,
                self._news.step,
                lambda why: self._greetings.fail(address, who, f"{why}: cut off"),
            )

    def _previous(self, hello: Hello) -> _Connection | None:
        """The worker's present connection. LinkError: it is not older than ``hello``."""
        if self._closing.is_set():
            raise LinkError(_OVER)
        old = self._open.get(hello.worker)
        if old is not None and old.generation >= hello.generation:
            raise LinkError(f"worker {hello.worker} is there already, in generation {old.generation}")
        return old


class _Connection:
    """Copies a remote worker's requests into the memory and the answers back, with one thread for each direction."""

    def __init__(
        self,
        link: InferenceLink,
        peer: frames.Connection,
        worker: int,
        generation: int,
        stepped: Callable[[int], None],
        cut_off: Callable[[str], None],
    ) -> None:
        self.generation = generation
        self._peer = peer
        self._end = link.worker(worker, generation)
        self._splits = link.splits
        self._request_bytes = frames.nbytes(link.request)
        self._stepped, self._cut_off = stepped, cut_off
        self._known = [False] * len(link.splits)  # groups with a request of this connection
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_broken, args=(loop,), name=f"inference-{worker}", daemon=True)
            for loop in (self._take_requests, self._give_answers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        return not self._over.is_set()

    def end(self) -> None:
        """Disconnect, and wait until neither thread uses the memory."""
        self._over.set()
        self._peer.shutdown()
        for thread in self._threads:
            thread.join()
        self._peer.close()
        self._end.leave()

    def _until_broken(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except (FrameError, ssl.SSLError) as error:
            if not self._over.is_set():
                self._cut_off(str(error))
        except OSError:
            pass
        finally:
            self._over.set()
            self._peer.shutdown()  # wakes the other thread
            self._end.leave()

    def _take_requests(self) -> None:
        most = max(self._splits) * self._request_bytes
        while not self._over.is_set():
            if not self._peer.readable(_SLICE):
                continue
            kind, split, head, body = self._peer.receive(most)
            if kind == frames.PING and not body:
                self._peer.send(frames.PONG)
                continue
            if kind != frames.REQUEST or head or split >= len(self._splits):
                raise FrameError("a worker sent what is no request")
            if len(body) != self._splits[split] * self._request_bytes:
                raise FrameError(f"a request of {len(body)} bytes is not that of {self._splits[split]} environments")
            while (columns := self._end.room(split)) is None:
                if self._over.wait(_ROOM_SECONDS):
                    return
            frames.fill(columns, body)
            # The results in a connection's first request are of actions that the server no longer knows.
            steps = self._splits[split] - int(np.count_nonzero(columns["starts"])) if self._known[split] else 0
            self._known[split] = True
            self._end.ask(split, time.monotonic())
            self._stepped(steps)

    def _give_answers(self) -> None:
        while not self._over.is_set():
            for split in self._end.answered():
                self._peer.send(frames.REPLY, split, columns=self._end.take(split))
            self._end.wait(_SLICE)
