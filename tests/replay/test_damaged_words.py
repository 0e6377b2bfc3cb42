"""Words of served batches and of weights boards that say what cannot be: refused, or dropped and counted."""

from __future__ import annotations

import multiprocessing
import pickle
import time

import numpy as np
import pytest

from apexrl import _native
from apexrl.errors import ConfigError, SpecError
from apexrl.replay import Field, Replay
from apexrl.replay.served.batch_client import FULL, BatchMemory
from apexrl.shared.weights_board import WeightsBoard


@pytest.fixture
def server():
    with Replay(1000, {"number": Field((), "int64")}) as replay:
        replay.writer().extend({"number": np.arange(500)})
        with replay.serve(1, 8) as server:
            yield server


def served(server):
    """A learner's place and its first batch."""
    learner = server.learner(0)
    learner._lease()
    while server.step(0.0):
        pass
    return learner, learner.sample(timeout=5.0)


@pytest.mark.parametrize("backlog", [7, 2**31, 2**32 - 1])
def test_messages_that_cannot_wait_are_dropped(server, backlog):
    learner, batch = served(server)
    memory, segment = server._memory, server._memory.segment
    segment.store(memory.written(0), backlog)
    server.step(0.0)
    assert server.stats()["damaged_words"] == 1
    assert segment.load(memory.read(0)) == backlog
    learner.update_priorities(batch.keys, np.ones(8))
    server.step(0.0)
    assert server.stats()["priorities_applied"] == 8


@pytest.mark.parametrize(("count", "magnitude"), [(2**63, 1.0), (9, 1.0), (8, np.nan), (8, -1.0), (8, np.inf)])
def test_priorities_that_no_learner_sends_are_dropped(server, count, magnitude):
    learner, batch = served(server)
    learner.update_priorities(batch.keys, np.ones(8))
    counted, _, magnitudes = server._memory.message(0, 0)
    counted[0] = count
    magnitudes[3] = magnitude
    server.step(0.0)
    assert server.stats()["damaged_words"] == 1
    assert server.stats()["priorities_applied"] == 0
    learner.update_priorities(batch.keys, np.ones(8))
    server.step(0.0)
    assert server.stats()["priorities_applied"] == 8


@pytest.mark.parametrize("beta", [np.nan, -1.0, 1e300])
def test_an_exponent_that_cannot_be_is_replaced(server, beta):
    server._memory.beta(0)[0] = beta
    _, batch = served(server)
    assert np.isfinite(batch.weights).all()
    assert server.stats()["damaged_words"] == 1


def hold_then_spoil(learner, state):
    held = learner.sample(timeout=30.0)
    learner._memory.segment.store(state, 4_000_000_000)
    assert len(held.keys) == 8


def test_a_state_that_cannot_be_is_lost_with_its_learner(server):
    memory = server._memory
    learner = server.learner(0)
    process = multiprocessing.get_context("fork").Process(target=hold_then_spoil, args=(learner, memory.state(0, 0)))
    process.start()
    while process.is_alive():
        server.step(0.05)
    process.join()
    assert process.exitcode == 0
    deadline = time.monotonic() + 30
    while server.stats()["lost_batches"] == 0 and time.monotonic() < deadline:
        server.step(0.05)
    assert server.stats()["lost_batches"] == 1
    learner._lease()
    while server.step(0.0):
        pass
    assert [memory.segment.load(memory.state(0, k)) for k in range(2)] == [FULL, FULL]


def test_memory_that_is_too_small_is_refused(server):
    memory = server._memory
    small = _native.Segment(64)
    with pytest.raises(ConfigError, match=small.name):
        BatchMemory(memory.layout, memory.learners, memory.batch_size, memory.prefetch, small)


def test_a_layout_larger_than_its_board_is_refused():
    board = WeightsBoard(1000)
    board.publish({"w": np.zeros(100)}, 1)
    fresh = pickle.loads(pickle.dumps(board))
    text = fresh._native.layout
    segment = _native.Segment.attach(board._native.state())
    array = segment.array()
    at = array.tobytes().index(text)
    array[at : at + len(text)] = np.frombuffer(text.replace(b"[100]", b"[999]"), np.uint8)
    with pytest.raises(SpecError, match="needs more than the 1000 bytes"):
        fresh.latest()


def test_columns_that_are_not_the_fields_are_refused():
    with Replay(100, {"number": Field((), "int64")}) as replay:
        with Replay(100, {"number": Field((4,), "int64")}) as other:
            fields = other.core.layout.native()
        with pytest.raises(RuntimeError, match="its columns are not its fields"):
            _native.Replay.attach(replay.core.native.state(), fields)
