"""Stream writers: short slots, going out of scope, priority functions that fail, streams named wrongly."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest

from apexrl.errors import ConfigError, SpecError
from apexrl.replay import Field, Replay

FIELDS = {"observation": Field((2,), "float32"), "action": Field((), "int64")}


def make(**options):
    return Replay(**{"capacity": 4000, "fields": FIELDS, "kind": "transition", **options})


def step(streams, t, reward, terminated, truncated):
    """One step of each stream."""
    streams = np.asarray(streams)
    return {
        "observation": np.stack([streams, np.full(len(streams), t)], 1).astype("f4"),
        "action": streams * 100_000 + t,
        "reward": np.asarray(reward, "f4"),
        "terminated": np.asarray(terminated),
        "truncated": np.asarray(truncated),
    }


def test_short_slots_never_make_a_writer_wait_for_its_own_process():
    """A writer anew for every rollout leaves half-filled chunks: the owner, this process, makes room at once."""
    fields = {"observation": Field((), "int64")}
    with Replay(1000, fields, kind="unroll", length=5, streams=8, writers=2) as replay:
        for rollout in range(60):
            with replay.writer(streams=8) as writer:
                for t in range(37):
                    at = np.arange(8) + 100 * t + 100_000 * rollout
                    flags = {"reward": np.zeros(8), "terminated": np.zeros(8, bool), "truncated": np.zeros(8, bool)}
                    writer.append({"observation": at, **flags}, timeout=0.0)
            assert len(replay) <= 1000
            assert replay.core.native.check() == 0.0


def append_some(replay, count):
    writer = replay.writer(streams=1)
    for t in range(count):
        writer.append(step([0], t, [0.0], [False], [False]))


def test_a_writer_that_goes_out_of_scope_publishes_what_is_complete():
    with make(n_step=3) as replay:
        append_some(replay, 50)
        assert len(replay) == 47
        assert replay.stats()["dropped_steps"] == 3
        process = multiprocessing.get_context("spawn").Process(target=append_some, args=(replay, 99))
        process.start()
        process.join(60)
        assert len(replay) == 47 + 96


def test_an_error_of_the_priority_function_leaves_the_step_stored():
    """Exactly once, whatever the caller does next; a full chunk's items get the largest priority so far."""
    fails = [True]

    def priority(items):
        if fails[0]:
            raise RuntimeError("no priorities today")
        return np.ones(items.count)

    with make(capacity=64, writers=1) as replay:
        writer = replay.writer(priority_fn=priority)
        errors = 0
        for t in range(20):
            try:
                writer.append(step([0], t, [0.0], [False], [False]))
            except RuntimeError:
                errors += 1
        assert errors > 3
        fails[0] = False
        writer.flush()
        assert sorted(set(replay.sample(400).data["action"].tolist())) == list(range(19))
        assert len(replay) == 19


def test_the_priority_function_may_look_at_the_replay():
    sizes = []
    with make() as replay:
        writer = replay.writer(
            priority_fn=lambda items: sizes.append((len(replay), repr(replay))) or np.ones(items.count)
        )
        for t in range(70):
            writer.append(step([0], t, [0.0], [False], [False]))
        assert len(replay) == 69
        assert sizes


@pytest.mark.parametrize("streams", [[True, False], [0.9, 1.2], np.array([True, True])])
def test_streams_are_named_by_number(streams):
    with make() as replay:
        writer = replay.writer(streams=2)
        with pytest.raises(SpecError, match="takes stream numbers"):
            writer.append(step([0, 1], 0, [0.0, 0.0], [False] * 2, [False] * 2), streams=streams)
        assert writer._native.pending_count == 0


def test_more_open_chunks_than_capacity_are_refused():
    with make(capacity=100) as replay, pytest.raises(ConfigError, match="make that at least 128"):
        replay.writer(streams=128)
    queue = make(capacity=1000, sampler="fifo", alpha=0.0)
    with queue, pytest.raises(ConfigError, match="make the replay with streams=128"):
        queue.writer(streams=128)
    with make(capacity=1000) as replay:
        assert replay.writer(streams=128)
    with make(capacity=1000, streams=128, writers=1) as replay:
        assert replay.writer(streams=128)
