"""Home's weights on their way to groups that take them, cannot take them, or are gone. No Ray runs here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra ray")

from ray.exceptions import RayActorError, RayTaskError

from apexrl.errors import SpecError
from apexrl.launch.ray import actors
from apexrl.launch.ray.actors import Ground


class Enough(Exception):
    """The test has seen what it wanted."""


class Group:
    """A group's process: answers what ``answer`` says of the n-th call."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.got: list[int] = []
        self._answer = answer
        self.weights = SimpleNamespace(remote=self._take)

    def _take(self, version: int, boxed: list[Any]) -> Any:
        self.got.append(version)
        assert boxed == [f"weights {version}"]
        return self._answer(len(self.got))


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Ground:
    """Every look at the weights is a turn; there is one new version at every tenth, up to the third."""

    def get(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put(weights: Any) -> str:
        return f"weights {weights}"

    made_up = SimpleNamespace(get=get, put=put, wait=lambda references, timeout: (references, []))
    monkeypatch.setattr(actors, "ray", made_up)
    monkeypatch.setattr(actors, "_LOOK_SECONDS", 0.0)
    ground: Any = Ground.__new__(Ground)
    ground.turn = 0

    def wait(version: int, seconds: float) -> bool:
        ground.turn += 1
        if ground.turn == 100:
            raise Enough
        return 1 + min(ground.turn // 10, 2) > version

    ground._wait = wait
    ground._weights = SimpleNamespace(latest=lambda newer_than: (newer_than + 1, newer_than + 1))
    ground._others = {}
    return ground  # type: ignore[no-any-return]


def refused(*_: Any) -> Exception:
    return RayTaskError("weights", "its traceback", SpecError("of another network"))


def test_every_version_is_sent_once(home: Ground) -> None:
    group = Group(lambda call: call)
    home._others[1] = group
    with pytest.raises(Enough):
        home._distribute()
    assert group.got == [1, 2, 3]


def test_what_could_not_be_taken_is_sent_again(home: Ground) -> None:
    group, other = Group(lambda call: refused() if call in (1, 2, 4) else call), Group(lambda call: call)
    home._others |= {1: group, 2: other}
    with pytest.raises(Enough):
        home._distribute()
    assert group.got == [1, 1, 1, 2, 2, 3]
    assert other.got == [1, 2, 3]


def test_a_group_that_never_takes_them_is_not_passed_over(home: Ground) -> None:
    home._others[1] = Group(refused)
    with pytest.raises(RayTaskError, match="its traceback"):
        home._distribute()


def test_one_that_is_gone_is_the_drivers_business(home: Ground) -> None:
    home._others[1] = gone = Group(lambda call: RayActorError())
    with pytest.raises(Enough):
        home._distribute()
    assert len(gone.got) > 20
