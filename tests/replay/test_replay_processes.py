"""Many processes: ownership, kill -9 of writers and owners, nothing torn, nothing left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from apexrl.errors import ClosedError, OwnershipError, WaitTimeout
from apexrl.replay import Field, Replay

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")
FIELDS = {"observation": Field((6,), "float64"), "number": Field((), "int64"), "image": Field((8, 8), "float32")}


def rows(worker, first, count):
    """Every value of a row is its tag: a row of two origins, or of poison, cannot pass."""
    tag = worker * 1_000_000_000 + np.arange(first, first + count)
    return {
        "observation": np.repeat(tag[:, None], 6, 1).astype("f8"),
        "number": tag,
        "image": np.broadcast_to((tag % 65536)[:, None, None], (count, 8, 8)).astype("f4"),
    }


def assert_whole(batch):
    tag = batch.data["number"]
    assert (tag > 0).all()
    assert (batch.data["observation"] == tag[:, None]).all()
    assert (batch.data["image"] == (tag % 65536)[:, None, None]).all()


def insert_for_ever(replay, worker, pause):
    writer, first = replay.writer(), 1
    rng = np.random.default_rng(worker)
    while True:
        count = int(rng.integers(1, 200))
        writer.extend(rows(worker, first, count), priorities=rng.random(count) + 0.1, timeout=60.0)
        first += count
        if pause:
            time.sleep(pause)


def insert_some(replay, worker, total):
    writer = replay.writer()
    for first in range(1, total + 1, 50):
        writer.extend(rows(worker, first, 50))
    writer.close()


def sample_for_ever(replay, counter):
    while True:
        try:
            batch = replay.sample(64, timeout=5.0)
        except (OwnershipError, WaitTimeout):
            time.sleep(0.001)
            continue
        assert_whole(batch)
        replay.update_priorities(batch.keys, np.ones(64))
        with counter.get_lock():
            counter.value += 1


def poison(replay):
    """Fill the memory of all slots, as if it had held something else."""
    segment = replay.core.native.segment()
    stats = replay.stats()
    data = segment.array()
    data[stats["bytes"] - stats["slots"] * stats["slot_bytes"] : stats["bytes"]] = 0xA5


@pytest.mark.parametrize("context", [SPAWN, FORK], ids=["spawn", "fork"])
def test_other_processes_fill_and_len_is_right(context):
    with Replay(10_000, FIELDS, writers=4) as replay:
        workers = [context.Process(target=insert_some, args=(replay, w, 2000)) for w in (1, 2, 3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert worker.exitcode == 0
        assert len(replay) == 6000
        assert_whole(replay.sample(512))
        assert len(replay) == 6000
        assert replay.stats()["lanes_active"] == 0


def test_a_forked_writer_leases_its_own_lane():
    with Replay(10_000, FIELDS, writers=4) as replay:
        writer = replay.writer()
        writer.extend(rows(1, 1, 10))
        pid = os.fork()
        if pid == 0:
            try:
                writer.extend(rows(2, 1, 100))
                writer.close()
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        writer.extend(rows(1, 11, 10))
        batch = replay.sample(2000)
        assert_whole(batch)
        assert len(replay) == 120
        assert len(set(batch.data["number"].tolist())) == 120


def second_sampler(replay, answers):
    try:
        replay.sample(1, timeout=1.0)
        answers.send("sampled")
    except OwnershipError as error:
        answers.send(str(error))
    except WaitTimeout:
        answers.send("empty")


def test_a_second_sampler_is_refused_while_the_owner_lives():
    with Replay(1000, FIELDS) as replay:
        replay.writer().extend(rows(1, 1, 100))
        replay.sample(8)
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=second_sampler, args=(replay, theirs))
        process.start()
        assert ours.poll(60)
        message = ours.recv()
        process.join(60)
        assert str(os.getpid()) in message
        assert "owns this replay" in message


def test_killed_writers_harm_nobody():
    """60 kills at random moments while the owner samples: no hang, no torn or unwritten row, every lane comes back."""
    rng = np.random.default_rng(0)
    with Replay(5000, FIELDS, writers=3) as replay:
        poison(replay)
        workers = {}
        kills = batches = 0
        started = 0
        deadline = time.monotonic() + 100
        while kills < 60:
            assert time.monotonic() < deadline, f"only {kills} kills"
            for i in range(3):
                if i not in workers:
                    started += 1
                    workers[i] = FORK.Process(target=insert_for_ever, args=(replay, started, 0.0), daemon=True)
                    workers[i].start()
            end = time.monotonic() + rng.uniform(0.0, 0.02)
            while time.monotonic() < end:
                try:
                    batch = replay.sample(64, timeout=5.0)
                except WaitTimeout:
                    pytest.fail("no batch for 5 s")
                assert_whole(batch)
                replay.update_priorities(batch.keys, rng.random(64))
                batches += 1
            victim = int(rng.integers(0, 3))
            os.kill(workers[victim].pid, signal.SIGKILL)
            workers.pop(victim).join(60)
            kills += 1
        for process in workers.values():
            process.kill()
            process.join(60)
        assert batches > 100
        deadline = time.monotonic() + 5
        while replay.stats()["lanes_active"] and time.monotonic() < deadline:
            replay.sample(1)
            time.sleep(0.05)
        assert replay.stats()["lanes_active"] == 0
        assert 5000 - 64 < len(replay) <= 5000
        assert replay.core.native.check() == 0.0


STREAM_FIELDS = {"observation": Field((40,), "uint16"), "action": Field((), "int64")}


def append_for_ever(replay, worker):
    writer = replay.writer(streams=3, priority_fn=lambda items: items["reward"] + 0.1)
    rng, t = np.random.default_rng(worker), 0
    while True:
        t += 1
        observation = np.broadcast_to(np.array([[t % 65536]], "u2"), (3, 40)).copy()
        values = {"observation": observation, "action": worker * 10_000_000 + np.full(3, t)}
        values |= {"reward": rng.random(3), "terminated": rng.random(3) < 0.05, "truncated": rng.random(3) < 0.05}
        writer.append(values, timeout=60.0)


def test_killed_stream_writers_tear_nothing():
    """40 kills amid appends, chunk seams and publications: every window sampled is whole."""
    rng = np.random.default_rng(1)
    options = {"kind": "transition", "stack": 3, "n_step": 2, "writers": 2, "streams": 6}
    with Replay(1500, STREAM_FIELDS, **options) as replay:
        poison(replay)
        for kill in range(40):
            process = FORK.Process(target=append_for_ever, args=(replay, kill + 1), daemon=True)
            before = replay.stats()["inserted"]
            process.start()
            end = time.monotonic() + rng.uniform(0.0, 0.03)
            while time.monotonic() < end or replay.stats()["inserted"] == before:
                assert process.is_alive()
                batch = replay.sample(64, timeout=10.0)
                t = (batch.data["action"] % 10_000_000 % 65536)[:, None]
                frames, later = batch.data["observation"].astype(int), batch.data["next_observation"].astype(int)
                assert (frames == frames[:, :, :1]).all()
                assert (later == later[:, :, :1]).all()
                assert (frames[:, -1] == t).all()
                assert ((later[:, -1] > t) & (later[:, -1] <= t + 2)).all()
            os.kill(process.pid, signal.SIGKILL)
            process.join(60)
        assert replay.core.native.check() == 0.0


def lose_a_lock(replay, answers):
    answers.send(replay.core.native.segment().holder(0))


def test_a_stale_handle_costs_no_lock():
    """Unpickling a dead handle whose descriptor number now names another replay must not open and close that one."""
    import pickle

    first = Replay(100, FIELDS)
    handle = pickle.dumps(first)
    first.close()
    del first
    with Replay(100, FIELDS) as replay:
        replay.writer().extend(rows(1, 1, 10))
        replay.sample(1)
        with pytest.raises(ClosedError):
            pickle.loads(handle)
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=lose_a_lock, args=(replay, theirs))
        process.start()
        assert ours.poll(60)
        assert ours.recv() == os.getpid()
        process.join(60)


def test_killed_owners_lose_nothing():
    """20 kills of the sampling process while workers insert: a successor takes over with all that was published."""
    with Replay(3000, FIELDS, writers=3) as replay:
        poison(replay)
        writers = [FORK.Process(target=insert_for_ever, args=(replay, w, 0.0005), daemon=True) for w in (1, 2)]
        for process in writers:
            process.start()
        counter = FORK.Value("q", 0)
        for kill in range(20):
            owner = FORK.Process(target=sample_for_ever, args=(replay, counter), daemon=True)
            before = counter.value
            owner.start()
            deadline = time.monotonic() + 60
            while counter.value < before + 3:
                assert owner.is_alive(), f"successor {kill} failed"
                assert time.monotonic() < deadline, f"successor {kill} does not sample"
                time.sleep(0.002)
            assert all(process.is_alive() for process in writers)
            owner.kill()
            owner.join(60)
            counter = FORK.Value("q", 0)  # its lock may have died with the owner
        inserted = replay.stats()["inserted"]
        time.sleep(0.1)
        for process in writers:
            process.kill()
            process.join(60)
        assert_whole(replay.sample(512))  # this process is the last successor
        stats = replay.stats()
        assert stats["epoch"] == 21
        assert stats["inserted"] >= inserted > 0
        assert 3000 - 64 < len(replay) <= 3000
        assert replay.core.native.check() == 0.0


def test_nothing_published_is_lost_with_the_owner():
    with Replay(100_000, FIELDS, writers=3) as replay:
        counter = FORK.Value("q", 0)
        owner = FORK.Process(target=sample_for_ever, args=(replay, counter), daemon=True)
        owner.start()
        workers = [FORK.Process(target=insert_some, args=(replay, w, 5000)) for w in (1, 2, 3)]
        for process in workers:
            process.start()
        while counter.value < 5:
            time.sleep(0.002)
        owner.kill()
        owner.join()
        for process in workers:
            process.join(60)
            assert process.exitcode == 0
        seen = set()
        assert len(replay) == 15_000
        for _ in range(60):
            batch = replay.sample(5000)
            assert_whole(batch)
            seen |= set(batch.data["number"].tolist())
            replay.update_priorities(batch.keys, np.full(5000, 1e-6))
        assert len(seen) == 15_000
        assert len(replay) == 15_000


def test_a_stopped_writer_blocks_nobody():
    """SIGSTOP keeps locks: its lane stays its own, the others go on, and it goes on after SIGCONT."""
    with Replay(2000, FIELDS, writers=2) as replay:
        processes = [FORK.Process(target=insert_for_ever, args=(replay, w, 0.0), daemon=True) for w in (1, 2)]
        for process in processes:
            process.start()
        while replay.stats()["lanes_active"] < 2:
            replay.sample(8, timeout=30)
        os.kill(processes[0].pid, signal.SIGSTOP)
        before = replay.stats()["inserted"]
        end = time.monotonic() + 0.5
        latest = end + 60.0  # the other one may get no processor for a while
        while (now := time.monotonic()) < end or (replay.stats()["inserted"] == before and now < latest):
            assert_whole(replay.sample(64, timeout=5))
        assert replay.stats()["inserted"] > before
        assert replay.stats()["lanes_active"] == 2
        os.kill(processes[0].pid, signal.SIGCONT)
        for process in processes:
            process.kill()
            process.join(60)


def wait_for_room(replay, answers):
    writer = replay.writer()
    try:
        for first in range(1, 100_000, 50):
            writer.extend(rows(1, first, 50), timeout=30.0)
    except ClosedError:
        answers.send("closed")
    except WaitTimeout as error:
        answers.send(f"timeout {error}")


def test_a_full_replay_without_a_sampler_makes_workers_wait_and_close_wakes_them():
    replay = Replay(500, FIELDS, writers=2)
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=wait_for_room, args=(replay, theirs))
    process.start()
    deadline = time.monotonic() + 60
    while len(replay) < 500 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(replay) == 500
    time.sleep(0.1)
    replay.close()
    assert ours.poll(60)
    assert ours.recv() == "closed"
    process.join(60)


def test_handles_of_a_dead_maker_are_refused():
    code = (
        "import os, pickle, sys\n"
        "from apexrl.replay import Replay, Field\n"
        "sys.stdout.buffer.write(pickle.dumps(Replay(100, {'a': Field((), 'float32')})))"
    )
    import pickle

    handle = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    with pytest.raises(ClosedError, match="ended"):
        pickle.loads(handle)


def test_nothing_is_left_when_everybody_is_killed():
    """kill -9 of maker, owner and writers at once: the memory goes with them."""

    def family():
        replay = Replay(50_000, FIELDS, writers=2)
        for w in (1, 2):
            FORK.Process(target=insert_for_ever, args=(replay, w, 0.0)).start()
        while True:
            replay.sample(64)

    before = set(os.listdir("/dev/shm"))  # others may put something of theirs there meanwhile, for a moment
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        family()
    time.sleep(0.5)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    end = time.monotonic() + 30.0
    while (left := set(os.listdir("/dev/shm")) - before) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left


def test_sampling_waits_for_another_process():
    with Replay(1000, FIELDS, min_size=500) as replay:
        process = FORK.Process(target=insert_some, args=(replay, 1, 500))
        process.start()
        assert_whole(replay.sample(16, timeout=20))
        process.join(60)


def test_flush_means_sampleable():
    with Replay(1000, FIELDS) as replay:
        replay.writer().extend(rows(9, 1, 1))
        replay.sample(1)
        ours, theirs = FORK.Pipe()

        def insert():
            writer = replay.writer()
            writer.extend(rows(1, 1, 10))
            writer.flush(timeout=10.0)
            theirs.send(len(replay))

        process = FORK.Process(target=insert)
        process.start()
        assert ours.poll(60)
        assert ours.recv() == 11
        process.join(60)
