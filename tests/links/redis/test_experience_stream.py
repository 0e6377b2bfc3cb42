from __future__ import annotations

import pytest
from link_pairs import ITEMS, KEYS, Ends, Intake, body_of, books_close, offer, until

from apexrl._native import ChunkHeads
from apexrl.links.redis.experience_stream import Received, depth
from apexrl.protocols import ChunkHead


def test_frames_arrive_in_order_and_the_sender_hears_of_it(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    heads = [ChunkHead(1, 2, 3, 4, 5, 6, 7, 80), ChunkHead(2, 2, 3, 4, 5, 6, 9, 20)]
    sender.offer(ChunkHeads(heads), bytes(100), {"env_steps": 5})
    offer(sender, range(300))
    assert (sender.sent_items, sender.uncommitted_items) == (16 + 300 * ITEMS, 16 + 300 * ITEMS)
    first: list[Received] = []
    until(lambda: bool(first), lambda: sender.step(0.0), lambda: first.extend(intake.take(receiver)))
    assert [*first[0].heads] == heads
    assert (first[0].member, first[0].generation, first[0].sequence, first[0].item_index) == ("m", 1, 0, 0)
    assert first[0].counts == {"env_steps": 5}
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.01), lambda: intake.take(receiver))
    assert intake.bodies["m"][1:] == [body_of(number) for number in range(300)]
    assert (intake.missing, intake.duplicates) == (0, 0)
    assert sender.committed_sequence == 302
    assert sender.committed_items == intake.items == sender.sent_items
    assert receiver.depth() == 0
    assert (sender.trouble, receiver.trouble, receiver.refused, sender.resent_frames) == ("", "", 0, 0)
    client = ends.redis.client()
    assert depth(client, KEYS) == 0
    client.close()


def test_a_sender_may_come_long_before_the_receiver(ends: Ends) -> None:
    sender, intake = ends.sender(), Intake()
    offer(sender, range(5))
    assert not sender.step(0.05)
    assert sender.trouble == "no learner takes experience yet"
    assert sender.connected
    receiver = ends.receiver()
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.01), lambda: intake.take(receiver))
    assert intake.bodies["m"] == [body_of(number) for number in range(5)]
    assert sender.trouble == ""


def test_nothing_to_do_takes_no_time_and_moves_nothing(ends: Ends) -> None:
    sender, receiver = ends.sender(), ends.receiver()
    assert receiver.receive(0.0) == []
    until(lambda: sender.trouble == "" and sender.connected, lambda: sender.step(0.0))
    assert not sender.step(60.0)


@pytest.mark.parametrize("size", [1000, 400_000])
@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_bodies_large_and_small_packed_and_not(ends: Ends, size: int, compression: str) -> None:
    sender = ends.sender(compression=compression, window_bytes=2**25)
    receiver, intake = ends.receiver(), Intake()
    offer(sender, range(20), size)
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.01), lambda: intake.take(receiver))
    assert intake.bodies["m"] == [body_of(number, size) for number in range(20)]


def test_two_senders_do_not_disturb_each_other(ends: Ends) -> None:
    one, two, receiver, intake = ends.sender("a"), ends.sender("b", generation=4), ends.receiver(), Intake()
    offer(one, range(50))
    offer(two, range(100, 170))
    until(
        lambda: one.uncommitted_items + two.uncommitted_items == 0,
        lambda: one.step(0.0),
        lambda: two.step(0.0),
        lambda: intake.take(receiver, 0.01),
    )
    assert intake.bodies == {
        "a": [body_of(number) for number in range(50)],
        "b": [body_of(number) for number in range(100, 170)],
    }
    assert receiver.known() == intake.committed == {("a", 1): 50, ("b", 4): 70}


def test_what_the_server_says_was_committed_survives_the_receiver(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    offer(sender, range(9))
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.0), lambda: intake.take(receiver))
    receiver.close()
    assert ends.receiver().known() == {("m", 1): 9}


