"""Gradients and parameters over TCP, on this machine: what workers see there, and connections that break."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest
from gateway_rig import SECONDS, TOKEN, until

from apexrl.errors import LinkError
from apexrl.links.local.gradient_ring import Gradient, GradientLink
from apexrl.links.local.parameter_slices import ONLINE, TARGET, Floats, ParameterSlices
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.links.tcp import frames, parameter_frames, parameter_relay
from apexrl.links.tcp.gateway_server import Gateway
from apexrl.links.tcp.handshake import enter
from apexrl.links.tcp.parameter_desk import ParameterDesk
from apexrl.links.tcp.parameter_relay import LOCAL_CAPACITY, ParameterGateway, ParameterRelay
from apexrl.links.tcp.slot_leases import LEASE_BITS
from apexrl.links.tcp.tls import ClientTls, ServerTls, self_signed

SIZES = {"critic/online": 160, "critic/target": 160, "critic/optimizer/steps": 1, "policy/online": 96}
PLACES: dict[str, Any] = {}


class There:
    """The servers' host."""

    def __init__(self, shards: int = 2, senders: int = 4, tls: ServerTls | None = None) -> None:
        self.slices = ParameterSlices(SIZES, PLACES, shards)
        self.gradients = GradientLink(self.slices, senders)
        self.parameters = ShardedParameters(self.slices)
        self.told: list[str] = []
        self.servers = [self.gradients.receiver(shard) for shard in range(shards)]
        self._tls = tls
        self.gateway = self.open(0)

    def open(self, port: int) -> Gateway:
        desk = ParameterDesk(self.gradients, self.parameters, first=1)
        tell = lambda text, level: self.told.append(text)  # noqa: E731
        tls = self._tls.context() if self._tls else None
        return Gateway(desk, TOKEN, port=port, tell=tell, tls=tls)

    def publish(self, version: int) -> None:
        """The values of a version are itself."""
        for shard in range(self.slices.count):
            memory = self.parameters.memory(shard)
            for vector in memory.vectors.values():
                vector[:] = version
            memory.version = version
            for name in (ONLINE, TARGET):
                memory.publish(name)

    def received(self, shard: int) -> Gradient:
        return until(lambda: self.servers[shard].receive(0.0))


class Here:
    """A host with workers in some slots."""

    def __init__(self, there: There, *slots: int, lease: int = 1, generation: int = 0, **changes: Any) -> None:
        slices = ParameterSlices(SIZES, PLACES, there.slices.count)
        self.gradients = GradientLink(slices, len(slots), LOCAL_CAPACITY, slots=slots)
        self.parameters = ShardedParameters(slices)
        leases = [(slot, lease) for slot in slots]
        settings: dict[str, Any] = {"token": TOKEN, "member": f"host of {slots}", "connect_seconds": SECONDS, **changes}
        self.where = ParameterGateway(address=there.gateway.address, leases=leases, **settings)
        self.senders = {slot: self.gradients.sender(slot) for slot in slots}
        self.relay = self.begin(generation)

    def begin(self, generation: int) -> ParameterRelay:
        return ParameterRelay(self.where, self.gradients, self.parameters, generation)

    def send(self, slot: int, number: int, groups: tuple[str, ...] = ("critic", "policy"), base: int = 1) -> None:
        values = gradient(number)
        self.senders[slot].begin({group: values[group] for group in groups}, [base] * self.gradients.shards.count)
        assert self.senders[slot].finish(0.0)

    def moves(self, true: Callable[[], Any]) -> None:
        def moved() -> Any:
            self.relay.step(0.001)
            return true()

        until(moved)

    def reads(self, version: int) -> None:
        """Wait for a version of the parameters and the targets."""
        self.moves(lambda: self.parameters.version >= version)
        for name in (ONLINE, TARGET):
            into = self.parameters.empty(name)
            self.moves(lambda name=name, into=into: self.parameters.pull([0] * 9, into, name) and into)
            assert {float(value) for vector in into.values() for value in vector} == {version}


def gradient(number: int) -> dict[str, Floats]:
    return {g: (number + np.arange(SIZES[f"{g}/online"]) / 1024).astype(np.float32) for g in ("critic", "policy")}


