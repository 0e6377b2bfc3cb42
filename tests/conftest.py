from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from preloaded_process import Warm
    from redis_server import RedisServer

os.environ.setdefault("OMP_NUM_THREADS", "1")

# Who starts the tests in the background may have signals ignored, which processes inherit; apexrl leaves them so.
for _number, _default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)

# A busy machine says nothing of the code.
settings.register_profile("apexrl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("apexrl")


LONG_SECONDS = 1800
"""Of one test that is marked as long, on a loaded machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: the garbage collector need not look through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """What an earlier test has set in this process holds no longer."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process draw none at their end, which takes a second; a module that looks at them overrides this."""
    for name in ("apexrl.api", "apexrl.remote_api"):
        if name in sys.modules:
            monkeypatch.setattr(sys.modules[name], "drawn", lambda *_: nullcontext())


@pytest.fixture(autouse=True)
def _no_leftovers_in_shm():
    """Whatever a test does, nothing of ours may lie in /dev/shm afterwards."""

    def names():
        found = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
        return {name for name in found if "apexrl" in name}

    before = names()
    yield
    deadline = time.monotonic() + 10.0
    while (left := names() - before) and time.monotonic() < deadline:  # another test's names lie there for a moment
        time.sleep(0.02)
    assert not left


@pytest.fixture(scope="session")
def warm() -> Iterator[Callable[[], Warm]]:
    """The process from which fork servers are forked; it begins when it is first wanted."""
    made: list[Warm] = []

    def get() -> Warm:
        from preloaded_process import Warm

        made.extend([] if made else [Warm()])
        return made[0]

    yield get
    for process in made:
        process.close()


@pytest.fixture(autouse=True)
def _warm_fork_servers(warm: Callable[[], Warm], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork servers of this process need not import PyTorch each."""
    module = sys.modules.get("apexrl.launch.fork_client")
    if module is not None and hasattr(os, "pidfd_open"):
        monkeypatch.setattr(module, "start", lambda *request: warm().start(*request))


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A fresh server without persistence."""
    from redis_server import RedisServer  # other tests need no redis

    with RedisServer(tmp_path / "redis") as server:
        yield server
