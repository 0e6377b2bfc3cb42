from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from apexrl.errors import LinkError
from apexrl.links.redis.experience import ExperienceReceiver, ExperienceSender, Received, depth
from apexrl.links.redis.keys import RunKeys
from apexrl.protocols import ChunkHead
from redis_server import RedisServer, binaries

KEYS = RunKeys("r")
SCHEMA = b"8 bytes."
ITEMS = 64


class Intake:
    """What a learner's host does with frames: commits each chunk once, in order, and counts what is missing."""

    def __init__(self) -> None:
        self.committed: dict[tuple[str, int], int] = {}
        self.items_seen: dict[tuple[str, int], int] = {}
        self.bodies: dict[str, list[bytes]] = {}
        self.held: list[Received] = []
        self.missing = self.items = self.duplicates = 0

    def take(self, receiver: ExperienceReceiver, timeout: float = 0.05, most: int | None = None) -> list[Received]:
        """Commit and acknowledge up to ``most`` frames, and hold the others."""
        self.held += receiver.receive(timeout)
        got, self.held = self.held[:most], self.held[most:] if most is not None else []
        for one in got:
            self.commit(one)
        if got:
            receiver.acknowledge(got, {(one.member, one.generation): self._of(one) for one in got})
        return got

    def commit(self, one: Received) -> None:
        who = (one.member, one.generation)
        if one.sequence < self.committed.get(who, 0):
            self.duplicates += 1
            return
        gap = one.item_index - self.items_seen.get(who, 0)
        assert gap >= 0
        self.missing += gap
        items = sum(head.items for head in one.heads)
        self.items += items
        self.items_seen[who] = one.item_index + items
        self.committed[who] = one.sequence + len(one.heads)
        self.bodies.setdefault(one.member, []).append(bytes(one.body))

    def _of(self, one: Received) -> int:
        return self.committed[one.member, one.generation]


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Ends:
    """Makes senders and receivers that are closed after the test."""

    def __init__(self, server: RedisServer, stack: ExitStack) -> None:
        self.redis, self._stack = server, stack

    def sender(self, member: str = "m", **other: Any) -> ExperienceSender:
        options: dict[str, Any] = {"run_id": "run", "generation": 1, "schema": SCHEMA, "window_bytes": 2**20, **other}
        sender = ExperienceSender(self.redis.server(), KEYS, member=member, **options)
        self._stack.callback(sender.close, 0.0)
        return sender

    def receiver(self, **other: Any) -> ExperienceReceiver:
        receiver = ExperienceReceiver(
            self.redis.server(), KEYS, **{"run_id": "run", "schema": SCHEMA, **other}
        )  # fmt: skip
        self._stack.callback(receiver.close)
        return receiver


@pytest.fixture
def ends(redis_server: RedisServer, closing: ExitStack) -> Ends:
    return Ends(redis_server, closing)


