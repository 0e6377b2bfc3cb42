"""What a role does about a checkpoint that cannot be written."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from apexrl.agents import agent_class, with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.envs import make_vector
from apexrl.errors import FencedError, SnapshotError, SpecError
from apexrl.protocols import NORMALIZER
from apexrl.replay import Batch
from apexrl.roles import checkpointing
from apexrl.roles.checkpointing import Saving, restore
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import Fence, Generations

STATE = {"w": np.ones(3, np.float32)}


def warnings(stage: Any) -> list[str]:
    return [values["text"] for values in stage.values("log") if values.get("level") == "warning"]


class Disk:
    """Stands for the agent's state; where it shall be written, the disk is full, or not."""

    def __init__(self, context: Any) -> None:
        self.error: Exception | None = None
        self.attempts = 0
        self._context = context

    def write(self) -> None:
        self.attempts += 1
        if self.error is not None:
            raise self.error
        checkpointing.write_state(self._context, STATE, keep=2)


def test_a_full_disk_is_told_once_counted_and_tried_again(stage: Any, tmp_path: Path) -> None:
    context = stage.context("learner")
    disk, saving = Disk(context), Saving(context, 60.0, kept=2)
    disk.write()
    disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "checkpoints/x")
    pauses = []
    for _ in range(8):
        begin = context.clock()
        assert not saving.now(disk.write)
        while not saving.due:
            stage.run.totals["env_steps"] += 100
        pauses.append(context.clock() - begin)
    assert pauses[:6] == sorted(pauses[:6])
    assert 3.0 < pauses[0] < 6.0 < 60.0 < pauses[-1] < 301.0
    assert stage.run.totals["failed_checkpoints"] == 8
    (said,) = warnings(stage)
    assert "No space left on device" in said
    assert "room for one more beside the 2 that are kept (--checkpoints-kept)" in said
    assert "update-000000000.safetensors" in said  # the newest good one
    disk.error = None
    assert saving.now(disk.write)
    assert stage.values("log")[-1]["text"] == "learner-0 has written a checkpoint again, after 8 failed attempts"
    assert not saving.due


def test_the_last_one_is_tried_for_a_while_and_then_told_as_lost(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "LAST_SECONDS", 0.2)
    monkeypatch.setattr(checkpointing, "_LAST_PAUSE", 0.01)
    context = stage.context("learner")
    disk, saving = Disk(context), Saving(context, 60.0)
    disk.error = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    saving.last(disk.write)
    assert disk.attempts > 1
    assert stage.run.totals["failed_checkpoints"] == disk.attempts
    (said,) = warnings(stage)
    assert "Permission denied" in said
    assert "No checkpoint was written yet" in said
    assert stage.values("not_saved") == [{"what": "a checkpoint"}]


def test_who_goes_on_from_weights_alone_keeps_their_averages(stage: Any) -> None:
    """A first batch of a few rows must not take their place."""
    config = override(with_agent(Config(), "dqn"), {"normalize_observations": True})
    with closing(make_vector(config.env, 1, 0)) as env:
        spec = env.spec
    agent = agent_class("dqn")(spec, config.agent, "cpu", 0)
    mean = np.full(4, 3.0, np.float32)
    published = {**agent.weights(), f"{NORMALIZER}/mean/observation": mean}
    context = stage.context("learner")
    context.count(updates=72)
    restore(context, agent, SimpleNamespace(latest=lambda: (73, published)))
    zeros = np.zeros((8, 4), np.float32)
    rows = {"reward": np.ones(8, np.float32), "discount": np.ones(8, np.float32), "action": np.zeros(8, np.int64)}
    data = {"observation": zeros, "next_observation": zeros, **rows}
    agent.update(agent.prepare(Batch(data, np.arange(8, dtype=np.uint64), np.ones(8), np.ones(8, np.float32))))
    np.testing.assert_allclose(agent.weights()[f"{NORMALIZER}/mean/observation"], mean * (1 - 1 / 73), rtol=1e-5)


def test_a_learner_restarted_before_its_first_update_begins_with_the_initial_weights_again(
    stage: Any, tmp_path: Path
) -> None:
    """Those that it published are without the number of batches that their averages are of."""
    config = override(with_agent(Config(), "dqn"), {"normalize_observations": True})
    with closing(make_vector(config.env, 1, 0)) as env:
        agent = agent_class("dqn")(env.spec, config.agent, "cpu", 0)
    context = stage.context("learner")
    checkpoint.save_best(RunFolder(tmp_path / "source").checkpoints, agent.weights(), {"updates": 100})
    published = SimpleNamespace(latest=lambda: (1, agent.weights()))
    assert restore(context, agent, published, initial=str(tmp_path / "source")) == 0
    assert agent.state_dict()[f"{NORMALIZER}/optimizer/steps"] == 100
    context.count(updates=1)
    restore(context, agent, SimpleNamespace(latest=lambda: (2, agent.weights())), initial=str(tmp_path / "gone"))


