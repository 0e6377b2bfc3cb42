"""The gradients link against a twin made of deques, and with senders that are killed."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apexrl.links.local.gradient_ring import Gradient, GradientLink, GradientSender
from apexrl.links.local.parameter_slices import Floats, ParameterSlices

SIZES = {"critic/online": 160, "critic/optimizer/steps": 1, "policy/online": 96, "policy/optimizer/steps": 1}
GROUPS = ("critic", "policy")


def link(count: int, senders: int, capacity: int = 2) -> GradientLink:
    """One that crossed a process."""
    made = GradientLink(ParameterSlices(SIZES, {}, count), senders, capacity)
    return pickle.loads(pickle.dumps(made))  # type: ignore[no-any-return]


def gradient(number: int, groups: tuple[str, ...] = GROUPS) -> dict[str, Floats]:
    return {g: (number + np.arange(SIZES[f"{g}/online"]) / 1024).astype(np.float32) for g in groups}


Waiting = tuple[int, dict[str, Floats], bool]
"""Base, groups, complete."""


class Twin:
    """What the link does, in a few lines: (base, groups) of each message in a bounded deque for each pair."""

    def __init__(self, shards: ParameterSlices, senders: int, capacity: int) -> None:
        self.shards, self.capacity = shards, capacity
        self.rings = [
            [deque[tuple[int, dict[str, Floats], bool]]() for _ in range(shards.count)] for _ in range(senders)
        ]
        self.unsent: list[tuple[list[int], dict[str, Floats], list[int]]] = [([], {}, [])] * senders
        self.turn = [0] * shards.count

    def begin(self, sender: int, groups: dict[str, Floats], versions: list[int]) -> None:
        self.unsent[sender] = (list(range(self.shards.count)), groups, versions)

    def finish(self, sender: int) -> bool:
        left, groups, versions = self.unsent[sender]
        for shard in left.copy():
            if len(self.rings[sender][shard]) < self.capacity:
                own = {p.group: groups[p.group][p.where] for p in self.shards.parts(shard) if p.group in groups}
                self.rings[sender][shard].append((versions[shard], own, len(groups) == len(GROUPS)))
                left.remove(shard)
        return not left

    def receive(self, shard: int) -> tuple[int, dict[str, Floats], bool, int] | None:
        senders = len(self.rings)
        for step in range(senders):
            sender = (self.turn[shard] + step) % senders
            if self.rings[sender][shard]:
                self.turn[shard] = sender + 1
                return (*self.rings[sender][shard].popleft(), sender)
        return None


def same(got: Gradient | None, expected: tuple[int, dict[str, Floats], bool, int] | None) -> bool:
    if got is None or expected is None:
        return got is expected
    base, groups, complete, sender = expected
    alike = got.groups.keys() == groups.keys() and all(np.array_equal(got.groups[g], groups[g]) for g in groups)
    return alike and (got.base, got.complete, got.sender) == (base, complete, sender)


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(0, 10_000), max_size=80))
def test_it_does_what_deques_do(count: int, senders: int, capacity: int, moves: list[int]) -> None:
    real = link(count, senders, capacity)
    twin = Twin(real.shards, senders, capacity)
    ends = [real.sender(i) for i in range(senders)]
    receivers = [real.receiver(k) for k in range(count)]
    for number, move in enumerate(moves):
        who = move // 4
        if move % 4 < 2:
            sender = who % senders
            if not twin.unsent[sender][0]:
                groups = gradient(number, GROUPS if move % 8 < 4 else ("critic",))
                versions = [number + k for k in range(count)]
                ends[sender].begin(groups, versions)
                twin.begin(sender, groups, versions)
            assert ends[sender].finish(0.0) == twin.finish(sender)
        else:
            shard = who % count
            assert receivers[shard].waiting == any(rings[shard] for rings in twin.rings)
            assert same(receivers[shard].receive(0.0), twin.receive(shard))


def send(sender: GradientSender, number: int, timeout: float = 5.0) -> bool:
    sender.begin(gradient(number), [number, number])
    return sender.finish(timeout)


def test_who_waits_is_woken_from_both_sides() -> None:
    real = link(2, 1)
    sender, receivers = real.sender(0), [real.receiver(k) for k in range(2)]
    got: list[int] = []

    def take() -> None:
        while len(got) < 100:
            for receiver in receivers:
                came = receiver.receive(5.0)
                assert came is not None
                got.append(came.base)

    thread = threading.Thread(target=take)
    thread.start()
    assert all(send(sender, number) for number in range(50))
    thread.join(20.0)
    assert got == [number for number in range(50) for _ in range(2)]


def test_a_full_shard_keeps_a_gradient_waiting_and_the_others_not() -> None:
    real = link(2, 1)
    sender, slow, quick = real.sender(0), real.receiver(0), real.receiver(1)
    for number in (1, 2):
        assert send(sender, number)
        assert quick.receive(0.0) is not None
    assert not send(sender, 3, timeout=0.05)
    came = quick.receive(0.0)  # it was not kept waiting by the other
    assert came is not None
    assert came.base == 3
    assert not sender.finish(0.0)
    assert [came.base for _ in range(2) if (came := slow.receive(0.0))] == [1, 2]
    assert sender.finish(0.0)
    assert quick.receive(0.0) is None  # and did not get it twice
    assert (came := slow.receive(0.0)) is not None
    assert came.base == 3


def test_a_receiver_takes_senders_in_turn() -> None:
    real = link(1, 3)
    for index in range(3):
        sender = real.sender(index)
        for number in range(2):
            sender.begin(gradient(number), [number])
            assert sender.finish(0.0)
    receiver = real.receiver(0)
    took = [came for _ in range(6) if (came := receiver.receive(0.0))]
    assert [came.sender for came in took] == [0, 1, 2, 0, 1, 2]
    assert receiver.receive(0.0) is None


def test_a_gradient_is_settled_when_every_shard_says_so() -> None:
    real = link(2, 2)
    sender, other = real.sender(0), real.sender(1)
    receivers = [real.receiver(k) for k in range(2)]
    assert sender.settled(0.0)  # nothing was sent
    assert send(sender, 1)
    assert not sender.settled(0.0)
    for receiver in receivers:
        assert receiver.receive(0.0) is not None
    receivers[0].settle()
    assert not sender.settled(0.01)
    receivers[1].settle()
    assert sender.settled(0.0)
    assert send(other, 2)
    assert sender.settled(0.0)  # another's gradient is no matter of it
    successor = real.receiver(0)  # of one that died after it had read
    assert receivers[0].receive(0.0) is not None
    assert receivers[1].receive(0.0) is not None
    successor.settle()
    receivers[1].settle()
    assert other.settled(0.0)


def test_who_waits_for_a_settlement_is_woken() -> None:
    real = link(1, 1)
    sender, receiver = real.sender(0), real.receiver(0)
    assert send(sender, 1)
    assert receiver.receive(0.0) is not None
    thread = threading.Thread(target=receiver.settle)
    thread.start()
    assert sender.settled(20.0)
    thread.join(20.0)


def test_what_was_received_is_nobody_elses() -> None:
    real = link(1, 1, capacity=1)
    sender, receiver = real.sender(0), real.receiver(0)
    send(sender, 1)
    first = receiver.receive(0.0)
    assert first is not None
    send(sender, 2)
    np.testing.assert_array_equal(first.groups["critic"], gradient(1)["critic"])


@pytest.mark.parametrize("capacity", [1, 2])
def test_killed_senders_leave_whole_messages_only(capacity: int) -> None:
    real = link(2, 1, capacity)
    receivers = [real.receiver(k) for k in range(2)]
    last = [0, 0]
    for generation in range(1, 16):
        pid = os.fork()
        if pid == 0:
            try:
                sender, number = real.sender(0), 10_000 * generation
                while True:
                    number += 1
                    sender.begin(gradient(number), [number, number])
                    while not sender.finish(0.01):
                        pass
            finally:
                os._exit(1)
        until = time.monotonic() + 0.02
        deadline = until + 60.0
        killed = False
        while True:
            now = time.monotonic()
            assert now < deadline, (generation, last)
            if not killed and now > until and min(last) > 10_000 * generation:  # each got something of this generation
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                killed = True
            came = [receiver.receive(0.0) for receiver in receivers]
            for shard, message in enumerate(came):
                if message is None:
                    continue
                assert message.base > last[shard]
                last[shard] = message.base
                whole = gradient(message.base)
                for part in real.shards.parts(shard):
                    np.testing.assert_array_equal(message.groups[part.group], whole[part.group][part.where])
            if killed and came == [None, None]:
                break
    assert min(last) > 150_000
