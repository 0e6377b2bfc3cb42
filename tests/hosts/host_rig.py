"""A server, a learner's host and actor hosts to run the real command on: in namespaces, or all on the loopback.

    with Places("namespaces", actor_hosts=2, folder=tmp_path, delay_ms=20) as places:
        learner = places.learner("cartpole", "--env-steps", "20000")
        actors = [places.actor(host, "--actors", "1") for host in (0, 1)]
        places.links[0].cut()
        places.server.kill(); places.server.start()
        learner.finish()

The server stands on the learner's host. Every actor host has a relay of its own to it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import redis
from network_namespaces import Host, Network
from tcp_relay import Relay

from apexrl.links.redis.connection import Connection
from apexrl.links.redis.run_listing import RunView, look
from apexrl.links.redis.server import Server
from free_ports import free_port
from redis_server import binaries

Kind = Literal["namespaces", "loopback"]
RUN = "test"
_PR_SET_PDEATHSIG = 1
PATIENCE_SECONDS = 600.0
"""A machine of two cores that others load takes minutes to start a learner and two hosts."""
PASSWORD = "a-password-that-nobody-may-print"


def wait_for(what: str, true: Callable[[], Any], timeout: float = PATIENCE_SECONDS) -> Any:
    """What ``true`` returns as soon as it is something."""
    end = time.monotonic() + timeout
    while not (found := true()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout:g} s")
        time.sleep(0.05)
    return found


class RedisServer:
    """A real server that can be killed and started again; ``client`` reaches it from wherever we are."""

    def __init__(self, host: str, port: int, prefix: Sequence[str], folder: Path, options: Sequence[str]) -> None:
        self.address = (host, port)
        self._socket = str(folder / "redis.sock")
        self._log = folder / "redis.log"
        self._words = [*prefix, binaries()[0], "--bind", host, "--port", str(port), "--dir", str(folder)]
        self._words += ["--unixsocket", self._socket, "--requirepass", PASSWORD, "--save", "", *options]
        self.url = f"unix://:{PASSWORD}@{self._socket}"
        """For processes of this machine, in whatever namespace they are."""
        self.tcp_url = f"redis://:{PASSWORD}@{host}:{port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, stdout=log, stderr=log, start_new_session=True, preexec_fn=_end_with_us
            )
        wait_for(f"redis-server ({self._log})", self._answers)

    def kill(self) -> None:
        """With -9: what it had in memory alone is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def client(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=self._socket, password=PASSWORD, socket_timeout=10)

    def ask(self, *words: str) -> Any:
        """One command, over a connection of its own."""
        with self.client() as client:
            return client.execute_command(*words)

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING"))
        except redis.ConnectionError:  # not there yet, or reading its append-only file
            return False


class Command:
    """A running ``apexrl`` command; all that it says is in ``log``."""

    def __init__(self, words: Sequence[str], log: Path, env: dict[str, str], cwd: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                words, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
                env=env, cwd=cwd, preexec_fn=_end_with_us,
            )  # fmt: skip
        self.pid = self._process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def finish(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Its exit code.

        Raises:
            TimeoutError: it is still there; the message holds the end of what it said.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self.log.name} goes on after {timeout:g} s:\n{self.said[-3000:]}") from None

    def says(self, text: str, timeout: float = PATIENCE_SECONDS) -> None:
        """Wait until it has said this."""

        def heard() -> bool:
            if text in self.said:
                return True
            if not self.running:
                raise AssertionError(f"{self.log.name} ended without saying {text!r}:\n{self.said[-3000:]}")
            return False

        wait_for(f"{self.log.name} says {text!r}", heard, timeout)

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """With -9 and all that it started, as a machine that loses its power."""
        family = [self.pid, *descendants(self.pid)]
        for sign in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: nobody mourns, nobody is started anew
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
        self._process.wait(10)

    def kill_role(self, role: str) -> None:
        """The workers of a role that it has started, with -9."""
        found = [pid for pid in descendants(self.pid) if _comm(pid).startswith(f"apexrl-{role}"[:15])]
        assert found, f"{self.log.name} has no {role}"
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        if self.running:
            self.kill()


