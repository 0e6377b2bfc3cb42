from __future__ import annotations

import pickle
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis import exceptions
from run_records import a_record, wait_until

from apexrl.errors import ConfigError, LinkError
from apexrl.links.backoff import Backoff
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.pipe import Pipe, command
from apexrl.links.redis.run_record import LearnerLease
from apexrl.links.redis.server import DEFAULT_BULK_BYTES, Server, check, explain
from redis_server import RedisServer, binaries

KEYS = RunKeys("r")

SECRET = "correct horse/battery#staple"
QUOTED = "correct%20horse%2Fbattery%23staple"


@pytest.mark.parametrize("binary", binaries())
def test_every_server_here_is_fit(binary: str, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "r", binary=binary, proto_max_bulk_len=2**20) as redis_server:
        facts = redis_server.server().check()
        assert facts.most_bulk == 2**20
        assert facts.policy == "noeviction"
        redis_server.restart(keep_data=False)
        assert redis_server.server().check().run_id != facts.run_id


def test_a_password_opens_and_a_wrong_one_is_named_but_not_shown(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "r", requirepass=SECRET) as redis_server:
        where = f"127.0.0.1:{redis_server.port}"
        good = Server(f"redis://:{QUOTED}@{where}")
        assert good.check().version
        assert SECRET not in repr(good) + good.address
        assert pickle.loads(pickle.dumps(good)).check().version
        for url, words in [
            (f"redis://{where}", "wants a password"),
            (f"redis://:wrong-one@{where}", "refuses this user or password"),
            (f"redis://nobody:wrong-one@{where}", "refuses this user or password"),
        ]:
            with pytest.raises(LinkError, match=words) as caught:
                Server(url).check()
            assert "wrong-one" not in str(caught.value)
            assert where in str(caught.value)
            assert caught.value.__cause__ is None


