"""Bodies that wait together travel in one frame."""

from __future__ import annotations

import pytest
from link_pairs import ITEMS, Ends, Intake, body_of, books_close, offer, until

from apexrl._native import MOST_CHUNKS, ChunkHeads
from apexrl.links.redis.experience_stream import Received
from apexrl.protocols import ChunkHead

_ROOMY = 64_000


def test_bodies_that_wait_share_frames_up_to_a_size(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(joined_bytes=10_000), ends.receiver(), Intake()
    offer(sender, range(25))  # of 1,000 bytes
    assert (sender.sent_items, sender.uncommitted_items) == (25 * ITEMS, 25 * ITEMS)
    got: list[Received] = []
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.01), lambda: got.extend(intake.take(receiver)))
    assert [(one.sequence, one.item_index, len(one.heads)) for one in got] == [
        (0, 0, 10),
        (10, 10 * ITEMS, 10),
        (20, 20 * ITEMS, 5),
    ]
    assert b"".join(bytes(one.body) for one in got) == b"".join(body_of(number) for number in range(25))
    assert [one.counts["env_steps"] for one in got] == [9, 19, 24]  # of the newest
    assert (sender.committed_sequence, receiver.refused, intake.missing) == (25, 0, 0)
    books_close(sender, intake)


def test_a_frame_that_was_sent_grows_no_more(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(joined_bytes=_ROOMY), ends.receiver(), Intake()
    receiver.receive(0.0)
    got: list[Received] = []
    for number in range(6):
        offer(sender, range(number, number + 1))
        sender.step(0.0)
        until(lambda n=number: len(got) > n, lambda: sender.step(0.0), lambda: got.extend(intake.take(receiver)))
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.01))
    assert [len(one.heads) for one in got] == [1] * 6
    assert [bytes(one.body) for one in got] == [body_of(number) for number in range(6)]


def test_the_heads_that_were_offered_stay_as_they_are(ends: Ends) -> None:
    sender = ends.sender(joined_bytes=_ROOMY)
    heads = ChunkHeads([ChunkHead(1, 2, 0, ITEMS, 67, 0, ITEMS, 1000)])
    counts = {"env_steps": 1}
    for _ in range(3):
        sender.offer(heads, body_of(1), counts)
        counts["env_steps"] += 1
    assert (len(heads), sender.sent_items) == (1, 3 * ITEMS)
    receiver, intake = ends.receiver(), Intake()
    got: list[Received] = []
    until(lambda: bool(got), lambda: sender.step(0.0), lambda: got.extend(intake.take(receiver)))
    assert ([*got[0].heads], got[0].counts) == ([*heads] * 3, {"env_steps": 3})


def test_no_frame_has_more_chunks_than_receivers_take(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(joined_bytes=2**20), ends.receiver(), Intake()
    offer(sender, range(MOST_CHUNKS + 100), 8)
    got: list[Received] = []
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.01), lambda: got.extend(intake.take(receiver)))
    assert [len(one.heads) for one in got] == [MOST_CHUNKS, 100]
    assert (receiver.refused, intake.missing) == (0, 0)


@pytest.mark.parametrize("how", [{"when_full": "drop-oldest"}, {"compression": "zlib"}])
def test_what_may_be_dropped_or_is_packed_has_frames_of_its_own(ends: Ends, how: dict[str, str]) -> None:
    sender, receiver, intake = ends.sender(joined_bytes=_ROOMY, **how), ends.receiver(), Intake()
    offer(sender, range(5))
    got: list[Received] = []
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.01), lambda: got.extend(intake.take(receiver)))
    assert [len(one.heads) for one in got] == [1] * 5


def test_joined_frames_are_sent_again_to_a_server_that_comes_back_empty(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(joined_bytes=5_000), ends.receiver(), Intake()
    receiver.receive(0.0)
    offer(sender, range(12))
    until(lambda: bool(sender.step(0.0)))
    ends.redis.kill()
    offer(sender, range(12, 20))
    ends.redis.start()
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.01), lambda: intake.take(receiver))
    assert b"".join(intake.bodies["m"]) == b"".join(body_of(number) for number in range(20))
    assert (intake.missing, sender.dropped_items) == (0, 0)
    books_close(sender, intake)