def test_lives_without_end_take_no_memory_without_end(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.links.redis.receiver.MOST_MEMBERS", 3)
    receiver = ends.receiver()
    for n in (1, 2, 3, 1, 4, 5):
        receiver.acknowledge((), {(f"m{n}", 1): 10 + n + len(receiver.known())})
        receiver.receive(0.0)
    assert {member for member, _ in receiver.known()} == {"m1", "m4", "m5"}


def test_a_slow_consumer_fills_the_window_and_no_more(ends: Ends) -> None:
    sender, intake = ends.sender(window_bytes=20_000), Intake()
    receiver = ends.receiver(most_bytes_per_read=1)  # one at a time
    receiver.receive(0.0)
    number = 0
    for _ in range(30):
        while sender.room > 0:
            offer(sender, range(number, number + 1))
            number += 1
        sender.step(0.0)
        assert sender.uncommitted_bytes <= 20_000 + 1200
        assert receiver.depth() <= 21
        intake.take(receiver, 0.02)
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.0), lambda: intake.take(receiver))
    assert intake.bodies["m"] == [body_of(one) for one in range(number)]
    assert (sender.dropped_items, intake.missing) == (0, 0)
    assert 20 < number < 60


def test_dropping_the_oldest_is_counted_at_both_ends(ends: Ends) -> None:
    sender, intake = ends.sender(window_bytes=20_000, when_full="drop-oldest"), Intake()
    receiver = ends.receiver(most_bytes_per_read=1)  # one at a time
    receiver.receive(0.0)
    assert sender.room == 20_000
    for round_ in range(20):
        offer(sender, range(15 * round_, 15 * round_ + 15))
        sender.step(0.01)
        assert sender.uncommitted_bytes <= 20_000
        assert sender.room == 20_000
        assert receiver.depth() <= 25
        intake.take(receiver, 0.02)
        books_close(sender, intake)
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.0), lambda: intake.take(receiver))
    books_close(sender, intake)
    assert sender.dropped_items > 0
    assert sender.sent_items == intake.items + intake.missing
    # What the sender dropped may have been taken in before it was deleted: then it is not missing.
    assert 0 < intake.missing <= sender.dropped_items
    assert intake.bodies["m"] == sorted(intake.bodies["m"])
    assert receiver.depth() == 0


def test_closing_tries_to_have_everything_committed(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    receiver.receive(0.0)
    offer(sender, range(5))
    until(lambda: receiver.depth() == 5, lambda: sender.step(0.0))
    sender.close(0.1)
    assert sender.uncommitted_items == 5 * ITEMS
    until(lambda: intake.items == 5 * ITEMS, lambda: intake.take(receiver))
    receiver.receive(0.0)
    sender.close(10.0)
    assert (sender.uncommitted_items, sender.connected) == (0, False)


def test_a_successor_counts_the_lives_that_were_before_it(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ends.receiver()
    first.receive(0.0)
    first.acknowledge((), {(f"m{n}", 1): 5 for n in range(5)})
    first.close()
    monkeypatch.setattr("apexrl.links.redis.receiver.MOST_MEMBERS", 3)
    second = ends.receiver()
    second.known()
    second.acknowledge((), {("new", 1): 7})
    second.receive(0.0)
    assert len(second.known()) == 3
    assert second.known()["new", 1] == 7


def test_few_are_asked_for_until_their_size_is_known_and_again_when_they_are_large(ends: Ends) -> None:
    sender, receiver = ends.sender(window_bytes=2**26), ends.receiver(most_bytes_per_read=2**21)
    receiver.receive(0.0)
    offer(sender, range(200))
    until(lambda: receiver.depth() == 200, lambda: sender.step(0.0))
    reads = []
    until(lambda: sum(reads) == 200, lambda: reads.append(len(receiver.receive(0.0))))
    assert reads[0] == 4
    assert max(reads) > 20
    receiver.most_entries = 8
    offer(sender, range(200, 230), 300_000)
    until(lambda: receiver.depth() == 230, lambda: sender.step(0.0))
    reads = []
    until(lambda: sum(reads) == 30, lambda: reads.append(len(receiver.receive(0.0))))
    assert (reads[0], max(reads[1:])) == (8, 6)
