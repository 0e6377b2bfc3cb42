"""Hosts of their own on one machine, and nothing of them left, however their maker ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import network_namespaces
import pytest
from network_namespaces import Network
from tcp_relay import Relay

from redis_server import binaries


@pytest.fixture(autouse=True)
def _allowed() -> None:
    if why := network_namespaces.available():
        pytest.skip(why)


MAKER = """
import sys, time
sys.path.insert(0, {folder!r})
import network_namespaces
network_namespaces.PREFIX = {prefix!r}
with network_namespaces.Network(2) as hosts:
    inside = hosts[1].popen(["sleep", "600"])
    print(hosts[1].name, inside.pid, flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # gone, perhaps between the two
        return False


def test_hosts_have_addresses_of_their_own_and_cables() -> None:
    interfaces = os.listdir("/sys/class/net")
    with Network(2) as (here, there):
        assert os.listdir("/sys/class/net") == interfaces, "nothing may appear outside"
        listen = "import socket; s = socket.create_server(('0.0.0.0', 7000)); print('ready', flush=True)\n"
        listen += "while True: c, a = s.accept(); c.sendall(a[0].encode()); c.close()"
        dial = f"import socket; s = socket.create_connection(({here.address!r}, 7000), timeout=%g)\n"
        dial += "print(s.recv(99).decode())"
        server = here.popen([sys.executable, "-c", listen], stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            assert there.run([sys.executable, "-c", dial % 10]).stdout.strip() == there.address
            there.plug(False)
            lost = there.run([sys.executable, "-c", dial % 0.5])
            assert lost.returncode != 0
            there.plug(True)
            assert there.run([sys.executable, "-c", dial % 10]).stdout.strip() == there.address
        finally:
            server.kill()
            server.wait(10)
            if server.stdout:
                server.stdout.close()
    assert here.name not in network_namespaces._names()


def test_what_a_killed_maker_left_goes_when_the_next_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Names of this test alone: another one, in another process, makes networks meanwhile and would remove them first.
    monkeypatch.setattr(network_namespaces, "PREFIX", prefix := "apexrl-stale")
    script = MAKER.format(folder=str(Path(__file__).parent), prefix=prefix)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        name, pid = maker.stdout.readline().split()
        with Network(1) as (mine,):
            assert {name, mine.name} <= set(network_namespaces._names()), "those of living makers stay"
            maker.send_signal(signal.SIGKILL)
            maker.wait(10)
            assert alive(int(pid))
            assert name in network_namespaces.remove_stale()
            end = time.monotonic() + 30.0
            while alive(int(pid)) and time.monotonic() < end:  # killed, and soon dead
                time.sleep(0.01)
            assert not alive(int(pid))
            assert name not in network_namespaces._names()
            assert mine.name in network_namespaces._names()


def test_a_real_server_far_away(tmp_path: Path) -> None:
    """A server in one namespace, reached from another through a link of 20 ms each way that is cut and comes back."""
    server = binaries()[0]
    with Network(2) as (far, near):
        words = [server, "--port", "6379", "--bind", far.address, "--save", "", "--protected-mode", "no"]
        process = far.popen([*words, "--dir", str(tmp_path)], stdout=subprocess.DEVNULL)
        try:
            with Relay((far.address, 6379), (near.address, 6379), delay_ms=20, prefix=near.prefix) as link:
                assert near.run([sys.executable, "-c", PING, near.address, "40"]).stdout == "pong\n"
                link.cut()
                assert "refused" in near.run([sys.executable, "-c", PING, near.address, "0"]).stdout
                link.restore()
                assert near.run([sys.executable, "-c", PING, near.address, "40"]).stdout == "pong\n"
        finally:
            process.terminate()
            process.wait(10)


PING = """
import sys, time, redis
client = redis.Redis(sys.argv[1], socket_timeout=10, socket_connect_timeout=10, retry=None)
try:
    for attempt in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError as error:  # the server is not there yet
            if "refused" in str(error):
                sys.exit(print("refused"))
            time.sleep(0.05)
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= float(sys.argv[2]) / 1000, "faster than the link"
    print("pong")
finally:
    client.close()
"""