class Places:
    """See the module. ``server_options`` are further words of ``redis-server``'s command line."""

    def __init__(
        self, kind: Kind, actor_hosts: int, folder: Path, delay_ms: float = 0.0, server_options: Sequence[str] = ()
    ) -> None:
        self._kind, self._count, self.folder = kind, actor_hosts, folder
        self._delay, self._options = delay_ms, server_options
        self._stack = ExitStack()
        self._started = 0
        self.hosts: list[Host | None] = [None] * (actor_hosts + 1)
        self.links: list[Relay] = []

    def __enter__(self) -> Places:
        with ExitStack() as stack:
            if self._kind == "namespaces":
                self.hosts[:] = stack.enter_context(Network(self._count + 1))
            # a path to a socket has at most 107 bytes
            short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="apexrl-")))
            home = self.hosts[0]
            where = (home.address, 6379) if home else ("127.0.0.1", free_port())
            self.server = RedisServer(*where, home.prefix if home else (), short, self._options)
            stack.callback(self.server.kill)
            self.server.start()
            for host in self.hosts[1:]:
                listen = (host.address, 6379) if host else ("127.0.0.1", free_port())
                link = Relay(self.server.address, listen, self._delay, host.prefix if host else ())
                self.links.append(stack.enter_context(link))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def url(self, actor_host: int | None = None, password: str = PASSWORD) -> str:
        """Of the server, as the learner's host (None) or an actor host reaches it."""
        host, port = self.server.address if actor_host is None else self.links[actor_host].address
        return f"redis://:{password}@{host}:{port}/0"

    def learner(self, preset: str, *flags: str, run: str = RUN, url: str = "") -> Command:
        """``apexrl learner`` on its host."""
        words = ["learner", preset, "--run", run, "--out", str(self.folder / "runs"), *flags]
        return self._command(self.hosts[0], url or self.url(), words)

    def actor(self, host: int, *flags: str, run: str = RUN, url: str = "", **env: str) -> Command:
        """``apexrl actor`` on an actor host, 0 …; ``env`` is added to its environment."""
        words = ["actor", "--run", run, "--out", str(self.folder / "runs"), *flags]
        return self._command(self.hosts[host + 1], url or self.url(host), words, **env)

    def apexrl(self, *words: str, host: int | None = None) -> Command:
        """Any other command with the server's URL, on the learner's host or an actor host."""
        return self._command(self.hosts[0 if host is None else host + 1], self.url(host), list(words))

    @property
    def run_folder(self) -> Path:
        """The learner's."""
        return self.folder / "runs" / RUN

    def look(self, run: str = RUN) -> RunView:
        """The run as its server sees it."""
        connection = Connection(Server(self.server.url))
        try:
            return look(connection, run)
        finally:
            connection.close()

    def summary(self, run: str = RUN) -> dict[str, Any]:
        """What the learner's run left."""
        path = self.folder / "runs" / run / "summary.json"
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return result

    def _command(self, host: Host | None, url: str, words: list[str], **more: str) -> Command:
        self._started += 1
        log = self.folder / f"{self._started}-{words[0]}.log"
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "APEXRL_REDIS_URL": url, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}
        line = [*(host.prefix if host else ()), sys.executable, "-m", "apexrl.cli", *words]
        command = Command(line, log, env, self.folder)
        self._stack.callback(command.close)
        return command


def _end_with_us() -> None:
    """In a child, before it becomes the command: it is killed when the thread that started it ends, however."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _comm(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""


def descendants(pid: int) -> list[int]:
    """Children and theirs, now."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found.extend(parents.get(one, []))
    return found[1:]
