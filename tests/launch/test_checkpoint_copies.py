"""Runs whose checkpoints are copied to an object store, and that go on from there on a fresh machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, small

import apexrl
from apexrl import api
from apexrl.config import Config, StopConfig
from apexrl.errors import ConfigError, HeldError, LinkError
from apexrl.launch.checkpoint_copies import CheckpointCopies, Mirror, bring_newer, restore_run
from apexrl.launch.contained_observers import contained, pass_on_news
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import RunLock
from apexrl.run.status import RunStatus
from failing_store import FailingStore


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "r").mkdir()
    folder = RunFolder(tmp_path / "r")
    folder.write_config(Config())
    folder.generations.begin()
    return folder


@pytest.fixture(autouse=True)
def url(tmp_path: Path) -> Iterator[str]:
    """A store of this test's own: threads of others may still write."""
    FailingStore.begin()
    yield f"failing://{tmp_path.name}"
    FailingStore.hold.set()


def save(folder: RunFolder, updates: int) -> None:
    checkpoint.save(folder.checkpoints, {"w": np.full(3, updates, np.float32)}, {"updates": updates})


def newest(tmp_path: Path, name: str) -> tuple[int, int]:
    """Of what is in the store now."""
    bring_newer(f"failing://{tmp_path.name}", tmp_path / name / "r")
    found = checkpoint.latest(tmp_path / name / "r" / "checkpoints")
    return (found and checkpoint.numbers_of(found)) or (0, 0)


def test_a_store_that_fails_is_told_once_counted_and_tried_again(url: str, folder: RunFolder, tmp_path: Path) -> None:
    copies, watcher = CheckpointCopies(url), Watcher()
    observers = contained([copies, watcher])
    FailingStore.refuse = staticmethod(lambda path: True)
    copies.started(Config(), folder.path)
    save(folder, 1)
    wait_for(lambda: copies.dropped["checkpoint_copies"] >= 2)
    FailingStore.refuse = staticmethod(lambda path: "manifest" in path)  # the objects come, and nothing names them
    failed = copies.dropped["checkpoint_copies"]
    copies.event("checkpoint", {})
    wait_for(lambda: copies.dropped["checkpoint_copies"] > failed)
    assert newest(tmp_path, "a") == (0, 0)
    FailingStore.refuse = staticmethod(lambda path: False)
    copies.event("checkpoint", {})
    wait_for(lambda: newest(tmp_path, "b") == (0, 1))
    wait_for(lambda: len(copies._news) == 2)
    pass_on_news(observers, time.monotonic())
    told = [text for text in watcher.texts if "copy" in text or "copied" in text]
    assert len(told) == 2
    assert "could not be copied" in told[0]
    assert "has a copy again, after" in told[1]
    save(folder, 2)
    copies.finished({})
    assert newest(tmp_path, "c") == (0, 2)


def test_a_store_that_hangs_holds_nobody_up(url: str, folder: RunFolder) -> None:
    copies = CheckpointCopies(url, last_seconds=0.3)
    copies.started(Config(), folder.path)
    save(folder, 1)
    FailingStore.hold.clear()
    began = time.monotonic()
    for _ in range(1000):
        copies.event("checkpoint", {})
        copies.update(RunStatus())
    copies.finished({})
    assert time.monotonic() - began < 20.0
    assert "took no last copy within" in copies.take_news()[-1][0]


def test_one_whose_run_another_process_has_copies_nothing_any_more(url: str, folder: RunFolder, tmp_path: Path) -> None:
    copies = CheckpointCopies(url)
    copies.started(Config(), folder.path)
    wait_for(lambda: newest(tmp_path, "a") == (0, 0) and (tmp_path / "a" / "r" / "config.toml").exists())
    RunFolder(folder.path).generations.begin()
    save(folder, 1)
    copies.finished({})
    assert newest(tmp_path, "b") == (0, 0)


def test_a_mirror_follows(url: str, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.launch.checkpoint_copies._MIRROR_SECONDS", 0.1)
    copies, there = CheckpointCopies(url), tmp_path / "there" / "r"
    mirror = Mirror(url, there)
    copies.started(Config(), folder.path)
    for updates in (1, 2):
        save(folder, updates)
        wait_for(lambda updates=updates: checkpoint.latest(there / "checkpoints") is not None
                 and checkpoint.numbers_of(checkpoint.latest(there / "checkpoints")) == (0, updates))  # fmt: skip
    told: list[str] = []
    save(folder, 3)
    copies.finished({})
    mirror.finish(lambda text, level: told.append(text))
    assert checkpoint.numbers_of(checkpoint.latest(there / "checkpoints") or there) == (0, 3)
    assert not mirror.trouble


def test_a_run_goes_on_from_its_copies_on_a_fresh_machine(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    config = replace(small(tmp_path / "a", stop=StopConfig(env_steps=600)), serial=True)
    first = api.run(config, checkpoint_url=url)
    run = apexrl.resume(f"{url}/run", out=str(tmp_path / "b"), env_steps=900, show=False)
    assert run.path == tmp_path / "b" / "run"
    assert run.summary["env_steps"] >= 900
    assert run.summary["updates"] > first.summary["updates"] > 0
    assert run.summary["wall_seconds"] > first.summary["wall_seconds"]
    assert "checkpoint_copies" not in run.summary["dropped"]
    lock = RunLock(run.path)
    with pytest.raises(HeldError):  # of the folder that it would be brought to
        restore_run(f"{url}/run", str(tmp_path / "b"))
    lock.close()
    with pytest.raises(ConfigError, match="holds no copy of a run"):
        apexrl.resume(f"{url}/other", out=str(tmp_path / "d"))
    assert not (tmp_path / "d" / "other").exists()


@pytest.mark.long
def test_the_same_command_goes_on_wherever_it_is_repeated(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    config = replace(small(tmp_path / "a", stop=StopConfig(env_steps=600)), serial=True)
    first = api.run(config, checkpoint_url=url, resume_or_start=True)
    again = api.run(
        replace(config, out=str(tmp_path / "c"), stop=StopConfig(env_steps=1200)),
        checkpoint_url=url,
        resume_or_start=True,
    )
    assert again.summary["updates"] > first.summary["updates"]
    stale = api.run(replace(config, stop=StopConfig(env_steps=1200)), checkpoint_url=url, resume_or_start=True)
    assert stale.summary["updates"] >= again.summary["updates"]  # the newest, and not what that folder had


def test_a_store_that_cannot_be_written_is_refused_before_anything_starts(url: str, tmp_path: Path) -> None:
    FailingStore.refuse = staticmethod(lambda path: True)
    with pytest.raises(LinkError, match="cannot be written"):
        api.run(replace(small(tmp_path), serial=True), checkpoint_url=url)
    assert not (tmp_path / "run").exists()
