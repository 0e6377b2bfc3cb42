"""The end of inference over TCP on the server's host: remote workers' messages into the link's memory, and back.

Whoever does not know the run's token is refused. Nothing is encrypted: use a network that you trust, or a tunnel.
"""

from __future__ import annotations

import hmac
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from apexrl.errors import FrameError, LinkError
from apexrl.links import inference_wire as wire
from apexrl.links.inference import InferenceLink

_SLICE = 0.1  # seconds between looks at whether to end
_ROOM_SECONDS = 0.001  # between looks at whether the server has read a predecessor's request

_decoder = msgspec.msgpack.Decoder(wire.Hello)


class Gateway:
    """Lets workers of other hosts ask through a link of this one.

    Args:
        link: whose workers they are to be.
        token: that they must know.
        host, port: where to listen; port 0 lets the system choose (``address``).
        tell: told, by threads, who was refused and why.
    """

    def __init__(
        self,
        link: InferenceLink,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._link, self._token, self._tell = link, token, tell
        self._schema = wire.schema_of(link.request, link.reply, link.splits)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[int, _Connection] = {}  # worker -> its newest connection
        self._hellos = threading.Semaphore(2 * link.workers)
        self.refused = 0
        self._socket = socket.create_server((host, port))
        self._socket.settimeout(_SLICE)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, name="inference-gateway", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End every connection, and listen no more."""
        self._closing.set()
        self._thread.join()
        self._socket.close()
        with self._lock:
            connections = list(self._open.values())
        for connection in connections:
            connection.end()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                peer, where = self._socket.accept()
            except TimeoutError:
                continue
            if not self._hellos.acquire(blocking=False):  # as many say hello as there are workers, twice
                peer.close()
                continue
            threading.Thread(target=self._greet, args=(peer, where), name="inference-hello", daemon=True).start()

    def _greet(self, peer: socket.socket, where: Any) -> None:
        """Let a worker in, or say why not."""
        try:
            wire.prepare(peer)
            hello = self._hello(peer)
            with self._lock:
                old = self._open.get(hello.worker)
                if old is not None:
                    if old.generation >= hello.generation:
                        raise LinkError(f"worker {hello.worker} is there already, in generation {old.generation}")
                    old.end()  # two never write into the same columns
                if self._closing.is_set():
                    raise LinkError("this run has ended")
                wire.send(peer, wire.WELCOME)
                self._open[hello.worker] = _Connection(self._link, peer, hello.worker, hello.generation)
        except (OSError, FrameError, LinkError) as error:
            self.refused += 1
            self._tell(f"a worker at {where[0]}:{where[1]} was refused: {error}")
            with suppress(OSError):
                wire.send(peer, wire.REFUSED, head=msgspec.msgpack.encode(str(error)[:1000]))
            peer.close()
        finally:
            self._hellos.release()

    def _hello(self, peer: socket.socket) -> wire.Hello:
        kind, _, head, nbytes = wire.receive_head(peer, wire.HELLO_SECONDS)
        if kind != wire.HELLO or nbytes:
            raise FrameError("it did not say hello")
        try:
            hello = _decoder.decode(head)
        except msgspec.MsgspecError as error:
            raise FrameError(f"its hello cannot be read: {error}") from None
        if not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            raise LinkError("it does not know the run's token")
        if hello.schema != self._schema:
            raise LinkError("its environments, or their groups, are not those of this run")
        if hello.worker >= self._link.workers:
            raise LinkError(f"there is no worker {hello.worker}: this run has room for {self._link.workers}")
        return hello


class _Connection:
    """A remote worker's requests into the memory, and the answers back: one thread each."""

    def __init__(self, link: InferenceLink, peer: socket.socket, worker: int, generation: int) -> None:
        self.generation = generation
        self._peer = peer
        self._end = link.worker(worker, generation)
        self._splits = link.splits
        self._request_bytes = wire.nbytes(link.request)
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_broken, args=(loop,), name=f"inference-{worker}", daemon=True)
            for loop in (self._take_requests, self._give_answers)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Hang up, and wait until neither thread touches the memory."""
        self._over.set()
        with suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._peer.close()
        self._end.leave()

    def _until_broken(self, loop: Callable[[], None]) -> None:
        with suppress(OSError, FrameError):
            loop()
        self._over.set()
        with suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)  # the other thread shall know
        self._end.leave()

    def _take_requests(self) -> None:
        while not self._over.is_set():
            if not select.select([self._peer], [], [], _SLICE)[0]:
                continue
            kind, split, head, nbytes = wire.receive_head(self._peer)
            if kind != wire.REQUEST or head or split >= len(self._splits):
                raise FrameError("a worker sent what is no request")
            if nbytes != self._splits[split] * self._request_bytes:
                raise FrameError(f"a request of {nbytes} bytes is not that of {self._splits[split]} environments")
            while (columns := self._end.room(split)) is None:
                if self._over.wait(_ROOM_SECONDS):
                    return
            wire.receive_columns(self._peer, columns)
            self._end.ask(split, time.monotonic())

    def _give_answers(self) -> None:
        while not self._over.is_set():
            for split in self._end.answered():
                wire.send(self._peer, wire.REPLY, split, columns=self._end.take(split))
            self._end.wait(_SLICE)
