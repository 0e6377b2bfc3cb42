"""Hosts at an inference gateway: their slots, what they tell, and what they hear."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from gateway_rig import RECORD, SECONDS, SPLITS, TOKEN, until

from apexrl.errors import ConfigError, ExhaustedError, LinkError
from apexrl.launch.lease_keeper import LeaseKeeper
from apexrl.links.local.control_board import ControlBoard
from apexrl.links.local.inference import InferenceLink
from apexrl.links.tcp import connected_hosts
from apexrl.links.tcp.gateway_messages import MOST_EPISODES, MOST_TEXT, MOST_TEXTS, Beat, Orders, Record, Report, send
from apexrl.links.tcp.gateway_server import Gateway
from apexrl.links.tcp.handshake import RefusedError, UnreachableError
from apexrl.links.tcp.host_connection import HostConnection
from apexrl.links.tcp.inference_desk import InferenceDesk
from apexrl.links.tcp.remote_inference import RemoteInference
from apexrl.run.env_changes import EnvChange, encoded
from apexrl.run.status import RunStatus
from free_ports import free_port
from numbered_requests import REPLY, REQUEST


class Place:
    def __init__(self, **changes: Any) -> None:
        self.link, self.told = InferenceLink(REQUEST, REPLY, 5, SPLITS), []
        self.settings = {"record": RECORD, "lease_seconds": 5.0, **changes}
        self.gateway = self.open(free_port())

    told: list[str]

    def open(self, port: int, **changes: Any) -> Gateway:
        tell = lambda text, level: self.told.append(text)  # noqa: E731
        return Gateway(InferenceDesk(self.link, 2), TOKEN, port=port, tell=tell, **{**self.settings, **changes})

    def host(self, token: str = TOKEN) -> HostConnection:
        return HostConnection(self.gateway.address, token, "there", 42, connect_seconds=SECONDS)

    def die(self) -> None:
        """The gateway dies without a word."""
        for peer in list(self.gateway.members._open.values()):
            peer.shutdown()
        until(lambda: self.gateway.counts.hosts == 0)
        self.gateway.close()

    def again(self, **changes: Any) -> None:
        """It dies, and another listens where it did."""
        port = self.gateway.address[1]
        self.die()
        self.gateway = self.open(port, **changes)


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    yield found
    found.gateway.close()


def test_a_host_hears_what_to_run_and_tells_what_happened_once(place: Place) -> None:
    host = place.host()
    assert host.connect() == RECORD
    host.join(2)
    assert host.leases == [(2, 1), (3, 1)]
    orders = host.beat([1.0, 2.0], [10, 20], [("warning", "a worker\x1b[31m died")], restarts=3)
    assert not orders.finished
    assert not orders.lost
    host.beat([1.0, 2.0], [10, 20], again=True)  # of which no answer came, as it thinks
    host.beat([3.0], [30], metrics={"won": (2, 0.5, 0.0, 1.0)})
    assert place.gateway.news() == ({}, [1.0, 2.0, 3.0], [10, 20, 30], [], {"won": (2, 0.5, 0.0, 1.0)})
    place.gateway.members.env_change = b"{}"
    assert host.beat().env_change == b"{}"
    assert place.gateway.counts[:1] + place.gateway.counts[4:] == (1, 0)  # the newest beat says
    host.beat(restarts=3)
    assert place.gateway.counts.worker_restarts == 3
    assert "there:42: a worker?[31m died" in place.told
    host.leave()
    until(lambda: place.gateway.counts.hosts == 0)
    assert place.told[-1] == "host there:42 has left"


def test_changed_settings_of_environments_reach_the_roles_of_a_host(place: Place) -> None:
    host, board = place.host(), ControlBoard(1)
    host.connect()
    host.join(1)
    data = encoded(EnvChange(2, {"level": 3}), "here")
    place.gateway.members.env_change = data
    keeper = LeaseKeeper(host, RECORD, 60.0)
    keeper.tell_changes(board)
    until(lambda: board.env_changes == 1)
    assert board.env_change() == data
    place.gateway.members.env_change = b"a stranger's"
    until(lambda: keeper.error is not None)
    with pytest.raises(ConfigError, match="holds no environment settings"):
        keeper.check()
    keeper.close()
    assert board.env_changes == 1


@pytest.mark.parametrize(("news", "reason"), [("elsewhere", "moved"), ("ended", "finished")])
def test_a_host_whose_gateway_is_gone_joins_again_only_if_the_run_goes_on(place: Place, news: Any, reason: str) -> None:
    host = place.host()
    host.connect()
    host.join(1)
    place.die()
    keeper = LeaseKeeper(host, RECORD, 60.0, lambda: news)
    until(lambda: keeper.update(RunStatus()) is not None)
    assert keeper.update(RunStatus()) == reason
    keeper.check()
    keeper.close()


def test_counts_and_reports_of_workers_are_heard_once_and_the_newest_report_stands(place: Place) -> None:
    host = place.host()
    host.connect()
    host.join(2)
    lag = {"lag": (1.0, 2.0, None), "lag_histogram": {"0": 3}, "run_lag": (1.0, 2.0, 3.0), "run_lag_histogram": {}}
    reports = [Report(worker="worker-2", generation=1, values={"loss": loss}, **lag) for loss in (0.5, None)]
    host.beat(counts={"env_steps": 5, "lost_gradients": 1}, reports=reports[:1])
    host.beat(counts={"env_steps": 5, "lost_gradients": 1}, reports=reports[:1], again=True)
    host.beat(counts={"env_steps": 2}, reports=reports[1:])
    news = place.gateway.news()
    assert news.counts == {"env_steps": 7, "lost_gradients": 1}
    assert news.reports == reports[1:]
    host.leave()


@pytest.mark.parametrize(
    "said",
    [{"counts": {"updates": 5}}, {"counts": {"env_steps": -1}}, {"reports": [{"worker": "w"}]},
     {"reports": [Report("w", 1, {}, (0.0, 0.0, 0.0), {"x": 1}, (0.0, 0.0, 0.0), {})]}],
)  # fmt: skip
def test_a_beat_with_other_counters_or_reports_ends_the_connection(place: Place, said: dict[str, Any]) -> None:
    host = place.host()
    host.connect()
    host.join(1)
    with pytest.raises(UnreachableError):
        host.beat(**said)
    until(lambda: "away" in "".join(place.told))


def test_who_may_not_come_is_told_why(place: Place) -> None:
    with pytest.raises(RefusedError, match="does not know the run's token"):
        place.host("another token than this").connect()
    with pytest.raises(RefusedError, match="another run") as caught:
        place.host().connect("87654321-dcba")
    assert caught.value.replaced
    host = place.host()
    host.connect()
    with pytest.raises(ExhaustedError, match="4 wanted"):
        host.join(4)
    assert host.leases == []
    host.leave()


def test_a_record_is_refused_by_whoever_finds_it_strange() -> None:
    strange: list[dict[str, Any]] = [
        {"run_id": "../x"},
        {"run_id": "12345678\n"},
        {"splits": [0]},
        {"brings": "actors"},
        {"schema": "00\n"},
        {"name": "a/b"},
        {"name": "a\n"},
        {"host": "h\x1b[2J"},
        {"lease_seconds": 0.0},
    ]
    for changes in strange:
        data = msgspec.msgpack.encode({**msgspec.to_builtins(RECORD), **changes})
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(data, type=Record)


def test_a_host_that_says_what_is_no_beat_is_cut_off_and_the_others_go_on(place: Place) -> None:
    bad, good = place.host(), place.host()
    for host in (bad, good):
        host.connect()
        host.join(1)
    assert bad._peer is not None
    send(bad._peer, Beat(9, [1.0], []))  # a return without a length
    until(lambda: place.gateway.counts.hosts == 1)
    with pytest.raises(UnreachableError):
        bad.beat()
    assert not good.beat().lost
    good.leave()


def test_the_largest_beat_is_taken(place: Place) -> None:
    host = place.host()
    host.connect()
    texts: list[tuple[Any, str]] = [("warning", "\U0001f996" * MOST_TEXT)] * MOST_TEXTS
    host.beat([1e300] * MOST_EPISODES, [2**40] * MOST_EPISODES, texts, restarts=2**40)
    assert len(place.gateway.news()[1]) == MOST_EPISODES
    host.leave()


def test_a_hosts_name_is_one_line_in_the_log(place: Place) -> None:
    host = place.host()
    host.connect()
    host._name = "a\u202eb\u2028c"
    host.join(1)
    assert "host a?b?c:42 has joined with slots 2" in place.told
    host._name = "two\nlines"
    with pytest.raises(UnreachableError):  # cut off
        host.join(1)


def test_more_hosts_than_a_run_takes_are_refused_and_others_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connected_hosts, "MOST_HOSTS", 1)
    first, second = place.host(), place.host()
    first.connect()
    with pytest.raises(RefusedError, match="1 hosts work for this run already") as caught:
        second.connect()
    assert not caught.value.replaced
    assert place.gateway.counts.refused == 1
    first.connect()  # the same host on a new connection
    first.beat()
    first.leave()
    until(lambda: place.gateway.counts.hosts == 0)
    second.connect()
    second.leave()


def test_a_host_that_takes_nothing_makes_nobody_wait(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on = threading.Event(), threading.Event()
    real = connected_hosts.send

    def slow(peer: socket.socket, message: Any) -> None:
        if isinstance(message, Record) and not entered.is_set():
            entered.set()
            assert go_on.wait(SECONDS)
        real(peer, message)

    working, stalled = place.host(), place.host()
    working.connect()
    monkeypatch.setattr(connected_hosts, "send", slow)
    thread = threading.Thread(target=stalled.connect)
    thread.start()
    assert entered.wait(SECONDS)
    assert not working.beat().finished  # while the other one stands at the door
    assert place.gateway.counts.hosts == 1
    go_on.set()
    thread.join(SECONDS)
    until(lambda: place.gateway.counts.hosts == 2)
    for host in (working, stalled):
        host.leave()


def test_hosts_find_a_gateway_that_comes_again_and_have_their_slots(place: Place) -> None:
    first, second = place.host(), place.host()
    for host in (first, second):
        host.connect()
        host.join(1)
    place.again()
    with pytest.raises(UnreachableError):
        first.beat()
    first.connect(RECORD.run_id)
    assert first.leases == [(2, 1)]
    late = place.host()
    late.connect()
    late.join(2)  # while the second is away
    second.connect(RECORD.run_id)
    assert second.leases == []
    assert first.beat().lost is False
    for host in (first, late, second):
        host.leave()


def test_a_beat_that_a_gateway_counted_before_it_was_killed_is_not_counted_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = connected_hosts.send

    def answers_nothing(peer: socket.socket, message: Any) -> None:
        if isinstance(message, Orders):
            raise ConnectionResetError("it is dead")
        real(peer, message)

    host = place.host()
    host.connect()
    host.join(2)
    host.beat([0.0], [5])
    for taken in (True, False):  # killed after it was counted and before it was answered, or before either
        place.gateway.news()
        monkeypatch.setattr(connected_hosts, "send", answers_nothing)
        with pytest.raises(UnreachableError):
            host.beat([1.0], [10], [("warning", "died")], {"env_steps": 10})
        if taken:
            assert place.gateway.news()[:3] == ({"env_steps": 10}, [1.0], [10])
        monkeypatch.setattr(connected_hosts, "send", real)
        place.again()
        place.told.clear()
        host.connect(RECORD.run_id)
        host.beat([1.0], [10], [("warning", "died")], {"env_steps": 10}, again=True)
        assert place.gateway.news()[:3] == (({}, [], []) if taken else ({"env_steps": 10}, [1.0], [10]))
        assert ("there:42: died" in place.told) is not taken
        host.beat([2.0], [20])
        assert place.gateway.news().returns == [2.0]
    host.leave()
    until(lambda: place.gateway.counts.hosts == 0)
    other = place.host()  # in the same slots, with numbers of its own
    other.connect()
    other.join(2)
    place.again()
    other.connect(RECORD.run_id)
    other.beat([3.0], [30])
    assert place.gateway.news().returns == [3.0]
    other.leave()


def test_a_gateway_of_another_run_sends_hosts_away(place: Place) -> None:
    host = place.host()
    host.connect()
    host.join(1)
    place.again(record=msgspec.structs.replace(RECORD, run_id="another-run"))
    with pytest.raises(RefusedError, match="another run") as caught:
        host.connect(RECORD.run_id)
    assert caught.value.replaced


def test_when_the_run_is_over_hosts_are_told_and_waited_for(place: Place) -> None:
    host = place.host()
    host.connect()
    host.join(1)
    ending = threading.Thread(target=place.gateway.close, args=(SECONDS,))
    ending.start()
    until(lambda: host.beat().finished)
    host.leave()
    ending.join(SECONDS)
    assert not ending.is_alive()
    assert place.told[-1] == "host there:42 has left"


def test_who_does_not_leave_in_time_reads_later_that_the_run_is_over(place: Place) -> None:
    host = place.host()
    host.connect()
    host.join(1)
    place.gateway.close()
    assert host.beat().finished
    host.leave()


def test_a_worker_in_a_slot_that_was_leased_to_another_is_refused(place: Place) -> None:
    mine, other = place.host(), place.host()
    for host in (mine, other):
        host.connect()
        host.join(1)

    def remote(host: HostConnection, slots: Any) -> RemoteInference:
        return RemoteInference(
            place.gateway.address, TOKEN, REQUEST, REPLY, SPLITS, RECORD.run_id, host.member, slots, None, SECONDS
        )

    end = remote(mine, mine.leases).worker(2, 0)
    with pytest.raises(LinkError, match="slot 3 has gone to another host meanwhile"):
        remote(mine, [(3, 1)]).worker(3, 0)
    end.leave()
    for host in (mine, other):
        host.leave()


def test_a_host_that_is_still_being_admitted_may_come_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has its answer before the gateway has written down that it is here."""
    monkeypatch.setattr(connected_hosts, "MOST_HOSTS", 1)
    host, go_on, answered = place.host(), threading.Event(), connected_hosts.send

    def answer(peer: Any, message: Any) -> None:
        answered(peer, message)
        assert go_on.wait(SECONDS)

    monkeypatch.setattr(connected_hosts, "send", answer)
    host.connect()
    monkeypatch.setattr(connected_hosts, "send", answered)
    with pytest.raises(RefusedError, match="1 hosts work for this run already"):
        place.host().connect()
    host.connect()
    host.beat()
    host.leave()
    go_on.set()
