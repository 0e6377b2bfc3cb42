from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Callable

import pytest

from apexrl.errors import WorkerError
from apexrl.launch import fork_client
from apexrl.launch.fork_client import Died, ForkClient
from apexrl.launch.unnamed_file import unnamed_file

START = fork_client.start


@pytest.fixture(autouse=True)
def _own_interpreter(_warm_fork_servers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers here start as they do elsewhere."""
    monkeypatch.setattr(fork_client, "start", START)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_module_that_cannot_be_imported_is_named() -> None:
    server = ForkClient(["no_such_module_at_all"])
    try:
        with pytest.raises(WorkerError, match="no_such_module_at_all"):
            wait_for(lambda: bool(server.events()))
    finally:
        server.close()


def test_it_ends_when_its_maker_lets_go() -> None:
    server = ForkClient([])
    assert wait_for(lambda: server.events() == [] and server.ready)
    pid = server.pid
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    server.close()  # again is fine


def test_many_requests_in_a_row_do_not_wait_for_one_another() -> None:
    """What the server says of the first ones fills its socket while the last ones fill ours."""
    server, work, asked, died = ForkClient([], patience=60.0), pickle.dumps((print, ())), 400, 0
    ours, theirs = socket.socketpair()

    def all_died() -> bool:
        nonlocal died
        died += sum(isinstance(event, Died) and not event.status for event in server.events())
        return died == asked

    try:
        with open(os.devnull, "w") as nowhere, ours, theirs:
            for ticket in range(asked):
                server.fork(ticket, work, f"test/{ticket}", theirs, nowhere.fileno())
            assert wait_for(all_died)
    finally:
        server.close()


def refused(*_: object) -> int:
    raise PermissionError


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no files in memory")
@pytest.mark.parametrize(("where", "absent"), [("tempfile.tempdir", "/nowhere"), ("os.memfd_create", refused)])
def test_either_memory_or_a_folder_for_temporary_files_is_needed(
    where: str, absent: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, absent)
    with unnamed_file() as file:
        file.write(b"written")
        file.seek(0)
        assert file.read() == b"written"
