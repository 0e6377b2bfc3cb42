"""A process that has imported PyTorch once for a whole test session: fork servers are forked from it.

Each would import it anew, in seconds. What a fork server then is and does is the same; that one starts in an
interpreter of its own is for ``test_fork_server`` and for all tests that run the command.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

_LONGEST_ANSWER_SECONDS = 100.0  # the first one imports PyTorch


class Warm:
    """The session's side. ``start`` stands for ``apexrl.launch.fork_client.start``."""

    def __init__(self) -> None:
        from apexrl.launch.fork_client import PRELOAD
        from apexrl.launch.fork_server import SINGLE_THREADED

        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(_LONGEST_ANSWER_SECONDS)
        path = [os.path.dirname(__file__), *(entry for entry in sys.path if entry)]
        serve = f"serve({theirs.fileno()}, {list(PRELOAD)!r})"
        code = f"import sys; sys.path[:] = {path!r}; import preloaded_process; preloaded_process.{serve}"
        environment = dict(os.environ) | dict.fromkeys(SINGLE_THREADED, "1")
        with theirs:
            line = [sys.executable, "-c", code]
            self._process = subprocess.Popen(line, pass_fds=[theirs.fileno()], env=environment, process_group=0)

    def start(
        self, control: int, path: Sequence[str], preload: Sequence[str], output: int, environment: Mapping[str, str]
    ) -> Forked:
        request = {"path": list(path), "preload": list(preload), "cwd": os.getcwd(), "environment": dict(environment)}
        socket.send_fds(self._ours, [json.dumps(request).encode()], [control, output])
        answer, descriptors, _, _ = socket.recv_fds(self._ours, 64, 1)
        return Forked(int(answer), descriptors[0])

    def close(self) -> None:
        self._ours.close()
        self._process.wait(10.0)


class Forked:
    """What ``subprocess.Popen`` is to a child, to a process that another one has forked."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor  # a pidfd: readable once the process has ended

    def wait(self, timeout: float | None = None) -> None:
        if not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a fork server", timeout or 0.0)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self._descriptor)


def serve(control: int, preload: Sequence[str]) -> None:
    """Import, then fork whatever is asked for, until the session ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    for module in preload:
        importlib.import_module(module)
    sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=control) as asked:
        while True:
            body, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 2)
            if not body:
                return
            if (pid := os.fork()) == 0:
                _become(json.loads(body), *descriptors)
            handle = os.pidfd_open(pid)
            socket.send_fds(asked, [str(pid).encode()], [handle])
            for descriptor in (*descriptors, handle):
                os.close(descriptor)


def _become(request: dict[str, Any], control: int, output: int) -> None:
    """In the child: a fork server, as if it had been started."""
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, standard in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, standard)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != control and os.path.exists(f"/proc/self/fd/{descriptor}"):
                os.close(descriptor)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.path[:] = request["path"]
        importlib.invalidate_caches()
        fork_server: Any = importlib.import_module("apexrl.launch.fork_server")
        fork_server.serve(socket.socket(fileno=control), request["preload"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
