"""Mixed batches: the share of each replay, where each row came from, and where its priority goes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from open_replays import kept

from apexrl.errors import ConfigError, OwnershipError, PriorityError, WaitTimeout
from apexrl.replay import Field, MixedReplay, Replay

SPAWN = multiprocessing.get_context("spawn")
FIELDS = {"id": Field((), "int64"), "pair": Field((2,), "float32")}


def numbered(first, count, capacity=1000, fields=FIELDS, **options):
    """A replay of items numbered from ``first``."""
    replay = kept(Replay(capacity, fields, **{"alpha": 1.0, "eps": 0.0, "writers": 2, **options}))
    if count:
        ids = np.arange(first, first + count)
        values = {"id": ids, "pair": np.stack([ids, -ids], 1).astype("f4"), "extra": ids.astype("f4")}
        replay.writer().extend({name: values[name] for name in fields})
    return replay


def two(**options):
    return {"live": numbered(0, 100, **options), "dataset": numbered(10_000, 100, **options)}


@given(
    shares=st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(sum),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=40),
)
@settings(max_examples=40, deadline=None)
def test_exact_counts_stay_within_a_row_of_the_shares(shares, sizes):
    parts = np.array(shares) / sum(shares)
    mixed = MixedReplay.__new__(MixedReplay)  # the counts alone, without replays
    mixed.names, mixed._counts = tuple(map(str, range(len(parts)))), "exact"
    mixed.set_shares(dict(zip(mixed.names, parts, strict=True)))
    total = np.zeros(len(parts))
    for n, size in enumerate(sizes, 1):
        counts = np.array(mixed._share_out(size))
        assert (counts >= 0).all()
        assert counts.sum() == size
        total += counts
        assert np.abs(total - parts * sum(sizes[:n])).max() < max(1, len(parts) - 1) + 1e-6
        assert (counts[parts == 0] == 0).all()


def test_rows_come_from_the_replays_that_sources_names():
    mixed = MixedReplay(two(), {"live": 0.25, "dataset": 0.75})
    for _ in range(5):
        batch = mixed.sample(64)
        ids = batch.data["id"]
        np.testing.assert_array_equal(batch.sources, [0] * 16 + [1] * 48)
        np.testing.assert_array_equal(ids >= 10_000, batch.sources == 1)
        np.testing.assert_array_equal(batch.data["pair"], np.stack([ids, -ids], 1).astype("f4"))
        np.testing.assert_allclose(batch.probabilities, 0.01)
        np.testing.assert_allclose(batch.weights, 1.0)
    assert len(mixed) == 200
    assert mixed.capacity == 2000
    assert mixed.stats()["sampled"] == 5 * 64
    assert mixed.stats()["replays"]["live"]["sampled"] == 5 * 16


def test_expected_counts_vary_around_the_shares():
    mixed = MixedReplay(two(), {"live": 0.3, "dataset": 0.7}, counts="expected", seed=5)
    counts = np.array([(mixed.sample(50).sources == 0).sum() for _ in range(400)])
    assert counts.mean() == pytest.approx(15, abs=0.5)
    assert counts.var() == pytest.approx(50 * 0.3 * 0.7, rel=0.3)


def test_priorities_reach_the_replay_of_their_item():
    replays = two()
    mixed = MixedReplay(replays, {"live": 0.5, "dataset": 0.5})
    known = {}
    for _ in range(60):
        batch = mixed.sample(32)
        magnitudes = np.random.default_rng(len(known)).random(32) + 0.5
        assert mixed.update_priorities(batch.keys, magnitudes) == (32, 0)
        known.update(zip(batch.data["id"].tolist(), magnitudes.tolist(), strict=True))
    for name, first in (("live", 0), ("dataset", 10_000)):
        expected = np.array([known.get(first + i, 1.0) for i in range(100)])
        batch = replays[name].sample(200)
        np.testing.assert_allclose(batch.probabilities, expected[batch.data["id"] - first] / expected.sum())
    with pytest.raises(PriorityError, match="row 3"):
        mixed.update_priorities(batch.keys[:4], [1.0, 1.0, 1.0, -1.0])
    assert mixed.update_priorities(np.arange(5, dtype=np.uint64), np.ones(5)) == (0, 5)  # of no batch of this object


def test_weights_correct_each_replays_own_draw():
    replays = {"a": numbered(0, 0), "b": numbered(0, 0)}
    magnitudes = {"a": np.array([1.0, 3.0]), "b": np.array([5.0, 1.0, 2.0])}
    for name, values in magnitudes.items():
        ids = np.arange(len(values))
        replays[name].writer().extend({"id": ids, "pair": np.zeros((len(ids), 2), "f4")}, priorities=values)
    mixed = MixedReplay(replays, {"a": 0.5, "b": 0.5})
    batch = mixed.sample(80, beta=0.6)
    raw = np.empty(80)
    for place, name in enumerate(mixed.names):
        p = magnitudes[name] / magnitudes[name].sum()
        raw[batch.sources == place] = ((len(p) * p) ** -0.6)[batch.data["id"][batch.sources == place]]
    np.testing.assert_allclose(batch.weights, raw / raw.max(), rtol=1e-5)


def test_a_batch_has_the_fields_that_all_replays_sample():
    more = {**FIELDS, "extra": Field((), "float32")}
    mixed = MixedReplay({"a": numbered(0, 10, fields=more), "b": numbered(100, 10)}, {"a": 0.5, "b": 0.5})
    assert set(mixed.sample(4).data) == {"id", "pair"}


def test_what_cannot_be_mixed_is_refused():
    a = numbered(0, 10)
    for other, words in (
        (numbered(0, 0, fields={"id": Field((), "int32")}), "field 'id' is int64 .. and int32"),
        (numbered(0, 0, fields={"extra": Field((), "float32")}), "no field in common"),
        (kept(Replay(1000, {"id": Field((), "int64")}, kind="transition")), "kind 'rows' and 'transition'"),
    ):
        with pytest.raises(ConfigError, match=words):
            MixedReplay({"a": a, "b": other}, {"a": 0.5, "b": 0.5})
    for shares in ({"a": 1.1}, {"b": 1.0}, {}, {"a": float("nan")}, {"a": -1.0}):
        with pytest.raises(ConfigError, match="shares="):
            MixedReplay({"a": a}, shares)
    mixed = MixedReplay({"a": a}, {"a": 1.0})
    for size, beta, normalize, words in (
        (0, 0.4, "batch", "batch_size=0"),
        (4, -1.0, "batch", "beta=-1"),
        (4, 0.4, "buffer", "'buffer'"),
    ):
        with pytest.raises(ConfigError, match=words):
            mixed.sample(size, beta, normalize=normalize)


def test_what_others_gave_before_a_wait_is_kept():
    queue, other = numbered(0, 50, sampler="fifo"), numbered(10_000, 0)
    mixed = MixedReplay({"queue": queue, "other": other}, {"queue": 0.5, "other": 0.5})
    for _ in range(3):
        with pytest.raises(WaitTimeout, match="replay 'other'"):
            mixed.sample(20, timeout=0.0)
    other.writer().extend({"id": np.arange(10_000, 10_010), "pair": np.zeros((10, 2), "f4")})
    assert mixed.sample(20).data["id"][:10].tolist() == list(range(10))
    assert mixed.sample(20, outstanding=True).data["id"][:10].tolist() == list(range(10, 20))
    mixed.done(20)
    assert queue.stats()["sampled"] == 20


def test_sequences_with_shorter_horizons_and_pickled_mixes():
    fields = {"observation": Field((), "float32"), "action": Field((), "int64")}
    made = {}
    for name, base in (("a", 0), ("b", 1000)):
        made[name] = kept(Replay(500, fields, kind="transition", n_step=3, gamma=0.5, alpha=0.0, streams=1))
        writer = made[name].writer()
        for t in range(40):
            step = {"observation": [float(base + t)], "action": [base + t], "reward": [1.0]}
            writer.append({**step, "terminated": [False], "truncated": [False]})
    mixed = pickle.loads(pickle.dumps(MixedReplay(made, {"a": 0.5, "b": 0.5})))
    for n, total in ((3, 1.75), (1, 1.0)):
        batch = mixed.sample(32, n_step=n)
        np.testing.assert_allclose(batch.data["reward"], total)
        np.testing.assert_array_equal(batch.data["next_observation"], batch.data["observation"] + n)
        np.testing.assert_array_equal(batch.data["action"] >= 1000, batch.sources == 1)
    with pytest.raises(ConfigError, match="n_step=4"):
        mixed.sample(4, n_step=4)


def test_a_server_hands_out_mixed_batches():
    mixed = MixedReplay(two(), {"live": 0.5, "dataset": 0.5})
    with mixed.serve(learners=1, batch_size=16) as server:
        learner = server.learner(0)
        with pytest.raises(WaitTimeout):
            learner.sample(16, timeout=0.0)
        while server.step(timeout=0.0):
            pass
        batch = learner.sample(16)
        assert (batch.data["id"] >= 10_000).tolist() == [False] * 8 + [True] * 8
        learner.update_priorities(batch.keys, np.full(16, 2.0))
        server.step()
        assert server.stats()["priorities_applied"] == 16


def test_goals_in_hindsight_come_from_the_replay_of_their_item():
    fields = {"observation/achieved_goal": Field((2,), "float32"), "action": Field((), "int64")}
    made = {}
    for number, name in enumerate("ab"):
        made[name] = kept(
            Replay(
                1000, fields if number else dict(reversed(fields.items())), kind="transition", n_step=2, streams=1,
                hindsight=("future", "final")[number], hindsight_share=(1.0, 0.5)[number], alpha=0.0,
            )
        )  # fmt: skip
        writer = made[name].writer()
        for t in range(110):  # the goal is (replay, time); an episode has ten steps and the final observation
            values = {"observation/achieved_goal": np.array([[number, t]], "f4"), "action": [t], "reward": [0.0]}
            writer.append({**values, "terminated": [t % 11 == 9], "truncated": [False]})
    mixed = MixedReplay(made, {"a": 0.25, "b": 0.75})
    relabelled = [0, 0]
    for _ in range(20):
        data = mixed.sample(64).data
        source, time = data["observation/achieved_goal"].astype(int).T
        np.testing.assert_array_equal(source, [0] * 16 + [1] * 48)
        goal, yes, steps = data["hindsight/goal"].astype(int), data["hindsight/relabelled"], data["hindsight/steps"]
        np.testing.assert_array_equal(goal[yes, 0], source[yes])
        assert not goal[~yes].any()
        assert (goal[yes, 1] > time[yes]).all()
        np.testing.assert_array_equal(goal[yes, 1] // 11, time[yes] // 11)
        final = yes & (source == 1)
        np.testing.assert_array_equal(goal[final, 1], time[final] // 11 * 11 + 10)
        np.testing.assert_array_equal(steps, np.minimum(2, 10 - time % 11))
        np.testing.assert_array_equal(data["hindsight/achieved"][:, 0, 1], time + 1)
        np.testing.assert_array_equal(data["hindsight/achieved"][:, 0, 0], source)
        relabelled = [relabelled[0] + yes[:16].sum(), relabelled[1] + yes[16:].sum()]
    assert relabelled[0] == 20 * 16
    assert 0.4 < relabelled[1] / (20 * 48) < 0.6
    np.testing.assert_array_equal(mixed.sample(8, n_step=1).data["hindsight/steps"], 1)
    plain = kept(Replay(1000, fields, kind="transition", n_step=2))
    longer = kept(Replay(1000, fields, kind="transition", n_step=3, hindsight="future"))
    for other in (plain, longer):
        with pytest.raises(ConfigError, match="only some draw goals in hindsight, or of other shapes"):
            MixedReplay({"a": made["a"], "b": other}, {"a": 0.5, "b": 0.5})


def words(numbers):
    return {"id": np.asarray(numbers), "word": [np.full(n % 7, n % 256, "u1") for n in numbers]}


@pytest.mark.parametrize("kind", ["rows", "transition", "sequence"])
def test_ragged_values_are_filled_up_whichever_replay_they_are_of(kind):
    fields = {"id": Field((), "int64"), "word": Field((6,), "uint8", ragged=True)}
    more = {"x": Field((), "float32"), **fields}
    options = {"kind": kind, **({"length": 3} if kind == "sequence" else {}), "sampler": "uniform"}
    made = {"long": kept(Replay(1000, fields, **options)), "short": kept(Replay(1000, more, **options))}
    for name, first in (("long", 1000), ("short", 0)):
        writer = made[name].writer()
        extra = {"x": np.zeros(1, "f4")} if name == "short" else {}
        for n in range(first, first + 200):
            if kind == "rows":
                writer.extend({**words([n]), **extra})
            else:
                ends = {"reward": [0.0], "terminated": [False], "truncated": [False]}
                writer.append({**words([n]), **extra, **ends})
    mixed = MixedReplay(made, {"long": 0.5, "short": 0.5})
    for _ in range(20):  # arrays of earlier batches are used again
        data = mixed.sample(32).data
        numbers, word, lengths = data["id"], data["word"], data["word/length"]
        assert (numbers[:16] >= 1000).all()
        assert (numbers[16:] < 1000).all()
        np.testing.assert_array_equal(lengths, numbers % 7)
        there = np.arange(6) < lengths[..., None]
        np.testing.assert_array_equal(word, np.where(there, (numbers % 256)[..., None], 0))
    assert set(data) >= {"id", "word", "word/length"}
    assert "x" not in data


def test_ragged_values_beside_others_are_not_mixed():
    ragged = {"id": Field((), "int64"), "word": Field((6,), "uint8", ragged=True)}
    fixed = {**ragged, "word": Field((6,), "uint8")}
    unsampled = {**ragged, "word/length": Field((), "int32", sampled=False)}
    one = kept(Replay(100, ragged))
    for other, message in ((fixed, "'word' is ragged in one alone"), (unsampled, "not all sample 'word/length'")):
        with pytest.raises(ConfigError, match=message):
            MixedReplay({"a": one, "b": kept(Replay(100, other))}, {"a": 0.5, "b": 0.5})


def mix_and_report(mixed, pipe):
    batch = mixed.sample(32)
    mixed.update_priorities(batch.keys, np.full(32, 2.0))
    pipe.send(len(mixed))
    while True:
        mixed.sample(32)


def test_both_replays_survive_a_kill_of_the_process_that_mixes():
    mixed = MixedReplay(two(), {"live": 0.5, "dataset": 0.5})
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=mix_and_report, args=(mixed, theirs), daemon=True)
    process.start()
    assert ours.poll(120)
    assert ours.recv() == 200
    with pytest.raises(OwnershipError):
        mixed.sample(8)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert len(mixed) == 200
    batch = mixed.sample(400)
    assert len(np.unique(batch.data["id"])) > 150
    assert mixed.update_priorities(batch.keys, np.ones(400)) == (400, 0)
    assert all(one.core.native.check() == 0.0 for one in mixed.replays.values())