@pytest.fixture
def open_() -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:

        def make(kind: type, *args: Any, **options: Any) -> Any:
            made = kind(*args, **options)
            stack.callback(lambda: made.relay.close() if kind is Here else made.gateway.close())
            return made

        yield make


def test_gradients_arrive_as_they_were_sent_and_workers_read_what_servers_publish(open_: Callable[..., Any]) -> None:
    there = open_(There)
    there.publish(1)
    here = open_(Here, there, 1, 3)
    here.reads(1)
    for number in range(1, 20):
        groups = ("critic", "policy") if number % 2 else ("policy",)
        for slot in (1, 3):
            here.send(slot, 100 * slot + number, groups, base=number)
        got: dict[int, list[Gradient]] = {0: [], 1: []}
        for shard in (0, 1):
            here.moves(lambda shard=shard: there.servers[shard].waiting)
            got[shard] = [there.received(shard)]
            here.moves(lambda shard=shard: there.servers[shard].waiting)
            got[shard].append(there.received(shard))
            assert {one.sender for one in got[shard]} == {1, 3}
            for one in got[shard]:
                assert (one.base, one.complete) == (number, len(groups) == 2)
                for part in there.slices.parts(shard):
                    expected = gradient(100 * one.sender + number)[part.group][part.where]
                    if part.group in groups:
                        np.testing.assert_array_equal(one.groups[part.group], expected)
                    else:
                        assert part.group not in one.groups
        assert not here.senders[1].settled(0.0)
        there.publish(number + 1)
        for server in there.servers:
            server.settle()
        here.moves(lambda: here.senders[1].settled(0.0) and here.senders[3].settled(0.0))
        here.reads(number + 1)  # what is settled has been published here
        assert here.parameters.version == number + 1
    here.moves(lambda: here.relay.passed == 19 * 2 * 2)
    assert here.relay.lost == 0
    assert there.told == []


def test_large_slices_come_in_pieces(open_: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parameter_frames, parameter_relay, parameter_frames):
        monkeypatch.setattr(module, "MOST_VALUES", 50)
    monkeypatch.setattr("apexrl.links.tcp.parameter_desk.MOST_VALUES", 50)
    there = open_(There, shards=1)
    there.publish(4)
    here = open_(Here, there, 2)
    here.reads(4)
    here.send(2, 7)
    here.moves(lambda: there.servers[0].waiting)
    got = there.received(0)
    for group, values in gradient(7).items():
        np.testing.assert_array_equal(got.groups[group], values)


def test_a_worker_waits_while_servers_take_nothing_and_no_message_is_dropped(open_: Callable[..., Any]) -> None:
    there = open_(There, shards=1)
    there.publish(1)
    here = open_(Here, there, 1, 2)
    sender, sent = here.senders[1], 0
    deadline = time.monotonic() + SECONDS
    while sent < LOCAL_CAPACITY + parameter_relay.UNDER_WAY:
        sender.begin(gradient(sent), [1])
        while not sender.finish(0.0):
            here.relay.step(0.01)
            assert time.monotonic() < deadline
        sent += 1
    sender.begin(gradient(sent), [1])
    for _ in range(50):
        assert not here.relay.step(0.001)
    assert not sender.finish(0.0)
    here.send(2, 50)  # another worker does not wait for that one
    here.moves(lambda: there.gradients.ring(2, 0).waiting)
    numbers = []
    while len(numbers) < sent + 2:
        here.relay.step(0.001)
        sender.finish(0.0)
        got = there.servers[0].receive(0.0)
        if got is not None:
            numbers.append(round(float(got.groups["critic"][0])))
    assert sorted(numbers) == [*range(sent + 1), 50]


def test_versions_go_on_here_when_a_learner_resumes_from_an_older_checkpoint(open_: Callable[..., Any]) -> None:
    there = open_(There, shards=1)
    there.publish(100)
    here = open_(Here, there, 1)
    here.reads(100)
    there.gateway.close()
    again = open_(There, shards=1)
    again.publish(40)
    here.where = ParameterGateway(again.gateway.address, TOKEN, here.where.leases, member="host of (1,)")
    here.relay.close()
    here.relay = here.begin(1)
    here.moves(lambda: here.parameters.version == 101)
    into = here.parameters.empty()
    here.parameters.pull([0], into)
    assert into["critic"][0] == 40
    here.send(1, 3, base=101)
    here.moves(lambda: again.servers[0].waiting)
    assert again.received(0).base == 40
    again.publish(41)
    here.moves(lambda: here.parameters.version == 102)


