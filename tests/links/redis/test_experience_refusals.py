from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from link_pairs import ITEMS, KEYS, Ends, Intake, body_of, offer, until

from apexrl._native import ChunkHeads
from apexrl.errors import LinkError
from apexrl.protocols import ChunkHead
from redis_server import RedisServer


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
        assert (sender.dropped_items, intake.missing) == (ITEMS, ITEMS)
        assert intake.bodies["m"] == [body_of(1), body_of(2)]


def test_an_offer_that_does_not_add_up_is_a_mistake(ends: Ends) -> None:
    sender = ends.sender()
    with pytest.raises(ValueError, match="not the body"):
        sender.offer(ChunkHeads([ChunkHead(1, 2, 0, 1, 1, 0, 1, 10)]), bytes(11), {})
    with pytest.raises(ValueError, match="0 chunks"):
        sender.offer(ChunkHeads([]), b"", {})
    with pytest.raises(LinkError, match="4097 chunks"):
        sender.offer(ChunkHeads([ChunkHead(1, 2, 0, 1, 1, 0, 1, 0)] * 4097), b"", {})
    assert sender.sent_items == 0
