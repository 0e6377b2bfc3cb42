from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from ends import KEYS, Ends

from apexrl.errors import LinkError
from apexrl.links.redis import weights as module
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.weights import WeightsDownloader
from redis_server import RedisServer, binaries


def weights_of(version: int, size: int = 1000) -> dict[str, np.ndarray[Any, Any]]:
    return {"w": np.full((size // 10, 10), version, np.float32), "b": np.arange(7) + version}


def same(got: tuple[int, dict[str, Any]] | None, version: int, size: int = 1000) -> bool:
    assert got is not None
    for name, array in weights_of(version, size).items():
        np.testing.assert_array_equal(got[1][name], array)
    return got[0] == version


def until(done: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


@pytest.mark.parametrize("compression", ["none", "zlib"])
def test_a_late_subscriber_reads_the_newest(ends: Ends, compression: str) -> None:
    uploader = ends.uploader(compression=compression)
    assert uploader.published() == 0
    for version in (3, 5, 9):
        uploader.publish(weights_of(version), version)
    downloader = ends.downloader()
    assert same(downloader.wait(0, 5.0), 9)
    assert downloader.wait(9, 0.05) is None
    assert (downloader.transfers, downloader.refused, downloader.reconnects, downloader.trouble) == (1, 0, 0, "")
    assert uploader.published() == 9
    assert downloader.connected


def test_the_bell_wakes_who_waits(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 1000.0)
    uploader, downloader = ends.uploader(), ends.downloader()
    assert downloader.wait(0, 0.1) is None  # has subscribed, and looked
    publishing = threading.Timer(0.2, uploader.publish, (weights_of(1), 1))
    publishing.start()
    assert same(downloader.wait(0, 60.0), 1)
    publishing.join()


def test_a_ring_that_was_lost_costs_one_poll(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.2)
    downloader = ends.downloader()
    assert downloader.wait(0, 0.05) is None
    elsewhere = RunKeys("elsewhere").doorbell
    monkeypatch.setattr(RunKeys, "doorbell", property(lambda keys: elsewhere))  # nobody listens there
    ends.uploader().publish(weights_of(1), 1)
    assert same(downloader.wait(0, 30.0), 1)


def test_a_ring_is_only_a_ring(ends: Ends) -> None:
    downloader = ends.downloader()
    assert downloader.wait(0, 0.05) is None
    client = ends.client()
    for _ in range(50):
        client.publish(KEYS.doorbell, b"99999999 \xff garbage")
    assert downloader.wait(0, 0.05) is None
    ends.uploader().publish(weights_of(2), 2)
    assert same(downloader.wait(0, 5.0), 2)
    assert downloader.refused == 0


@pytest.mark.parametrize("binary", binaries())
def test_ten_megabytes_through_a_server_that_takes_one(binary: str, tmp_path: Path, closing: ExitStack) -> None:
    with RedisServer(tmp_path / "r", binary=binary, proto_max_bulk_len=2**20) as redis_server:
        ends = Ends(redis_server, closing)
        uploader, downloader = ends.uploader(), ends.downloader()
        for version in (1, 2, 3):
            uploader.publish(weights_of(version, 2_500_000), version)
            assert same(downloader.wait(version - 1, 10.0), version, 2_500_000)
        assert downloader.transfers == 3
        parts = sorted(ends.client().scan_iter(KEYS.weights + ":*"))
        assert len(parts) == 2 * 10
        assert all(ends.client().ttl(part) == -1 for part in parts)


def test_versions_before_the_last_but_one_are_deleted_also_those_of_an_uploader_that_died(ends: Ends) -> None:
    client = ends.client()
    for version in range(1, 9):
        if version % 3 == 1:
            uploader = ends.uploader()
        uploader.publish(weights_of(version), version)
        there = set(client.scan_iter(KEYS.weights + ":*"))
        assert there == {KEYS.weights_part(one, 0).encode() for one in (version - 1, version) if one}
    uploader.publish(weights_of(8), 8)  # again
    assert same(ends.downloader().wait(7, 5.0), 8)
    uploader.publish(weights_of(9), 9)
    assert len(list(client.scan_iter(KEYS.weights + ":*"))) == 2


def test_parts_without_a_head_expire(ends: Ends) -> None:
    uploader = ends.uploader()
    uploader.publish(weights_of(1), 1)
    client = ends.client()
    head = client.get(KEYS.weights)
    client.set(KEYS.weights_part(2, 0), b"its publisher died", ex=module.ORPHAN_SECONDS)
    assert same(ends.downloader().wait(0, 5.0), 1)
    assert client.get(KEYS.weights) == head
    uploader.publish(weights_of(2), 2)
    assert client.ttl(KEYS.weights_part(2, 0)) == -1


def test_a_reader_that_is_overtaken_reads_the_newer(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    uploader, downloader = ends.uploader(), ends.downloader()
    uploader.publish(weights_of(1), 1)
    fetch = WeightsDownloader._parts
    overtaken = []

    def slowly(self: WeightsDownloader, pipe: Any, head: Any) -> Any:
        if not overtaken:
            overtaken.append(head.version)
            for version in (2, 3, 4):
                uploader.publish(weights_of(version), version)
        return fetch(self, pipe, head)

    monkeypatch.setattr(WeightsDownloader, "_parts", slowly)
    assert same(downloader.wait(0, 5.0), 4)
    assert (overtaken, downloader.refused) == ([1], 0)


def test_a_server_that_comes_back_empty(ends: Ends) -> None:
    uploader, downloader = ends.uploader(), ends.downloader()
    uploader.publish(weights_of(1), 1)
    assert same(downloader.wait(0, 5.0), 1)
    ends.redis.kill()
    with pytest.raises(LinkError, match=f"{ends.redis.port}"):
        uploader.publish(weights_of(2), 2)
    with pytest.raises(LinkError, match="nothing listens there"):
        uploader.published()
    assert downloader.wait(1, 0.2) is None
    assert "nothing listens there" in downloader.trouble or "closed" in downloader.trouble
    ends.redis.restart(keep_data=False)
    assert uploader.published() == 0  # so it is told again
    uploader.publish(weights_of(3), 3)
    assert same(downloader.wait(1, 30.0), 3)
    assert downloader.reconnects == 1
    assert downloader.trouble == ""


def test_a_full_server_keeps_the_old_ones(tmp_path: Path, closing: ExitStack) -> None:
    with RedisServer(tmp_path / "r", maxmemory="8mb", maxmemory_policy="noeviction") as redis_server:
        ends = Ends(redis_server, closing)
        uploader, downloader = ends.uploader(), ends.downloader()
        uploader.publish(weights_of(1), 1)
        client = ends.client()
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            for number in range(200):
                client.set(f"filler{number}", bytes(100_000))
        with pytest.raises(LinkError, match="is full"):
            for version in range(2, 5):
                uploader.publish(weights_of(version, 500_000), version)
        assert same(downloader.wait(0, 5.0), 1)
        client.delete(*[f"filler{number}" for number in range(200)])
        uploader.publish(weights_of(5), 5)
        assert same(downloader.wait(1, 5.0), 5)


def test_hostile_heads_and_parts_are_refused_and_the_next_good_ones_taken(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    uploader, downloader, client = ends.uploader(), ends.downloader(most_bytes=100_000), ends.client()
    uploader.publish(weights_of(1), 1)
    good = client.get(KEYS.weights)
    assert isinstance(good, bytes)
    part = client.get(KEYS.weights_part(1, 0))
    assert isinstance(part, bytes)
    heads = [
        b"garbage",
        good + b"x",
        module._encoder.encode(["run", 2, 2**16, 2**29, 2**32, []]),
        module._encoder.encode(["run", 2, 1, 2**29, 2**29, []]),
        module._encoder.encode(["run", 1, 1, len(part), len(part) - 1, []]),
        module._encoder.encode(["run", 1, 1, len(part) + 1, len(part) + 1, []]),
        module._encoder.encode(["run", 1, 2, 8, len(part), []]),
        module._encoder.encode(["other", 1, 1, len(part), len(part), []]),
    ]

    def is_refused() -> bool:
        before, deadline = downloader.refused, time.monotonic() + 20.0
        while downloader.refused == before and time.monotonic() < deadline:
            assert downloader.wait(0, 0.1) is None
        return downloader.refused > before

    for head in heads:
        client.set(KEYS.weights, head)
        assert is_refused()
    client.set(KEYS.weights, good)
    for bad in (part[:-1], part + b"x", bytes([part[0] ^ 1]) + part[1:], part[:-1] + bytes([part[-1] ^ 1]), bytes(9)):
        client.set(KEYS.weights_part(1, 0), bad)
        assert is_refused()
        assert downloader.trouble
    client.set(KEYS.weights_part(1, 0), part)
    assert same(downloader.wait(0, 5.0), 1)


def test_weights_of_another_run_are_replaced(ends: Ends) -> None:
    ends.uploader(run_id="old").publish(weights_of(50), 50)
    uploader = ends.uploader()
    assert uploader.published() == 0
    uploader.publish(weights_of(1), 1)
    assert same(ends.downloader().wait(0, 5.0), 1)


def test_waiting_readers_on_one_host_cost_one_transfer_per_version(ends: Ends) -> None:
    uploader, hosts = ends.uploader(), [ends.downloader() for _ in range(4)]
    for version in range(1, 6):
        uploader.publish(weights_of(version), version)
        assert all(same(host.wait(version - 1, 5.0), version) for host in hosts)
        assert all(host.wait(version, 0.0) is None for host in hosts)
    assert [host.transfers for host in hosts] == [5, 5, 5, 5]
