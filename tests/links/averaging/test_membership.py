"""Which learners average together: agreed on by all, whoever comes, goes, or stands still."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from apexrl.links.averaging.membership import Epoch, Member, Membership
from apexrl.links.averaging.shared_record import SegmentRecord

PATIENCE = 10.0


class Entries:
    """A record in this process."""

    def __init__(self) -> None:
        self.entries: dict[str, bytes] = {}

    def all(self) -> dict[str, bytes]:
        return dict(self.entries)

    def put(self, key: str, value: bytes) -> dict[str, bytes]:
        self.entries[key] = value
        return dict(self.entries)

    def put_first(self, key: str, value: bytes) -> bytes:
        return self.entries.setdefault(key, value)

    def address(self) -> str:
        return "127.0.0.1"

    def drop(self, keys: list[str]) -> None:
        for key in keys:
            self.entries.pop(key, None)


class Group:
    """Members that beat as time passes, unless they are lost."""

    def __init__(self, count: int) -> None:
        self.now, self.record, self.expected = 100.0, Entries(), count
        self.members: dict[str, Membership] = {}
        self.made = 0

    def begin(self, place: int) -> str:
        name = f"{place}-{self.made}"
        self.made += 1
        self.members[name] = Membership(self.record, name, place, self.expected, PATIENCE, lambda: self.now)
        return name

    def announce(self, name: str, version: int = 1, progress: int = 0, settled: bool = False) -> None:
        self.members[name].announce(version, progress, 7 * progress, settled, (3, 4))

    def lose(self, name: str) -> None:
        del self.members[name]

    def passes(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            for member in self.members.values():
                member.beat()

    def agreed(self) -> dict[str, Epoch | None]:
        """What all know when each has looked twice."""
        for member in self.members.values():
            member.agreed()
        return {name: member.agreed() for name, member in self.members.items()}


def together(group: Group, *places: int) -> list[str]:
    names = [group.begin(place) for place in places]
    for name in names:
        group.announce(name)
    group.agreed()
    return names


def names_of(epoch: Epoch | None) -> list[str]:
    assert epoch is not None
    return [member.name for member in epoch.members]


def test_all_that_are_expected_begin_together_in_the_order_of_their_places() -> None:
    group = Group(3)
    names = [group.begin(place) for place in (2, 0)]
    for name in names:
        group.announce(name)
    assert set(group.agreed().values()) == {None}
    names.append(group.begin(1))
    group.announce(names[2])
    found = group.agreed()
    assert [names_of(found[name]) for name in names] == [["0-1", "1-2", "2-0"]] * 3
    assert [found[name].rank for name in names] == [2, 0, 1]  # type: ignore[union-attr]


def test_one_that_never_comes_is_waited_for_no_longer_than_the_patience() -> None:
    group = Group(2)
    name = group.begin(0)
    group.announce(name)
    group.passes(PATIENCE)
    assert group.agreed() == {name: None}
    group.passes(0.5)
    assert names_of(group.agreed()[name]) == [name]


def test_survivors_go_on_once_the_lost_one_is_silent() -> None:
    group = Group(3)
    names = together(group, 0, 1, 2)
    group.lose(names[1])
    for name in (names[0], names[2]):
        group.announce(name, settled=True)
    assert set(group.agreed().values()) == {None}
    group.passes(2.5)
    found = group.agreed()
    assert names_of(found[names[0]]) == names_of(found[names[2]]) == [names[0], names[2]]
    assert found[names[0]].number == 2  # type: ignore[union-attr]


def test_one_that_lives_but_does_not_come_is_left_behind_and_comes_later() -> None:
    group = Group(2)
    one, two = together(group, 0, 1)
    group.announce(one, settled=True)
    group.passes(PATIENCE)
    assert group.members[one].agreed() is None
    group.passes(0.5)
    assert names_of(group.members[one].agreed()) == [one]
    assert group.members[two].beat()  # it learns that there is a newer epoch
    group.announce(two, settled=True)
    assert group.members[two].agreed() is None
    assert group.members[one].beat()  # and the others that it waits
    group.announce(one, settled=True)
    assert [names_of(epoch) for epoch in group.agreed().values()] == [[one, two]] * 2


def test_who_comes_anew_does_not_begin_without_those_that_are_at_work() -> None:
    group = Group(2)
    one, two = together(group, 0, 1)
    group.lose(one)
    group.announce(two, version=500, progress=400, settled=True)
    group.passes(3.0)
    assert names_of(group.agreed()[two]) == [two]
    again = group.begin(0)
    group.announce(again, version=300, progress=200)
    group.passes(PATIENCE + 1.0)
    assert group.members[again].agreed() is None  # the other is busy, and lives
    group.announce(two, version=510, progress=410, settled=True)
    found = group.agreed()[again]
    assert found is not None
    assert names_of(found) == [again, two]
    assert (found.newest, found.version, found.members[found.newest].updates) == (1, 510, 2870)


@pytest.mark.parametrize(
    ("members", "newest"),
    [
        ([(5, False), (5, False)], 0),
        ([(5, False), (6, False)], 1),
        ([(5, False), (5, True)], 1),
        ([(6, False), (5, True)], 0),
    ],
)
def test_the_newest_state_holds(members: list[tuple[int, bool]], newest: int) -> None:
    made = [Member(str(i), i, 1, progress, 0, settled, (1, 1)) for i, (progress, settled) in enumerate(members)]
    assert Epoch(1, tuple(made), 0, "sockets").newest == newest


def test_a_record_that_came_back_empty_is_filled_again() -> None:
    group = Group(2)
    one, two = together(group, 0, 1)
    group.record.entries.clear()
    for name in (one, two):
        group.announce(name, settled=True)
    group.record.entries.clear()
    group.passes(0.5)
    group.agreed()
    assert [names_of(epoch) for epoch in group.agreed().values()] == [[one, two]] * 2


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b'"x"', b'{"name": "x"}', json.dumps({"name": "9"}).encode() * 1000, b"\xff" * 9],
)
def test_what_is_no_announcement_is_passed_over(text: bytes) -> None:
    group = Group(1)
    name = group.begin(0)
    for key in ("epoch/1/stranger", "epoch/999999999999999999/x", "epoch/x/y", "epoch/", "beat", "epoch/-1/z"):
        group.record.put(key, text)
    group.announce(name)
    group.passes(0.5)
    assert names_of(group.agreed()[name]) == [name]


def test_members_that_are_no_list_are_no_members() -> None:
    group = Group(1)
    name = group.begin(0)
    good: dict[str, Any] = {"name": "a", "place": 0, "version": 1, "progress": 0, "updates": 0, "settled": True}
    for floats in ([1, 2, 3], [True, 2], ["1", "2"], 5):
        group.record.entries["epoch/1/members"] = json.dumps([{**good, "floats": floats}]).encode()
        group.members[name] = Membership(group.record, name, 0, 1, PATIENCE, lambda: group.now)
        group.announce(name)
        assert group.agreed()[name] is None


def test_old_epochs_and_the_dead_are_forgotten() -> None:
    group = Group(2)
    one, two = together(group, 0, 1)
    group.lose(two)
    for _ in range(5):
        group.announce(one, settled=True)
        group.passes(70.0)
        assert names_of(group.agreed()[one]) == [one]
    assert not [key for key in group.record.entries if two in key]
    assert len(group.record.entries) <= 5


class Members(RuleBasedStateMachine):
    """Members in any order of turns, some of which are lost. In no epoch do two know different members."""

    @initialize(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        self.group = Group(count)
        self.agreed: dict[int, list[str]] = {}
        for place in range(count):
            self.group.announce(self.group.begin(place))

    def one(self, turn: int) -> str:
        return sorted(self.group.members)[turn % len(self.group.members)]

    @rule(turn=st.integers(0, 9))
    def look(self, turn: int) -> None:
        epoch = self.group.members[self.one(turn)].agreed()
        if epoch is not None:
            found = self.agreed.setdefault(epoch.number, names_of(epoch))
            assert found == names_of(epoch)
            assert found[epoch.rank] == self.one(turn)

    @rule(turn=st.integers(0, 9))
    def lost_a_connection(self, turn: int) -> None:
        self.group.announce(self.one(turn), settled=True)

    @rule(turn=st.integers(0, 9))
    def dies(self, turn: int) -> None:
        name = self.one(turn)
        self.group.lose(name)
        self.group.announce(self.group.begin(int(name[0])))

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0, 30.0]))
    def passes(self, seconds: float) -> None:
        self.group.passes(seconds)

    def teardown(self) -> None:
        """Whatever happened, all come together when all look."""
        if hasattr(self, "group"):
            for _ in range(8):
                self.group.passes(3.0)
                for name, member in self.group.members.items():
                    if member.beat():
                        self.group.announce(name, settled=True)
                found = self.group.agreed()
                for name, epoch in found.items():  # they cannot connect to one that died after it was chosen
                    if epoch is not None and not set(names_of(epoch)) <= set(self.group.members):
                        self.group.announce(name, settled=True)
            assert {tuple(names_of(epoch)) for epoch in found.values()} == {tuple(sorted(self.group.members))}


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("members", "transport"),
    [
        ([("nccl", "sockets", "A"), ("nccl", "sockets", "B")], "nccl"),
        ([("nccl", "sockets", "A"), ("nccl", "sockets", "A")], "sockets"),  # of one device
        ([("nccl", "sockets", "A"), ("sockets", "")], "sockets"),
        ([("nccl", "A"), ("sockets", "")], ""),
        ([("gloo", ""), ("gloo", "")], "gloo"),
    ],
)
def test_all_learn_by_which_transport_they_sum(members: list[tuple[str, ...]], transport: str) -> None:
    record = SegmentRecord(1 << 16)
    made = [Membership(record, str(place), place, len(members), 10.0) for place in range(len(members))]
    for one, (*can, device) in zip(made, members, strict=True):
        one.announce(1, 0, 0, False, (1, 1), tuple(can), device)
    for one in made:
        one.beat()
    found = [one.agreed() for one in made]
    assert [one and one.transport for one in found] == [transport] * 2


def test_a_beat_is_one_call_of_a_record_that_may_be_far_away() -> None:
    class Far(Entries):
        def all(self) -> dict[str, bytes]:
            raise AssertionError("a second call")

    one = Membership(Far(), "0-0", 0, 1, PATIENCE)
    assert not one.beat()
