"""Streams mode: steps in, transitions out, against the plain-Python twin."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_replay import Stream

from apexrl.errors import ConfigError, ExhaustedError, SpecError, WaitTimeout
from apexrl.replay import Field, Replay

FIELDS = {
    "observation": Field((3,), "float32"),
    "observation/image": Field((5, 20), "uint8"),  # 100 bytes: a plane of its own
    "action": Field((), "int64"),
    "q": Field((2,), "float32", sampled=False),
}


def make(**options):
    return Replay(
        **{
            "capacity": 4000, "fields": FIELDS, "kind": "transition", "stack": 1, "n_step": 1, "gamma": 0.9,
            "alpha": 1.0, "eps": 0.0, **options,
        }
    )  # fmt: skip


def step(streams, t, reward, terminated, truncated):
    """One step of each stream; every value tells stream and time."""
    streams = np.asarray(streams)
    observation = np.stack([streams, np.full(len(streams), t), streams * 1000 + t], 1).astype("f4")
    return {
        "observation": observation,
        "observation/image": np.broadcast_to(((streams * 7 + t) % 256)[:, None, None], (len(streams), 5, 20)).astype(
            "u1"
        ),
        "action": (streams * 100_000 + t).astype("i8"),
        "q": np.stack([streams, np.full(len(streams), t)], 1).astype("f4"),
        "reward": np.asarray(reward, "f4"),
        "terminated": np.asarray(terminated),
        "truncated": np.asarray(truncated),
    }


def play(writer, twins, steps, rng, p_end=0.08, some=False):
    """Random rewards and ends into the replay and into the twins."""
    for _ in range(steps):
        chosen = np.arange(len(twins))
        if some:
            chosen = rng.permutation(chosen)[: rng.integers(1, len(twins) + 1)]
        reward = rng.normal(size=len(chosen)).astype("f4")
        terminated, truncated = rng.random(len(chosen)) < p_end, rng.random(len(chosen)) < p_end / 2
        rows = [
            step([s], len(twins[s].observations), [r], [e], [c])
            for s, r, e, c in zip(chosen, reward, terminated, truncated, strict=True)
        ]
        values = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        writer.append(values, streams=chosen if some else None)
        for s, r, e, c in zip(chosen, reward, terminated, truncated, strict=True):
            twins[s].append(np.array([s, len(twins[s].observations)]), float(r), bool(e), bool(c))


def assert_items(batch, twins, stack):
    """Every sampled item is what the twin says of that step."""
    for i, action in enumerate(batch.data["action"].tolist()):
        s, t = divmod(action, 100_000)
        observation, later, value, discount = twins[s].item(t)
        for name, expected in (("", observation), ("next_", later)):
            frames = batch.data[name + "observation"][i].reshape(stack, 3)
            np.testing.assert_array_equal(frames[:, :2], expected)
            images = batch.data[name + "observation/image"][i].reshape(stack, 100)
            np.testing.assert_array_equal(images, np.repeat(((expected @ [7, 1]) % 256)[:, None], 100, 1))
        np.testing.assert_allclose(batch.data["reward"][i], value, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(batch.data["discount"][i], discount, rtol=1e-6)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_random_streams_equal_the_twin(data):
    stack, n_step = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    streams, some = data.draw(st.integers(1, 4)), data.draw(st.booleans())
    capacity = data.draw(st.sampled_from([40, 64, 130, 400, 4000]))
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    twins = [Stream(stack, n_step, 0.9) for _ in range(streams)]
    with make(capacity=capacity, stack=stack, n_step=n_step, streams=streams, writers=1) as replay:
        writer = replay.writer(streams=streams)
        for _ in range(data.draw(st.integers(1, 4))):
            play(writer, twins, data.draw(st.integers(1, 150)), rng, some=some)
            complete = sum(len(twin.items()) for twin in twins)
            if complete == 0:
                continue
            assert_items(replay.sample(64), twins, stack)
            shorter, gamma = int(rng.integers(1, n_step + 1)), float(rng.random())
            near = [replace(twin, n_step=shorter, gamma=gamma) for twin in twins]
            assert_items(replay.sample(64, n_step=shorter, gamma=gamma), near, stack)
            assert_items(replay.sample(64, gamma=gamma), [replace(twin, gamma=gamma) for twin in twins], stack)
            assert_items(replay.sample(64), twins, stack)  # a batch's own horizon is not the next one's
            size, chunk = len(replay), replay.stats()["chunk"]
            # Chunks still being written are never evicted, so several streams may keep a little less.
            assert size == complete if complete <= capacity else capacity - chunk < size <= capacity
            assert replay.core.native.check() == 0.0


def test_every_item_appears_once():
    """All complete items, no final observation, each with its own share."""
    rng = np.random.default_rng(3)
    twins = [Stream(4, 3, 0.9) for _ in range(3)]
    with make(stack=4, n_step=3) as replay:
        writer = replay.writer(streams=3)
        play(writer, twins, 400, rng)
        expected = {s * 100_000 + t for s, twin in enumerate(twins) for t in twin.items()}
        drawn = set()
        for _ in range(100):
            drawn |= set(replay.sample(1000).data["action"].tolist())
        assert drawn == expected
        assert len(replay) == len(expected)


def test_a_batch_has_no_longer_returns_than_its_items():
    with make(n_step=3) as replay:
        for wrong, message in (
            ({"n_step": 4}, "n_step=4 must be an integer from 1 to 3, the replay's own"),
            ({"n_step": 0}, "n_step=0 must be an integer from 1 to 3"),
            ({"n_step": 2.5}, "n_step=2.5 must be an integer"),
            ({"n_step": True}, "n_step=True must be an integer"),
            ({"gamma": 1.5}, "gamma=1.5 must be a number between 0 and 1"),
            ({"gamma": "a"}, "gamma='a' must be a number"),
            ({"beta": None}, "beta=None must be a number between 0 and 100"),
        ):
            with pytest.raises(ConfigError, match=message):
                replay.sample(8, timeout=0.0, **wrong)
    with (
        Replay(capacity=40, fields=FIELDS, kind="sequence", length=4) as replay,
        pytest.raises(ConfigError, match="belong to kind='transition', not 'sequence'"),
    ):
        replay.sample(8, timeout=0.0, n_step=1)


def one_episode(rewards, ends, n_step, gamma=0.9):
    """Item 0 of a stream with these rewards whose last step ends as said ('terminated', 'truncated', None)."""
    with make(n_step=n_step, gamma=gamma, writers=1) as replay:
        writer = replay.writer(streams=1)
        for t, reward in enumerate(rewards):
            last = t == len(rewards) - 1
            writer.append(step([0], t, [reward], [last and ends == "terminated"], [last and ends == "truncated"]))
        writer.append(step([0], len(rewards), [99.0], [False], [False]))  # the final observation, or one more step
        batch = replay.sample(200)
        first = batch.data["action"] == 0
        return {name: value[first][0] for name, value in batch.data.items()}


def test_oracle_returns():
    """γ .9, r = [1, 2, 3]: bootstrap 10 → 12.52; terminal at the 2nd → 2.8; truncated at the 2nd, V = 4 → 6.04."""
    item = one_episode([1, 2, 3], None, 3)
    np.testing.assert_allclose(item["reward"] + item["discount"] * 10, 12.52, rtol=1e-6)
    item = one_episode([1, 2], "terminated", 3)
    np.testing.assert_allclose(item["reward"] + item["discount"] * 4, 2.8, rtol=1e-6)
    item = one_episode([1, 2], "truncated", 3)
    np.testing.assert_allclose(item["reward"] + item["discount"] * 4, 6.04, rtol=1e-6)
    assert item["next_observation"][1] == 2  # the true final observation, not the next episode's first


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i4", "u1", list])
def test_rewards_of_any_number_are_taken(dtype):
    with make() as replay:
        writer = replay.writer(streams=1)
        for t in range(3):
            values = step([0], t, [0.0], [False], [False])
            writer.append({**values, "reward": [t] if dtype is list else np.array([t], dtype)})
        batch = replay.sample(100)
        np.testing.assert_array_equal(batch.data["reward"], batch.data["action"])


def test_final_observations_are_no_items():
    with make(n_step=1) as replay:
        writer = replay.writer(streams=1)
        for t in range(9):  # episodes of two steps: 0 1 (2 final) 3 4 (5 final) 6 7 (8 final)
            writer.append(step([0], t, [1.0], [t % 3 == 1], [False]))
        assert set(replay.sample(100).data["action"].tolist()) == {0, 1, 3, 4, 6, 7}
        assert len(replay) == 6
        assert replay.stats()["inserted"] == 6


def test_a_window_too_short_is_not_sampled():
    with make(n_step=5) as replay:
        writer = replay.writer(streams=1)
        for t in range(5):
            writer.append(step([0], t, [1.0], [False], [False]))
        with pytest.raises(WaitTimeout):
            replay.sample(1, timeout=0.02)
        writer.append(step([0], 5, [1.0], [False], [False]))
        assert replay.sample(4).data["action"].tolist() == [0] * 4


def test_a_frame_is_stored_once():
    """Atari: 84×84, stack 4, n = 3 at 64 steps a chunk: at most 8 KB a transition."""
    fields = {"observation": Field((84, 84), "uint8"), "action": Field((), "int64"), "q": Field((18,), "float32")}
    with Replay(20_000, fields, kind="transition", stack=4, n_step=3) as replay:
        assert replay.stats()["chunk"] == 64
        assert replay.stats()["bytes_per_item"] <= 8192


# --- priorities


def test_priority_fn_sees_what_was_recorded():
    """Ape-X: |R + γ^m max_a Q_{t+m} − Q_t(a_t)| from the values recorded while acting."""
    seen = []

    def priority_fn(items):
        assert set(items) == {
            "observation", "next_observation", "observation/image", "next_observation/image",
            "action", "next_action", "q", "next_q", "reward", "discount",
        }  # fmt: skip
        seen.append({name: items[name] for name in ("action", "next_action", "q", "next_q", "reward", "discount")})
        return np.arange(len(items["q"])) + 1.0

    rng = np.random.default_rng(0)
    twins = [Stream(1, 3, 0.9) for _ in range(4)]
    with make(n_step=3) as replay:
        writer = replay.writer(streams=4, priority_fn=priority_fn)
        play(writer, twins, 300, rng)
        replay.sample(1)
        given = {}
        for call in seen:
            for i, action in enumerate(call["action"].tolist()):
                s, t = divmod(action, 100_000)
                _, later, value, discount = twins[s].item(t)
                assert call["q"][i].tolist() == [s, t]
                assert call["next_q"][i].tolist() == [s, later[0, 1]]
                assert call["next_action"][i] == s * 100_000 + later[0, 1]
                np.testing.assert_allclose(call["reward"][i], value, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(call["discount"][i], discount, rtol=1e-6)
                given[action] = i + 1.0
        assert set(given) == {s * 100_000 + t for s, twin in enumerate(twins) for t in twin.items()}
        batch = replay.sample(2000)
        expected = np.array([given[a] for a in batch.data["action"].tolist()]) / sum(given.values())
        np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)
        assert len(seen) < 60  # together, not step by step


def test_bad_priority_fn_is_refused_and_loses_nothing():
    answers = [np.array([1.0]), "words"]
    with make() as replay:
        writer = replay.writer(streams=1, priority_fn=lambda items: answers[0])
        writer.append(step([0], 0, [1.0], [False], [False]))
        writer.append(step([0], 1, [1.0], [False], [False]))
        writer.append(step([0], 2, [1.0], [False], [False]))
        with pytest.raises(SpecError, match="expected \\[2\\]"):
            replay.sample(1)
        answers[0] = np.array([1.0, np.nan])
        with pytest.raises(ValueError, match="row 1"):
            writer.flush()
        answers[0] = np.array([1.0, 3.0])
        assert set(replay.sample(100).data["action"].tolist()) == {0, 1}


# --- refusals


def test_bad_steps_are_refused():
    with make() as replay:
        writer = replay.writer(streams=2)
        good = step([0, 1], 0, [0.0, 0.0], [False, False], [False, False])
        for change, words in [
            ({"reward": np.array([0.0, np.nan], "f4")}, ["'reward'", "row 1"]),
            ({"reward": np.array([np.inf, 0.0])}, ["'reward'", "row 0"]),
            ({"reward": np.zeros((2, 1))}, ["'reward'", "[2, 1]"]),
            ({"reward": np.zeros(2, "?")}, ["'reward'", "bool"]),
            ({"terminated": np.zeros(2, "i8")}, ["'terminated'", "int64", "bool"]),
            ({"truncated": np.zeros(3, "?")}, ["'truncated'", "3 rows"]),
            ({"action": np.zeros(3, "i8")}, ["'action'", "3 rows"]),
            ({"observation": np.zeros((2, 4), "f4")}, ["'observation'", "[2, 4]"]),
            ({"done": np.zeros(2)}, ["unknown", "'done'"]),
        ]:
            with pytest.raises(SpecError) as error:
                writer.append({**good, **change})
            for word in words:
                assert word in str(error.value)
        with pytest.raises(SpecError, match="missing field 'truncated'"):
            writer.append({name: value for name, value in good.items() if name != "truncated"})
        for streams in ([0, 2], [0, 0], [-1, 0]):
            with pytest.raises(SpecError, match="streams"):
                writer.append(good, streams=streams)
        writer.append(good)
        writer.append({**good, "reward": [1, 2], "terminated": [False, True], "truncated": [False, False]})
        writer.flush()
        assert len(replay) == 2


def test_built_in_names_and_streams_are_checked():
    with pytest.raises(SpecError, match="built into"):
        make(fields={**FIELDS, "reward": Field((), "float32")})
    with make(streams=4, writers=3) as replay:
        with pytest.raises(ConfigError, match="streams"):
            replay.writer(streams=5)
        first = replay.writer(streams=3)
        first.append(step([0, 1, 2], 0, [0.0] * 3, [False] * 3, [False] * 3))
        second = replay.writer(streams=2)
        with pytest.raises(ExhaustedError, match="streams="):
            second.append(step([0, 1], 0, [0.0] * 2, [False] * 2, [False] * 2))
        first.close()
        second.append(step([0, 1], 0, [0.0] * 2, [False] * 2, [False] * 2))


# --- threads


def test_threads_append_and_sample_without_mixing_priorities():
    """Each item's priority says which item it is; another thread's sample() must not publish it onto a neighbour."""
    import threading

    stop, errors = threading.Event(), []
    with make(capacity=3000, writers=2, streams=2) as replay:

        def work(stream):
            writer = replay.writer(streams=1, priority_fn=lambda items: items["action"] % 1000 + 1.0)
            try:
                for t in range(100_000):
                    if stop.is_set():
                        return
                    writer.append(step([stream], t, [0.0], [False], [False]))
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(s,)) for s in (1, 2)]
        for thread in threads:
            thread.start()
        for _ in range(1500):
            batch = replay.sample(32, timeout=10)
            share = batch.probabilities / (batch.data["action"] % 1000 + 1.0)
            np.testing.assert_allclose(share, share[0], rtol=1e-9)
        stop.set()
        for thread in threads:
            thread.join(10)
        assert errors == []


def test_closing_wakes_a_thread_that_waits():
    import threading

    from apexrl.errors import ClosedError

    seen = []
    replay = make(min_size=50, samples_per_insert=1.0, writers=1, streams=1)
    writer = replay.writer(streams=1)

    def work():
        try:
            for t in range(10_000):
                writer.append(step([0], t, [0.0], [False], [False]), timeout=30)
        except ClosedError as error:
            seen.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    replay.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(seen) == 1


# --- the limiter


@given(
    st.integers(0, 60),
    st.sampled_from([0.1, 0.5, 1.0, 3.0, 64.0, 500.0]),
    st.floats(0, 1),
    st.integers(1, 200),
    st.lists(st.integers(0, 29), max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_limiter_never_stops_both_sides(min_size, rate, band, batch, deleting):
    with make(
        capacity=64, min_size=min_size, samples_per_insert=rate, insert_band=band, streams=1, writers=1
    ) as replay:
        writer, t = replay.writer(streams=1), 0
        for turn in range(30):
            if turn in deleting:
                replay.delete(replay.keys()[turn // 10 :])
            appended = sampled = True
            try:
                for _ in range(5):
                    writer.append(step([0], t, [0.0], [False], [False]), timeout=0.0)
                    t += 1
            except WaitTimeout:
                appended = False
            try:
                replay.sample(batch, timeout=0.0)
            except WaitTimeout:
                sampled = False
            assert appended or sampled


def test_many_streams_keep_within_capacity():
    with make(capacity=200, streams=64, writers=1) as replay:
        writer = replay.writer(streams=64)
        for t in range(60):
            writer.append(step(np.arange(64), t, np.zeros(64), np.zeros(64, bool), np.zeros(64, bool)))
        assert 200 - replay.stats()["chunk"] < len(replay.sample(8) and replay) <= 200


def test_limiter_holds_both_sides():
    with make(min_size=100, samples_per_insert=4.0, insert_band=0.25) as replay:
        writer = replay.writer(streams=1)
        inserted = 0
        with pytest.raises(WaitTimeout, match=r"limiter|samples it"):
            for t in range(10_000):
                writer.append(step([0], t, [0.0], [False], [False]), timeout=0.02)
                inserted += 1
        # diff = 4 · inserts − samples may reach 4 · 100 + 100: 125 inserts
        assert 120 <= replay.stats()["inserted"] <= 130
        taken = 0
        with pytest.raises(WaitTimeout, match="limiter"):
            while True:
                replay.sample(10, timeout=0.02)
                taken += 10
        stats = replay.stats()
        assert 4 * stats["inserted"] - taken >= 400 - 100 - 10
        assert 4 * stats["inserted"] - taken <= 400 - 100 + 10
        for t in range(inserted, inserted + 20):
            writer.append(step([0], t, [0.0], [False], [False]), timeout=0.02)
        replay.sample(10)
        replay.set_limiter(samples_per_insert=0.0)
        for _ in range(200):
            replay.sample(10, timeout=0.02)
