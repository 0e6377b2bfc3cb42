"""What goes wrong in replays, one test each. Where another file has the test, a comment says where."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from plain_replay import powered

from apexrl import _native
from apexrl.replay import Field, Replay

PR_SET_THP_DISABLE = 41  # linux/prctl.h

FIELDS = {"number": Field((), "int64"), "wide": Field((10,), "float64")}
STEP = {"observation": Field((2,), "float32"), "number": Field((), "int64")}


def rows(first, count):
    number = np.arange(first, first + count)
    return {"number": number, "wide": np.repeat(number[:, None], 10, 1).astype("f8")}


def make(**options):
    return Replay(**{"capacity": 1000, "fields": FIELDS, "alpha": 1.0, "eps": 0.0, "seed": 1, **options})


def episodes(replay, lengths, ends, reward=1.0):
    """Episodes of so many steps, each ended as said ("terminated", "truncated"); the observation is (episode, step)."""
    writer, number = replay.writer(streams=1), 0
    for episode, (length, end) in enumerate(zip(lengths, ends, strict=True)):
        for t in range(length + 1):  # the last is the final observation
            last = t == length - 1
            writer.append(
                {
                    "observation": np.array([[episode, t]], "f4"),
                    "number": np.array([number]),
                    "reward": np.array([reward], "f4"),
                    "terminated": np.array([last and end == "terminated"]),
                    "truncated": np.array([last and end == "truncated"]),
                }
            )
            number += 1
    writer.flush()


def items(replay):
    """Every item of a small replay, by its number."""
    found = {}
    for _ in range(50):
        batch = replay.sample(500)
        for i, number in enumerate(batch.data["number"].tolist()):
            found[number] = {name: value[i] for name, value in batch.data.items()}
    return found


# --- sums drift


def test_a_million_updates_leave_no_residue():
    rng = np.random.default_rng(0)
    with make(capacity=20_000) as replay:
        replay.writer().extend(rows(0, 20_000))
        for _ in range(100):
            keys = replay.sample(10_000).keys
            assert replay.update_priorities(keys, 10.0 ** rng.uniform(-12, 12, 10_000)).stale == 0
        assert replay.core.native.check() == 0.0
        writer = replay.writer()
        writer.extend(rows(20_000, 20_000), priorities=np.ones(20_000))  # all that was huge or tiny has gone
        batch = replay.sample(5_000)
        np.testing.assert_allclose(batch.probabilities, 1.0 / len(replay), rtol=1e-14)


# --- float32 sums cannot tell small leaves apart


def test_a_small_leaf_behind_a_huge_one_can_be_drawn():
    tree = _native.SumTree(4096)
    tree.set(list(range(4096)), [2.0**40] + [1.0] * 4095)
    assert tree.find([2.0**40 + k + 0.5 for k in range(4095)]) == list(range(1, 4096))
    assert tree.total == 2.0**40 + 4095


# --- NaN, infinite, negative: test_rows.py test_bad_priorities_are_refused_by_row


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_bad_priority_changes_no_other(bad):
    """A refused update is not half done."""
    with make() as replay:
        replay.writer().extend(rows(0, 100), priorities=np.ones(100))
        keys = replay.sample(100).keys
        with pytest.raises(ValueError, match="row 99"):
            replay.update_priorities(keys, np.append(np.full(99, 50.0), bad))
        np.testing.assert_array_equal(replay.sample(100).probabilities, 0.01)


# --- mass lands on a zero leaf: test_sum_tree.py test_mass_never_lands_on_a_zero_leaf


def test_an_item_of_priority_zero_is_never_drawn():
    rng = np.random.default_rng(2)
    priorities = np.where(rng.random(1000) < 0.7, 0.0, 10.0 ** rng.uniform(-9, 9, 1000))
    with make() as replay:
        replay.writer().extend(rows(0, 1000), priorities=priorities)
        drawn = np.concatenate([replay.sample(1000).data["number"] for _ in range(30)])
        assert (priorities[drawn] > 0.0).all()


# --- an update hits the successor: test_rows.py test_keys_cannot_hit_a_successor


def test_updates_of_batches_drawn_ahead_do_not_hit_successors():
    """Several batches under way, as a prefetching learner has them, while the replay turns over."""
    with make(capacity=256) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 256), priorities=np.ones(256))
        ahead = [replay.sample(64) for _ in range(4)]
        writer.extend(rows(256, 512), priorities=np.ones(512))
        for batch in ahead:
            assert replay.update_priorities(batch.keys, np.full(64, 1e9)) == (0, 64)
        assert replay.stats()["updates_stale"] == 256
        size = len(replay)
        np.testing.assert_allclose(replay.sample(size).probabilities, 1.0 / size, rtol=1e-12)


def test_positions_that_are_no_items_are_not_given_out_when_their_slot_is_used_again():
    """The same through the fifo sampler: a chunk whose last position is a final observation comes back as another."""
    rng, out, appended, ended = np.random.default_rng(0), [], [], False
    with make(capacity=64, fields=STEP, kind="transition", sampler="fifo", writers=1, streams=1) as replay:
        writer = replay.writer(streams=1)
        for number in range(4000):
            if not ended:
                appended.append(number)
            end = not ended and rng.random() < 0.3
            step = {"observation": np.zeros((1, 2), "f4"), "number": np.array([number]), "reward": np.zeros(1, "f4")}
            writer.append({**step, "terminated": np.array([end]), "truncated": np.array([False])}, timeout=0.0)
            ended = end
            while number % 40 >= 20 and len(replay):  # bursts of 20 steps, then all of them are taken
                out += replay.sample(1, timeout=0.0).data["number"].tolist()
        assert out == appended[: len(out)]
        assert len(out) > 2000


# --- a sampled batch changes later: test_rows.py test_outputs_own_their_memory_and_batches_may_be_in_flight
# --- one tiny priority shrinks every step


def test_a_tiny_priority_does_not_shrink_the_weights_of_a_batch():
    with make() as replay:
        replay.writer().extend(rows(0, 1000), priorities=np.append(np.ones(999), 1e-12))
        batch = replay.sample(256, beta=1.0)
        assert 999 not in batch.data["number"]  # seeded: about one in 10¹² draws
        np.testing.assert_allclose(batch.weights, 1.0)
        shrunk = replay.sample(256, beta=1.0, normalize="buffer")
        np.testing.assert_allclose(shrunk.weights, 1e-12, rtol=1e-6)


def test_the_smallest_weight_recovers_when_the_tiny_item_has_gone():
    """A running minimum that never rises keeps shrinking."""
    with make(capacity=200) as replay:
        writer = replay.writer()
        writer.extend(rows(0, 200), priorities=np.append(np.ones(199), 1e-9))
        assert replay.sample(64, beta=1.0, normalize="buffer").weights.max() < 1e-6
        writer.extend(rows(200, 200), priorities=np.ones(200))
        np.testing.assert_allclose(replay.sample(64, beta=1.0, normalize="buffer").weights, 1.0)


# --- new items get the largest priority ever: only those that come without, test_rows.py
#     test_default_priority_is_the_largest_so_far


def test_one_huge_priority_does_not_raise_those_that_workers_give():
    with make() as replay:
        writer = replay.writer()
        writer.extend(rows(0, 1), priorities=np.array([1e6]))
        writer.extend(rows(1, 9), priorities=np.ones(9))
        replay.update_priorities(replay.sample(1).keys, np.array([1.0]))
        np.testing.assert_allclose(replay.sample(10).probabilities, 0.1)


# --- alpha is applied twice, or not at all: for new items test_rows.py test_oracle_probabilities_and_weights


def test_alpha_is_applied_once_to_updates_and_not_again_by_a_snapshot(tmp_path):
    magnitudes = np.array([1.0, 2.0, 3.0, 4.0])
    expected = powered(magnitudes, 0.6, 1e-3) / powered(magnitudes, 0.6, 1e-3).sum()
    with make(alpha=0.6, eps=1e-3) as replay:
        replay.writer().extend(rows(0, 4), priorities=np.full(4, 9.0))
        batch = replay.sample(100)
        replay.update_priorities(batch.keys, magnitudes[batch.data["number"]])
        batch = replay.sample(100)
        np.testing.assert_allclose(batch.probabilities, expected[batch.data["number"]], rtol=1e-12)
        replay.save(tmp_path / "replay")
        with Replay.load(tmp_path / "replay") as loaded:
            batch = loaded.sample(100)
            np.testing.assert_allclose(batch.probabilities, expected[batch.data["number"]], rtol=1e-12)


# --- the end of an episode is missed in a window


@pytest.mark.parametrize("n_step", [1, 2, 3, 4])
def test_no_window_bootstraps_from_beyond_a_termination(n_step):
    """The last step of the window included."""
    with make(fields=STEP, kind="transition", n_step=n_step, gamma=0.9) as replay:
        episodes(replay, [5, 5, 5], ["terminated"] * 3)
        for item in items(replay).values():
            episode, t = item["observation"]
            steps = min(n_step, 5 - t)
            assert item["discount"] == (0.0 if t + steps == 5 else np.float32(0.9**steps))
            assert item["next_observation"].tolist() == [episode, t + steps]
            np.testing.assert_allclose(item["reward"], sum(0.9**k for k in range(int(steps))), rtol=1e-6)


# --- truncation loses its final observation, or stops the bootstrap


def test_truncation_bootstraps_from_the_true_final_observation():
    with make(fields=STEP, kind="transition", n_step=3, stack=2, gamma=0.9) as replay:
        episodes(replay, [4, 4], ["truncated", "terminated"])
        found = items(replay)
        assert set(found) == {0, 1, 2, 3, 5, 6, 7, 8}
        for number in (1, 2, 3):
            assert found[number]["next_observation"].tolist() == [[0, 3], [0, 4]]
            assert found[number]["discount"] > 0.0
        assert found[5]["observation"].tolist() == [[1, 0], [1, 0]]  # nothing of the episode before


# --- a shorter window with the longer one's discount


def test_discounts_count_the_steps_of_each_window():
    with make(fields=STEP, kind="transition", n_step=3, gamma=0.5) as replay:
        episodes(replay, [5], ["truncated"])
        discounts = {number: item["discount"] for number, item in items(replay).items()}
        assert discounts == {0: 0.125, 1: 0.125, 2: 0.125, 3: 0.25, 4: 0.5}


# --- independent draws vary more than they need


def test_stratified_draws_vary_less():
    counts = {}
    for draws in ("stratified", "independent"):
        with make(draws=draws) as replay:
            replay.writer().extend(rows(0, 1000), priorities=np.linspace(0.5, 1.5, 1000))
            counts[draws] = [np.count_nonzero(replay.sample(100).data["number"] < 500) for _ in range(300)]
    means = {draws: np.mean(values) for draws, values in counts.items()}
    np.testing.assert_allclose([means["stratified"], means["independent"]], 100 * 0.75 / 2, atol=1.0)
    assert np.var(counts["independent"]) > 10.0  # n p (1 − p) = 23
    assert np.var(counts["stratified"]) < 1.0  # one slice straddles the middle


# --- what is removed is what is sampled least, or the reverse, because one rule serves both


def test_sampler_and_remover_are_separate():
    """Likelier items stay longer under the proportional remover, and go in turn under the FIFO one."""
    share = {}
    for remover in ("fifo", "proportional"):
        with make(capacity=640, remover=remover, remover_alpha=-1.0) as replay:
            writer = replay.writer()
            for first in range(0, 6400, 64):
                number = np.arange(first, first + 64)
                writer.extend(rows(first, 64), priorities=np.where(number % 2 == 0, 10.0, 0.1))
            size = len(replay)
            assert size <= 640
            replay.update_priorities(replay.sample(5000).keys, np.ones(5000))
            batch = replay.sample(5000)
            weight = 1.0 / batch.probabilities
            share[remover] = (weight * (batch.data["number"] % 2 == 0)).sum() / weight.sum()
    assert abs(share["fifo"] - 0.5) < 0.05
    assert share["proportional"] > 0.9


# --- counters of 32 bits


def test_counters_go_on_beyond_32_bits():
    with make(capacity=256, min_size=10, samples_per_insert=2.0, insert_band=50.0) as replay:
        native = replay.core.native
        native.restore_counters(2**33, 2**34, 2**33 - 200, 0, 1.0)
        replay.core.own()  # as after a load
        writer = replay.writer()
        writer.extend(rows(0, 500), priorities=np.ones(500))
        batch = replay.sample(64)
        stats = replay.stats()
        assert stats["inserted"] == 2**33 + 500
        assert stats["sampled"] == 2**34 + 64
        np.testing.assert_allclose(stats["observed_samples_per_insert"], 2.0, rtol=1e-6)
        assert len(replay) > 240
        assert replay.update_priorities(batch.keys, np.ones(64)) == (64, 0)
        assert replay.core.native.check() == 0.0


def test_generations_beyond_32_bits_make_distinct_keys():
    with make(capacity=64) as replay:
        replay.core.native.finish_restore(2**33)  # every slot is free, of a generation as after years
        writer, seen = replay.writer(), set()
        for first in range(0, 640, 64):
            writer.extend(rows(first, 64), priorities=np.ones(64))
            batch = replay.sample(200)
            assert replay.update_priorities(batch.keys, np.ones(200)).stale == 0
            alive = set(zip(batch.keys.tolist(), batch.data["number"].tolist(), strict=True))
            seen |= alive
        keys = [key for key, _ in seen]
        assert len(set(keys)) == len(keys)  # no key ever meant two items


# --- work in proportion to the capacity


def referenced():
    """(resident, touched since the last reset) kB of all replay memory that this process maps."""
    resident = touched = 0
    ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            ours = "memfd:apexrl" in line
        elif ours and line.startswith("Rss:"):
            resident += int(line.split()[1])
        elif ours and line.startswith("Referenced:"):
            touched += int(line.split()[1])
    return resident, touched


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the pages that a process touches")
@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_a_call_touches_what_it_handles_and_not_the_whole_replay(normalize):
    """The kernel counts the pages that were touched: no scan of items, flags, priorities or slots."""
    reset = Path("/proc/self/clear_refs")
    assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0  # a huge page counts one touch for 2 MB
    with make(capacity=500_000) as replay:
        writer = replay.writer()
        for first in range(0, 500_000, 10_000):
            writer.extend(rows(first, 10_000), priorities=np.ones(10_000))
        replay.sample(32, normalize=normalize)
        reset.write_text("1")
        writer.extend(rows(0, 50), priorities=np.ones(50))
        batch = replay.sample(32, normalize=normalize)
        replay.update_priorities(batch.keys, np.full(32, 2.0))
        counted = referenced()
        assert counted[0] > 40_000
        assert counted[1] < 0.05 * counted[0]
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


# --- slots that were reserved but not written can be sampled: also test_processes.py test_killed_writers_harm_nobody


def test_unwritten_rows_are_never_sampled():
    with make(capacity=2000, writers=3) as replay:
        stats = replay.stats()
        data = replay.core.native.segment().array()
        data[stats["bytes"] - stats["slots"] * stats["slot_bytes"] : stats["bytes"]] = 0xA5
        writers = [replay.writer() for _ in range(3)]
        for i, writer in enumerate(writers):  # three slots, none of them full
            writer.extend(rows(100 * i, 7 + i), priorities=np.ones(7 + i))
        written = {100 * i + k for i in range(3) for k in range(7 + i)}
        batch = replay.sample(2000)
        assert set(batch.data["number"].tolist()) == written
        np.testing.assert_array_equal(batch.data["wide"], np.repeat(batch.data["number"][:, None], 10, 1))


# --- commits in order let one slow writer stall all: test_processes.py test_a_stopped_writer_blocks_nobody


def test_a_writer_in_the_middle_of_a_chunk_holds_nobody_up():
    with make(capacity=2000, writers=2) as replay:
        slow, quick = replay.writer(), replay.writer()
        slow.extend(rows(0, 3), priorities=np.ones(3))
        for first in range(1000, 11_000, 500):
            quick.extend(rows(first, 500), priorities=np.ones(500), timeout=0.0)
            assert replay.sample(2000).data["number"].max() >= first
        slow.extend(rows(3, 3), priorities=np.ones(3), timeout=0.0)
        assert set(replay.sample(10_000).data["number"].tolist()) >= {0, 1, 2, 3, 4, 5}


# --- sampling an empty replay hangs: test_rows.py test_sampling_an_empty_replay_waits_then_raises
# --- a wrong shape or a missing key hangs everybody: test_rows.py test_wrong_fields_are_refused_by_name


def test_a_refused_call_leaves_no_writer_and_no_sampler_waiting():
    with make(writers=2) as replay:
        bad, good = replay.writer(), replay.writer()
        for k in range(50):
            with pytest.raises(ValueError, match=r"number|wide"):
                bad.extend({"number": np.arange(5)} if k % 2 else {**rows(0, 5), "wide": np.zeros((5, 3))})
            good.extend(rows(10 * k, 10), timeout=0.0)
            assert len(replay.sample(8, timeout=0.0)) == 8
        bad.extend(rows(500, 5), timeout=0.0)
        assert len(replay) == 505


# --- a snapshot loses the priorities: test_snapshot.py test_a_loaded_replay_goes_on_exactly
