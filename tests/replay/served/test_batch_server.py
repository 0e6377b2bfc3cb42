"""Batches served to several learners through shared memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

from apexrl.errors import ClosedError, ConfigError, OwnershipError, PriorityError, SpecError, WaitTimeout
from apexrl.replay import Field, Replay
from apexrl.replay.served.batch_client import EMPTY

SPAWN = multiprocessing.get_context("spawn")
FIELDS = {"id": Field((), "int64"), "pair": Field((2,), "float32"), "image": Field((100,), "uint8")}


def make(capacity=10_000, **options):
    return Replay(capacity, FIELDS, **{"alpha": 1.0, "eps": 0.0, **options})


def rows(first, count):
    ids = np.arange(first, first + count)
    pair = np.stack([ids, -ids], 1).astype("f4")
    return {"id": ids, "pair": pair, "image": np.repeat((ids % 256).astype("u1")[:, None], 100, 1)}


def assert_whole(data):
    ids = data["id"]
    np.testing.assert_array_equal(data["pair"], np.stack([ids, -ids], 1).astype("f4"))
    np.testing.assert_array_equal(data["image"], np.repeat((ids % 256).astype("u1")[:, None], 100, 1))


class Serving:
    """A server that steps in a thread of this process."""

    def __init__(self, server):
        self.server = server
        self.stop = threading.Event()
        self.thread = threading.Thread(target=server.run, args=(self.stop.is_set,), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(10)
        self.server.close()


def learn(learner, batches, pipe):
    """A learner process: checks its batches, sends priorities that tell whose they are."""
    seen = 0
    for _ in range(batches):
        batch = learner.sample(64, timeout=30)
        assert_whole(batch.data)
        kept = {name: value.copy() for name, value in batch.data.items()}
        learner.update_priorities(batch.keys, np.full(64, 3.0))
        assert all((kept[name] == batch.data[name]).all() for name in kept)
        seen += len(batch)
    pipe.send(seen)
    pipe.recv()
    learner.close()


def test_several_learners_are_served():
    with make() as replay:
        replay.writer().extend(rows(0, 2000), priorities=np.ones(2000))
        with Serving(replay.serve(learners=3, batch_size=64)) as serving:
            workers = []
            for i in range(3):
                ours, theirs = SPAWN.Pipe()
                process = SPAWN.Process(target=learn, args=(serving.server.learner(i), 100, theirs), daemon=True)
                process.start()
                workers.append((process, ours))
            for _, pipe in workers:
                assert pipe.poll(60)
                assert pipe.recv() == 6400
            deadline = time.monotonic() + 120
            while serving.server.stats()["priorities_applied"] < 3 * 6400:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            for process, pipe in workers:
                pipe.send(None)
                process.join(120)
                assert process.exitcode == 0
        assert replay.stats()["updates_applied"] == 3 * 6400
        assert replay.stats()["max_priority"] == 3.0


def test_a_batch_is_the_learners_until_it_lets_go():
    with make() as replay:
        replay.writer().extend(rows(0, 500))
        with Serving(replay.serve(learners=1, batch_size=32, prefetch=2)) as serving:
            learner = serving.server.learner(0)
            first, second = learner.sample(), learner.sample()
            with pytest.raises(WaitTimeout, match="all 2 batches are still held"):
                learner.sample(timeout=0.2)
            view = first.data["image"][:3]  # a view holds its batch too
            ids = first.data["id"][:3].copy()
            del first
            with pytest.raises(WaitTimeout):
                learner.sample(timeout=0.2)
            np.testing.assert_array_equal(view[:, 0], ids % 256)
            del view
            third = learner.sample(timeout=10)
            assert_whole(second.data)
            assert_whole(third.data)
            assert third.probabilities.sum() == pytest.approx(32 / 500)
            assert (third.weights == 1).all()


STEP = {"observation": Field((3,), "float32"), "action": Field((), "int64"), "value": Field((2,), "float64")}
KINDS = {
    "transition": {"n_step": 2},
    "sequence": {"length": 4, "burn_in": 2, "stride": 2},
    "unroll": {"length": 4},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stack", [1, 2])
def test_windows_are_served_as_they_are_sampled(kind, stack):
    """Every array of a batch has memory of its own, and says what the item of its key is."""
    with Replay(1000, STEP, kind=kind, stack=stack, alpha=0.0, **KINDS[kind]) as replay:
        writer = replay.writer(streams=1)
        for number in range(200):
            step = {
                "observation": np.full((1, 3), number, "f4"),
                "action": np.array([number]),
                "value": np.full((1, 2), -float(number)),
                "reward": np.ones(1, "f4"),
                "terminated": np.array([number % 50 == 49]),
                "truncated": np.array([False]),
            }
            writer.append(step)
        writer.flush()
        want = {}
        for _ in range(100):
            batch = replay.sample(64)
            for i, key in enumerate(batch.keys.tolist()):
                want[key] = {name: array[i].copy() for name, array in batch.data.items()}
        with Serving(replay.serve(learners=1, batch_size=32)) as serving, serving.server.learner(0) as learner:
            batch = learner.sample(timeout=20)
            arrays = [*batch.data.values(), batch.keys, batch.probabilities, batch.weights]
            assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
            assert ("next_observation" in batch.data) == (kind == "transition")
            for i, key in enumerate(batch.keys.tolist()):
                for name, array in batch.data.items():
                    np.testing.assert_array_equal(array[i], want[key][name], err_msg=name)


def test_priorities_reach_the_replay():
    with make(seed=1) as replay:
        replay.writer().extend(rows(0, 300), priorities=np.ones(300))
        with Serving(replay.serve(learners=1, batch_size=50)) as serving:
            learner = serving.server.learner(0)
            keys = np.unique(learner.sample().keys)
            learner.update_priorities(keys, np.full(len(keys), 1e6))
            learner.update_priorities(np.tile(keys, 10), np.full(10 * len(keys), 1e6))  # more than a message holds
            for _ in range(200):
                batch = learner.sample()
                if np.isin(batch.keys, keys).all():
                    break
            else:
                pytest.fail("the new priorities never showed")


def test_a_learner_may_change_beta():
    with make() as replay:
        replay.writer().extend(rows(0, 300), priorities=np.arange(1.0, 301.0))
        with Serving(replay.serve(learners=1, batch_size=50, beta=0.0)) as serving:
            learner = serving.server.learner(0)
            assert (learner.sample().weights == 1).all()
            for _ in range(4):
                batch = learner.sample(beta=1.0)
            smallest = batch.probabilities.min()
            np.testing.assert_allclose(batch.weights, smallest / batch.probabilities, rtol=1e-5)


def test_what_is_wrong_is_named():
    with make() as replay:
        replay.writer().extend(rows(0, 300))
        for name in ("learners", "batch_size", "prefetch"):
            with pytest.raises(ConfigError, match=f"{name}=0"):
                replay.serve(**{"learners": 1, "batch_size": 8, name: 0})
        server = replay.serve(learners=1, batch_size=50)
        with pytest.raises(ConfigError, match="out of range 0 … 0"):
            server.learner(1)
        waiting = server.learner(0)
        with pytest.raises(WaitTimeout, match="no process serves"):
            waiting.sample(timeout=0.05)
        with Serving(server):
            learner = pickle.loads(pickle.dumps(server.learner(0)))
            with pytest.raises(OwnershipError, match=r"is learner \d already"):
                learner.sample()  # the handle above holds it in this process
            waiting.close()
            assert len(learner.sample()) == 50
    with make(min_size=100) as replay:
        server = replay.serve(learners=1, batch_size=50)
        server.step(0.0)  # it serves before anybody asks
        with Serving(server), pytest.raises(WaitTimeout, match="its replay holds too few"):
            server.learner(0).sample(timeout=0.3)


def test_bad_priorities_are_refused_before_they_are_sent():
    with make() as replay:
        replay.writer().extend(rows(0, 300))
        with Serving(replay.serve(learners=1, batch_size=50)) as serving:
            learner = serving.server.learner(0)
            batch = learner.sample()
            with pytest.raises(ConfigError, match="must be left out or 50"):
                learner.sample(64)
            with pytest.raises(ConfigError, match="beta=-1"):
                learner.sample(beta=-1)
            wrong = np.ones(50)
            wrong[7] = np.nan
            with pytest.raises(PriorityError, match="row 7 is nan"):
                learner.update_priorities(batch.keys, wrong)
            with pytest.raises(SpecError, match=r"expected \[50\]"):
                learner.update_priorities(batch.keys, np.ones(4))
            with pytest.raises(SpecError, match="keys must be the uint64"):
                learner.update_priorities(np.arange(50), np.ones(50))
            assert serving.server.stats()["priorities_applied"] == 0
        with pytest.raises(ClosedError, match="was closed"):
            for _ in range(3):
                learner.sample(timeout=1)
        with pytest.raises(ClosedError):
            serving.server.step()


def hold(learner, pipe):
    batches = [learner.sample(timeout=20) for _ in range(2)]
    pipe.send([batch.data["id"].tolist() for batch in batches])
    time.sleep(60)


def test_a_killed_learners_batches_are_lost_and_counted():
    with make(500, sampler="fifo") as replay:
        replay.writer().extend(rows(0, 400))
        with Serving(replay.serve(learners=1, batch_size=40, prefetch=2)) as serving:
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=hold, args=(serving.server.learner(0), theirs), daemon=True)
            process.start()
            assert ours.poll(120)
            assert ours.recv() == [list(range(40)), list(range(40, 80))]
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            learner = serving.server.learner(0)
            seen = []
            for _ in range(8):
                batch = learner.sample(timeout=20)
                seen += batch.data["id"].tolist()
                del batch
            assert seen == list(range(80, 400))
            learner.give_back()
            deadline = time.monotonic() + 10
            while replay.stats()["lost"] != 80:
                assert time.monotonic() < deadline, replay.stats()
                time.sleep(0.01)
            assert serving.server.stats()["lost_batches"] == 2


def serve(server, pipe):
    pipe.send(os.getpid())
    server.run(lambda: False)


def test_another_process_takes_over_from_a_killed_server():
    with make() as replay:
        replay.writer().extend(rows(0, 2000))
        server = replay.serve(learners=1, batch_size=64)
        learner = server.learner(0)
        for _ in range(2):
            ours, theirs = SPAWN.Pipe()
            process = SPAWN.Process(target=serve, args=(server, theirs), daemon=True)
            process.start()
            assert ours.poll(120)
            ours.recv()
            for _ in range(20):
                batch = learner.sample(timeout=20)
                assert_whole(batch.data)
                learner.update_priorities(batch.keys, np.full(64, 2.0), timeout=20)
                del batch
            with pytest.raises(OwnershipError, match="serves these batches"):
                server.step()
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            with pytest.raises(WaitTimeout, match="no process serves"):
                for _ in range(5):
                    batch = learner.sample(timeout=0.2)
                    del batch
        with Serving(server):
            assert_whole(learner.sample(timeout=20).data)
            assert len(replay) == 2000


def test_absent_learners_cost_nothing():
    """Batches are sampled for those that are there: a fifo replay keeps the others' items."""
    with make(500, sampler="fifo") as replay:
        replay.writer().extend(rows(0, 400))
        with Serving(replay.serve(learners=4, batch_size=10, prefetch=2)) as serving:
            serving.server.learner(2).sample(timeout=20)
            deadline = time.monotonic() + 20.0
            while replay.stats()["sampled"] < 20 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)
            assert replay.stats()["sampled"] in (20, 30)  # its own two, and perhaps one in place of the dropped


