"""Sums over sockets: exact, in pieces that go out early, and closed to strangers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from apexrl.errors import LinkError
from apexrl.links.averaging import connections, sum_plans
from apexrl.links.averaging.connections import Connections
from apexrl.links.averaging.process_group import ProcessGroup
from apexrl.links.averaging.shared_record import SegmentRecord

PREFIX, TIMEOUT = "epoch/1/address", 20.0


def in_threads(calls: list[Callable[[], Any]]) -> list[Any]:
    """What each has returned, or the LinkError that it raised."""
    found: list[Any] = [None] * len(calls)

    def call(place: int) -> None:
        try:
            found[place] = calls[place]()
        except LinkError as error:
            found[place] = error

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def connect(record: SegmentRecord, rank: int, size: int, secret: bytes = b"one", timeout: float = TIMEOUT) -> Any:
    return lambda: Connections(record, PREFIX, rank, size, "127.0.0.1", secret, timeout)


@pytest.fixture
def connected() -> Iterator[Callable[..., list[Connections]]]:
    made: list[Connections] = []

    def begin(size: int, timeout: float = TIMEOUT) -> list[Connections]:
        record = SegmentRecord(1 << 16)
        made.extend(in_threads([connect(record, rank, size, timeout=timeout) for rank in range(size)]))
        return made

    yield begin
    for one in made:
        one.close()


@pytest.mark.parametrize(("size", "floats"), [(2, 1000), (2, 70_001), (3, 1000), (3, 70_001), (4, 70_001)])
def test_sums_are_those_in_the_order_of_ranks(
    connected: Callable[..., list[Connections]], monkeypatch: pytest.MonkeyPatch, size: int, floats: int
) -> None:
    monkeypatch.setattr(sum_plans, "CHUNK_FLOATS", 1 << 12)
    members = connected(size)
    random = torch.Generator().manual_seed(0)
    vectors = [torch.empty(floats) for _ in members]
    for early in (False, True, True):
        for rank, vector in enumerate(vectors):
            vector.copy_(torch.randn(floats, generator=random) * 10.0**rank)
        expected = vectors[0].clone()
        for vector in vectors[1:]:
            expected += vector
        before = [vector.clone() for vector in vectors]
        if early:  # some send the last values before they have the first ones
            for rank in range(size - 1):
                half = vectors[rank][: floats // 2].clone()
                vectors[rank][: floats // 2] = torch.nan
                members[rank].begin_sum(vectors[rank], floats // 2)
                vectors[rank][: floats // 2] = half
        totals = in_threads([lambda k=k: members[k].sum(vectors[k]) for k in range(size)])  # type: ignore[misc]
        for total, vector, own in zip(totals, vectors, before, strict=True):
            assert torch.equal(total, expected)
            assert torch.equal(vector, own)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["bf16", "top-k"])
def test_compressed_vectors_lose_nothing_more_on_their_way(size: int, kind: Any) -> None:
    floats, exact = 70_001, 100
    record, random = SegmentRecord(1 << 16), torch.Generator().manual_seed(0)
    form = sum_plans.Form(kind, exact, 700)
    calls = [lambda k=k: Connections(record, PREFIX, k, size, "127.0.0.1", b"one", TIMEOUT, form) for k in range(size)]  # type: ignore[misc]
    members = in_threads(calls)
    for _ in range(2):
        vectors = [torch.randn(floats, generator=random) for _ in members]
        for vector in vectors:
            rest = vector[exact:]
            if kind == "bf16":
                rest.copy_(rest.bfloat16())
            else:
                rest[rest.abs() < rest.abs().topk(700).values.min()] = 0.0
        expected = vectors[0].clone()
        for vector in vectors[1:]:
            expected += vector
        totals = in_threads([lambda one=one, own=own: one.sum(own) for one, own in zip(members, vectors, strict=True)])
        assert all(torch.equal(total, expected) for total in totals)
        sent = sum(len(view) for view in out_of(members[0]._plan))
        whole = 4 * floats if size == 2 else 4 * floats * 2 / 3
        whole = 4 * floats if size == 2 else 4 * floats * 2 / 3
        assert sent < 0.51 * whole if kind == "bf16" else sent == (size - 1) * 4 * (exact + 2 * 700)
    for member in members:
        member.close()


def out_of(plan: Any) -> list[memoryview]:
    """What a member sends to all others, before the sums are sent back."""
    if isinstance(plan, sum_plans.SparsePlan):
        return [sum_plans.as_bytes(plan._own) for _ in plan._peers]
    return [view for _, _, view, _ in plan._sends]


def test_all_take_the_newest_state(connected: Callable[..., list[Connections]]) -> None:
    members = connected(3)
    vectors = [torch.full((300_000,), float(rank)) for rank in range(3)]
    in_threads([lambda k=k: members[k].broadcast(vectors[k], 1) for k in range(3)])  # type: ignore[misc]
    assert all((vector == 1.0).all() for vector in vectors)


def test_who_stands_still_is_waited_for_no_longer_than_the_timeout(
    connected: Callable[..., list[Connections]],
) -> None:
    members = connected(2, timeout=0.2)
    with pytest.raises(LinkError, match=r"nothing moved for 0\.2 s to or from rank 1"):
        members[0].sum(torch.ones(10))


def test_who_gave_a_sum_up_is_not_summed_although_its_part_is_there(
    connected: Callable[..., list[Connections]],
) -> None:
    """Else one that was stopped would make an update when it wakes up that nobody else has made."""
    members = connected(2, timeout=0.2)
    with pytest.raises(LinkError):
        members[0].sum(torch.ones(10))
    members[0].abort()
    with pytest.raises(LinkError, match="a learner is lost"):
        members[1].sum(torch.ones(10))


def test_who_closes_is_missed_at_once(connected: Callable[..., list[Connections]]) -> None:
    members = connected(2)
    members[1].close()
    with pytest.raises(LinkError, match="closed its connection"):
        members[0].sum(torch.ones(10))


def test_who_does_not_know_the_secret_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_CONNECT_SECONDS", 1.0)
    record = SegmentRecord(1 << 16)
    failed = in_threads([connect(record, rank, 2, secret) for rank, secret in enumerate((b"one", b"two"))])
    assert all(isinstance(one, LinkError) for one in failed)
    assert any("does not know the run's secret" in str(one) for one in failed)


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(36), b"\xff" * 5000])
def test_strangers_keep_nobody_out(words: bytes) -> None:
    record = SegmentRecord(1 << 16)

    def second() -> Connections:
        while (text := record.all().get(f"{PREFIX}/0")) is None:
            time.sleep(0.005)
        host, _, port = text.decode().partition(" ")
        strangers = [socket.create_connection((host, int(port))) for _ in range(3)]
        for stranger in strangers:
            stranger.sendall(words)
        try:
            made: Connections = connect(record, 1, 2)()
        finally:
            for stranger in strangers:
                stranger.close()
        return made

    members = in_threads([connect(record, 0, 2), second])
    totals = in_threads([lambda one=one: one.sum(torch.ones(3)) for one in members])  # type: ignore[misc]
    assert [total.tolist() for total in totals] == [[2.0] * 3] * 2
    for member in members:
        member.close()


def test_a_process_group_misses_who_closes_and_who_gave_up(connected: Callable[..., list[Connections]]) -> None:
    sockets, record = connected(2, timeout=1.0), SegmentRecord(1 << 16)

    def join(rank: int) -> Any:
        return lambda: ProcessGroup(
            "gloo", sockets[rank], record, "epoch/1/group", "127.0.0.1", 1.0, torch.device("cpu")
        )

    groups = in_threads([join(0), join(1)])
    totals = in_threads([lambda one=one: one.sum(torch.ones(70_001)) for one in groups])  # type: ignore[misc]
    assert all((total == 2.0).all() for total in totals)
    assert not sockets[0].broken()
    with pytest.raises(LinkError, match="a learner is lost"):
        groups[0].sum(torch.ones(10))
    groups[0].abort()
    assert sockets[1].broken()
    with pytest.raises(LinkError, match="a learner is lost"):
        groups[1].sum(torch.ones(10))
    groups[1].close()
