from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from link_pairs import ITEMS, KEYS, Ends, Intake, body_of, gather, offer, until
from redis import exceptions

from apexrl.errors import LinkError
from redis_server import RedisServer, binaries


def test_a_receiver_that_dies_between_commit_and_acknowledgement(ends: Ends) -> None:
    sender, intake = ends.sender(), Intake()
    first = ends.receiver()
    first.receive(0.0)
    offer(sender, range(10))
    until(lambda: first.depth() == 10, lambda: sender.step(0.0))
    got = gather(first, 10)
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


def test_an_entry_deleted_while_pending_is_passed_over(ends: Ends) -> None:
    sender, intake = ends.sender(), Intake()
    first = ends.receiver()
    first.receive(0.0)
    offer(sender, range(3))
    until(lambda: first.depth() == 3, lambda: sender.step(0.0))
    got = gather(first, 3)
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
        until(lambda: "is full" in sender.trouble, lambda: sender.step(0.1))
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
        assert receiver.depth() == 0
        with pytest.raises(LinkError, match="nothing listens there"):
            receiver.known()
        redis_server.start()
        until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
        assert (sender.trouble, receiver.trouble) == ("", "")


def test_acknowledgements_given_while_the_server_is_away_reach_it_later(ends: Ends) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    receiver.receive(0.0)
    offer(sender, range(5))
    until(lambda: receiver.depth() == 5, lambda: sender.step(0.0))
    got = gather(receiver, 5)
    for one in got:
        intake.commit(one)
    ends.redis.kill()
    receiver.acknowledge(got, intake.committed)
    receiver.receive(0.1)
    ends.redis.start()
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
    assert intake.items == 5 * ITEMS
    assert intake.bodies["m"] == [body_of(number) for number in range(5)]


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("sends", [0, 1, 2, 3])
def test_an_intake_that_dies_at_any_point_of_an_acknowledgement(ends: Ends, sends: int) -> None:
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    receiver.receive(0.0)
    offer(sender, range(10))
    until(lambda: receiver.depth() == 10, lambda: sender.step(0.0))
    got = gather(receiver, 10)
    for one in got:
        intake.commit(one)
    pipe: Any = receiver._pipe
    left, send = [None] * sends, pipe.send

    def mortal(pieces: Any, replies: int) -> None:
        if not left:
            raise Died
        left.pop()
        send(pieces, replies)

    pipe.send = mortal
    with pytest.raises(Died):
        receiver.acknowledge(got, intake.committed)
        while True:
            receiver.receive(0.0)
    receiver._disconnect()
    second = ends.receiver()
    until(lambda: sender.uncommitted_items == 0, lambda: intake.take(second), lambda: sender.step(0.0))
    assert sender.resent_frames == 0
    assert intake.items == 10 * ITEMS


@pytest.mark.parametrize("binary", binaries())
def test_a_server_that_is_full_is_emptied(binary: str, tmp_path: Path, closing: ExitStack) -> None:
    with RedisServer(tmp_path / "r", binary=binary, maxmemory_policy="noeviction") as redis_server:
        ends = Ends(redis_server, closing)
        sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
        receiver.receive(0.0)
        offer(sender, range(20))
        until(lambda: receiver.depth() == 20, lambda: sender.step(0.0))
        client = ends.client()
        client.config_set("maxmemory", 1)
        until(lambda: sender.uncommitted_items == 0, lambda: intake.take(receiver), lambda: sender.step(0.0))
        assert receiver.depth() == 0
        assert receiver.trouble == ""
        late = ends.receiver()
        assert late.known() == {("m", 1): 20}
        client.delete(KEYS.steps)
        late.receive(0.1)
        generation: Any = client.get(KEYS.steps)  # even a new stream can be made, to be ready when there is room again
        assert client.exists(b"%b:%b" % (KEYS.steps.encode(), generation)) == 1


@pytest.mark.parametrize("loss", ["entries", "committed", "both"])
def test_what_the_server_took_and_has_no_more_is_sent_again(
    ends: Ends, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apexrl.links.redis.sender.DOUBT_SECONDS", 0.05)
    sender, other, receiver, intake = ends.sender(), ends.sender("other"), ends.receiver(), Intake()
    receiver.receive(0.0)
    for one in (sender, other):
        offer(one, range(9))
        until(lambda one=one: not one._queued, lambda one=one: one.step(0.0))  # type: ignore[misc]
    client = ends.client()
    stream: Any = b"%b:%b" % (KEYS.steps.encode(), client.get(KEYS.steps))
    if loss == "entries":
        client.xdel(stream, *[kept.entry for kept in sender._sent])
    else:
        until(lambda: receiver.depth() == 0, lambda: intake.take(receiver))
        if loss == "both":
            intake.committed.clear()  # nobody knows any more
            intake.items_seen.clear()
            intake.bodies.clear()
            intake.duplicates = 0
            receiver = ends.receiver()
        client.delete(KEYS.committed)
    until(
        lambda: sender.uncommitted_items + other.uncommitted_items == 0,
        lambda: intake.take(receiver),
        lambda: sender.step(0.0),
        lambda: other.step(0.0),
    )
    for member in ("m", "other"):
        assert intake.bodies[member] == [body_of(number) for number in range(9)]
    assert intake.missing == 0
    assert sender.resent_frames >= 9
    assert (intake.duplicates > 0) == (loss == "committed")


def test_what_waits_long_for_the_intake_is_not_sent_again(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.links.redis.sender.DOUBT_SECONDS", 0.01)
    sender, receiver = ends.sender(), ends.receiver()
    receiver.receive(0.0)
    offer(sender, range(5))
    until(lambda: receiver.depth() == 5, lambda: sender.step(0.0))
    until(lambda: sender._doubt > 0.1, lambda: sender.step(0.01))  # it has asked, several times
    assert (sender.resent_frames, receiver.depth()) == (0, 5)


def test_what_was_dropped_is_deleted_also_after_trouble(ends: Ends) -> None:
    sender, receiver = ends.sender(window_bytes=20_000, when_full="drop-oldest"), ends.receiver()
    receiver.receive(0.0)
    offer(sender, range(15))
    until(lambda: receiver.depth() == 15, lambda: sender.step(0.0))
    offer(sender, range(15, 30))  # most of the first are dropped
    assert sender.dropped_items > 0

    def cut(pieces: Any, replies: int) -> None:
        raise exceptions.ConnectionError("cut")

    sender._pipe.send = cut  # type: ignore[method-assign,union-attr]
    assert not sender.step(0.0)
    assert not sender.connected
    until(lambda: not sender._queued and sender.connected, lambda: sender.step(0.01))
    assert receiver.depth() * ITEMS == sender.uncommitted_items


@pytest.mark.parametrize("poison", [b"9999999999999999", b"-5", b"1e9", b"9" * 40, b"", b"\xff"])
def test_a_poisoned_table_of_what_was_committed(ends: Ends, poison: bytes) -> None:
    client = ends.client()
    client.hset(KEYS.committed, mapping={b"m/1": poison, b"x/1": poison, b"\xff\xfe": poison, b"m/" + b"9" * 50: b"1"})
    sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
    assert receiver.known() == {("m", 1): 0, ("x", 1): 0}
    offer(sender, range(3))
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.0), lambda: intake.take(receiver))
    assert intake.items == 3 * ITEMS
    client.delete(KEYS.committed)
    client.set(KEYS.committed, poison)  # of another type
    assert receiver.known() == {}
    offer(sender, range(3, 6))
    until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.0), lambda: intake.take(receiver))
    assert receiver.known() == {("m", 1): 6}
