from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from apexrl.errors import WorkerError
from apexrl.launch import fork_client
from apexrl.launch.fork_client import ForkClient

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
