"""Chunks dealt to the replays of several learners: equally, each once, whoever dies, and none held up by a full one."""

from __future__ import annotations

import numpy as np
import pytest

from apexrl._native import ChunkHeads
from apexrl.errors import FrameError, WaitTimeout
from apexrl.replay import Field, Replay
from apexrl.replay.chunk_dealer import ChunkDealer
from apexrl.replay.chunks import ChunkSource, Receipts

FIELDS = {"number": Field((), "int64")}
KINDS = {"transition": {"kind": "transition"}, "unroll": {"kind": "unroll", "length": 4}}


class Rig:
    """An actor host's replay, and those of two learners."""

    def __init__(self, kind, capacity=4096):
        self.here = Replay(4096, FIELDS, sampler="fifo", streams=2, **KINDS[kind])
        self.there = [Replay(capacity, FIELDS, sampler="fifo", streams=4, **KINDS[kind]) for _ in range(2)]
        self.receipts = Receipts(8)
        self.dealer = self.successor()
        self.writer, self.source = self.here.writer(streams=2), ChunkSource(self.here)
        self.number = self.sequence = self.item = 0
        self.waiting = []

    def successor(self):
        dealer = ChunkDealer(self.there, self.receipts, 4)
        dealer.open()
        return dealer

    def write(self, steps):
        no = np.zeros(2, bool)
        for _ in range(steps):
            self.number += 1
            number = np.array([self.number, 1_000_000 + self.number])
            values = {"number": number, "reward": np.zeros(2, np.float32), "terminated": no, "truncated": no}
            self.writer.append(values)

    def chunks(self, most_bytes=2**20):
        """What is ready, as arguments of ``commit``."""
        heads, body = self.source.take(most_bytes, 0.0)
        offset = 0
        for head in heads:
            self.waiting.append(("host/1", self.sequence, self.item, head, body, offset))
            self.sequence, self.item, offset = self.sequence + 1, self.item + head.items, offset + head.nbytes
        return self.waiting

    def carry(self, most_bytes=2**20):
        while self.chunks(most_bytes):
            while self.waiting:
                self.dealer.commit(*self.waiting[0])
                self.waiting.pop(0)

    def numbers(self):
        """Of each learner's items, their first steps."""
        found = []
        for replay in self.there:
            data = replay.sample(len(replay)).data["number"] if len(replay) else np.zeros(0, np.int64)
            found.append((data if data.ndim == 1 else data[:, 0]).tolist())
        return found


@pytest.mark.parametrize("kind", KINDS)
def test_replays_are_given_equally_many_items_and_each_once(kind):
    rig = Rig(kind)
    for _ in range(40):
        rig.write(int(np.random.default_rng(rig.number).integers(1, 60)))
        rig.carry(most_bytes=500)  # runs of a slot, not whole ones
    committed = rig.receipts.totals()
    assert committed[1:] == (rig.item, 0, 0)
    first, second = rig.numbers()
    assert len({*first, *second}) == len(first) + len(second) == rig.item
    assert abs(len(first) - len(second)) <= 128  # a slot of each stream


def test_a_frame_is_dealt_up_to_where_no_replay_has_room():
    rig = Rig("transition", capacity=100)
    rig.write(300)
    heads, body = rig.source.take(2**20, 0.0)
    done = rig.dealer.commit_frame("host/1", 0, 0, heads, body)
    assert 0 < done < len(heads)
    assert all(rig.numbers())
    again = rig.dealer.commit_frame("host/1", 0, 0, heads, body, done, timeout=5.0)
    assert done < again
    _, committed, missing, repeated = rig.receipts.totals()
    assert committed >= heads.items() - heads.items(again)  # and a part of the chunk that had no room
    assert (missing, repeated) == (0, 0)
    lying = ChunkHeads([head._replace(rows=head.rows + 1) for head in heads])
    with pytest.raises(FrameError):
        rig.dealer.commit_frame("host/2", 0, 0, lying, body)


def test_a_senders_slot_stays_one_slot():
    rig = Rig("transition")
    for _ in range(64):
        rig.write(3)
        rig.carry(most_bytes=200)
    for numbers in rig.numbers():
        runs = 1 + np.count_nonzero(np.diff(sorted(numbers)) > 1)
        assert len(numbers) / runs >= 32  # alternating single runs would have a few items each


def test_a_full_replay_holds_nothing_up():
    rig = Rig("unroll", capacity=64)
    rig.write(400)
    with pytest.raises(WaitTimeout):
        rig.carry()
    full = [len(replay) for replay in rig.there]
    assert min(full) >= 60
    rig.there[1].sample(len(rig.there[1]))
    with pytest.raises(WaitTimeout):
        rig.carry()
    assert [len(replay) for replay in rig.there] == [full[0], pytest.approx(full[1], abs=4)]


@pytest.mark.parametrize("made", [True, False], ids=["committed", "not committed"])
def test_a_successor_settles_what_was_announced_by_the_replay_that_it_was_for(made):
    """The predecessor dies between its announcement and its entry, before or after the store that commits."""
    rig = Rig("unroll")
    rig.write(200)
    chunks = rig.chunks()
    rows, intent = rig.receipts._table, rig.receipts.segment.array()[:64].view(np.uint64)
    rig.dealer._given[0] = 1  # the first chunk goes to the other, and the same slot here is empty
    before = rows.copy()
    chunk = chunks.pop(0)
    rig.dealer.commit(*chunk)
    assert rig.receipts.replay == 1
    rows[:, :6] = before[:, :6]
    intent[0] = 1 + rig.receipts.account("host/1")  # the rest of it is still there
    if not made:
        intent[3] += 60  # of more positions than the slot has
    rig.dealer.close()
    rig.dealer = rig.successor()
    assert rig.dealer.commit(*chunk) is not made
    rig.carry()
    assert rig.receipts.totals().committed == rig.item
    assert sum(len(replay) for replay in rig.there) == rig.item + (0 if made else chunk[3].items)
