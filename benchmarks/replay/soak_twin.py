"""What ``soak.py`` writes, and the plain Python twin that knows what every answer must be.

A tag, origin · ORIGIN + number, says all about a row: its values, its priority, and in streams where its episode ends.
So any item of any writer, of one that was killed too, can be checked. Where one writer at a time wrote and the oldest
go first, the twin knows the contents exactly.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apexrl.replay import Batch, Field, Replay, Writer

Array = NDArray[Any]
ORIGIN = 10_000_000
EPISODE = 11  # steps, and then a final observation
ROWS = {"tag": Field((), "int64"), "wide": Field((3,), "float64"), "image": Field((70,), "uint8")}
STEPS = {"tag": Field((), "int64"), "observation": Field((2,), "int64"), "observation/image": Field((70,), "uint8")}


def magnitude(tag: Array) -> Array:
    """The raw priority that a row is written with: 0.01 to 10.01, and now and then 10⁶ times that."""
    hashed = tag * 2_654_435_761 % 1_000_003
    return (0.01 + hashed % 1000 / 100.0) * np.where(hashed % 97 == 0, 1e6, 1.0)


def rows(tag: Array) -> dict[str, Array]:
    image = np.repeat((tag % 251).astype(np.uint8)[:, None], 70, 1)
    return {"tag": tag, "wide": np.repeat(tag[:, None], 3, 1).astype(np.float64), "image": image}


def steps(tag: Array) -> dict[str, Array]:
    number = tag % ORIGIN
    ends = number % (EPISODE + 1) == EPISODE - 1
    terminated = ends & terminates(tag)
    return {
        "tag": tag,
        "observation": np.stack([tag, number], 1),
        "observation/image": np.repeat((tag % 251).astype(np.uint8)[:, None], 70, 1),
        "reward": reward(tag).astype(np.float32),
        "terminated": terminated,
        "truncated": ends & ~terminated,
    }


def terminates(tag: Array) -> Array:
    """Whether the episode of this step ends in a termination; else in a truncation."""
    return np.asarray(tag % ORIGIN // (EPISODE + 1) % 3 != 0)


def reward(tag: Array) -> Array:
    return np.asarray(tag % 97 / 8.0)


@dataclass
class Twin:
    """One replay's: ``options`` are those that it was made with."""

    options: Mapping[str, Any]
    appended: deque[int] = field(default_factory=deque)  # tags in order, while that is known
    exact: bool = True  # whether the contents follow from it
    changed: dict[int, float] = field(default_factory=dict)  # powered priorities that updates wrote
    counts: Counter[str] = field(default_factory=Counter)

    def powered(self, tags: Array) -> Array:
        alpha = 0.0 if self.options["sampler"] == "uniform" else self.options["alpha"]
        first = (magnitude(tags) + self.options["eps"]) ** alpha
        return np.array([self.changed.get(tag, p) for tag, p in zip(tags.tolist(), first.tolist(), strict=True)])

    def insert(self, tags: Array) -> None:
        self.counts["inserted"] += len(tags)
        self.appended.extend(tags.tolist())

    def alive(self, replay: Replay) -> Array | None:
        """The tags of all items, if that can be known."""
        if not self.exact:
            return None
        replay.core.own()  # until somebody does, more than the capacity may lie there
        while len(self.appended) > len(replay):
            self.changed.pop(self.appended.popleft(), None)
        return np.array(self.appended)

    def check_batch(self, replay: Replay, batch: Batch, alive: Array | None) -> None:
        """``alive``: as it was before the draw."""
        options, tags = self.options, item_tags(batch, self.options)
        self.counts["sampled"] += len(batch)
        check_items(batch.data, options)
        if options["sampler"] == "fifo":
            assert (batch.probabilities == 1.0).all()
            assert (batch.weights == 1.0).all()
            if self.exact:
                expected = [self.appended.popleft() for _ in range(len(batch))]
                assert tags.tolist() == expected, "the fifo sampler is out of order"
            return
        p = self.powered(tags)
        total = float(self.powered(alive).sum()) if alive is not None else float(np.median(p / batch.probabilities))
        np.testing.assert_allclose(batch.probabilities, p / total, rtol=1e-9)
        if alive is not None:
            assert np.isin(tags, alive).all()

    def update(self, batch: Batch, applied: int, magnitudes: Array) -> None:
        """All of the batch was applied."""
        assert applied == len(batch)
        alpha = 0.0 if self.options["sampler"] == "uniform" else self.options["alpha"]
        powered = (magnitudes + self.options["eps"]) ** alpha
        self.changed.update(zip(item_tags(batch, self.options).tolist(), powered.tolist(), strict=True))

    def check_counts(self, replay: Replay) -> None:
        patience = time.monotonic() + 2.0
        while True:  # what a killed writer published last is taken in when its death is seen, every 0.2 s
            stats = replay.stats()
            size, gone = stats["size"], stats["evicted"]
            if self.options["sampler"] == "fifo":
                gone += stats["sampled"]
            if stats["inserted"] - gone == size or not stats["owner_pid"] or time.monotonic() > patience:
                break
            time.sleep(0.02)
        assert size <= stats["capacity"] * 1.25 + 1
        if stats["owner_pid"]:  # before that, nothing is removed
            assert stats["inserted"] - gone == size, f"{stats['inserted']} in, {gone} out, {size} there"
        assert stats["sampled"] == self.counts["sampled"]
        assert stats["updates_applied"] == self.counts["applied"]
        assert stats["updates_stale"] == self.counts["stale"]
        assert replay.core.native.check() == 0.0, "the sums or counts of the tree are wrong"


