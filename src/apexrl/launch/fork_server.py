"""The fork server: a process that has imported PyTorch once, and forks every worker.

A worker then starts in milliseconds and shares the imported pages. As the parent of all workers the server learns from
the kernel when one ends. When the supervisor's end of the socket closes, even by ``kill -9``, it kills every worker
with its process group and ends. Simulators that left their group are found by a tag in their environment.

Protocol (a local stream socket): ``>I`` length, then a pickled ``Birth``; descriptors are sent along. The answers are
JSON lines ``{"event": "ready" | "born" | "died" | "failed", …}``.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

TAG = "APEXRL_WORKER"
"""Environment variable by which a simulator started by a worker is recognised, wherever it went."""

SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Environment variables that are 1 here: many processes, one thread each. The learner asks PyTorch for more."""

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_BEAT_SECONDS = 1.0
_LAST_SECONDS = 2.0  # at the end, how long to wait for killed workers to be gone


class Birth(NamedTuple):
    """A request for one worker: ``work`` unpickles to ``(function, args)``, called as ``function(channel, *args)``."""

    ticket: int
    work: bytes
    tag: str


def serve(control: socket.socket, preload: Sequence[str]) -> None:
    """Run the server until the supervisor ends."""
    _adopt_orphans()
    _name_process("apexrl-starter")
    gc.disable()  # what is imported stays: looking for garbage in it was a sixth of the import
    for module in preload:
        importlib.import_module(module)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # no thread pool may exist when forking
    gc.collect()
    gc.freeze()  # keeps the collector from writing to (and so unsharing) the pages imported here
    gc.enable()
    _Server(control).run()


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._parent = os.getppid()
        self._workers: dict[int, Birth] = {}  # pid -> its birth
        self._tags: set[str] = set()
        self._next_beat = 0.0
        self._lifeline, self._held = os.pipe()  # closes at our death, however we die: workers then end themselves
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._hangup = signal.getsignal(signal.SIGHUP)  # ignored: so it is to stay, in workers too
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the supervisor decides; without it we end by ourselves

    def run(self) -> None:
        try:
            self._say(event="ready")
            while os.getppid() == self._parent:
                readable, _, _ = select.select([self._control.fileno(), self._wake_read], [], [], _BEAT_SECONDS)
                if self._wake_read in readable:
                    os.read(self._wake_read, 4096)
                self._reap()
                self._beat()
                if self._control.fileno() in readable and not self._answer():
                    break
        except (BrokenPipeError, ConnectionError):
            pass  # the supervisor is gone
        finally:
            self._end()

    def _answer(self) -> bool:
        """One request; False at the end of the conversation."""
        header, descriptors, _, _ = socket.recv_fds(self._control, 4, 2)
        header += _exactly(self._control, 4 - len(header)) if header else b""
        if len(header) < 4:
            return False
        body = _exactly(self._control, struct.unpack(">I", header)[0])
        if not body:
            return False
        birth = Birth(*pickle.loads(body))
        self._tags.add(birth.tag)
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            self._say(event="failed", ticket=birth.ticket, error=str(error))
        else:
            if pid == 0:
                self._become_worker(birth, descriptors)
            self._workers[pid] = birth
            _set_group(pid)  # parent and child both do, so that neither has to wait for the other
            self._say(event="born", ticket=birth.ticket, pid=pid)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _become_worker(self, birth: Birth, descriptors: list[int]) -> None:
        """In the child: become a worker and never return."""
        status = 1
        try:
            _set_group(0)
            signal.set_wakeup_fd(-1)
            for descriptor in (self._wake_read, self._wake_write, self._held):
                os.close(descriptor)
            self._control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGHUP, self._hangup)
            os.environ[TAG] = birth.tag
            _name_process("apexrl-" + birth.tag.rpartition("/")[2].partition(".")[0])
            channel = socket.socket(fileno=descriptors[0])
            for standard in (1, 2):
                os.dup2(descriptors[1], standard)
            os.close(descriptors[1])
            _follow(self._lifeline)
            function, args = pickle.loads(birth.work)
            status = int(function(channel, *args) or 0)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def _reap(self) -> None:
        """Reap ended workers, and kill processes that they left running."""
        ended: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            ended.append((pid, status))
        dead = [(self._workers.pop(pid), pid, status) for pid, status in ended if pid in self._workers]
        for _, pid, _ in dead:
            _kill_group(pid)
        if dead:
            _kill_tagged({birth.tag for birth, _, _ in dead})
        for birth, pid, status in dead:
            self._say(event="died", ticket=birth.ticket, pid=pid, status=os.waitstatus_to_exitcode(status))

    def _beat(self) -> None:
        """A sign of life, about once a second; a supervisor that does not listen is not waited for."""
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + _BEAT_SECONDS
            with suppress(BlockingIOError):
                self._control.send(b'{"event": "alive"}\n', socket.MSG_DONTWAIT)

    def _say(self, **event: Any) -> None:
        self._control.sendall(json.dumps(event).encode() + b"\n")

    def _end(self) -> None:
        """Kill every worker and what it left running."""
        for pid in self._workers:
            _kill_group(pid)
        deadline = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < deadline:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break  # everybody is gone
            if pid == 0:
                _kill_tagged(self._tags)
                time.sleep(0.01)


def _exactly(control: socket.socket, count: int) -> bytes:
    """``count`` bytes, or nothing at the end of the conversation."""
    chunks = bytearray()
    while len(chunks) < count:
        chunk = control.recv(count - len(chunks))
        if not chunk:
            return b""
        chunks += chunk
    return bytes(chunks)


def _set_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone already, or it has done so itself
        os.setpgid(pid, pid)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _kill_tagged(tags: set[str]) -> None:
    """Kill adopted orphans that carry one of ``tags``; again, since each death may bring its children to us."""
    marks = [f"{TAG}={tag}".encode() for tag in tags]
    for _ in range(16):
        found = [pid for pid in _children() if any(mark in _environment(pid) for mark in marks)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def _children() -> list[int]:
    """Our children by the kernel's list; empty where there is none (not Linux)."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _adopt_orphans() -> None:
    """Linux: descendants whose parent died become our children, so that they can be found."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _name_process(name: str) -> None:
    """Linux: what ``ps -o comm`` and ``top`` show, cut to 15 bytes by the kernel."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _follow(lifeline: int) -> None:
    """A worker ends with the fork server: a thread waits for the lifeline to close and kills the worker's group."""
    import threading

    def wait() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
