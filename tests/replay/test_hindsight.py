"""Goals drawn in hindsight, against the streams as they were written."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl.errors import ConfigError
from apexrl.replay import Field, Replay
from apexrl.replay.chunks import ChunkSink, ChunkSource, Receipts

FIELDS = {
    "observation/achieved_goal": Field((2,), "float32"),
    "observation/desired_goal": Field((2,), "float32"),
    "action": Field((), "int64"),
}


def make(**options):
    return Replay(
        **{
            "capacity": 4096, "fields": FIELDS, "kind": "transition", "alpha": 1.0, "eps": 0.0, "streams": 4,
            "hindsight": "future", "hindsight_share": 1.0, **options,
        }
    )  # fmt: skip


class Streams:
    """Streams whose achieved goal is (stream, time), and the episodes that they made."""

    def __init__(self, streams):
        self.times = [0] * streams
        self.ended = [False] * streams
        self.episodes = [[[0]] for _ in range(streams)]  # the times of each episode's observations

    def step(self, ends):
        """One step of each stream; the episodes of ``ends`` end with it. A final observation ends none."""
        rows = [(stream, time) for stream, time in enumerate(self.times)]
        now = [end and not ended for end, ended in zip(ends, self.ended, strict=True)]
        for stream, (end, ended) in enumerate(zip(now, self.ended, strict=True)):
            self.times[stream] += 1
            if ended:
                self.episodes[stream].append([self.times[stream]])
            else:
                self.episodes[stream][-1].append(self.times[stream])
            self.ended[stream] = end
        goals = np.array(rows, np.float32)
        count = len(rows)
        return {
            "observation/achieved_goal": goals,
            "observation/desired_goal": np.zeros_like(goals),
            "action": np.zeros(count, np.int64),
            "reward": np.zeros(count, np.float32),
            "terminated": np.array(now),
            "truncated": np.zeros(count, bool),
        }

    def candidates(self, stream, time, strategy, oldest, newest):
        """Where a goal may come from: times of the episode that are stored, of ``oldest`` … ``newest``."""
        episode = next(e for e in self.episodes[stream] if e[0] <= time < e[-1] or time in e[:-1])
        after = [t for t in episode if time < t <= newest]
        if strategy == "future":
            return after
        if strategy == "final":
            return after[-1:]
        return [t for t in episode[1:] if oldest <= t <= newest]


def written(replay, streams, steps, ends, seed=0):
    """``streams`` of so many steps; ``ends(rng)`` says whether an episode ends."""
    made, rng = Streams(streams), np.random.default_rng(seed)
    writer = replay.writer(streams=streams)
    for _ in range(steps):
        writer.append(made.step([ends(rng) for _ in range(streams)]))
    writer.flush()
    return made, writer


def goals(batch):
    """(stream, time) of each item, and of its goal."""
    items = batch.data["observation/achieved_goal"].astype(int)
    drawn = batch.data["hindsight/goal"].astype(int)
    assert batch.data["hindsight/relabelled"].all()
    return items, drawn


@settings(max_examples=12, deadline=None)
@given(
    strategy=st.sampled_from(["future", "final", "episode"]),
    streams=st.integers(1, 4),
    steps=st.integers(2, 700),
    length=st.sampled_from([1, 3, 40, 300, 10_000]),
    n_step=st.integers(1, 5),
    stack=st.integers(1, 3),
    capacity=st.sampled_from([256, 1024, 8192]),
    seed=st.integers(0, 2**20),
)
def test_goals_come_from_the_items_own_episode(strategy, streams, steps, length, n_step, stack, capacity, seed):
    with make(hindsight=strategy, n_step=n_step, stack=stack, capacity=capacity, seed=seed) as replay:
        made, _ = written(replay, streams, steps, lambda rng: rng.random() < 1 / length, seed)
        if not len(replay):
            return
        batch = replay.sample(256)
        items = batch.data["observation/achieved_goal"].astype(int)
        items = items[:, -1] if stack > 1 else items
        times = [sorted({int(t) for s, t in items if s == stream}) for stream in range(streams)]
        chunk = replay.stats()["chunk"]
        for (stream, time), (from_stream, goal) in zip(items, batch.data["hindsight/goal"].astype(int), strict=True):
            assert from_stream == stream
            # what is older than every sampled item by more than a chunk may be gone, and is not counted on
            allowed = made.candidates(stream, time, strategy, times[stream][0] - chunk, made.times[stream] - 1)
            assert goal in allowed
        achieved, m = batch.data["hindsight/achieved"], batch.data["hindsight/steps"]
        assert achieved.shape == (256, n_step, 2)
        for k in range(n_step):
            inside = k < m
            np.testing.assert_array_equal(achieved[inside, k, 1], items[inside, 1] + k + 1)
            assert not achieved[~inside, k].any()


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_every_stored_step_is_equally_likely(strategy):
    """Episodes of 100 steps, over several slots; the last has not ended. Nothing was removed."""
    with make(hindsight=strategy, capacity=8192) as replay:
        clock = iter(range(1, 10**6))
        made, _ = written(replay, 1, 350, lambda rng: next(clock) % 101 == 100)
        seen: dict[int, Counter] = {}
        for _ in range(24):
            items, drawn = goals(replay.sample(2048))
            for (_, time), (_, goal) in zip(items, drawn, strict=True):
                seen.setdefault(int(time), Counter())[int(goal)] += 1
        assert len(seen) > 300
        for time, found in seen.items():
            allowed = made.candidates(0, time, strategy, 0, made.times[0] - 1)
            assert found.keys() <= set(allowed), (time, allowed)
        # together: the rank of a goal among those allowed is uniform
        ranks = []
        for time, found in seen.items():
            allowed = made.candidates(0, time, strategy, 0, made.times[0] - 1)
            if len(allowed) >= 40:
                ranks += [allowed.index(g) * 10 // len(allowed) for g, n in found.items() for _ in range(n)]
        if strategy != "final":
            counts = np.bincount(ranks, minlength=10)
            assert np.abs(counts / counts.sum() - 0.1).max() < 0.012, counts
            assert set().union(*(seen[time] for time in range(99))) == set(range(1, 101))


def test_what_was_removed_is_no_goal():
    """One endless episode: goals of the episode are no older than what is stored."""
    with make(hindsight="episode", capacity=512, streams=1) as replay:
        written(replay, 1, 5000, lambda rng: False)
        items, drawn = goals(replay.sample(4096))
        oldest = items[:, 1].min()
        assert drawn[:, 1].min() >= oldest - replay.stats()["chunk"]
        assert drawn[:, 1].min() < oldest + 64
        assert drawn[:, 1].max() == 4999


def test_a_share_of_the_items_is_relabelled():
    with make(hindsight_share=0.25) as replay:
        written(replay, 2, 300, lambda rng: rng.random() < 0.05)
        batch = replay.sample(4096)
        relabelled = batch.data["hindsight/relabelled"]
        assert abs(relabelled.mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 4096)
        assert not batch.data["hindsight/goal"][~relabelled].any()


def test_priorities_still_decide_which_items_are_drawn():
    with make(hindsight_share=1.0) as replay:
        written(replay, 1, 200, lambda rng: rng.random() < 0.05)
        keys = np.unique(np.concatenate([replay.sample(512).keys for _ in range(20)]))
        replay.update_priorities(keys, np.zeros(len(keys)))
        replay.update_priorities(keys[:1], np.ones(1))
        assert set(replay.sample(64).keys) == {keys[0]}


def test_goals_survive_a_snapshot(tmp_path):
    with make(hindsight="future", capacity=8192, streams=2) as replay:
        made, _ = written(replay, 2, 700, lambda rng: rng.random() < 1 / 300)
        replay.save(tmp_path / "replay")
    with Replay.load(tmp_path / "replay") as replay:
        far = 0
        for _ in range(2):
            items, drawn = goals(replay.sample(2048))
            for (stream, time), (from_stream, goal) in zip(items, drawn, strict=True):
                assert from_stream == stream
                assert goal in made.candidates(stream, time, "future", 0, 10**6)
            far = max(far, int((drawn - items)[:, 1].max()))
        assert far > 130  # over two slots and more


@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_chunks_of_other_hosts_are_joined_to_episodes(drop):
    """Where chunks were lost on the way, episodes end; goals are never of another."""
    rng = np.random.default_rng(1)
    here = Replay(4096, FIELDS, kind="transition", streams=2, sampler="fifo")
    with here, make(capacity=8192, streams=2) as there:
        sink, source = ChunkSink(there, Receipts(8), 2), ChunkSource(here)
        sink.open()
        made, writer = Streams(2), here.writer(streams=2)
        sequence = item = 0
        for step in range(900):
            writer.append(made.step([rng.random() < 1 / 200 for _ in range(2)]))
            if step % 37:
                continue
            writer.flush()
            heads, body = source.take(20_000, 0.0)
            offset = 0
            for head in heads:
                if rng.random() >= drop:
                    assert sink.commit("host/1", sequence, item, head, body, offset)
                sequence, item, offset = sequence + 1, item + head.items, offset + head.nbytes
        far = 0
        for _ in range(4):
            items, drawn = goals(there.sample(1024))
            for (stream, time), (from_stream, goal) in zip(items, drawn, strict=True):
                assert from_stream == stream
                assert goal in made.candidates(stream, time, "future", 0, 10**6)
            far = max(far, int((drawn - items)[:, 1].max()))
        assert far > (130 if drop == 0.0 else 20)
        sink.close()


def _write_and_die(replay, stop):
    written(replay, 4, stop, lambda rng: rng.random() < 1 / 150, seed=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_writer_that_dies_leaves_sound_episodes():
    """Goals come from the writer's own stream, at or after the item, whoever died and whoever came after."""
    context = multiprocessing.get_context("spawn")
    with make(hindsight="future", streams=8, writers=2, capacity=16_384) as replay:
        for stop in (300, 700):
            process = context.Process(target=_write_and_die, args=(replay, stop))
            process.start()
            process.join(60)
            assert process.exitcode == -signal.SIGKILL
        far = 0
        for _ in range(20):
            items, drawn = goals(replay.sample(512))
            assert (items[:, 0] == drawn[:, 0]).all()
            ahead = drawn[:, 1] - items[:, 1]
            assert (ahead > 0).all()
            far = max(far, int(ahead.max()))
        assert far > 130


def test_the_next_owner_draws_the_same_goals():
    """A successor finds the same episodes in shared memory."""
    with make(hindsight="final", capacity=8192) as replay:
        written(replay, 3, 500, lambda rng: rng.random() < 1 / 200)
        first = {tuple(i): tuple(g) for i, g in zip(*goals(replay.sample(4096)), strict=True)}
        replay.release()
        second = {tuple(i): tuple(g) for i, g in zip(*goals(replay.sample(4096)), strict=True)}
        both = first.keys() & second.keys()
        assert len(both) > 500
        assert all(first[i] == second[i] for i in both)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "sequence", "length": 4}, "kind='transition'"),
        ({"sampler": "fifo"}, "fifo"),
        ({"remover": "proportional"}, "proportional"),
        ({"hindsight": "past"}, "'future'"),
        ({"hindsight_share": 1.5}, "hindsight_share"),
        ({"hindsight_field": "observation/goal"}, "hindsight_field"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        make(**options)