def item_tags(batch: Batch, options: Mapping[str, Any]) -> Array:
    """[B], the tag of each item's first own step."""
    return first_own(batch.data["tag"], options)


def first_own(tag: Array, options: Mapping[str, Any]) -> Array:
    """[B] of [B] or [B, burn_in + length]."""
    return np.asarray(tag[:, options["burn_in"]] if tag.ndim == 2 else tag)


# --- every value of every item


def check_items(data: Mapping[str, Array], options: Mapping[str, Any]) -> None:
    kind = options["kind"]
    if kind == "rows":
        for name, expected in rows(data["tag"]).items():
            assert (data[name] == expected).all(), f"torn: {name}"
    elif kind == "transition":
        check_transitions(data, options)
    else:
        check_windows(data, options)


def check_frames(data: Mapping[str, Array], name: str, tag: Array, where: Array, stack: int) -> None:
    """Windowed fields ``name…`` hold the frames up to step ``tag``, where ``where`` says so."""
    step = tag % ORIGIN % (EPISODE + 1)
    observation = data[name + "observation"].reshape(*tag.shape, stack, 2)
    image = data[name + "observation/image"].reshape(*tag.shape, stack, 70)
    for k in range(stack):
        frame = tag - np.minimum(step, stack - 1 - k)  # an episode's first frame stands for those before it
        assert (observation[..., k, 0] == frame)[where].all(), f"torn: {name}observation, frame {k}"
        assert (image[..., k, :] == (frame % 251)[..., None])[where].all(), f"torn: {name}observation/image, frame {k}"


def check_transitions(data: Mapping[str, Array], options: Mapping[str, Any]) -> None:
    tag, gamma, n, stack = data["tag"], options["gamma"], options["n_step"], options["stack"]
    step = tag % ORIGIN % (EPISODE + 1)
    assert (step < EPISODE).all(), "a final observation is an item"
    span = np.minimum(n, EPISODE - step)
    everywhere = np.ones(len(tag), np.bool_)
    check_frames(data, "", tag, everywhere, stack)
    check_frames(data, "next_", tag + span, everywhere, stack)
    value = sum(np.where(k < span, gamma**k * reward(tag + k), 0.0) for k in range(n))
    np.testing.assert_allclose(data["reward"], value, rtol=1e-5)
    over = (step + span == EPISODE) & terminates(tag)
    np.testing.assert_allclose(data["discount"], np.where(over, 0.0, gamma**span), rtol=1e-6)


def check_windows(data: Mapping[str, Array], options: Mapping[str, Any]) -> None:
    mask, burn_in, stack = data["mask"], options["burn_in"], options["stack"]
    base = data["tag"][:, burn_in]
    tag = base[:, None] + np.arange(-burn_in, options["length"])
    step = tag % ORIGIN % (EPISODE + 1)
    assert (data["tag"] == tag)[mask].all(), "steps of a window do not follow each other"
    assert (step < EPISODE)[mask].all(), "a final observation counts as a step"
    np.testing.assert_allclose(data["reward"][mask], reward(tag)[mask], rtol=1e-6)
    over = (step == EPISODE - 1) & terminates(tag)
    np.testing.assert_allclose(data["discount"][mask], np.where(over, 0.0, options["gamma"])[mask], rtol=1e-6)
    real = np.concatenate([mask, np.zeros((len(mask), 1), np.bool_)], 1)
    real[:, 1:] |= mask  # the observation after a real step is real too
    check_frames(data, "", np.concatenate([tag, tag[:, -1:] + 1], 1), real, stack)
    if options["kind"] == "sequence":
        episode = tag % ORIGIN // (EPISODE + 1)
        same = episode == episode[:, burn_in : burn_in + 1]
        assert same[mask].all(), "a sequence crosses an episode's end"
        assert (mask == same & (step < EPISODE)).all(), "a mask is wrong"


def write(writer: Writer, options: Mapping[str, Any], tags: Array, given: bool, timeout: float) -> None:
    """Append rows, or one step of each stream."""
    if options["kind"] == "rows":
        writer.extend(rows(tags), priorities=magnitude(tags) if given else None, timeout=timeout)
    else:
        writer.append(steps(tags), timeout=timeout)
