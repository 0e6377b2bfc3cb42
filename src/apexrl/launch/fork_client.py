"""The supervisor's client of the fork server: starts it, requests workers, and hears of their ends."""

from __future__ import annotations

import json
import math
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from apexrl.agents import AGENTS
from apexrl.config import Config
from apexrl.errors import WorkerError
from apexrl.launch.fork_server import SINGLE_THREADED, Birth
from apexrl.launch.unnamed_file import unnamed_file

PRELOAD = (
    "torch",
    "gymnasium",
    "apexrl.envs",
    "apexrl.launch.probe",
    "apexrl.launch.worker_process",
    "apexrl.replay",
    "apexrl.roles",
    "apexrl.shared.weights_board",
)
"""What the fork server imports before the first worker, whatever the run."""

_LOOK_SECONDS = 1.0


class Born(NamedTuple):
    """A worker has started, as leader of the process group ``pid``."""

    ticket: int
    pid: int


class Died(NamedTuple):
    """A worker's end. ``status``: exit code, or minus the signal's number. ``error``: why it could not start."""

    ticket: int
    status: int
    error: str = ""


def start(
    control: int, path: Sequence[str], preload: Sequence[str], output: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start ``serve`` in an interpreter of its own.

    Args:
        control: descriptor of its end of the socket.
        path: its ``sys.path``.
        preload: modules that it imports.
        output: descriptor to which it prints.
        environment: its variables, and its workers'.
    """
    code = (
        f"import sys; sys.path[:] = {list(path)!r}; import socket; from apexrl.launch.fork_server import serve; "
        f"serve(socket.socket(fileno={control}), {list(preload)!r})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[control],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        process_group=0,  # Ctrl-C in the terminal is the supervisor's to handle
    )


class ForkClient:
    """Starts the fork server, asks it for workers, and hears of their deaths. Used by one thread only.

    Args:
        preload: modules that the server imports.
        patience: seconds that a request waits for a server that takes none; 0: for ever.
    """

    def __init__(self, preload: Sequence[str], patience: float = 0.0) -> None:
        self.beats = 0  # signs of life
        self._patience = patience or math.inf

        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._buffer = b""
        self.ready = False
        self._complaints = unnamed_file()  # lives as long as the server
        path = [entry or os.getcwd() for entry in sys.path]
        environment = dict(os.environ) | dict.fromkeys(SINGLE_THREADED, "1")
        self._process = start(theirs.fileno(), path, preload, self._complaints.fileno(), environment)
        theirs.close()
        self._ours.setblocking(False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """For ``select``: readable when there is an event."""
        return self._ours.fileno()

    def fork(self, ticket: int, work: bytes, tag: str, channel: socket.socket, output: int) -> None:
        """Ask for a worker; ``channel`` is its end of the message socket, ``output`` the descriptor of its log."""
        body = pickle.dumps(tuple(Birth(ticket, work, tag)))
        deadline = time.monotonic() + self._patience
        descriptors = [channel.fileno(), output]
        self._send(lambda: socket.send_fds(self._ours, [struct.pack(">I", len(body))], descriptors), deadline)
        while body:
            body = body[self._send(partial(self._ours.send, body), deadline) :]

    def _send(self, send: Callable[[], int], deadline: float) -> int:
        """Send some bytes, and answer how many. Meanwhile the server is heard: it takes nothing while it has to wait
        until somebody reads what it says of those it has started."""
        while True:
            try:
                return send()
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0.0:
                    raise WorkerError(
                        f"the process that starts workers has taken no request for {self._patience:g} s "
                        "(--stall-timeout)"
                    ) from None
                readable, _, _ = select.select([self._ours], [self._ours], [], min(left, _LOOK_SECONDS))
                if readable:
                    self._hear()

    def events(self) -> list[Born | Died]:
        """Births and deaths since the last call, in order.

        Raises:
            WorkerError: the server itself has ended, and with it every worker.
        """
        self._hear()
        news: list[Born | Died] = []
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            event = json.loads(line)
            match event["event"]:
                case "ready":
                    self.ready = True
                case "born":
                    news.append(Born(event["ticket"], event["pid"]))
                case "died":
                    news.append(Died(event["ticket"], event["status"]))
                case "failed":
                    news.append(Died(event["ticket"], 1, event["error"]))
        return news

    def _hear(self) -> None:
        """Take what the server says.

        Raises:
            WorkerError: it has ended.
        """
        while True:
            try:
                data = self._ours.recv(65536)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                raise WorkerError(
                    "the process that starts workers has ended, and they with it: apexrl resume goes on from the last "
                    f"checkpoint, if there is one.\n{self.complaints()}".rstrip()
                )
            self._buffer += data
            self.beats += 1

    def complaints(self) -> str:
        """What the server printed."""
        size = self._complaints.seek(0, os.SEEK_END)
        self._complaints.seek(max(0, size - 4000))
        return self._complaints.read().decode(errors="replace")

    def close(self, timeout: float = 5.0) -> None:
        """End the server and with it every worker that still lives; one that was stopped goes on, to do so."""
        self._ours.close()
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGCONT)
        try:
            self._process.wait(timeout)
        except Exception:
            self._process.kill()
            self._process.wait()
        self._complaints.close()


def preloaded(config: Config) -> tuple[str, ...]:
    """``PRELOAD`` and a shipped agent's module. One of your own is left to the workers, who can say why it fails."""
    shipped = AGENTS.get(config.agent.agent)
    return (*PRELOAD, shipped.where.partition(":")[0]) if shipped else PRELOAD


def pickled(work: Sequence[Any]) -> bytes:
    """Pickle for a local child. ``cloudpickle`` (which Gymnasium brings) also takes lambdas and notebook functions."""
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError:
        return pickle.dumps(work)
    data: bytes = cloudpickle.dumps(work)
    return data