def test_sequences_are_served():
    fields = {"observation": Field((3,), "float32"), "state": Field((2,), "float32", per_item=True)}
    with Replay(100, fields, kind="sequence", length=4, burn_in=2, stack=2, writers=1) as replay:
        writer = replay.writer()
        for t in range(100):
            row = {"observation": np.full((1, 3), t, "f4"), "state": np.full((1, 2), t, "f4")}
            writer.append({**row, "reward": [1.0], "terminated": [False], "truncated": [False]})
        with Serving(replay.serve(learners=1, batch_size=5)) as serving:
            batch = serving.server.learner(0).sample(timeout=20)
            assert batch.data["observation"].shape == (5, 7, 2, 3)
            start = batch.data["observation"][:, 2, 1, 0]
            np.testing.assert_array_equal(batch.data["state"][:, 0], np.maximum(start - 2, 0))
            assert batch.data["mask"][:, 2:].all()


def test_a_limiter_is_shared_fairly():
    """Few samples may be drawn: each of three learners gets its share."""
    with make(samples_per_insert=4.0, min_size=64, insert_band=1.0) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 64))
        server = replay.serve(learners=3, batch_size=32)
        learners = [server.learner(i) for i in range(3)]
        batches = [0, 0, 0]
        with server:
            for turn in range(400):
                server.step(0.0)
                for i, learner in enumerate(learners):
                    with contextlib.suppress(WaitTimeout):
                        learner.sample(timeout=0.0)
                        batches[i] += 1
                with contextlib.suppress(WaitTimeout):
                    writer.extend(rows(1000 + 8 * turn, 8), timeout=0.0)
        assert min(batches) > 0.8 * sum(batches) / 3 > 20


