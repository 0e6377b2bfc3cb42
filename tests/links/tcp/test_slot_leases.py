"""Leases of the slots of other hosts' workers, and what of them outlives a gateway."""

from __future__ import annotations

import pytest
from gateway_rig import SPLITS

from apexrl.errors import ExhaustedError, LinkError
from apexrl.links.local.inference import InferenceLink
from apexrl.links.tcp.inference_desk import InferenceDesk
from apexrl.links.tcp.slot_leases import LEASE_BITS, SlotLeases
from numbered_requests import REPLY, REQUEST


def link() -> InferenceLink:
    return InferenceLink(REQUEST, REPLY, 5, SPLITS)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Time:
    return Time()


def leases(over: InferenceLink, clock: Time) -> SlotLeases:
    desk = InferenceDesk(over, 2)
    return SlotLeases(desk.slots, desk.known_leases(), desk.beats, seconds=10.0, clock=clock)


def members(leases: SlotLeases) -> set[str]:
    """Who has slots now."""
    return {holder.member for slot in leases._slots if (holder := leases._holder(slot)) is not None}


def test_slots_are_leased_lowest_first_and_come_back_with_silence_or_a_goodbye(clock: Time) -> None:
    some = leases(link(), clock)
    assert some.take("a", 2) == [(2, 1), (3, 1)]
    with pytest.raises(ExhaustedError, match="3 slots for workers of other hosts and 1 free, 2 wanted"):
        some.take("b", 2)
    assert some.take("b", 1) == [(4, 1)]
    clock.now = 9.0
    assert some.renew("a") == [2, 3]
    clock.now = 11.0  # of b nothing was heard
    assert members(some) == {"a"}
    assert some.take("c", 1) == [(4, 2)]
    assert some.keep("b", [(4, 1)]) == []
    some.leave("a")
    assert some.take("d", 2) == [(2, 2), (3, 2)]


def test_a_host_that_was_away_keeps_what_nobody_took(clock: Time) -> None:
    some = leases(link(), clock)
    held = some.take("a", 3)
    clock.now = 20.0
    assert some.take("b", 1) == [(2, 2)]
    assert some.keep("a", held) == [(3, 1), (4, 1)]
    assert some.renew("a") == [3, 4]
    some.leave("b")
    assert some.keep("a", held) == [(3, 1), (4, 1)]  # b has worked in slot 2 since


def test_a_worker_that_comes_before_its_host_takes_its_slot_again_and_another_cannot(clock: Time) -> None:
    some = leases(link(), clock)
    some.enter("a", 3, 7)
    assert members(some) == {"a"}
    with pytest.raises(LinkError, match="slot 3 has gone to another host"):
        some.enter("b", 3, 9)
    assert some.take("b", 2) == [(2, 1), (4, 1)]
    clock.now = 30.0
    assert some.take("c", 3)[1] == (3, 8)
    for slot in (1, 5):
        with pytest.raises(LinkError, match=f"no worker {slot}: other hosts have the slots 2 to 4"):
            some.enter("a", slot, 1)


def test_what_a_killed_gateway_had_leased_stands_in_the_link(clock: Time) -> None:
    memory = link()
    memory.worker(3, (6 << LEASE_BITS) + 5).room(1)
    end = memory.worker(3, (6 << LEASE_BITS) + 5)
    assert end.room(1) is not None
    end.ask(1, 0.0)
    some = leases(memory, clock)
    assert some.take("a", 2) == [(2, 1), (4, 1)]  # the host of slot 3 has a while to come back
    with pytest.raises(ExhaustedError, match="0 free"):
        some.take("b", 1)
    clock.now = 9.0
    some.renew("a")
    clock.now = 10.0
    assert some.take("b", 1) == [(3, 7)]
    back = leases(memory, clock)
    assert back.keep("c", [(3, 6)]) == [(3, 6)]
    back.leave("c")
    assert back.take("d", 3) == [(2, 1), (3, 7), (4, 1)]


def test_a_slot_whose_host_only_beat_goes_to_another_with_a_new_lease(clock: Time) -> None:
    memory = link()
    before = leases(memory, clock)
    before.take("a", 1)
    before.note("a", 2**62)
    after = leases(memory, clock)
    assert after.take("b", 2) == [(3, 1), (4, 1)]  # the host of slot 2 has a while to come back
    assert after.noted("a") == after.noted("b") == 0
    assert after.keep("a", [(2, 1)]) == [(2, 1)]
    assert after.noted("a") == 2**40 - 1
    after.leave("a")
    assert after.take("c", 1) == [(2, 2)]
    assert after.noted("c") == 0