def test_a_password_that_the_server_does_not_want(redis_server: RedisServer) -> None:
    with pytest.raises(LinkError) as caught:
        Server(f"redis://:{QUOTED}@127.0.0.1:{redis_server.port}").check()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://host", "must begin with redis://"),
        ("host:6379", "must begin with"),
        (f"redis://:{SECRET}@host:6379", "cannot be read.*percent-encoded"),
        ("redis://host:nonsense", "cannot be read"),
        ("redis://host:99999", "cannot be read"),
        ("redis://", "names no host"),
        ("redis://host/games", "database number"),
        ("redis://host?decode_responses=yes", "'decode_responses'"),
        ("redis://host?db=x", "wrong value"),
        ("unix://", "names no socket"),
    ],
)
def test_what_is_no_url_is_refused_without_being_shown(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Server(url)
    assert "battery" not in str(caught.value)
    assert "horse" not in str(caught.value)


def test_addresses() -> None:
    assert Server("redis://u:p@host").address == "host:6379"
    assert Server("rediss://[::1]:7000/3").address == "[::1]:7000"
    assert Server("unix:///run/redis.sock").address == "/run/redis.sock"


def test_a_local_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with RedisServer(tmp_path / "r", unixsocket=str(path)):
        assert Server(f"unix://{path}?db=1").check().version


def test_nobody_there_and_no_such_host() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(LinkError, match="nothing listens there"):
            Server(f"redis://127.0.0.1:{bound.getsockname()[1]}").check()
    with pytest.raises(LinkError, match=r"no host has that name|no way to that host"):
        Server("redis://no-such-host.invalid").check()


def test_somebody_who_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(LinkError, match="does not answer in time"):
        Server(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeout=0.2).check()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_may_delete_streams_is_refused(redis_server: RedisServer, policy: str) -> None:
    client = redis_server.client()
    client.config_set("maxmemory-policy", policy)
    client.close()
    with pytest.raises(LinkError, match=f"maxmemory-policy {policy}.*noeviction"):
        redis_server.server().check()
    with pytest.raises(LinkError, match=policy):
        Pipe(redis_server.server(), KEYS)


def test_a_volatile_policy_is_accepted(redis_server: RedisServer) -> None:
    client = redis_server.client()
    client.config_set("maxmemory-policy", "volatile-lru")
    client.close()
    assert redis_server.server().check().policy == "volatile-lru"


class Told:
    """A client whose server says what the test wants."""

    def __init__(self, **told: Any) -> None:
        self._told = told

    def info(self) -> dict[str, Any]:
        return {"redis_version": "7.2.4", "run_id": "r", **self._told}

    def config_get(self, name: str) -> dict[str, str]:
        raise exceptions.NoPermissionError("NOPERM this user has no permissions to run 'config|get'")


def test_old_servers_and_replicas_are_refused_and_silence_about_limits_is_not() -> None:
    for version in ("5.0.14", "6.0.9", "2.8"):
        with pytest.raises(LinkError, match=f"version {version}.*6.2 or later"):
            check(Told(redis_version=version), "h:1")  # type: ignore[arg-type]
    with pytest.raises(LinkError, match="replica"):
        check(Told(role="slave"), "h:1")  # type: ignore[arg-type]
    for version in ("6.2.0", "7.0.15", "8.0.1", "10.1"):
        assert check(Told(redis_version=version), "h:1").most_bulk == DEFAULT_BULK_BYTES  # type: ignore[arg-type]


@contextmanager
def tls_front(certificate: trustme.LeafCert, port: int) -> Iterator[int]:
    """TLS on a port of its own, in front of the plain server on ``port``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    open_ones: list[socket.socket] = []
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def serve(plain: socket.socket) -> None:
        try:
            outside = context.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()
            return
        inside = socket.create_connection(("127.0.0.1", port))
        open_ones.extend((outside, inside))
        back = threading.Thread(target=carry, args=(inside, outside))
        back.start()
        carry(outside, inside)
        back.join()

    def accept() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(plain,))
            threads.append(thread)
            thread.start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(10.0)
        for thread in threads:
            thread.join(10.0)
        for one in (*open_ones, listener):
            one.close()


def test_tls_with_the_right_authority_and_in_words_without(redis_server: RedisServer, tmp_path: Path) -> None:
    right, wrong = trustme.CA(), trustme.CA()
    for authority, name in ((right, "right.pem"), (wrong, "wrong.pem")):
        authority.cert_pem.write_to_path(str(tmp_path / name))
    with tls_front(right.issue_cert("127.0.0.1"), redis_server.port) as port:
        there = f"127.0.0.1:{port}"
        server = Server(f"rediss://{there}?ssl_ca_certs={tmp_path / 'right.pem'}")
        assert server.check().version
        pipe = Pipe(server, KEYS)
        pipe.send([command("SET", "k", more=1) + b"$1000000\r\n", bytes(1_000_000), b"\r\n"], 1)
        assert pipe.drain() == [b"OK"]
        assert pipe.ask("STRLEN", "k") == 1_000_000
        pipe.close()
        for query in (f"?ssl_ca_certs={tmp_path / 'wrong.pem'}", ""):
            with pytest.raises(LinkError, match=r"not trusted here.*ssl_ca_certs"):
                Server(f"rediss://{there}{query}").check()
        with pytest.raises(LinkError, match="expects TLS, use rediss://"):
            Server(f"redis://{there}", timeout=2.0).check()
        with pytest.raises(LinkError, match="not there"):
            Server(f"rediss://{there}?ssl_ca_certs={tmp_path / 'absent.pem'}").check()
    elsewhere = right.issue_cert("elsewhere.example")
    with tls_front(elsewhere, redis_server.port) as port, pytest.raises(LinkError, match="not trusted here"):
        Server(f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path / 'right.pem'}").check()


def test_tls_to_every_node_of_a_cluster(tmp_path: Path) -> None:
    """Each node is where the cluster says, which here is a front of it."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    with (
        RedisServer(tmp_path / "redis", binary=binaries()[-1], cluster_enabled="yes") as node,
        tls_front(authority.issue_cert("127.0.0.1"), node.port) as port,
        node.client() as client,
    ):
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        client.config_set("cluster-announce-port", port)
        client.config_set("cluster-announce-ip", "127.0.0.1")
        server = Server(f"rediss+cluster://127.0.0.1:{port}?ssl_ca_certs={tmp_path / 'authority.pem'}")
        wait_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        assert server.check().version
        lease = LearnerLease.take(server, a_record())
        lease.leave()
        with pytest.raises(LinkError, match="not trusted here"):
            Server(f"rediss+cluster://127.0.0.1:{port}").check()


def test_tls_to_a_server_without(redis_server: RedisServer) -> None:
    with pytest.raises(LinkError, match="does not speak TLS"):
        Server(f"rediss://127.0.0.1:{redis_server.port}", timeout=1.0).check()


def test_errors_in_words() -> None:
    for error, words in [
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), "is full"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "is loading"),
        (exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "cannot write its snapshots"),
        (exceptions.ResponseError("NOPERM no permission"), "does not allow this user"),
        (exceptions.ConnectionError("max number of clients reached"), "maxclients"),
        (exceptions.ResponseError("unknown command 'AUTH', with args beginning with: 'hidden'"), "lacks a command"),
        (exceptions.TimeoutError("Timeout reading from socket"), "does not answer in time"),
        (OSError("odd"), "h:1: odd"),
    ]:
        told = explain(error, "h:1")
        assert words in str(told)
        assert "hidden" not in str(told)
    assert explain(told, "h:1") is told


def test_back_off_grows_to_its_limit_and_starts_again() -> None:
    backoff = Backoff()
    waits = [backoff.next() for _ in range(12)]
    assert waits[0] <= 0.05
    assert all(0.0 < wait <= 2.0 for wait in waits)
    assert waits[-1] >= 1.5
    backoff.reset()
    assert backoff.next() <= 0.05


def test_a_pipe_does_not_connect_anew_by_itself(redis_server: RedisServer) -> None:
    pipe = Pipe(redis_server.server(), KEYS)
    redis_server.restart(keep_data=False)
    with pytest.raises(exceptions.ConnectionError):
        pipe.ask("PING")
    with pytest.raises(exceptions.ConnectionError):
        pipe.ask("PING")
    pipe.close()