def test_a_loss_says_how_long_it_was_tried(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on with each attempt: disks that hang take longer than they are given."""
    clock = itertools.count(0.0, 6.0)
    monkeypatch.setattr(checkpointing, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    context = stage.context("learner")
    disk = Disk(context)
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    Saving(context, 60.0).last(disk.write)
    assert "It was tried for 12 s, and is lost" in warnings(stage)[0]


def test_a_last_one_that_goes_at_the_second_attempt_is_there(stage: Any, tmp_path: Path) -> None:
    context = stage.context("learner")
    disk = Disk(context)
    disk.error = OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def write() -> None:
        try:
            disk.write()
        finally:
            disk.error = None

    Saving(context, 60.0).last(write)
    assert checkpoint.latest(tmp_path / "checkpoints") is not None
    assert not warnings(stage)


def test_old_ones_give_way_to_the_last_one_of_a_run(stage: Any, tmp_path: Path) -> None:
    context = stage.context("learner")
    folder = tmp_path / "checkpoints"
    for _ in range(3):
        context.count(updates=1)
        checkpointing.write_state(context, STATE, keep=3)
    context.count(updates=1)

    def write() -> None:
        if len(checkpoint.numbered(folder)) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        checkpointing.write_state(context, STATE, keep=3)

    Saving(context, 60.0, kept=3).last(write)
    assert [checkpoint.load(path).metadata["updates"] for path in checkpoint.numbered(folder)] == [3, 4]
    assert not warnings(stage)


def test_a_successors_do_not_give_way(stage: Any, tmp_path: Path) -> None:
    """It begins, and writes, while this process stands still after its look at the fence."""
    folder = tmp_path / "checkpoints"
    context = stage.context("learner")
    fence: Any = Fence(tmp_path, "learner-0", Generations(tmp_path).grant("learner-0"))
    context.fence = fence
    for updates in (1, 2):
        checkpoint.save(folder, STATE, {"updates": updates}, 2, fence)
    tried = []

    def check() -> None:
        fence.check = Fence.check.__get__(fence)
        fence.check()
        successor = Fence(tmp_path, "learner-0", Generations(tmp_path).grant("learner-0"))
        for updates in (1, 2):
            checkpoint.save(folder, STATE, {"updates": updates}, 2, successor)

    def write() -> None:
        tried.append(1)
        if len(tried) == 1:
            fence.check = check
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fence.check()

    with pytest.raises(FencedError):
        Saving(context, 60.0, kept=2).last(write)
    assert [path.name[:15] for path in checkpoint.numbered(folder)] == ["generation-0002", "generation-0002"]


def test_what_is_wrong_with_the_agent_stays_an_error(stage: Any) -> None:
    context = stage.context("learner")
    names = {"names": np.array([object()])}
    with pytest.raises(SpecError, match="names"):
        Saving(context, 60.0).now(lambda: checkpointing.write_state(context, names, keep=1))
    with pytest.raises(SpecError, match="names"):
        Saving(context, 60.0).last(lambda: checkpointing.write_state(context, names, keep=1))


def test_a_run_folder_that_went_away_is_not_made_anew(stage: Any, tmp_path: Path) -> None:
    """Where a disk is to be mounted again, it would lie hidden below."""
    context = stage.context("learner")
    tmp_path.rmdir()
    saving = Saving(context, 60.0)
    assert not saving.now(lambda: checkpointing.write_state(context, STATE, keep=1))
    assert not tmp_path.exists()
    assert "the run folder is gone" in warnings(stage)[0]
    tmp_path.mkdir()
    assert saving.now(lambda: checkpointing.write_state(context, STATE, keep=1))


def test_a_replay_that_cannot_be_written_is_a_warning(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointing, "LAST_SECONDS", 0.0)

    def save(path: Path, check: Callable[[], None]) -> None:
        raise SnapshotError(f"cannot write {path}") from OSError(errno.ENOSPC, "No space left on device")

    checkpointing.save_replay(stage.context("learner"), SimpleNamespace(save=save))
    assert "the replay's snapshot" in warnings(stage)[0]
    assert "room for one more" in warnings(stage)[0]


class Watched:
    """A context that somebody watches from outside: counts its signs of life."""

    def __init__(self, stage: Any) -> None:
        self.context = stage.context("learner")
        self.context.patience = 0.1
        self.context.should_stop = self.beat
        self.beats = 0

    def beat(self) -> bool:
        self.beats += 1
        return False


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not true():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def test_a_write_that_takes_long_costs_no_role_its_life(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "_BEAT_SECONDS", 0.01)
    monkeypatch.setattr(checkpointing, "_SLOW_SECONDS", 0.05)
    watched = Watched(stage)
    saving = Saving(watched.context, 60.0)
    assert saving.now(lambda: until(lambda: watched.beats > 20 and bool(warnings(stage))))
    (said,) = warnings(stage)
    assert "learner-0 has been writing a checkpoint for " in said
    assert not [thread for thread in threading.enumerate() if thread.name == "signs of life"]


def test_a_write_that_never_returns_is_a_standstill_in_the_end(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "_BEAT_SECONDS", 0.01)
    monkeypatch.setattr(checkpointing, "_LONGEST_SECONDS", 0.1)
    watched = Watched(stage)

    def hang() -> None:
        until(lambda: watched.beats > 0)
        until(lambda: not [thread for thread in threading.enumerate() if thread.name == "signs of life"])

    assert Saving(watched.context, 60.0).now(hang)
