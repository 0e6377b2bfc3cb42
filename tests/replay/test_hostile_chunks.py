"""Chunks that lie, are damaged or claim the place of others are refused, or do no harm."""

from __future__ import annotations

import numpy as np
import pytest
from chunk_pair import KINDS, Simulator, everything, fields, pair, sound_chunk
from hypothesis import given, settings
from hypothesis import strategies as st
from open_replays import kept

from apexrl.errors import FrameError, WaitTimeout
from apexrl.replay import Replay
from apexrl.replay.chunks import ChunkSink, Receipts


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda h: h._replace(positions=0), "positions"),
        (lambda h: h._replace(positions=70_000), "positions"),
        (lambda h: h._replace(rows=h.rows + 9), "rows"),
        (lambda h: h._replace(items=h.items - 1), "items"),
        (lambda h: h._replace(items=0), "items"),
        (lambda h: h._replace(nbytes=h.nbytes - 1), "size"),
        (lambda h: h._replace(nbytes=2**60), "cut off"),
        (lambda h: h._replace(cells=3), "items"),
    ],
)
def test_a_head_that_lies_is_refused(change, why):
    head, body, sink, _ = sound_chunk()
    with pytest.raises(FrameError, match=why):
        sink.commit("host/1", 0, 0, change(head), body)
    assert sink.commit("host/1", 0, 0, head, body)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)  # native/tests/fuzz_chunks.cc takes many more
@given(data=st.data())
def test_a_damaged_body_is_refused_or_harmless(kind, data):
    """Whatever the bytes: no crash, and what is taken can be sampled."""
    head, body, sink, there = sound_chunk(kind)
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(body), head.rows * 8 + head.positions * 8) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        sink.commit("host/1", 0, 0, head, damaged)
    except FrameError:
        assert len(there) == 0
    else:
        sink.close()
        assert len(there) == head.items
        batch = there.sample(head.items)
        assert np.isfinite(batch.data["reward"]).all()
    there.close()


def test_a_chunk_that_claims_another_place_is_not_mixed_with_what_is_there():
    """Rows that a slot has already are not written again: they must be the same, or the chunk gets its own slot."""
    here, source, there, _, sink = pair("transition", 4096)
    simulator, writer = Simulator(2, 3, "transition"), here.writer(streams=2)
    items = []
    for _ in range(4):
        for _ in range(12):
            writer.append(simulator.step())
        heads, body = source.take(2**20, 0.0)
        items.append((heads[0], body[: heads[0].nbytes]))
    item = 0
    for sequence, (head, body) in enumerate(items):  # each says that it comes right after the first
        claimed = items[0][0].first + (items[0][0].positions if sequence else 0)
        sink.commit("host/1", sequence, item, head._replace(first=claimed), body)
        item += head.items
    sink.close()
    for number, values in everything("transition", there).items():
        observed = np.frombuffer(values["observation"], np.float32).reshape(3, 3)[:, 0]
        assert all(abs(number * 10 - value) <= 20 for value in observed)
        later = np.frombuffer(values["next_observation"], np.float32).reshape(3, 3)[-1, 0]
        assert 10 <= later - number * 10 <= 30


def test_numbers_out_of_order_are_refused():
    head, body, sink, _ = sound_chunk()
    assert sink.commit("host/1", 0, 100, head, body)
    with pytest.raises(FrameError, match="numbered before"):
        sink.commit("host/1", 1, 50, head, body)
    with pytest.raises(FrameError, match="too far ahead"):
        sink.commit("host/1", 2**35, 2000, head, body)
    with pytest.raises(FrameError, match="too far ahead"):
        sink.commit("host/1", 1, 2**45, head, body)
    with pytest.raises(FrameError, match="out of range"):
        sink.commit("host/1", 2**64, 2000, head, body)
    assert sink.commit("host/1", 1, 2000, head, body)


def test_a_chunk_that_waits_is_checked_once_and_no_other_in_its_place():
    head, body, _, _ = sound_chunk()
    there = kept(Replay(4, fields("transition"), sampler="fifo", streams=4, **KINDS["transition"]))
    sink = ChunkSink(there, Receipts(8), 4)
    sink.open()
    owned = bytearray(body)
    waiting = memoryview(owned).toreadonly()
    damaged = bytes(np.float32(np.nan).tobytes() + body[4:])  # the first reward

    def commit(bytes_):
        return sink.commit("host/1", 0, 0, head, bytes_)

    with pytest.raises(WaitTimeout):
        commit(waiting)
    with pytest.raises(FrameError, match="a reward is NaN"):
        commit(damaged)
    with pytest.raises(WaitTimeout):
        commit(waiting)
    owned[:] = damaged
    with pytest.raises(FrameError, match="a reward is NaN"):
        commit(owned)  # who may change them, may have
    owned[:] = body
    with pytest.raises(WaitTimeout):
        commit(waiting)
    owned[:] = damaged  # which nobody does to what was received: it shows that no second look is taken
    with pytest.raises(WaitTimeout):
        commit(waiting)
    owned[:] = body
    for _ in range(head.items):
        there.sample(1)
        try:
            assert commit(waiting)
            break
        except WaitTimeout:
            continue
    else:
        pytest.fail("the whole chunk was never taken")
    assert there.core.native.check() == 0.0
