"""Learners that average: the same mean for all, and the leader's state for whoever begins anew."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from apexrl.links.local.gradient_averaging import LEADER, AveragingMember, GradientAveraging

G, S = 5, 7


def vector(value: float, size: int = G) -> Any:
    return np.full(size, value, np.float32)


def joined(link: GradientAveraging, members: list[AveragingMember], state: float = 1.0, version: int = 3) -> None:
    for member in members:
        member.gathered(0.0)
    assert all(member.gathered(0.0) for member in members)
    members[0].give(vector(state, S), version, 2 * version)
    for member in members[1:]:
        found = member.take(0.0)
        assert found is not None
        assert (found[0].tolist(), *found[1:]) == ([state] * S, version, 2 * version)


def test_all_go_on_with_the_mean() -> None:
    link = GradientAveraging(3, G, S)
    members = [link.member(index) for index in range(3)]
    joined(link, members)
    for step in range(1, 6):
        for index, member in enumerate(members):
            member.offer(vector(step + 10 * index))
        for member in members:
            mean = member.mean(0.0)
            assert mean is not None
            assert mean.tolist() == [step + 10.0] * G


def test_the_mean_is_summed_in_one_order() -> None:
    """In float32 the order matters; all members must use the same one."""
    link = GradientAveraging(3, 1000, 1)
    members = [link.member(index) for index in range(3)]
    for member in members:
        member.gathered(0.0)
    assert members[0].gathered(0.0)
    members[0].give(vector(0, 1), 1, 0)
    for member in members[1:]:
        assert member.gathered(0.0)
        assert member.take(0.0) is not None
    rng = np.random.default_rng(0)
    offers = [rng.normal(size=1000).astype(np.float32) * 10.0**k for k in range(3)]
    for member, offer in zip(members, offers, strict=True):
        member.offer(offer)
    means = [member.mean(0.0) for member in members]
    expected = ((offers[0] + offers[1]) + offers[2]) / np.float32(3)
    for mean in means:
        np.testing.assert_array_equal(mean, expected)


def test_nobody_goes_on_before_all_have_offered() -> None:
    link = GradientAveraging(2, G, S)
    members = [link.member(index) for index in range(2)]
    joined(link, members)
    members[0].offer(vector(1.0))
    assert members[0].mean(0.01) is None
    assert members[0].joined
    members[1].offer(vector(3.0))
    assert members[0].mean(0.0) is not None


def test_who_begins_anew_makes_all_begin_anew() -> None:
    link = GradientAveraging(2, G, S)
    members = [link.member(index) for index in range(2)]
    joined(link, members)
    members[0].offer(vector(1.0))
    members[1] = link.member(1)  # the successor of one that died before it offered
    assert members[0].mean(0.0) is None
    assert not members[0].joined
    joined(link, members, state=5.0, version=9)
    for index, member in enumerate(members):
        member.offer(vector(2.0 * index))
    assert [None if mean is None else mean[0] for mean in (member.mean(0.0) for member in members)] == [1.0, 1.0]


def test_a_state_of_an_earlier_epoch_is_not_taken() -> None:
    link = GradientAveraging(2, G, S)
    members = [link.member(index) for index in range(2)]
    joined(link, members)
    members[0] = link.member(0)
    assert members[1].gathered(0.0)
    assert members[1].take(0.0) is None
    assert members[0].gathered(0.0)
    members[0].give(vector(8.0, S), 4, 3)
    found = members[1].take(0.0)
    assert found is not None
    assert found[1] == 4


def test_handles_see_the_same_memory() -> None:
    link = GradientAveraging(2, G, S)
    other: GradientAveraging = pickle.loads(pickle.dumps(link))
    members = [link.member(0), other.member(1)]
    joined(link, members)
    members[0].offer(vector(1.0))
    members[1].offer(vector(2.0))
    mean = members[1].mean(0.0)
    assert mean is not None
    assert mean[0] == 1.5


class Learners(RuleBasedStateMachine):
    """Learners in any order of turns, some of which begin anew. Every value says who offered it and when."""

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.link = GradientAveraging(count, G, S)
        self.members = [self.link.member(index) for index in range(count)]
        self.state = [0.0] * count  # what each has made of it so far
        self.offered: dict[tuple[int, int, int], float] = {}  # epoch, number, member
        self.waiting = [False] * count
        self.next = 1.0
        self.applied = 0

    @rule(turn=st.integers(0, 3))
    def step(self, turn: int) -> None:
        index = turn % len(self.members)
        member = self.members[index]
        if not member.joined:
            self.waiting[index] = False
            if not member.gathered(0.0):
                return
            if index == LEADER:
                member.give(vector(self.state[0], S), int(self.state[0]), 0)
            else:
                found = member.take(0.0)
                if found is None:
                    return
                assert found[0].tolist() == [self.state[0]] * S
                self.state[index] = float(found[0][0])
        if not self.waiting[index]:
            member.offer(vector(self.next))
            self.offered[member._epoch, member._offered, index] = self.next
            self.next += 1.0
            self.waiting[index] = True
        mean = member.mean(0.0)
        if mean is None:
            return
        self.waiting[index] = False
        parts = [self.offered[member._epoch, member._offered, other] for other in range(len(self.members))]
        assert mean.tolist() == pytest.approx([np.mean(parts)] * G)
        self.state[index] = float(np.float32(self.state[index] + 1.0))
        self.applied += 1

    @rule(turn=st.integers(0, 3))
    def die(self, turn: int) -> None:
        index = turn % len(self.members)
        self.members[index] = self.link.member(index)
        self.waiting[index] = False

    def teardown(self) -> None:
        """Whatever happened, all go on when all take turns."""
        if hasattr(self, "members"):
            before = self.applied
            for _ in range(8):
                for index in range(len(self.members)):
                    self.step(index)
            assert self.applied >= before + len(self.members)


TestLearners = Learners.TestCase
TestLearners.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
