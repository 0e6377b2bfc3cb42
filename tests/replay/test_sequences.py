"""Sequences and unrolls against a plain-Python twin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_replay import Stream

from apexrl.errors import ConfigError, SpecError
from apexrl.replay import Field, Replay

FIELDS = {
    "observation": Field((2,), "float32"),
    "observation/image": Field((80,), "uint8"),  # a plane of its own
    "action": Field((), "int64"),
    "logits": Field((20,), "float32"),  # a plane that is not windowed
    "state": Field((3,), "float32", per_item=True),
    "state/large": Field((40,), "float64", per_item=True),
}
GAMMA = np.float32(0.9)


def make(**options):
    return Replay(**{"capacity": 4000, "fields": FIELDS, "gamma": 0.9, "alpha": 1.0, "eps": 0.0, **options})


def values_of(s, t):
    """Every value of step t of stream s tells both."""
    return {
        "observation": np.array([s, t], "f4"),
        "observation/image": np.full(80, (7 * s + t) % 256, "u1"),
        "action": np.int64(s * 100_000 + t),
        "logits": np.full(20, s * 1000 + t, "f4"),
        "state": np.full(3, s * 1000 + t, "f4"),
        "state/large": np.full(40, s * 1000 + t, "f8"),
    }


def play(writer, twins, steps, rng, p_end):
    for _ in range(steps):
        chosen = rng.permutation(len(twins))[: rng.integers(1, len(twins) + 1)]
        reward = rng.normal(size=len(chosen)).astype("f4")
        terminated, truncated = rng.random(len(chosen)) < p_end, rng.random(len(chosen)) < p_end / 2
        rows = [values_of(s, len(twins[s].observations)) for s in chosen]
        values = {name: np.stack([row[name] for row in rows]) for name in FIELDS}
        for s, r, e, c in zip(chosen, reward, terminated, truncated, strict=True):
            twins[s].append(np.array([s, len(twins[s].observations)]), float(r), bool(e), bool(c))
        writer.append({**values, "reward": reward, "terminated": terminated, "truncated": truncated}, streams=chosen)


def items_of(twin, kind, length, stride, burn_in):
    """Start of every complete item -> (steps before it, steps in it)."""
    items = {}
    for t in range(len(twin.observations)):
        if kind == "unroll":
            if t % length == 0 and t + length < len(twin.observations):
                items[t] = (min(burn_in, t), length)
            continue
        age = t - twin.begins[t]
        if twin.final[t] or age % stride:
            continue
        span = length
        for k in range(length):
            if t + k < len(twin.observations) and (twin.terminated[t + k] or twin.truncated[t + k]):
                span = k + 1
                break
        if t + span >= len(twin.observations):
            continue
        if age == 0 or span == length or span + stride > length:
            items[t] = (min(burn_in, age), span)
    return items


def assert_items(batch, twins, kind, length, stride, burn_in, stack):
    total = burn_in + length
    known = [items_of(twin, kind, length, stride, burn_in) for twin in twins]
    for i, action in enumerate(batch["action"][:, burn_in].tolist()):
        s, t = divmod(action, 100_000)
        twin, (warm, span) = twins[s], known[s][t]
        state = values_of(s, t - warm)
        for name in ("state", "state/large"):
            np.testing.assert_array_equal(batch[name][i], state[name])
        mask = np.zeros(total, bool)
        for j in range(total + 1):
            at = t + j - burn_in
            if not t - warm <= at <= t + span:
                assert not any(batch[name][i, j].any() for name in ("observation", "observation/image", "first"))
                continue
            frames = twin.stacked(at) if stack > 1 else twin.observations[at]
            np.testing.assert_array_equal(batch["observation"][i, j], frames)
            images = (np.atleast_2d(frames) @ [7, 1] % 256).reshape(*np.shape(frames)[:-1], 1)
            np.testing.assert_array_equal(
                batch["observation/image"][i, j], np.broadcast_to(images, batch["observation/image"][i, j].shape)
            )
            assert batch["first"][i, j] == (not twin.final[at] and twin.begins[at] == at)
            if j == total or at == t + span:
                continue
            mask[j] = not twin.final[at]
            assert batch["action"][i, j] == s * 100_000 + at
            assert (batch["logits"][i, j] == s * 1000 + at).all()
            assert batch["reward"][i, j] == np.float32(twin.rewards[at])
            assert batch["discount"][i, j] == (0 if twin.terminated[at] or twin.final[at] else GAMMA)
        np.testing.assert_array_equal(batch["mask"][i], mask)
        outside = np.r_[np.arange(burn_in - warm), np.arange(burn_in + span, total)].astype(int)
        for name in ("action", "logits", "reward", "discount"):
            assert not batch[name][i, outside].any()


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_random_streams_equal_the_twin(data):
    kind = data.draw(st.sampled_from(["sequence", "unroll"]))
    length, burn_in = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 9))
    stride = data.draw(st.integers(1, 15)) if kind == "sequence" else length
    stack, streams = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    capacity = data.draw(st.sampled_from([20, 100, 4000]))
    p_end = data.draw(st.sampled_from([0.0, 0.02, 0.1, 0.6]))
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    twins = [Stream(stack, 1, 0.9) for _ in range(streams)]
    seen = []

    def priority(items):
        batch = {name: items[name] for name in items}
        assert_items(batch, twins, kind, length, stride, burn_in, stack)
        seen.append(len(batch["reward"]))
        return np.ones(len(batch["reward"]))

    options = {"stride": stride} if kind == "sequence" else {}
    with make(
        kind=kind, capacity=capacity, length=length, burn_in=burn_in, stack=stack, streams=streams, writers=1, **options
    ) as replay:
        writer = replay.writer(streams=streams, priority_fn=None)
        for _ in range(data.draw(st.integers(1, 3))):
            play(writer, twins, data.draw(st.integers(1, 120)), rng, p_end)
            complete = sum(len(items_of(twin, kind, length, stride, burn_in)) for twin in twins)
            if complete == 0:
                assert len(replay) == 0
                continue
            batch = replay.sample(32)
            assert_items(batch.data, twins, kind, length, stride, burn_in, stack)
            size, chunk = len(replay), replay.stats()["chunk_items"]
            assert size == complete if complete <= capacity else capacity - chunk < size <= capacity
            assert replay.core.native.check() == 0.0
            magnitudes = rng.random(32)
            assert replay.update_priorities(batch.keys, magnitudes) == (32, 0)
        writer._priority_fn = priority  # the same items as the priority function sees them
        play(writer, twins, 60, rng, p_end)


def test_priorities_are_asked_for_with_whole_items():
    """What priority_fn sees is what is sampled later."""
    asked = {}

    def priority(items):
        for action, logits, mask, observation in zip(
            items["action"], items["logits"], items["mask"], items["observation"], strict=True
        ):
            asked[int(action[2])] = (logits, mask, observation)
        return np.arange(1.0, items.count + 1)

    rng = np.random.default_rng(0)
    with make(kind="sequence", length=6, stride=3, burn_in=2, writers=1) as replay:
        twins = [Stream(1, 1, 0.9) for _ in range(2)]
        play(replay.writer(streams=2, priority_fn=priority), twins, 200, rng, 0.1)
        batch = replay.sample(256)
        for i, action in enumerate(batch.data["action"][:, 2].tolist()):
            for name, value in zip(("logits", "mask", "observation"), asked[action], strict=True):
                np.testing.assert_array_equal(batch.data[name][i], value)


def test_every_step_of_an_episode_is_trained_on():
    """Sequences of one episode cover every step, and the last one holds a step that no other does."""
    for end in range(1, 40):
        with make(kind="sequence", length=8, stride=3, burn_in=4, writers=1) as replay:
            writer = replay.writer()
            for t in range(end + 1):
                rows = {name: value[None] for name, value in values_of(0, t).items()}
                flags = {"reward": [0.0], "terminated": [False], "truncated": [t == end - 1]}
                writer.append({**rows, **flags})
            batch = replay.sample(400)
            steps = [
                frozenset(action[mask].tolist())
                for action, mask in zip(batch.data["action"][:, 4:], batch.data["mask"][:, 4:], strict=True)
            ]
            assert frozenset().union(*steps) == frozenset(range(end))
            assert not any(
                one < other
                for one in steps
                for other in steps
                if max(other) > max(one) - 8 and one < other and min(one) > 0
            )


def test_states_survive_very_short_episodes():
    """Episodes of one step make an item every second row: the chunk ends early and keeps every state right."""
    with make(kind="sequence", length=10, stride=10, burn_in=0, writers=1) as replay:
        writer = replay.writer()
        for t in range(1000):
            rows = {name: value[None] for name, value in values_of(3, t).items()}
            writer.append({**rows, "reward": [0.0], "terminated": [t % 2 == 0], "truncated": [False]})
        assert len(replay) == 500
        data = replay.sample(500).data
        np.testing.assert_array_equal(data["state"][:, 0], 3000 + data["action"][:, 0] % 100_000)


def test_closing_counts_what_is_dropped():
    with make(kind="unroll", length=5, writers=1) as replay:
        with replay.writer() as writer:
            for t in range(13):
                rows = {name: value[None] for name, value in values_of(0, t).items()}
                writer.append({**rows, "reward": [0.0], "terminated": [False], "truncated": [False]})
        assert len(replay) == 2
        assert replay.stats()["dropped_steps"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "sequence"}, "needs length="),
        ({"kind": "unroll", "length": 5, "stride": 3}, "left out with kind='unroll'"),
        ({"kind": "sequence", "length": 5, "n_step": 3}, "left out with kind='sequence'"),
        ({"kind": "sequence", "length": 5, "burn_in": 300}, "between 0 and 255"),
        ({"kind": "transition", "length": 5}, "left out with kind='transition'"),
        ({"kind": "sequence", "length": 2.5}, "an integer"),
        ({"kind": "sequences", "length": 2}, "one of 'rows'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_per_item_fields_belong_to_sequences():
    with pytest.raises(SpecError, match="per_item belongs to"):
        make(kind="transition")
    with pytest.raises(SpecError, match="built into"):
        Replay(100, {"observation": Field((), "f4"), "mask": Field((), "bool")}, kind="unroll", length=4)
