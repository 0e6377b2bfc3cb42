"""Who may write a run folder: the lock that dies with its holder, numbers of generations, and fences."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from apexrl.errors import FencedError, HeldError, LinkError, SnapshotError
from apexrl.run import atomic_files, checkpoint
from apexrl.run.atomic_files import replacing
from apexrl.run.folder import RunFolder
from apexrl.run.ownership import (
    LOCK_FILE,
    REPLACED,
    Fence,
    Generations,
    RunLock,
    held_elsewhere,
    holder,
    introduced,
    lease_clock,
)
from apexrl.spec import ActionSpec, EnvSpec, Field

STATE = {"w": np.zeros(3, np.float32)}

HOLD = """
import os, sys, time
from pathlib import Path
from apexrl.run.ownership import RunLock
lock = RunLock(Path(sys.argv[1]))
if "fork" in sys.argv:  # a child that lives on, as one of multiprocessing's
    if os.fork() == 0:
        time.sleep(60)
print("held", os.getpid(), flush=True)
time.sleep(60)
"""


def hold(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Another process that holds the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *words], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"held")
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_second_holder_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    first = hold(tmp_path)
    try:
        with pytest.raises(HeldError) as caught:
            RunLock(tmp_path)
        text = str(caught.value)
        assert f"process {first.pid} on host {os.uname().nodename} since 20" in text
        assert "stop that one, or choose another --name" in text
    finally:
        end(first)
    RunLock(tmp_path).close()  # killed: the kernel has taken its lock back


def test_a_lock_that_is_not_needed_is_passed_over_and_says_so(tmp_path: Path) -> None:
    first = hold(tmp_path)
    try:
        second = RunLock(tmp_path, needed=False)
        assert f"is still locked by process {first.pid}" in second.trouble
        assert not held_elsewhere(tmp_path)
        second.close()
        told = json.loads((tmp_path / LOCK_FILE).read_text())
        (tmp_path / LOCK_FILE).write_text(json.dumps({**told, "host": "one-that-died"}))
        assert held_elsewhere(tmp_path)
        with pytest.raises(HeldError):
            RunLock(tmp_path)
    finally:
        end(first)
    (tmp_path / LOCK_FILE).write_text("no holder")
    assert not held_elsewhere(tmp_path)  # nobody knows: then it may be one of this host
    alone = RunLock(tmp_path, needed=False)
    assert not alone.trouble
    alone.close()


def test_the_lock_file_holds_no_password_and_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ["redis://:geheim@host:6379", "--checkpoint-url=s3://me:geheim@host/x", "redis+sentinel://h?password=geheim"]
    monkeypatch.setattr(sys, "argv", ["apexrl", "train", *urls, *["--env-kwargs", "key", "word"] * 300])
    lock = RunLock(tmp_path)
    assert "geheim" not in (tmp_path / LOCK_FILE).read_text()
    assert f"process {os.getpid()} on host" in holder(tmp_path)
    assert "(apexrl train 'redis://…' '--checkpoint-url=s3://…'" in holder(tmp_path)
    lock.close()


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_holder(tmp_path: Path) -> None:
    first = hold(tmp_path, "fork")
    try:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        RunLock(tmp_path, wait_seconds=30.0).close()  # the child lets go when it comes to run
    finally:
        end(first)


def test_reading_the_file_in_the_holders_process_does_not_lose_the_lock(tmp_path: Path) -> None:
    """A lock of the process would be lost by any close of the file: a backup in a callback is enough."""
    lock = RunLock(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert f"process {os.getpid()} on host" in holder(tmp_path)
    code = f"from pathlib import Path; from apexrl.run.ownership import RunLock; RunLock(Path({str(tmp_path)!r}))"
    other = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=False)
    assert b"HeldError" in other.stderr
    lock.close()
    assert (tmp_path / LOCK_FILE).read_text() == ""  # nobody is named who does not hold it


def test_a_file_that_the_holder_closes_meanwhile_hides_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, listed = RunLock(tmp_path), Path.iterdir
    who = introduced(tmp_path)
    assert who is not None
    monkeypatch.setattr(Path, "iterdir", lambda folder: [folder / "closed", *listed(folder)])
    monkeypatch.setattr(Path, "exists", lambda _: True)  # as it did when it was listed
    assert who.here
    lock.close()


def test_a_second_thread_of_one_process_is_refused_too(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    with pytest.raises(HeldError):
        RunLock(tmp_path)
    waited: list[RunLock] = []
    waiting = threading.Thread(target=lambda: waited.append(RunLock(tmp_path, 60.0)))
    waiting.start()
    lock.close()
    waiting.join(60.0)
    assert waited
    waited[0].close()


def test_who_waited_for_a_file_that_was_removed_locks_the_one_that_is_there(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    waited: list[RunLock] = []
    waiting = threading.Thread(target=lambda: waited.append(RunLock(tmp_path, 60.0)))
    waiting.start()
    (tmp_path / LOCK_FILE).unlink()
    lock.close()
    waiting.join(60.0)
    with pytest.raises(HeldError):
        RunLock(tmp_path)
    waited[0].close()


def test_numbers_of_lives_only_rise(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    assert (generations.begin(), generations.grant("learner-0"), generations.grant("evaluator-0")) == (1, 2, 3)
    assert (generations.newest("learner-0"), generations.newest("evaluator-0")) == (2, 3)
    assert generations.grant("learner-0") == 4
    assert Generations(tmp_path).begin() == 5
    assert generations.newest("evaluator-0") == 5  # a new generation of the run puts an end to all before
    (tmp_path / "generations.json").unlink()
    assert Generations(tmp_path).begin(least=7) == 8  # as the checkpoints showed


def test_a_holder_that_was_replaced_begins_no_lives(tmp_path: Path) -> None:
    first, second = Generations(tmp_path), Generations(tmp_path)
    first.begin()
    second.begin()
    with pytest.raises(FencedError, match="has been taken over"):
        first.grant("learner-0")
    assert second.grant("learner-0") == 3


@pytest.mark.parametrize("write", ["grant", "keep", "summary", "spec"])
def test_a_holder_that_is_replaced_while_it_writes_overwrites_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """It has looked, and stands still before its file takes its place."""
    folder, successor = RunFolder(tmp_path), Generations(tmp_path)
    folder.generations.begin()
    waiting = [successor.begin]
    monkeypatch.setattr(atomic_files, "_sync", lambda path: waiting.pop()() if waiting else None)
    spec = EnvSpec({"x": Field((1,), "float32")}, ActionSpec(n=2))
    with pytest.raises(FencedError, match="has been taken over"):
        {
            "grant": lambda: folder.generations.grant("learner-0"),
            "keep": folder.generations.keep,
            "summary": lambda: folder.write_summary({}),
            "spec": lambda: folder.write_spec(spec),
        }[write]()
    assert successor.newest("") == successor.run == 2
    assert {path.name for path in tmp_path.iterdir()} == {"generations.json"}


def test_a_number_that_went_back_is_put_right(tmp_path: Path) -> None:
    """A fenced holder stood still between its last look and the rename."""
    first, second = Generations(tmp_path), Generations(tmp_path)
    first.begin()
    first.grant("learner-0")
    old = (tmp_path / "generations.json").read_text()
    second.begin()
    second.grant("learner-0")
    new = (tmp_path / "generations.json").read_text()
    (tmp_path / "generations.json").write_text(old)
    first.hold()  # it cannot know
    second.hold()
    assert (tmp_path / "generations.json").read_text() == new
    with pytest.raises(FencedError):
        first.hold()
    (tmp_path / "generations.json").write_text(old)
    assert second.grant("evaluator-0") == 5
    assert (second.newest(""), second.newest("learner-0")) == (3, 4)


def test_a_fenced_life_writes_nothing(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    generations.begin()
    old = Fence(tmp_path, "learner-0", generations.grant("learner-0"))
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, STATE, {"updates": 10}, fence=old)
    checkpoint.save_best(folder, STATE, {"updates": 10}, old)
    new = Fence(tmp_path, "learner-0", generations.grant("learner-0"))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for write in (checkpoint.save, checkpoint.save_best):
        with pytest.raises(FencedError, match=r"learner-0 has a newer generation \(3, this is 2\)"):
            write(folder, STATE, {"updates": 20}, fence=old)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert (
        checkpoint.save(folder, STATE, {"updates": 5}, fence=new).name == "generation-0003-update-000000005.safetensors"
    )


def test_one_that_is_fenced_while_it_writes_does_not_put_its_file_in_place(tmp_path: Path) -> None:
    generations = Generations(tmp_path)
    generations.begin()
    fence = Fence(tmp_path, "learner-0", generations.grant("learner-0"))
    path = tmp_path / "file"
    path.write_text("successor's")
    fence.check()
    with pytest.raises(FencedError), replacing(path, fence.check) as temporary:
        temporary.write_text("mine")
        generations.grant("learner-0")  # the write took long, and it was given up on
    assert path.read_text() == "successor's"
    assert not list(tmp_path.glob(".writing-*"))


def test_the_newest_is_of_the_newest_life_and_a_successors_stay(tmp_path: Path) -> None:
    """One that was ahead, and one that took its place from an older checkpoint: the second's are the run's."""
    generations = Generations(tmp_path)
    generations.begin()
    first = Fence(tmp_path, "learner-0", generations.grant("learner-0"))
    for updates in (19000, 19500, 20000):
        checkpoint.save(tmp_path, STATE, {"updates": updates}, fence=first)
    second = Fence(tmp_path, "learner-0", generations.grant("learner-0"))
    for updates in (11000, 11500):
        written = checkpoint.save(tmp_path, STATE, {"updates": updates}, fence=second)
        assert checkpoint.latest(tmp_path) == written
    assert [path.name[16:] for path in checkpoint.numbered(tmp_path)] == [
        "update-000020000.safetensors",
        "update-000011000.safetensors",
        "update-000011500.safetensors",
    ]
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert (found.metadata["generation"], found.metadata["updates"]) == (3, 11500)


class Replaced(Fence):
    """Stands still right after its nth look, until a successor has written its first checkpoint."""

    def __init__(self, folder: Path, looks: int, keep: int) -> None:
        self.generations = Generations(folder.parent)
        super().__init__(folder.parent, "learner-0", self.generations.grant("learner-0"))
        self._folder, self._looks, self._keep = folder, looks, keep

    def check(self) -> None:
        super().check()
        self._looks -= 1
        if not self._looks:
            successor = Fence(self._folder.parent, "learner-0", self.generations.grant("learner-0"))
            for updates in range(1, self._keep + 1):
                checkpoint.save(self._folder, STATE, {"updates": updates}, self._keep, successor)


@pytest.mark.parametrize("looks", [2, 3])  # before the file takes its place; before older ones are removed
def test_one_that_was_replaced_while_it_wrote_removes_nothing_of_its_successors(tmp_path: Path, looks: int) -> None:
    fence = Replaced(tmp_path / "checkpoints", looks, keep=1)
    with pytest.raises(FencedError):
        checkpoint.save(tmp_path / "checkpoints", STATE, {"updates": 100}, 1, fence)
    newest = checkpoint.load_latest(tmp_path / "checkpoints")
    assert newest is not None
    assert newest.metadata["generation"] == fence.generation + 1


def test_what_was_just_written_is_never_removed(tmp_path: Path) -> None:
    for updates in (19000, 19500, 20000):
        checkpoint.save(tmp_path, STATE, {"updates": updates})
    assert checkpoint.save(tmp_path, STATE, {"updates": 11000}).exists()
    assert len(checkpoint.numbered(tmp_path)) == 3


def test_checkpoints_without_lives_are_refused_and_not_passed_over(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, STATE, {"updates": 7})
    path.rename(tmp_path / "update-000000007.safetensors")
    for ask in (checkpoint.latest, checkpoint.load_latest, checkpoint.numbered):
        with pytest.raises(SnapshotError, match=r"update-000000007.*was written by an earlier version of apexrl"):
            ask(tmp_path)


def test_while_a_place_may_be_anothers_nothing_is_written(tmp_path: Path) -> None:
    until = [lease_clock() + 1000.0]
    fence = Fence(tmp_path, "learner-0", 1, lambda: until[0])
    fence.check()
    until[0] = lease_clock() - 0.001
    assert fence.paused
    with pytest.raises(LinkError, match="has not answered"):
        checkpoint.save(tmp_path, STATE, {"updates": 1}, fence=fence)
    until[0] = REPLACED
    assert not fence.paused  # it does not come back
    with pytest.raises(LinkError, match="another learner has"):
        checkpoint.save(tmp_path, STATE, {"updates": 1}, fence=fence)
    assert checkpoint.numbered(tmp_path) == []
    until[0] = 0.0  # a run that needs no server
    checkpoint.save(tmp_path, STATE, {"updates": 1}, fence=fence)


def test_lives_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    (tmp_path / "generations.json").write_text(json.dumps([1]))
    with pytest.raises(SnapshotError, match=r"generations\.json cannot be read"):
        Generations(tmp_path).begin()


def test_two_threads_change_the_numbers_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that notes a checkpoint must not write back what it read before the other granted a generation."""
    generations = Generations(tmp_path)
    generations.begin()
    inside, go = threading.Event(), threading.Event()
    write = Generations._write

    def hang(self: Generations, values: dict[str, int]) -> None:
        inside.set()
        go.wait(60.0)
        write(self, values)

    monkeypatch.setattr(Generations, "_write", hang)
    thread = threading.Thread(target=generations.keep)
    thread.start()
    assert inside.wait(60.0)
    monkeypatch.setattr(Generations, "_write", write)
    with pytest.raises(TimeoutError, match="takes too long"):
        generations.grant("learner-0")
    go.set()
    thread.join(60.0)
    number = generations.grant("learner-0")
    assert generations.kept
    assert generations.newest("learner-0") == number