def body_of(number: int, size: int = 1000) -> bytes:
    return (b"%8d" % number) * (size // 8)


def offer(sender: ExperienceSender, numbers: range, size: int = 1000) -> None:
    for number in numbers:
        sender.offer([ChunkHead(1, 2, 0, ITEMS, 67, 0, ITEMS, size)], body_of(number, size), {"env_steps": number})


def until(done: Callable[[], bool], *acts: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        for act in acts:
            act()
        assert time.monotonic() < deadline, "it did not come to that"


def books_close(sender: ExperienceSender, intake: Intake) -> None:
    assert sender.sent_items == sender.committed_items + sender.dropped_items + sender.uncommitted_items
    assert (sender.uncommitted_bytes == 0) == (sender.uncommitted_items == 0)


def test_frames_arrive_in_order_and_the_sender_hears_of_it(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    sender.offer([ChunkHead(1, 2, 3, 4, 5, 6, 7, 80), ChunkHead(2, 2, 3, 4, 5, 6, 9, 20)], bytes(100), {"env_steps": 5})
    offer(sender, range(300))
    assert (sender.sent_items, sender.uncommitted_items) == (16 + 300 * ITEMS, 16 + 300 * ITEMS)
    first: list[Received] = []
    until(lambda: bool(first), lambda: sender.step(0.0), lambda: first.extend(intake.take(receiver)))
    assert first[0].heads == [ChunkHead(1, 2, 3, 4, 5, 6, 7, 80), ChunkHead(2, 2, 3, 4, 5, 6, 9, 20)]
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


def test_a_receiver_that_dies_between_commit_and_acknowledgement(ends: Ends) -> None:
    sender, intake = ends.sender(), Intake()
    first = ends.receiver()
    first.receive(0.0)
    offer(sender, range(10))
    until(lambda: first.depth() == 10, lambda: sender.step(0.0))
    got = first.receive(5.0)
    assert len(got) == 10
    for one in got[:6]:  # committed, and nobody was told
        intake.commit(one)
    first._disconnect()  # as a death does: nothing more is said
    offer(sender, range(10, 15))
    until(lambda: not sender._queued, lambda: sender.step(0.0))
    second = ends.receiver()
    order: list[int] = []
    until(
        lambda: sender.uncommitted_items == 0,
        lambda: order.extend(one.sequence for one in intake.take(second)),
        lambda: sender.step(0.01),
    )
    assert order == list(range(15))  # what was pending comes first
    assert intake.duplicates == 6
    assert intake.bodies["m"] == [body_of(number) for number in range(15)]
    assert second.depth() == 0


@pytest.mark.parametrize("binary", binaries())
@pytest.mark.parametrize("persistence", ["none", "aof", "snapshot"])
def test_a_server_killed_again_and_again_loses_nothing_and_doubles_nothing(
    binary: str, persistence: str, tmp_path: Path, closing: ExitStack
) -> None:
    options = {
        "none": {},
        "aof": {"appendonly": "yes", "appendfsync": "always"},
        "snapshot": {"dbfilename": "dump.rdb"},
    }
    with RedisServer(tmp_path / "r", binary=binary, **options[persistence]) as redis_server:
        ends = Ends(redis_server, closing)
        sender, other, receiver, intake = ends.sender(), ends.sender("other"), ends.receiver(), Intake()
        number = 0
        for death in range(5):
            offer(sender, range(number, number + 40))
            offer(other, range(number, number + 40))
            number += 40
            sender.step(0.02)
            if persistence == "snapshot" and death % 2:
                client = redis_server.client()
                client.save()  # what comes after it will be lost, and what was acknowledged come back
                client.close()
            intake.take(receiver, 0.02, most=10 + 20 * death)
            sender.step(0.02)
            other.step(0.02)
            redis_server.restart(keep_data=persistence != "none")
        until(
            lambda: sender.uncommitted_items + other.uncommitted_items == 0,
            lambda: sender.step(0.02),
            lambda: other.step(0.02),
            lambda: intake.take(receiver, 0.02),
        )
        for member in ("m", "other"):
            assert intake.bodies[member] == [body_of(one) for one in range(number)]
        assert intake.missing == 0
        assert sender.reconnects >= 1
        assert receiver.reconnects >= 1
        until(lambda: receiver.known() == intake.committed)


@pytest.mark.parametrize("loss", ["flushall", "stream", "pointer", "group"])
def test_keys_deleted_under_way_lose_nothing(ends: Ends, loss: str) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    receiver.receive(0.0)
    client = ends.redis.client()
    for round_ in range(4):
        offer(sender, range(30 * round_, 30 * round_ + 30))
        sender.step(0.02)
        intake.take(receiver, 0.02, most=11)
        sender.step(0.0)
        stream: Any = b"%b:%b" % (KEYS.steps.encode(), client.get(KEYS.steps) or b"")
        match loss:
            case "flushall":
                client.flushall()
            case "stream":
                client.delete(stream)
            case "pointer":
                client.delete(KEYS.steps)
            case "group":
                client.xgroup_destroy(stream, "learner")
    client.close()
    until(
        lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02)
    )  # fmt: skip
    assert intake.bodies["m"] == [body_of(number) for number in range(120)]
    assert intake.missing == 0


def test_a_sender_that_has_sent_all_notices_that_the_server_forgot_it(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    receiver.receive(0.0)
    offer(sender, range(3))
    until(lambda: receiver.depth() == 3, lambda: sender.step(0.0))
    client = ends.redis.client()
    client.flushall()
    client.close()
    until(lambda: sender.uncommitted_items == 0, lambda: intake.take(receiver), lambda: sender.step(0.02))
    assert intake.bodies["m"] == [body_of(number) for number in range(3)]
    assert sender.resent_frames >= 3


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
    assert sender.dropped_frames * ITEMS == sender.dropped_items
    assert sender.sent_items == intake.items + intake.missing
    # What the sender dropped may have been taken in before it was deleted: then it is not missing.
    assert 0 < intake.missing <= sender.dropped_items
    assert intake.bodies["m"] == sorted(intake.bodies["m"])
    assert receiver.depth() == 0


def test_an_entry_deleted_while_pending_is_passed_over(ends: Ends) -> None:
    sender, intake = ends.sender(), Intake()
    first = ends.receiver()
    first.receive(0.0)
    offer(sender, range(3))
    until(lambda: first.depth() == 3, lambda: sender.step(0.0))
    got = first.receive(5.0)
    first._disconnect()
    client = ends.redis.client()
    stream: Any = b"%b:%b" % (KEYS.steps.encode(), client.get(KEYS.steps))
    client.xdel(stream, got[1].entry)
    second = ends.receiver()
    until(lambda: intake.items == 2 * ITEMS, lambda: intake.take(second))
    assert intake.missing == ITEMS
    second.receive(0.05)
    assert client.xpending(stream, "learner")["pending"] == 0
    client.close()


def test_a_full_server_is_waited_for_and_order_is_kept(tmp_path: Path, closing: ExitStack) -> None:
    with RedisServer(tmp_path / "r", maxmemory="6mb", maxmemory_policy="noeviction") as redis_server:
        ends = Ends(redis_server, closing)
        sender, receiver, intake = ends.sender(window_bytes=2**25), ends.receiver(), Intake()
        receiver.receive(0.0)
        offer(sender, range(200), 100_000)
        until(lambda: sender.server_full > 2, lambda: sender.step(0.1))
        assert "is full" in sender.trouble
        assert sender.connected
        until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
        assert intake.bodies["m"] == [body_of(number, 100_000) for number in range(200)]
        assert intake.missing == 0


def test_a_server_that_is_not_there_yet(tmp_path: Path, closing: ExitStack) -> None:
    with RedisServer(tmp_path / "r") as redis_server:
        ends = Ends(redis_server, closing)
        sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
        redis_server.kill()
        offer(sender, range(5))
        assert not sender.step(0.1)
        assert "nothing listens there" in sender.trouble
        assert not sender.connected
        assert receiver.receive(0.1) == []
        assert "nothing listens there" in receiver.trouble
        assert (receiver.depth(), receiver.known()) == (0, {})
        redis_server.start()
        until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
        assert (sender.trouble, receiver.trouble) == ("", "")


def test_acknowledgements_given_while_the_server_is_away_reach_it_later(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    receiver.receive(0.0)
    offer(sender, range(5))
    until(lambda: receiver.depth() == 5, lambda: sender.step(0.0))
    got = receiver.receive(5.0)
    for one in got:
        intake.commit(one)
    ends.redis.kill()
    receiver.acknowledge(got, intake.committed)
    receiver.receive(0.1)
    ends.redis.start()
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
    assert intake.items == 5 * ITEMS
    assert intake.bodies["m"] == [body_of(number) for number in range(5)]


def test_what_is_no_frame_is_refused_counted_and_cleared_away(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    receiver.receive(0.0)
    stranger = ends.sender("stranger", run_id="another")
    foreign = ends.sender("foreign", schema=b"other")
    client = ends.redis.client()
    stream: Any = b"%b:%b" % (KEYS.steps.encode(), client.get(KEYS.steps))
    client.xadd(stream, {"f": b"garbage"})
    client.xadd(stream, {"f": b"x", "g": b"y"})
    client.xadd(stream, {"other": b"x"})
    client.close()
    for one in (stranger, foreign, sender):
        offer(one, range(1))
        until(lambda one=one: not one._queued, lambda one=one: one.step(0.0))  # type: ignore[misc]
    until(lambda: sender.uncommitted_items == 0, lambda: intake.take(receiver), lambda: sender.step(0.01))
    assert receiver.refused == 5
    texts = receiver.take_refusals()
    assert len(texts) == 5
    assert all(text.startswith("entry ") for text in texts)
    assert "no frame" in texts[0]
    assert "stranger belongs to another run" in texts[3]
    assert "foreign has other fields" in texts[4]
    assert receiver.take_refusals() == []
    assert intake.items == ITEMS
    until(lambda: receiver.depth() == 0, lambda: receiver.receive(0.0))


def test_a_frame_larger_than_the_server_takes_is_refused_when_it_is_offered(tmp_path: Path, closing: ExitStack) -> None:
    with RedisServer(tmp_path / "r", proto_max_bulk_len=2**20) as redis_server:
        ends = Ends(redis_server, closing)
        sender, receiver, intake = ends.sender(most_bulk=2**20, window_bytes=2**24), ends.receiver(), Intake()
        most = sender.most_frame_bytes
        assert 900_000 < most < 2**20
        with pytest.raises(LinkError, match=f"more than the {most} bytes.*proto-max-bulk-len"):
            offer(sender, range(1), most + 8)
        assert (sender.sent_items, sender.uncommitted_bytes) == (0, 0)
        offer(sender, range(3), most // 8 * 8)
        until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
        assert len(intake.bodies["m"]) == 3


def test_a_frame_too_large_for_a_server_met_later_is_dropped_and_counted(tmp_path: Path, closing: ExitStack) -> None:
    with RedisServer(tmp_path / "r", proto_max_bulk_len=2**20) as redis_server:
        ends = Ends(redis_server, closing)
        sender, receiver, intake = ends.sender(window_bytes=2**24), ends.receiver(), Intake()  # not told the limit
        offer(sender, range(1), 2_000_000)
        offer(sender, range(1, 3))
        until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
        assert (sender.dropped_items, sender.dropped_frames, intake.missing) == (ITEMS, 1, ITEMS)
        assert intake.bodies["m"] == [body_of(1), body_of(2)]


def test_an_offer_that_does_not_add_up_is_a_mistake(ends: Ends) -> None:
    sender = ends.sender()
    with pytest.raises(ValueError, match="not the body"):
        sender.offer([ChunkHead(1, 2, 0, 1, 1, 0, 1, 10)], bytes(11), {})
    with pytest.raises(ValueError, match="0 chunks"):
        sender.offer([], b"", {})
    with pytest.raises(LinkError, match="4097 chunks"):
        sender.offer([ChunkHead(1, 2, 0, 1, 1, 0, 1, 0)] * 4097, b"", {})
    assert sender.sent_items == 0


def test_closing_tries_to_have_everything_committed(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    receiver.receive(0.0)
    offer(sender, range(5))
    sender.close(0.1)
    assert sender.uncommitted_items == 5 * ITEMS
    until(lambda: intake.items == 5 * ITEMS, lambda: intake.take(receiver))
    receiver.receive(0.0)
    sender.close(10.0)
    assert (sender.uncommitted_items, sender.connected) == (0, False)
