"""Several hosts on one machine: network namespaces, each with an address of its own, joined by a bridge.

    with Network(3) as hosts:
        hosts[0].popen(["redis-server", "--bind", hosts[0].address])
        hosts[1].run(["redis-cli", "-h", hosts[0].address, "ping"])
        hosts[1].plug(False)    # its cable is pulled: packets vanish, connections stay

The bridge has a namespace of its own too: nothing appears among this machine's interfaces, so addresses collide with
nobody's. Names hold the maker's process id and when it started; what a maker that was killed has left, processes
included, is removed when the next network is made.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

PREFIX = "apexrl"  # of the names of namespaces; what others leave under another prefix is not looked at
_numbers = count()


@cache
def available() -> str:
    """Why there can be no network namespaces here; empty when there can."""
    if shutil.which("ip") is None:
        return "there is no ip command (package iproute2)"
    try:
        with Network(1):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or str(error)
        return f"network namespaces are not allowed here: {told.strip()}"


class Host:
    """One namespace: ``address`` is what the others reach it at."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.prefix = ("ip", "netns", "exec", name)

    def run(self, words: Sequence[str], timeout: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end; its output is text."""
        return subprocess.run([*self.prefix, *words], text=True, capture_output=True, timeout=timeout, **options)

    def popen(self, words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command there, in a process group of its own; its pid is the command's own."""
        return subprocess.Popen([*self.prefix, *words], **{"start_new_session": True, **options})

    def plug(self, plugged: bool) -> None:
        """Pull the cable, or put it back: nobody is told, connections stay and wait."""
        _ip("-n", self.name, "link", "set", "eth0", "up" if plugged else "down")


class Network:
    """``hosts`` namespaces, 10.77.0.1 and on, joined by a bridge.

    Raises:
        OSError, subprocess.CalledProcessError: not allowed here; see :func:`available`.
    """

    def __init__(self, hosts: int) -> None:
        remove_stale()
        stem = f"{PREFIX}-{os.getpid()}-{_began(os.getpid())}-{next(_numbers)}"
        self._switch = f"{stem}-switch"
        self.hosts = [Host(f"{stem}-{n}", f"10.77.0.{n + 1}") for n in range(hosts)]

    def __enter__(self) -> list[Host]:
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "bridge", "up")
            for number, host in enumerate(self.hosts):
                self._join(host, f"port{number}")
        except BaseException:
            self.close()
            raise
        return self.hosts

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill what runs there and remove the namespaces."""
        for name in (*(host.name for host in self.hosts), self._switch):
            _remove(name)

    def _join(self, host: Host, port: str) -> None:
        _ip("netns", "add", host.name)
        veth = ("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.name)
        _ip("-n", self._switch, *veth)
        _ip("-n", self._switch, "link", "set", port, "master", "bridge", "up")
        _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", host.name, "link", "set", "eth0", "up")
        _ip("-n", host.name, "link", "set", "lo", "up")


def remove_stale() -> list[str]:
    """Remove the namespaces, and end the processes in them, whose maker is gone; their names."""
    stale = []
    for name in _names():
        made_by = re.fullmatch(rf"{PREFIX}-(\d+)-(\d+)-\d+-\w+", name)
        if made_by and _began(int(made_by[1])) != int(made_by[2]):
            _remove(name)
            stale.append(name)
    return stale


def _names() -> list[str]:
    folder = Path("/run/netns")
    return sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []


def _remove(name: str) -> None:
    if name not in _names():
        return
    inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, timeout=10, check=False)
    for pid in map(int, inside.stdout.split()):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=10, check=False)


def _began(pid: int) -> int:
    """When the process started, in the kernel's ticks: a process id alone may be another's by now. 0: it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=10)
