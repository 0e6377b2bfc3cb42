"""Learners that average, in processes that are killed and stopped, and in turns."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import select
import signal
import socket
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from apexrl.errors import LinkError, SpecError
from apexrl.links.averaging.gradient_averaging import GradientAveraging, Member, State
from apexrl.links.averaging.shared_record import SegmentRecord

PATIENCE = 1.5
WAIT_SECONDS = 30.0


class Learners:
    """Processes that each add means of random vectors to a state, and tell what became of it after every update."""

    def __init__(
        self, count: int, size: int, record: Callable[[int], Any] | None = None, transport: str = "sockets"
    ) -> None:
        own = [record(place) for place in range(count)] if record else [None]
        links = [GradientAveraging(count, PATIENCE, record=one, transport=transport) for one in own]
        self.links, self.size = links if record else links * count, size
        self.pids: dict[int, int] = {}
        self.told: dict[int, list[tuple[int, str, int]]] = defaultdict(list)  # place -> progress, state, members
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self._text = b""

    def begin(self, place: int, seed: int = 0, progress: int = 0) -> None:
        pid = os.fork()
        if not pid:
            try:
                self._learn(place, 100 * seed + place, progress)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        self.pids[place] = pid

    def _learn(self, place: int, seed: int, progress: int) -> None:
        torch.set_num_threads(1)
        random = torch.Generator().manual_seed(seed)
        own = torch.randn(self.size, generator=random)  # all but one begin with what others have
        member = self.links[place].member(place, lambda: None)
        while True:
            while not member.joined:
                if (found := member.join(State(own, progress + 1, progress, 0), self.size)) is not None:
                    own, progress = found.vector, found.progress
            vector = torch.randn(self.size, generator=random) * 10.0**place
            vector[0] = float(member.wanted)
            total = member.sum(vector)
            if total is None:
                continue
            if total[0]:
                member.leave()
            own += total / member.size
            progress += 1
            digest = hashlib.sha256(own.numpy().tobytes()).hexdigest()[:16]
            os.write(self._write, json.dumps([place, progress, digest, member.size]).encode() + b"\n")

    def hear(self) -> None:
        try:
            self._text += os.read(self._read, 1 << 20)
        except BlockingIOError:
            return
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            place, progress, digest, size = json.loads(line)
            self.told[place].append((progress, digest, size))

    def until(self, fine: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not fine():
            assert time.monotonic() < deadline, {place: told[-1:] for place, told in self.told.items()}
            time.sleep(0.01)
            self.hear()

    def signal(self, place: int, number: int) -> None:
        os.kill(self.pids[place], number)
        if number == signal.SIGKILL:
            os.waitpid(self.pids.pop(place), 0)

    def last(self, place: int) -> tuple[int, str, int]:
        return self.told[place][-1] if self.told[place] else (0, "", 0)

    def check(self) -> None:
        """After every update all that made it have the same state, to the last bit."""
        states: dict[int, set[str]] = defaultdict(set)
        for told in self.told.values():
            for progress, digest, _ in told:
                states[progress].add(digest)
        assert states
        assert all(len(found) == 1 for found in states.values())

    def close(self) -> None:
        for pid in self.pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(self._read)
        os.close(self._write)


@pytest.fixture(params=["sockets", pytest.param("gloo", marks=pytest.mark.long)])
def begun(request: pytest.FixtureRequest) -> Iterator[Callable[[int, int], Learners]]:
    made: list[Learners] = []

    def begin(count: int, size: int = 1000, **options: Any) -> Learners:
        made.append(learners := Learners(count, size, transport=request.param, **options))
        for place in range(count):
            learners.begin(place)
        learners.until(lambda: all(learners.last(place)[0] > 5 for place in range(count)))
        return learners

    yield begin  # type: ignore[misc]
    for learners in made:
        learners.close()


@pytest.mark.parametrize(("count", "size"), [(2, 100_000), (3, 1000), (3, 100_001)])
def test_all_have_the_same_state_after_every_update(begun: Callable[..., Learners], count: int, size: int) -> None:
    learners = begun(count, size)
    learners.until(lambda: all(learners.last(place)[0] > 30 for place in range(count)))
    learners.check()
    assert {size for told in learners.told.values() for _, _, size in told} == {count}


@pytest.mark.parametrize("place", [0, 1])
def test_the_rest_go_on_without_one_that_is_killed_and_its_successor_takes_their_state(
    begun: Callable[..., Learners], place: int
) -> None:
    learners = begun(3)
    learners.signal(place, signal.SIGKILL)
    rest = [other for other in range(3) if other != place]
    at = max(learners.last(other)[0] for other in rest)
    learners.until(lambda: all(learners.last(other)[0] > at + 20 and learners.last(other)[2] == 2 for other in rest))
    count = len(learners.told[place])
    learners.begin(place, seed=1, progress=3)  # from an old checkpoint
    learners.until(lambda: len(learners.told[place]) > count + 20)
    assert learners.told[place][count][0] > at + 20
    assert learners.told[place][count][2] == 3
    learners.check()


def test_the_rest_go_on_without_one_that_stands_still_and_it_joins_them_again(begun: Callable[..., Learners]) -> None:
    learners = begun(2)
    learners.signal(1, signal.SIGSTOP)
    learners.until(lambda: learners.last(0)[2] == 1)  # it went on alone
    at = learners.last(0)[0]
    learners.until(lambda: learners.last(0)[0] > at + 20)
    learners.signal(1, signal.SIGCONT)
    learners.until(lambda: learners.last(0)[2] == 2 and learners.last(1)[0] > at + 40)
    learners.check()


def test_who_is_alone_makes_its_own_updates() -> None:
    member = GradientAveraging(1, PATIENCE).member(0, lambda: None)
    state = State(torch.ones(3), 7, 5, 4)
    while (found := member.join(state, 2)) is None:
        pass
    assert found[1:] == (7, 5, 4)
    total = member.sum(vector := torch.ones(2))
    assert total is not None
    assert total is not vector
    assert total.tolist() == [1.0, 1.0]
    member.close()


def test_learners_of_other_networks_are_refused() -> None:
    link = GradientAveraging(2, PATIENCE)
    members = [link.member(place, lambda: None) for place in range(2)]
    with pytest.raises(SpecError, match=r"averages gradients of 2 values and a state of 3, and this one 5 and 3"):
        for _ in range(1000):
            assert members[0].join(State(torch.ones(3), 1, 0, 0), 2) is None
            assert members[1].join(State(torch.ones(3), 1, 0, 0), 5) is None
    for member in members:
        member.close()


def test_nccl_is_refused_without_a_cuda_device() -> None:
    link = GradientAveraging(2, PATIENCE, transport="nccl")
    with pytest.raises(
        SpecError, match=r"needs learners on CUDA devices and a PyTorch with NCCL; this learner is on cpu"
    ):
        link.member(0, lambda: None, torch.device("cpu"))


def test_learners_without_a_common_transport_are_refused() -> None:
    record = SegmentRecord(1 << 17)
    links = [GradientAveraging(2, PATIENCE, record=record, transport=name) for name in ("gloo", "sockets")]
    members = [link.member(place, lambda: None) for place, link in enumerate(links)]
    with pytest.raises(SpecError, match=r"no transport of sums in common.*0 by gloo on cpu, 1 by sockets on cpu"):
        for _ in range(1000):
            for member in members:
                assert member.join(State(torch.ones(3), 1, 0, 0), 2) is None
    for member in members:
        member.close()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL wants a CUDA device for each of two members")
def test_nccl_sums_on_the_devices_and_misses_who_leaves() -> None:
    link, sums = GradientAveraging(2, PATIENCE), [torch.empty(0)] * 2
    lost = threading.Event()

    def learn(place: int) -> None:
        device = torch.device("cuda", place)
        member = link.member(place, lambda: None, device)
        while member.join(State(torch.ones(3), 1, 0, 0), 2) is None:
            pass
        total = member.sum(torch.full((70_001,), float(place + 1), device=device))
        assert total is not None
        sums[place] = total
        if place == 0:
            assert member.sum(torch.ones(2, device=device)) is None
            assert not member.joined
            lost.set()
        member.close()

    threads = [threading.Thread(target=learn, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost.is_set()
    assert [total.device.type for total in sums] == ["cuda"] * 2
    assert all((total == 3.0).all() for total in sums)


class CutOff:
    """A shared record and relays of a member that may be cut off from all others: it reads of the others' addresses
    those of relays that lead there, which run in its own process. Nothing passes while ``cut`` is set, which another
    process may do.
    """

    def __init__(self, record: SegmentRecord) -> None:
        self.record, self._flag, self._relays = record, mmap.mmap(-1, 1), dict[bytes, bytes]()
        for name in ("put", "put_first", "drop"):
            setattr(self, name, self._passing(getattr(record, name)))

    def cut(self, value: bool) -> None:
        self._flag[0] = value

    def _passing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def passed(*args: Any) -> Any:
            if self._flag[0]:
                raise LinkError("cut off")
            return call(*args)

        return passed

    def address(self) -> str:
        return "127.0.0.1"

    def all(self) -> dict[str, bytes]:
        entries: dict[str, bytes] = self._passing(self.record.all)()
        return {key: self._relay(text) if "/address/" in key else text for key, text in entries.items()}

    def _relay(self, text: bytes) -> bytes:
        if text not in self._relays:
            listener = socket.create_server(("127.0.0.1", 0))
            self._relays[text] = f"127.0.0.1 {listener.getsockname()[1]}".encode()
            threading.Thread(target=self._run, args=(listener, int(text.split()[1])), daemon=True).start()
        return self._relays[text]

    def _run(self, listener: socket.socket, port: int) -> None:
        near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        while True:
            ready, _, _ = select.select([near, far], [], [], 0.01)
            while self._flag[0]:
                time.sleep(0.01)
            for one, other in ((near, far), (far, near)):
                if one in ready:
                    try:
                        other.sendall(one.recv(1 << 16) or exit())
                    except (OSError, SystemExit):
                        near.close()
                        far.close()
                        return


def test_one_that_is_cut_off_comes_back_with_the_state_of_those_that_went_on(
    begun: Callable[..., Learners],
) -> None:
    cut_off = CutOff(SegmentRecord(1 << 17))
    learners = begun(3, record=lambda place: cut_off if place == 2 else cut_off.record)
    cut_off.cut(True)
    at = max(learners.last(other)[0] for other in (0, 1))
    learners.until(lambda: all(learners.last(other)[0] > at + 20 and learners.last(other)[2] == 2 for other in (0, 1)))
    # Whoever had all others' parts when it was cut off has made an update alone, which is forgotten now.
    learners.told[2] = [one for one in learners.told[2] if one[0] <= at - 1]
    cut_off.cut(False)
    count = len(learners.told[2])
    learners.until(lambda: len(learners.told[2]) > count + 5 and learners.last(2)[2] == learners.last(0)[2] == 3)
    assert learners.told[2][count][0] > at + 20
    learners.check()


class InTurns(RuleBasedStateMachine):
    """Learners in any order of turns, some of which begin anew."""

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.link = GradientAveraging(count, PATIENCE, shared=False)
        self.members: list[Member] = [self.link.member(place, lambda: None) for place in range(count)]
        self.states = [float(place) for place in range(count)]
        self.progress = [0] * count
        self.offered: list[torch.Tensor | None] = [None] * count
        self.next = 1.0
        self.updates = 0

    @rule(turn=st.integers(0, 3))
    def step(self, turn: int) -> None:
        place = turn % len(self.members)
        member = self.members[place]
        if not member.joined:
            self.offered[place] = None
            found = member.join(State(torch.tensor([self.states[place]]), 1, self.progress[place], 0), 1)
            if found is None:
                return
            self.states[place], self.progress[place] = found.vector.item(), found.progress
        if self.offered[place] is None:
            self.offered[place] = torch.tensor([self.next])
            self.next += 1.0
        own = self.offered[place]
        assert own is not None
        total = member.sum(own)
        if total is None:
            return
        self.offered[place] = None
        self.states[place] = float(torch.tensor(self.states[place]) + total)
        self.progress[place] += 1
        self.updates += 1
        others = [k for k in range(len(self.members)) if self.progress[k] == self.progress[place]]
        if all(self.members[other].joined for other in others):
            assert len({self.states[other] for other in others}) == 1

    @rule(turn=st.integers(0, 3))
    def die(self, turn: int) -> None:
        place = turn % len(self.members)
        self.members[place] = self.link.member(place, lambda: None)
        self.states[place], self.progress[place], self.offered[place] = -1.0, 0, None

    def teardown(self) -> None:
        """Whatever happened, all go on when all take turns."""
        if hasattr(self, "members"):
            before = self.updates
            for _ in range(8):
                for place in range(len(self.members)):
                    self.step(place)
            assert self.updates >= before + len(self.members)


TestInTurns = InTurns.TestCase
TestInTurns.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