def test_a_broken_connection_loses_what_was_under_way_counts_it_and_applies_nothing_twice(
    open_: Callable[..., Any],
) -> None:
    there = open_(There, shards=1)
    there.publish(1)
    here = open_(Here, there, 1)
    here.reads(1)
    port = there.gateway.address[1]
    numbers = []
    for number in range(1, 40):
        here.senders[1].begin(gradient(number), [1])
        while not here.senders[1].finish(0.0):
            here.relay.step(0.001)
            if (got := there.servers[0].receive(0.0)) is not None:
                numbers.append(round(float(got.groups["critic"][0])))
        here.relay.step(0.001)
        if number % 8 == 0:
            there.gateway.close()
            there.gateway = there.open(port)

    def all_here() -> bool:
        here.relay.step(0.001)
        if (got := there.servers[0].receive(0.0)) is not None:
            numbers.append(round(float(got.groups["critic"][0])))
        return len(numbers) + here.relay.lost >= 39

    until(all_here)
    assert numbers == sorted(set(numbers))
    assert there.gateway.counts.refused == 0


def test_a_relay_that_is_killed_leaves_its_workers_to_the_next(open_: Callable[..., Any]) -> None:
    there = open_(There, shards=1)
    there.publish(1)
    here = open_(Here, there, 1)
    here.relay.close()
    child = os.fork()
    if not child:
        relay = here.begin(1)
        while True:
            relay.step(0.01)
    try:
        here.send(1, 5)
        got = there.received(0)
        assert got.groups["critic"][0] == 5
        assert not here.senders[1].settled(0.0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    here.relay = here.begin(2)
    assert here.senders[1].settled(0.0)  # nobody will ever say so of what that relay had taken
    assert here.relay.lost == 1
    here.send(1, 6)
    here.moves(lambda: there.servers[0].waiting)
    assert there.received(0).groups["critic"][0] == 6


@pytest.mark.parametrize(
    ("slots", "changes", "why"),
    [
        ((1,), {"token": "guess"}, "does not know the run's token"),
        ((0,), {}, "there is no worker 0: other hosts have the slots 1 to 3"),
        ((2, 4), {}, "there is no worker 4"),
        ((1,), {"run": "another"}, "works for another run"),
        ((2, 1), {"member": "a thief"}, "slot 1 has gone to another host"),
    ],
)
def test_whoever_does_not_belong_is_refused(
    open_: Callable[..., Any], slots: tuple[int, ...], changes: dict[str, Any], why: str
) -> None:
    there = open_(There)
    there.publish(1)
    good = open_(Here, there, 1, 3)
    with pytest.raises(LinkError, match=why):
        Here(there, *slots, **changes)
    good.send(1, 1)
    good.moves(lambda: there.servers[0].waiting and there.servers[1].waiting)


def test_parameters_that_are_cut_otherwise_are_refused(open_: Callable[..., Any]) -> None:
    there = open_(There)
    with pytest.raises(LinkError, match="is not that of this run"):
        other = There(shards=1)
        try:
            here = Here(other, 1)
            here.relay.close()
            moved = ParameterGateway(there.gateway.address, TOKEN, here.where.leases)
            ParameterRelay(moved, here.gradients, here.parameters)
        finally:
            other.gateway.close()


def test_a_newer_connection_of_the_same_worker_ends_the_older_one(open_: Callable[..., Any]) -> None:
    there = open_(There, shards=1)
    there.publish(1)
    old = open_(Here, there, 1, 2, member="one")
    new = open_(Here, there, 2, member="one", generation=1)
    new.send(2, 8)
    new.moves(lambda: there.servers[0].waiting)
    assert there.received(0).groups["critic"][0] == 8
    with pytest.raises(LinkError, match="worker 2 is there already"):
        old.moves(lambda: False)


HEAD = parameter_frames.GRADIENT_HEAD


@pytest.mark.parametrize(
    ("kind", "head", "body", "why"),
    [
        (frames.REQUEST, b"", b"", "what is no gradient"),
        (frames.GRADIENT, b"short", b"", "what is no gradient"),
        (frames.GRADIENT, HEAD.pack(3, 0, 1, 3, 0), bytes(1024), "the relay has no such sender"),
        (frames.GRADIENT, HEAD.pack(1, 9, 1, 3, 0), bytes(1024), "the relay has no such sender"),
        (frames.GRADIENT, HEAD.pack(1, 0, 1, 4, 0), bytes(1024), "has groups 100, and there are 2"),
        (frames.GRADIENT, HEAD.pack(1, 0, 1, 3, 0), bytes(1020), "are not the piece that comes next"),
        (frames.GRADIENT, HEAD.pack(1, 0, 1, 3, 9), bytes(1024), "are not the piece that comes next"),
        (frames.GRADIENT, HEAD.pack(1, 0, 1, 3, 2**63), b"", "are not the piece that comes next"),
        (frames.GRADIENT, HEAD.pack(1, 0, 1, 3, 0), b"\xff" * 1024, "are no finite numbers"),
        (frames.GRADIENT, HEAD.pack(1, 0, 1, 3, 0), bytes((1 << 20) + 4), "at most 1048576 are taken"),
    ],
)
def test_a_relay_that_sends_something_else_is_cut_off_with_the_reason(
    open_: Callable[..., Any], kind: int, head: bytes, body: bytes, why: str
) -> None:
    there = open_(There, shards=1)
    there.publish(1)
    schema = parameter_frames.schema_of(there.slices)
    peer = enter(
        there.gateway.address, TOKEN, SECONDS, run="", member="m", worker=1, generation=1 << LEASE_BITS, schema=schema
    )
    with suppress(ConnectionError):  # it may be cut off before all is sent
        peer.send(kind, head=head, body=body)
    until(lambda: there.told)
    assert why in there.told[0]
    assert not there.servers[0].waiting
    peer.close()


def test_a_host_that_reads_nothing_delays_no_other(open_: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"critic/online": 1 << 20}
    monkeypatch.setitem(globals(), "SIZES", sizes)
    monkeypatch.setattr(frames, "_STALLED_SECONDS", 1.0)
    there = open_(There, shards=1)
    schema = parameter_frames.schema_of(there.slices)
    slow = enter(
        there.gateway.address, TOKEN, SECONDS, run="", member="m", worker=1, generation=1 << LEASE_BITS, schema=schema
    )
    here = open_(Here, there, 2)
    for version in range(1, 8):
        there.publish(version)
        here.moves(lambda version=version: here.parameters.version == version)
    until(lambda: there.gateway.counts.workers == 1)  # it is given up
    slow.close()


def test_over_tls_with_a_pinned_certificate(open_: Callable[..., Any], tmp_path: Any) -> None:
    tls = self_signed(str(tmp_path / "run.pem"))
    there = open_(There, tls=tls)
    there.publish(3)
    here = open_(Here, there, 1, tls=ClientTls(fingerprint=tls.fingerprint))
    here.reads(3)
    here.send(1, 4)
    here.moves(lambda: there.servers[0].waiting)
    with pytest.raises(LinkError, match="another certificate"):
        Here(there, 2, tls=ClientTls(fingerprint="sha256:" + 64 * "0"))


def test_what_a_killed_gateway_had_leased_stands_in_the_link() -> None:
    link = GradientLink(ParameterSlices(SIZES, PLACES, 1), 4)
    link.leases[2] = 6
    link.beats[3] = 7
    copy: GradientLink = pickle.loads(pickle.dumps(link))
    desk = ParameterDesk(copy, ShardedParameters(link.shards), 1)
    assert desk.known_leases() == {1: 0, 2: 6, 3: 0}
    assert desk.beats.tolist() == [0, 0, 0, 7]


def test_no_thread_is_left(open_: Callable[..., Any]) -> None:
    before = threading.active_count()
    there = There(shards=1)
    there.publish(1)
    here = Here(there, 1)
    here.reads(1)
    here.relay.close()
    there.gateway.close()
    assert threading.active_count() == before
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(there.gateway.address)