def test_threads_share_a_place_and_never_a_batch():
    with make(20_000, sampler="fifo") as replay:
        replay.writer().extend(rows(0, 20_000))
        with Serving(replay.serve(learners=1, batch_size=16, prefetch=8)) as serving:
            learner = serving.server.learner(0)
            drawn: list[int] = []

            def learn():
                while len(drawn) < 16_000:
                    drawn.extend(learner.sample(timeout=20).data["id"].tolist())

            threads = [threading.Thread(target=learn) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert len(drawn) == len(set(drawn)) >= 16_000


def test_a_place_is_free_when_its_handle_is_gone():
    with make() as replay:
        replay.writer().extend(rows(0, 300))
        with Serving(replay.serve(learners=1, batch_size=50)) as serving:
            learner = serving.server.learner(0)
            batch = learner.sample()
            learner.close()
            with pytest.raises(OwnershipError, match=f"process {os.getpid()} is learner"):
                serving.server.learner(0).sample()
            del batch
            learner.close()
            assert len(serving.server.learner(0).sample()) == 50  # this handle is dropped at once
            with serving.server.learner(0) as another:
                assert len(another.sample()) == 50


def test_served_fifo_items_are_used_or_counted():
    """A batch that a learner still gets after its server's death is not lost; one that nobody took at the end is."""
    with make(500, sampler="fifo") as replay:
        replay.writer().extend(rows(0, 400))
        server = replay.serve(learners=1, batch_size=10, prefetch=3)
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=serve, args=(server, theirs), daemon=True)
        process.start()
        assert ours.poll(120)
        learner = server.learner(0)
        held = learner.sample(timeout=20)
        seen = held.data["id"].tolist()
        memory = server._memory
        # What was sampled and did not get as far as its learner would be lost with the server.
        while replay.stats()["sampled"] < 30 or any(memory.segment.load(memory.state(0, k)) == EMPTY for k in range(3)):
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        with Serving(server):
            for _ in range(24):
                seen += learner.sample(timeout=20).data["id"].tolist()
            assert sorted(seen) == list(range(250))
            assert replay.stats()["lost"] == 0
            while replay.stats()["sampled"] == 250:  # another batch lies ready when it ends
                learner.give_back()
                time.sleep(0.01)
        stats = replay.stats()
        assert stats["lost"] == stats["sampled"] - 250 > 0


def test_a_forked_child_is_not_the_server():
    with make() as replay:
        replay.writer().extend(rows(0, 300))
        server = replay.serve(learners=1, batch_size=50)
        server.step(0.0)
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=step_once, args=(server, theirs), daemon=True)
        child.start()
        assert ours.poll(120)
        assert "serves these batches" in ours.recv()
        child.join(10)


def step_once(server, pipe):
    try:
        pipe.send(str(server.step(0.0)))
    except OwnershipError as error:
        pipe.send(str(error))
