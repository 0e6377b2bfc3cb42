"""A gateway: lets workers of other hosts use a link in this host's memory, over TCP.

What the link is, and what travels, is a *desk's* business (``inference_desk``, ``parameter_desk``). Peers must know the
run's token. Every frame is authenticated; it is encrypted only with TLS.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import FrameError, LinkError
from apexrl.links.tcp import frames
from apexrl.links.tcp.connected_hosts import ConnectedHosts, HostCounts, HostNews, Tell
from apexrl.links.tcp.gateway_messages import Record
from apexrl.links.tcp.handshake import HOST, Caller, Hello, challenge, refuse, welcome
from apexrl.links.tcp.handshake_limits import HandshakeLimits
from apexrl.links.tcp.slot_leases import SlotLeases

SLICE_SECONDS: Final = 0.1
"""Between checks whether to end."""

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


class Traffic(Protocol):
    """What travels on one connection. Both methods return when it is over, and raise OSError or FrameError when it
    broke; each has a thread of its own."""

    def receive(self) -> None: ...

    def send(self) -> None: ...

    def leave(self) -> None:
        """Tell this host that the worker asks for nothing any more; may be called several times."""


class Desk(Protocol):
    """What a gateway connects workers to."""

    slots: range
    """Of workers of other hosts."""
    schema: bytes
    """A digest of what travels, which both sides must share."""
    beats: NDArray[np.int64]
    """As ``SlotLeases`` has it."""

    def known_leases(self) -> dict[int, int]:
        """Slot -> generation of its newest lease, as far as memory tells that outlives a gateway."""

    def begin(
        self, peer: frames.Connection, hello: Hello, over: threading.Event, stepped: Callable[[int], None]
    ) -> Traffic:
        """A connection that was let in. ``stepped`` is called with environment steps as they come."""


class Gateway:
    """Connects workers of other hosts to a desk of this one.

    Args:
        desk: to connect them to.
        token: that they must know.
        record: of the run, for hosts. None: only workers may connect.
        host, port: where to listen; port 0 lets the system choose (``address``).
        lease_seconds: of silence after which a host's slots are free.
        tell: called by threads with messages about peers that join, leave or are refused.
        tls: for all connections; None: no TLS.
        shared_port: another socket of this user may have the port reserved.

    Raises:
        OSError: cannot listen there.
    """

    def __init__(
        self,
        desk: Desk,
        token: str,
        record: Record | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        lease_seconds: float = 10.0,
        tell: Tell = lambda text, level: None,
        tls: ssl.SSLContext | None = None,
        shared_port: bool = False,
    ) -> None:
        self._desk, self._token, self._tell, self._tls = desk, token, tell, tls
        self._run = "" if record is None else record.run_id
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[int, _Connection] = {}  # slot -> its newest connection
        self._greetings = HandshakeLimits(tell)
        self._accepted = 0
        self._leases = SlotLeases(desk.slots, desk.known_leases(), desk.beats, lease_seconds)
        self._news = HostCounts(self._leases)
        self.members = ConnectedHosts(record, self._leases, self._news, tell)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=128, reuse_port=shared_port)
        self._socket.settimeout(SLICE_SECONDS)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="gateway", daemon=True)
        self._thread.start()

    def close(self, patience: float = 0.0) -> None:
        """Stop listening, tell the hosts that the run is over, wait up to ``patience`` seconds for them to leave, and
        close every connection."""
        self.members.finish(patience)
        self._closing.set()
        self._thread.join()
        self._socket.close()
        with self._lock:
            connections = set(self._open.values())
        for connection in connections:
            connection.end()
        self.members.close()

    @property
    def counts(self) -> Counts:
        hosts, restarts = self.members.counts
        with self._lock:
            workers = sum(not connection.over.is_set() for connection in self._open.values())
            return Counts(hosts, workers, self._accepted, self._greetings.failed, restarts)

    def news(self) -> HostNews:
        """Since the last call."""
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
                self._closing.wait(SLICE_SECONDS)
                continue
            if not self._greetings.begin(where[0]):
                connection.close()
                continue
            threading.Thread(target=self._greet, args=(connection, where), name="gateway-hello", daemon=True).start()

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
            peer.close(SLICE_SECONDS)  # it may still read the reason
        except (OSError, FrameError, LinkError) as error:
            self._greetings.fail(address, f"{who} at {caller_at}", str(error))
            refuse(peer, str(error), replaced)
        finally:
            self._greetings.end(address)

    def _let_in(self, peer: frames.Connection, caller: Caller, who: str, address: str) -> None:
        hello = caller.hello
        if hello.schema != self._desk.schema:
            raise LinkError("what it sends and takes is not that of this run")
        for slot, lease in hello.leases.items():
            self._leases.enter(hello.member, slot, lease)
        with self._lock:
            self._previous(hello)
        welcome(peer, caller)  # outside the lock: a slow peer must not delay others
        with self._lock:
            try:
                previous = self._previous(hello)
            except LinkError as error:
                peer.shutdown()  # it was accepted, so it cannot be refused any more
                raise ConnectionAbortedError(str(error)) from None
            for old in previous:
                old.end()  # two connections must not write into the same memory
            self._accepted += 1
            cut_off = lambda why: self._greetings.fail(address, who, f"{why}: cut off")  # noqa: E731
            connection = _Connection(self._desk, peer, hello, self._news.step, cut_off)
            self._open |= dict.fromkeys(hello.leases, connection)

    def _previous(self, hello: Hello) -> set[_Connection]:
        """The present connections of the caller's workers. LinkError: one is not older than ``hello``."""
        if self._closing.is_set():
            raise LinkError(_OVER)
        previous = set()
        for slot in hello.leases:
            old = self._open.get(slot)
            if old is not None and old.hello.generation_in(slot) >= hello.generation_in(slot):
                raise LinkError(f"worker {slot} is there already, in generation {old.hello.generation_in(slot)}")
            previous |= {old} if old is not None else set()
        return previous


class _Connection:
    """Two threads for what travels on a connection."""

    def __init__(
        self,
        desk: Desk,
        peer: frames.Connection,
        hello: Hello,
        stepped: Callable[[int], None],
        cut_off: Callable[[str], None],
    ) -> None:
        self.hello = hello
        self.over = threading.Event()
        self._peer, self._cut_off = peer, cut_off
        self._traffic = desk.begin(peer, hello, self.over, stepped)
        self._threads = [
            threading.Thread(target=self._until_broken, args=(loop,), name=f"worker-{hello.worker}", daemon=True)
            for loop in (self._traffic.receive, self._traffic.send)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Disconnect, and wait until neither thread uses the memory."""
        self.over.set()
        self._peer.shutdown()
        for thread in self._threads:
            thread.join()
        self._peer.close()
        self._traffic.leave()

    def _until_broken(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except (FrameError, ssl.SSLError) as error:
            if not self.over.is_set():
                self._cut_off(str(error))
        except OSError:
            pass
        finally:
            self.over.set()
            self._peer.shutdown()  # wakes the other thread
            self._traffic.leave()
