"""Home's weights on their way to groups that take them, cannot take them, or are gone. No Ray runs here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.exceptions import RayActorError, RayTaskError

from apexrl.errors import SpecError
from apexrl.launch.ray import weights_broadcast
from apexrl.launch.ray.weights_broadcast import WeightsBroadcast
from apexrl.links.rounded_weights import Rounded
from apexrl.shared.weights_board import WeightsBoard


class Enough(Exception):
    """The test has seen what it wanted."""


class Group:
    """A group's process: answers what ``answer`` says of the n-th call; ``boards`` are its answers to where it is."""

    def __init__(self, answer: Callable[[int], Any], *boards: Any) -> None:
        self.got: list[int] = []
        self._answer = answer
        self._boards = list(boards) or [None]
        self.weights = SimpleNamespace(remote=self._take)
        self.board = SimpleNamespace(remote=self._where)

    def _take(self, version: int, boxed: list[Any]) -> Any:
        self.got.append(version)
        assert boxed == [f"weights {version}"]
        return self._answer(len(self.got))

    def _where(self, node: str) -> Any:
        assert node == "home"
        found = self._boards.pop(0)
        return [found.__reduce__()[1] if isinstance(found, WeightsBoard) else found]  # a reference, which None is not


class Home(WeightsBroadcast):
    """Every look at the weights is a turn; there is one new version at every tenth, up to the third."""

    def __init__(self) -> None:
        newest: Any = SimpleNamespace(
            latest=lambda newer_than: (newer_than + 1, weights(newer_than + 1)),
            wait=lambda version, seconds: self._wait(seconds),
        )
        super().__init__(newest, "home")
        self.put: list[int] = []  # versions that went into the object store
        self._turn = 0

    def _wait(self, seconds: float) -> bool:
        self._turn += 1
        if self._turn == 100:
            raise Enough
        return 1 + min(self._turn // 10, 2) > self._version


def weights(version: int) -> dict[str, Any]:
    return {"w": np.full(3, version, np.float32)}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Home:
    def get(answer: Any) -> Any:
        answer = answer[0] if isinstance(answer, list) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(newest: Rounded) -> str:
        home.put.append(int(newest.weights()["w"][0]))
        return f"weights {home.put[-1]}"

    def wait(references: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return references, []

    monkeypatch.setattr(weights_broadcast, "ray", SimpleNamespace(get=get, put=put, wait=wait))
    monkeypatch.setattr(weights_broadcast, "_LOOK_SECONDS", 0.0)
    home = Home()
    return home


def refused(*_: Any) -> Exception:
    return RayTaskError("weights", "its traceback", SpecError("of another network"))


def test_every_version_is_sent_once(home: Home) -> None:
    group = Group(lambda call: call)
    home.groups[1] = group
    with pytest.raises(Enough):
        home.run()
    assert group.got == [1, 2, 3]
    assert home.put == [1, 2, 3]


def test_what_could_not_be_taken_is_sent_again(home: Home) -> None:
    group, other = Group(lambda call: refused() if call in (1, 2, 4) else call), Group(lambda call: call)
    home.groups |= {1: group, 2: other}
    with pytest.raises(Enough):
        home.run()
    assert group.got == [1, 1, 1, 2, 2, 3]
    assert other.got == [1, 2, 3]
    assert home.put == [1, 2, 3]  # for both, and for every time


def test_a_group_that_never_takes_them_is_told_of_and_the_others_have_them(home: Home) -> None:
    never, other = Group(refused), Group(lambda call: call)
    home.groups |= {1: never, 2: other}
    with pytest.raises(Enough):
        home.run()
    assert len(never.got) == weights_broadcast._TRIES + 1
    assert other.got == [1, 2, 3]
    assert home.refused.keys() == {1}
    assert "its traceback" in home.refused[1]


def test_the_next_life_of_a_group_that_took_none_is_tried_anew(home: Home) -> None:
    again = Group(lambda call: call)

    def leave(seconds: float) -> bool:
        if home.refused:
            home.groups[1] = again
        return Home._wait(home, seconds)

    home.groups[1] = Group(refused)
    home._wait = leave  # type: ignore[method-assign]
    with pytest.raises(Enough):
        home.run()
    assert again.got
    assert not home.refused


def test_one_that_is_gone_is_the_drivers_business(home: Home) -> None:
    home.groups[1] = gone = Group(lambda call: RayActorError())
    with pytest.raises(Enough):
        home.run()
    assert len(gone.got) > 20


def test_a_group_on_homes_node_has_them_written_into_its_memory(home: Home) -> None:
    board = WeightsBoard(100)
    near = Group(refused, board)
    home.groups[1] = near
    with pytest.raises(Enough):
        home.run()
    assert near.got == home.put == []
    newest = board.latest()
    assert newest is not None
    assert newest[0] == 3
    np.testing.assert_array_equal(newest[1]["w"], weights(3)["w"])


def test_one_node_is_near_and_the_other_is_not(home: Home) -> None:
    board = WeightsBoard(100)
    home.groups |= {1: Group(refused, board), 2: (far := Group(lambda call: call))}
    with pytest.raises(Enough):
        home.run()
    assert board.version == 3
    assert far.got == [1, 2, 3]


def test_memory_out_of_reach_is_sent_to(home: Home) -> None:
    """A container may have processes of its own, which others cannot see."""
    (state,) = WeightsBoard(100).__reduce__()[1]
    group = Group(lambda call: call, ((2**22 + 1, *state[1:]),))
    home.groups[1] = group
    with pytest.raises(Enough):
        home.run()
    assert group.got == [1, 2, 3]


def test_where_a_group_is_is_asked_again_when_the_answer_was_lost(home: Home) -> None:
    board = WeightsBoard(100)
    home.groups[1] = Group(refused, RayTaskError("board", "its traceback", OSError("no")), board)
    with pytest.raises(Enough):
        home.run()
    assert board.version == 3


def test_the_next_life_of_a_group_may_be_elsewhere(home: Home) -> None:
    """And what it has is not what the one before had."""
    board = WeightsBoard(100)
    home.groups[1] = Group(refused, board)
    far = Group(lambda call: call)

    def leave(seconds: float) -> bool:
        if board.version == 2:
            home.groups[1] = far
        return Home._wait(home, seconds)

    home._wait = leave  # type: ignore[method-assign]
    with pytest.raises(Enough):
        home.run()
    assert board.version == 2
    assert far.got == [2, 3]


def test_memory_that_is_ahead_is_left_alone() -> None:
    """A home that begins anew goes on from a checkpoint, and the one before may have published later ones."""
    board = WeightsBoard(100)
    weights_broadcast.publish(board, weights(7), 7)
    weights_broadcast.publish(board, weights(5), 5)
    assert board.version == 7
    with pytest.raises(SpecError, match="must have the names, shapes and dtypes"):
        weights_broadcast.publish(board, {"v": np.zeros(2)}, 8)
