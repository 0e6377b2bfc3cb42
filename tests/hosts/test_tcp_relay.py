"""The relay behaves as the link that it stands for."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tcp_relay import Relay

from free_ports import free_port


class Echo:
    """A server that sends back what it hears, until it is closed."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = ("127.0.0.1", self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._echo, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


def dial(link: Relay) -> socket.socket:
    return socket.create_connection(link.address, timeout=10)


def hear(connection: socket.socket, length: int) -> bytes:
    heard = b""
    while len(heard) < length:
        data = connection.recv(1 << 20)
        if not data:
            break
        heard += data
    return heard


def test_everything_comes_through_in_order_and_is_counted(echo: Echo) -> None:
    with Relay(echo.address) as link, dial(link) as connection:
        sent = bytes(range(256)) * 20_000  # more than any buffer on the way
        threading.Thread(target=connection.sendall, args=(sent,), daemon=True).start()
        assert hear(connection, len(sent)) == sent
        assert link.counts() == {"connections": 1, "open": 1, "sent": len(sent), "received": len(sent)}


def test_the_delay_is_each_ways_own_and_pipelined(echo: Echo) -> None:
    with Relay(echo.address, delay_ms=200) as link, dial(link) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.monotonic()
        for number in range(200):  # one after the other they would take 80 s, and the socket's timeout is 10
            connection.sendall(bytes([number]))
        assert hear(connection, 200) == bytes(range(200))
        assert time.monotonic() - began >= 0.4


def test_a_narrow_link_bounds_what_all_connections_send_together(echo: Echo) -> None:
    with Relay(echo.address, mbit=8.0) as link, dial(link) as one, dial(link) as other:
        began = time.monotonic()
        for connection in (one, other):
            threading.Thread(target=connection.sendall, args=(bytes(200_000),), daemon=True).start()
        assert [len(hear(connection, 200_000)) for connection in (one, other)] == [200_000] * 2
        assert time.monotonic() - began >= 0.4


def test_what_is_lost_comes_later_and_nothing_overtakes_it(echo: Echo) -> None:
    with Relay(echo.address, loss=0.5) as link, dial(link) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.monotonic()
        sent = bytes(range(256)) * 100  # some 18 segments: half a million to one that none is lost
        connection.sendall(sent)
        assert hear(connection, len(sent)) == sent
        assert time.monotonic() - began >= 0.2


def test_a_cut_link_resets_what_is_open_and_refuses_what_is_new(echo: Echo) -> None:
    with Relay(echo.address, ("127.0.0.1", free_port())) as link:
        with dial(link) as connection:
            connection.sendall(b"before")
            assert hear(connection, 6) == b"before"
            link.cut()
            with pytest.raises(ConnectionResetError):
                hear(connection, 1)
        with pytest.raises(ConnectionRefusedError):
            dial(link)
        link.restore()
        with dial(link) as connection:
            connection.sendall(b"after")
            assert hear(connection, 5) == b"after"


def test_a_black_hole_keeps_connections_and_gives_back_what_it_swallowed(echo: Echo) -> None:
    with Relay(echo.address) as link, dial(link) as old:
        old.sendall(b"1")
        assert hear(old, 1) == b"1"
        link.blackhole()
        old.sendall(b"2")
        with dial(link) as new:
            new.sendall(b"3")
            for connection in (old, new):
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
                connection.settimeout(10)
            link.restore()
            assert hear(old, 1) == b"2"
            assert hear(new, 1) == b"3"


def test_a_server_that_is_not_there_and_a_port_that_is_taken(echo: Echo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()
        with pytest.raises(RuntimeError, match="in use"):
            Relay(echo.address, listen=nobody)
    with Relay(nobody) as link, pytest.raises(ConnectionResetError), dial(link) as connection:
        hear(connection, 1)


def test_closing_hands_on_both_ends(echo: Echo) -> None:
    with Relay(echo.address) as link:
        with dial(link) as connection:
            connection.sendall(b"last words")
            connection.shutdown(socket.SHUT_WR)
            assert hear(connection, 100) == b"last words"  # and then the end of it
        end = time.monotonic() + 10
        while link.counts()["open"] and time.monotonic() < end:
            time.sleep(0.01)
        assert link.counts()["open"] == 0
