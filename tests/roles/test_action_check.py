from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from apexrl.errors import AgentError
from apexrl.roles.action_check import ActionCheck
from apexrl.spec import ActionSpec

ONE = ActionSpec(n=3)
TWO = ActionSpec(shape=(2,), nvec=(3, 2), starts=(0, 0))
BOX = ActionSpec(shape=(1,), dtype="float32", low=np.array([-1.0], np.float32), high=np.array([1.0], np.float32))


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (ONE, np.array([0, 2])),
        (ONE, np.array([0, 2], np.int32)),
        (TWO, np.array([[2, 1], [0, 0]])),
        (BOX, np.zeros((2, 1), np.float32)),
        (BOX, np.full((2, 1), 5.0)),  # environments may clip
    ],
)
def test_what_an_environment_may_take_passes(space: ActionSpec, actions: Any) -> None:
    ActionCheck("a", space).look(actions, 2)


@pytest.mark.parametrize(
    ("space", "actions", "text"),
    [
        (ONE, [0, 1], r"actions in a list, which is no array; .* int64 \[2\], each from 0 to 2"),
        (ONE, np.array([[0], [1]]), r"actions of shape \[2, 1\];"),
        (ONE, np.array([0, 1, 2]), r"actions of shape \[3\]; for 2 observations"),
        (ONE, np.array([0.0, 1.0]), "float64 actions"),
        (ONE, np.array([0, 3]), "the action 3 in row 1"),
        (ONE, np.array([-1, 0]), "the action -1 in row 0"),
        (TWO, np.array([[2, 1], [0, 2]]), r"the action 2 in row 1, column 1; .* \[2, 2\], from 0 to 2, 1 by column"),
        (BOX, np.zeros(2, np.float32), r"actions of shape \[2\]; .* float32 \[2, 1\], all finite"),
        (BOX, np.array([[0.0], [np.nan]], np.float32), "the action nan in row 1, column 0"),
    ],
)
def test_what_none_takes_is_refused_with_the_agents_name(space: ActionSpec, actions: Any, text: str) -> None:
    with pytest.raises(AgentError, match=r"agent own:A: act\(\) returned " + text):
        ActionCheck("own:A", space).look(actions, 2)


def test_the_first_of_each_kind_are_looked_at_and_no_others() -> None:
    check = ActionCheck("a", ONE)
    check.first(np.array([0]), 1, random=True)
    check.first(np.array([9]), 1, random=True)
    with pytest.raises(AgentError):
        check.first(np.array([9]), 1)
