"""Bodies that travel in one frame, whatever becomes of it: none is lost unsaid, none comes twice, all are in order."""

from __future__ import annotations

import numpy as np
import pytest
from link_pairs import ITEMS, KEYS, Ends, Intake, body_of, books_close, gather, offer, until

from apexrl.links.redis.experience_stream import Received


def test_a_receiver_that_dies_within_a_frame_leaves_the_rest_of_it_to_its_successor(ends: Ends) -> None:
    sender, first = ends.sender(joined_bytes=10_000), ends.receiver()
    first.receive(0.0)
    offer(sender, range(20))
    until(lambda: first.depth() == 2, lambda: sender.step(0.0))
    got = gather(first, 2)
    assert [len(one.heads) for one in got] == [10, 10]
    first.acknowledge([], {("m", 1): 4})  # four of its chunks are committed, and the entry is not done with
    until(lambda: sender.committed_sequence == 4, lambda: first.receive(0.0), lambda: sender.step(0.0))
    first._disconnect()  # as a death does
    assert (sender.committed_items, sender.uncommitted_items) == (0, 20 * ITEMS), "a frame is kept until all of it is"
    second, sequence, bodies = ends.receiver(), 4, [body_of(number) for number in range(4)]

    def take() -> None:
        nonlocal sequence
        for one in second.receive(0.05):
            skipped = max(0, sequence - one.sequence)
            bodies.extend(bytes(one.body[1000 * n : 1000 * n + 1000]) for n in range(skipped, len(one.heads)))
            sequence = max(sequence, one.sequence + len(one.heads))
            second.acknowledge([one], {("m", 1): sequence})

    until(lambda: sender.uncommitted_items == 0, take, lambda: sender.step(0.01))
    assert bodies == [body_of(number) for number in range(20)]
    assert (sender.committed_sequence, sender.committed_items, sender.resent_frames) == (20, 20 * ITEMS, 0)


@pytest.mark.parametrize("last", [False, True])
def test_a_damaged_frame_is_refused_whole_and_sent_again_or_counted(
    ends: Ends, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where later ones were committed before it could be sent again, its items are missing, and said to be."""
    monkeypatch.setattr("apexrl.links.redis.sender.DOUBT_SECONDS", 0.05)
    sender, receiver, intake = ends.sender(joined_bytes=10_000), ends.receiver(), Intake()
    receiver.receive(0.0)
    offer(sender, range(30))
    kept = sender._queued[2 if last else 1]
    front, body = kept.front, kept.body
    kept.front = front[:-20] + bytes(20)
    until(lambda: not sender._queued, lambda: sender.step(0.0))
    kept.front, kept.body = front, body
    until(lambda: sender.uncommitted_items == 0, lambda: intake.take(receiver), lambda: sender.step(0.01))
    (said,) = receiver.take_refusals()
    assert "frame" in said
    there = [*range(30)] if last else [*range(10), *range(20, 30)]
    assert b"".join(intake.bodies["m"]) == b"".join(body_of(number) for number in there)
    assert (intake.missing, sender.resent_frames) == ((0, 1) if last else (10 * ITEMS, 0))
    assert sender.committed_sequence == 30
    books_close(sender, intake)


def test_a_body_larger_than_what_joins_travels_alone_and_in_its_place(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(joined_bytes=5_000), ends.receiver(), Intake()
    sizes = [1000, 1000, 8000, 1000, 5000, 1000, 4000, 4008]
    for number, size in enumerate(sizes):
        offer(sender, range(number, number + 1), size)
    got: list[Received] = []
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.01), lambda: got.extend(intake.take(receiver)))
    assert [len(one.heads) for one in got] == [2, 1, 1, 1, 2, 1]
    assert b"".join(bytes(one.body) for one in got) == b"".join(map(body_of, range(8), sizes))
    assert (receiver.refused, intake.missing) == (0, 0)


@pytest.mark.parametrize("seed", range(3))
def test_order_and_counts_are_kept_over_deaths_of_both_ends(ends: Ends, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sender, receiver, intake = ends.sender(joined_bytes=6_000), ends.receiver(), Intake()
    receiver.receive(0.0)
    sizes: list[int] = []
    counts: list[int] = []
    for _ in range(12):
        for _ in range(int(rng.integers(1, 20))):
            sizes.append(int(rng.choice([8, 800, 2400, 7200])))
            offer(sender, range(len(sizes) - 1, len(sizes)), sizes[-1])
        sender.step(0.0)
        counts += [one.counts["env_steps"] for one in intake.take(receiver, 0.01, most=int(rng.integers(0, 4)))]
        death = rng.random()
        if death < 0.3:
            intake.held.clear()  # they were received and not committed
            receiver._disconnect()
            receiver = ends.receiver()
        elif death < 0.6:
            sender._disconnect()
        elif death < 0.7:
            client = ends.client()
            client.delete(b"%b:%b" % (KEYS.steps.encode(), client.get(KEYS.steps) or b""))  # type: ignore[str-bytes-safe]
    until(
        lambda: sender.uncommitted_items == 0,
        lambda: counts.extend(one.counts["env_steps"] for one in intake.take(receiver)),
        lambda: sender.step(0.01),
    )
    assert b"".join(intake.bodies["m"]) == b"".join(map(body_of, range(len(sizes)), sizes))
    assert max(counts) == len(sizes) - 1
    assert (intake.missing, intake.items, sender.committed_items) == (0, len(sizes) * ITEMS, len(sizes) * ITEMS)
    books_close(sender, intake)
