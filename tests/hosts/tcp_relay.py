"""A TCP relay that behaves like a long, narrow or broken link: it delays, is cut, swallows, and comes back.

    with Relay(("10.77.0.1", 6379), listen=("10.77.0.1", 7001), delay_ms=20) as link:
        link.cut()         # every connection is reset, new ones are refused
        link.blackhole()   # connections stay and new ones are taken, but nothing comes through
        link.restore()

The delay is each way's own and pipelined: it bounds no throughput. ``mbit`` does, each way, for all connections
together. ``loss`` is the share of segments that come only after a retransmission; what follows them on their connection
waits, as TCP has it. The relay is a process, so that it can stand in
another network namespace and takes no time from the process under test. It ends when its standard input does, that is
with its maker, however that one dies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

Address = tuple[str, int]
MOST_UNDER_WAY = 64 << 20
"""Bytes of one direction that may be on the link; more wait in the sender's kernel."""
SEGMENT_BYTES = 1448
RETRANSMISSION_SECONDS = 0.2  # Linux's shortest timer
PATIENCE = 60.0  # seconds for the relay's process to start, to answer, to end


class Relay:
    """The relay's process. ``prefix`` goes before its command line: ``("ip", "netns", "exec", NAME)``.

    ``address`` is where it listens; port 0 takes a free one.

    Raises:
        RuntimeError: it cannot listen there.
    """

    def __init__(
        self,
        to: Address,
        listen: Address = ("127.0.0.1", 0),
        delay_ms: float = 0.0,
        prefix: Sequence[str] = (),
        mbit: float = 0.0,
        loss: float = 0.0,
    ) -> None:
        words = [*prefix, sys.executable, "-I", __file__, *map(str, (*listen, *to)), "--delay-ms", str(delay_ms)]
        words += ["--mbit", str(mbit), "--loss", str(loss)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._rest = b""
        try:
            self.address: Address = (listen[0], self._answer()["port"])
        except BaseException:
            self.close()
            raise

    def cut(self) -> None:
        """Reset every connection, refuse new ones; what was under way is lost."""
        self._ask("cut")

    def blackhole(self) -> None:
        """Let nothing through: what is sent stays in the senders' kernels; new connections hear nothing."""
        self._ask("blackhole")

    def restore(self) -> None:
        """Undo :meth:`cut` and :meth:`blackhole`; after the latter all that was held goes on its way."""
        self._ask("restore")

    def delay(self, milliseconds: float) -> None:
        """Of each way, for what arrives from now on."""
        self._ask(f"delay {milliseconds}")

    def counts(self) -> dict[str, int]:
        """``connections`` ever taken, ``open`` ones, bytes ``sent`` to the far side and ``received`` from it."""
        return self._ask("counts")

    def close(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(PATIENCE)
        if self._process.stdout:
            self._process.stdout.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _ask(self, order: str) -> dict[str, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(order.encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, int]:
        assert self._process.stdout is not None
        fd, end = self._process.stdout.fileno(), time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(end - time.monotonic()):
                    raise RuntimeError(f"the relay at {self._process.args} did not answer within {PATIENCE:g} s")
                read = os.read(fd, 1 << 16)
                if not read:
                    raise RuntimeError(f"the relay ended: {self._process.args}, exit code {self._process.wait()}")
                self._rest += read
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the relay at {self._process.args}: {answer['error']}")
        return answer


class _Link:
    """In the relay's process: the listener, its pairs of connections, and what state the link is in."""

    def __init__(self, listen: Address, to: Address, delay: float, rate: float, loss: float) -> None:
        self.listen, self.to, self.delay = listen, to, delay
        self._rate, self._loss = rate, loss  # bytes a second, 0: no limit; share of segments
        self._free_at = {"sent": 0.0, "received": 0.0}  # loop time
        self._random = random.Random(1)
        self.held = False
        self.moved = {"sent": 0, "received": 0}
        self.ends: set[_End] = set()
        self.connections = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        """Listen, and let through what was held; the port."""
        if self._server is None:
            self._server = await asyncio.get_running_loop().create_server(lambda: _End(self, "sent"), *self.listen)
            self.listen = (self.listen[0], self._server.sockets[0].getsockname()[1])
        self.held = False
        for end in list(self.ends):
            end.resume()
        return self.listen[1]

    def arrival(self, way: str, nbytes: int) -> float:
        """When what is sent now is there, in loop time."""
        now = asyncio.get_running_loop().time()
        if self._rate:
            now = self._free_at[way] = max(now, self._free_at[way]) + nbytes / self._rate
        segments = -(-nbytes // SEGMENT_BYTES) if self._loss else 0
        lost = any(self._random.random() < self._loss for _ in range(segments))
        return now + self.delay + lost * max(RETRANSMISSION_SECONDS, 2 * self.delay)

    def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for end in list(self.ends):
            end.abort()

    def hold(self) -> None:
        self.held = True
        for end in self.ends:
            end.pause()


class _End(asyncio.Protocol):
    """One end of a relayed connection; what it reads goes to ``peer`` after the delay."""

    transport: asyncio.Transport

    def __init__(self, link: _Link, way: str, peer: _End | None = None) -> None:
        self._link, self._way, self.peer = link, way, peer
        self._under_way: deque[tuple[float, bytes]] = deque()  # (loop time of arrival, bytes; none: the end of it)
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._reading = self.writable = True
        self.ended = False  # nothing more will be written here

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.ends.add(self)
        if self.peer is None:  # the near end: dial the far one
            self._link.connections += 1
            if self._link.held:
                self.pause()
            else:
                self._dial()
        elif self.peer not in self._link.ends:  # went away, or was cut, while we dialled
            self.abort()
        else:
            self.peer.peer = self
            self.peer.forward()

    def data_received(self, data: bytes) -> None:
        self._send(data)
        self._bytes += len(data)
        if self._bytes > MOST_UNDER_WAY:
            self._read(False)
        self.forward()

    def eof_received(self) -> bool:
        self._send(b"")
        self.forward()
        return True  # the other direction stays open

    def _send(self, data: bytes) -> None:
        before = self._under_way[-1][0] if self._under_way else 0.0
        self._under_way.append((max(before, self._link.arrival(self._way, len(data))), data))

    def connection_lost(self, error: Exception | None) -> None:
        self._link.ends.discard(self)
        if self.peer is not None and self.peer in self._link.ends and not self.peer.transport.is_closing():
            self.peer.abort()

    def forward(self) -> None:
        """Hand on what has been under way long enough; come again for the rest."""
        if self._timer is not None or self.peer is None or self.peer.transport.is_closing() or self._link.held:
            return
        now = asyncio.get_running_loop().time()
        while self._under_way and self._under_way[0][0] <= now:
            _, data = self._under_way.popleft()
            if not data:
                self.peer.finish()
                continue
            self._bytes -= len(data)
            self._link.moved[self._way] += len(data)
            self.peer.transport.write(data)
        if self._bytes <= MOST_UNDER_WAY and self.peer.writable:
            self._read(True)
        if self._under_way:
            self._timer = asyncio.get_running_loop().call_at(self._under_way[0][0], self._due)

    def pause_writing(self) -> None:
        self.writable = False
        if self.peer is not None:
            self.peer._read(False)

    def resume_writing(self) -> None:
        self.writable = True
        if self.peer is not None:
            self.peer.forward()

    def pause(self) -> None:
        self._read(False)

    def resume(self) -> None:
        if self.peer is None and self._dialling is None:
            self._dial()
        self._read(True)
        self.forward()

    def abort(self) -> None:
        """Close with a reset, as a link does that breaks, and not with the end of the stream."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def finish(self) -> None:
        """The other side will say no more; when this one has also ended, that was all."""
        self.ended = True
        if self.transport.is_closing():
            return
        with suppress(OSError):  # it has just been reset
            self.transport.write_eof()
        if self.peer is not None and self.peer.ended:
            self.transport.close()
            self.peer.transport.close()

    def _due(self) -> None:
        self._timer = None
        self.forward()

    def _dial(self) -> None:
        self._dialling = asyncio.get_running_loop().create_task(self._reach())

    async def _reach(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: _End(self._link, "received", self), *self._link.to
            )
        except OSError:
            self.abort()  # nobody there: the near side sees a connection that is reset

    def _read(self, wanted: bool) -> None:
        wanted = wanted and not self._link.held
        if wanted != self._reading and not self.transport.is_closing():
            self._reading = wanted
            self.transport.resume_reading() if wanted else self.transport.pause_reading()


async def _serve(link: _Link) -> None:
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    try:
        _reply(port=await link.open())
    except OSError as error:
        _reply(error=str(error))
        return
    while order := (await orders.readline()).decode().split():
        try:
            if order[0] == "cut":
                link.cut()
            elif order[0] == "blackhole":
                link.hold()
            elif order[0] == "restore":
                await link.open()
            elif order[0] == "delay":
                link.delay = float(order[1]) / 1000
            await asyncio.sleep(0)  # aborted connections are gone when the answer is there
            near = sum(end.peer is None or end._way == "sent" for end in link.ends)
            _reply(connections=link.connections, open=near, **link.moved)
        except OSError as error:
            _reply(error=str(error))


def _reply(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host", help="to listen at")
    parser.add_argument("port", type=int, help="to listen at; 0: a free one")
    parser.add_argument("to_host", help="where the server is")
    parser.add_argument("to_port", type=int)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way")
    parser.add_argument("--mbit", type=float, default=0.0, help="a second, each way; 0: no limit")
    parser.add_argument("--loss", type=float, default=0.0, help="share of segments that are sent again")
    given = parser.parse_args()
    ends = (given.host, given.port), (given.to_host, given.to_port)
    asyncio.run(_serve(_Link(*ends, given.delay_ms / 1000, given.mbit * 1e6 / 8, given.loss)))


if __name__ == "__main__":
    main()
