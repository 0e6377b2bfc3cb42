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
from link_pairs import KEYS, Ends

from apexrl.errors import LinkError
from apexrl.links.redis import weights_downloader as module
from apexrl.links.redis import weights_uploader
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.read_turns import READERS
from apexrl.links.redis.weights_downloader import WeightsDownloader
from apexrl.links.redis.weights_head import encoder
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


def test_an_earlier_version_of_a_learner_that_took_over_is_newer(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READERS", 1)
    first, second = ends.uploader(), ends.uploader()
    readers = ends.downloader(), ends.downloader()
    first.publish(weights_of(9), 9)
    for reader in readers:
        assert same(reader.wait(0, 30.0), 9)
    second.publish(weights_of(4), 4)
    for reader in readers:
        assert same(reader.wait(9, 30.0), 4)
        assert reader.wait(4, 0.05) is None
    second.publish(weights_of(5), 5)
    for reader in readers:
        assert same(reader.wait(4, 30.0), 5)
    assert [reader.transfers for reader in readers] == [3, 3]


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
    monkeypatch.setattr(KEYS, "doorbell", elsewhere)  # nobody listens there
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
    client.set(KEYS.weights_part(2, 0), b"its publisher died", ex=weights_uploader.ORPHAN_SECONDS)
    assert same(ends.downloader().wait(0, 5.0), 1)
    assert client.get(KEYS.weights) == head
    uploader.publish(weights_of(2), 2)
    assert client.ttl(KEYS.weights_part(2, 0)) == -1


def test_a_version_stays_while_it_is_read_and_then_goes(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    uploader, downloader, client = ends.uploader(), ends.downloader(), ends.client()
    uploader.publish(weights_of(1), 1)
    fetch = WeightsDownloader._parts

    def slowly(self: WeightsDownloader, pipe: Any, head: Any) -> Any:
        monkeypatch.undo()
        assert [uploader.publish(weights_of(version), version) for version in (2, 3, 4)] == [True] * 3
        return fetch(self, pipe, head)

    monkeypatch.setattr(WeightsDownloader, "_parts", slowly)
    assert same(downloader.wait(0, 5.0), 1)
    assert uploader.published() == 4
    assert set(client.scan_iter(KEYS.weights + ":*")) == {KEYS.weights_part(4, 0).encode()}
    assert same(downloader.wait(1, 5.0), 4)
    assert downloader.refused == 0
    until(lambda: not client.exists(KEYS.weights_readers, KEYS.weights_waiting))


def test_publishing_waits_while_two_older_ones_are_read_but_not_for_ever(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploader, early, late, client = ends.uploader(), ends.downloader(), ends.downloader(), ends.client()
    uploader.publish(weights_of(1), 1)
    fetch = WeightsDownloader._parts
    answers: list[Any] = []

    def publish(version: int) -> None:
        answers.append(uploader.publish(weights_of(version), version))

    def reading(self: WeightsDownloader, pipe: Any, head: Any) -> Any:
        if self is early:
            publish(2)
            answers.append(late.wait(0, 5.0))
        elif head.version == 2:
            publish(3)
            publish(4)  # 1 and 2 are being read
            assert len(list(client.scan_iter(KEYS.weights + ":*"))) == 3
            monkeypatch.setattr(weights_uploader, "PATIENCE_SECONDS", -1.0)
            publish(5)
        return fetch(self, pipe, head)

    monkeypatch.setattr(WeightsDownloader, "_parts", reading)
    assert same(early.wait(0, 60.0), 1)
    assert answers[:4] == [True, True, False, True]
    assert same(answers[4], 5)  # what it had begun to read was taken away
    assert (early.refused, late.refused) == (0, 0)


def test_few_read_at_once_and_the_others_in_order(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 1000.0)
    monkeypatch.setattr(module, "READERS", 2)
    uploader, client, readers = ends.uploader(), ends.client(), [ends.downloader() for _ in range(6)]
    uploader.publish(weights_of(1), 1)
    fetch = WeightsDownloader._parts
    held, done, at_once = threading.Semaphore(0), [], []

    def reading(self: WeightsDownloader, pipe: Any, head: Any) -> Any:
        at_once.append(client.hlen(KEYS.weights_readers))
        done.append(readers.index(self))
        assert held.acquire(timeout=60.0)
        return fetch(self, pipe, head)

    monkeypatch.setattr(WeightsDownloader, "_parts", reading)
    got: list[Any] = []
    threads = []
    for number, reader in enumerate(readers):
        if number == 2:
            assert reader.wait(0, 0.1) is None
        else:
            threads.append(threading.Thread(target=lambda reader=reader: got.append(reader.wait(0, 60.0))))
            threads[-1].start()
        until(lambda number=number: client.hlen(KEYS.weights_readers) + client.zcard(KEYS.weights_waiting) > number)
    readers[2].close()  # it died: nobody listens for its turn
    uploader.publish(weights_of(2), 2)
    for _ in range(12):
        held.release()
    for thread in threads:
        thread.join(60.0)
    assert sorted(done) == [0, 1, 3, 4, 5]
    assert max(at_once) == 2
    assert sorted(one[0] for one in got) == [1, 1, 2, 2, 2]  # who had to wait reads the newest


def test_a_reader_that_dies_gives_its_turn_up(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_POLL_SECONDS", 0.05)
    monkeypatch.setattr(module, "READERS", 1)
    uploader, client, dead, heir = ends.uploader(), ends.client(), ends.downloader(), ends.downloader()
    uploader.publish(weights_of(1), 1)

    def dies(self: WeightsDownloader, pipe: Any, head: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(WeightsDownloader, "_parts", dies)
        patch.setattr(WeightsDownloader, "_leave_turn", lambda self, pipe: None)
        with pytest.raises(KeyboardInterrupt):
            dead.wait(0, 5.0)
    assert heir.wait(0, 0.2) is None
    (turn,) = client.hgetall(KEYS.weights_readers).items()
    client.hset(KEYS.weights_readers, turn[0], b"1 1000")  # as if it had been silent for ten seconds
    assert same(heir.wait(0, 60.0), 1)


def test_the_server_never_holds_a_whole_version_for_each_reader(ends: Ends) -> None:
    size, hosts = 2_000_000, 40
    uploader, client = ends.uploader(), ends.client()
    uploader.publish(weights_of(1, size), 1)
    assert uploader.published() == 1
    base = client.info("memory")["used_memory"]
    got: list[int] = []

    def read() -> None:
        reader = ends.downloader()
        for newer_than in (0, 1):
            found = reader.wait(newer_than, 120.0)
            got.append(found[0] if found else 0)

    threads = [threading.Thread(target=read) for _ in range(hosts)]
    for thread in threads:
        thread.start()
    until(lambda: len(got) >= hosts)
    until(lambda: uploader.publish(weights_of(2, size), 2))
    for thread in threads:
        thread.join(120.0)
    assert sorted(got) == [1] * hosts + [2] * hosts
    peak = client.info("memory")["used_memory_peak"] - base
    version, connections = 4 * size, hosts * 2 * 64 * 1024
    assert peak < version + version // 4 + READERS * module.AHEAD * module.PIECE_BYTES + connections


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
        encoder.encode(["run", 2, 2**16, 2**29, 2**32, []]),
        encoder.encode(["run", 2, 1, 2**29, 2**29, []]),
        encoder.encode(["run", 1, 1, len(part), len(part) - 1, []]),
        encoder.encode(["run", 1, 1, len(part) + 1, len(part) + 1, []]),
        encoder.encode(["run", 1, 2, 8, len(part), []]),
        encoder.encode(["other", 1, 1, len(part), len(part), []]),
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
