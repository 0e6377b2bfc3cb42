from __future__ import annotations

import numpy as np
import pytest

from apexrl.envs import FrameStack
from apexrl.errors import SpecError
from apexrl.spec import Field


@pytest.mark.parametrize("stack", [2, 3, 4])
def test_stacking_equals_the_plain_definition(stack: int) -> None:
    """Over many buffers' lengths: the last frames of this episode, oldest first, the first one repeated before it."""
    rng = np.random.default_rng(0)
    frames = FrameStack(stack, 3, {"observation/a": Field((2,), "float32"), "observation/b": Field((), "int64")})
    histories: list[list[int]] = [[] for _ in range(3)]
    starts = None
    for step in range(stack * 40):
        values = {
            "observation/a": np.repeat(step * 10 + np.arange(3, dtype=np.float32), 2).reshape(3, 2),
            "observation/b": step * 10 + np.arange(3),
        }
        seen = frames.push(values, starts)
        for env, history in enumerate(histories):
            if starts is None or starts[env]:
                history.clear()
            history.append(step * 10 + env)
            expected = ([history[0]] * stack + history)[-stack:]
            if len(history) < stack:
                expected = [history[0]] * (stack - len(history)) + history
            assert seen["observation/b"][env].tolist() == expected
            assert seen["observation/a"][env, :, 0].tolist() == expected
        starts = rng.random(3) < 0.2 if step % 50 != 49 else None


@pytest.mark.parametrize("stack", [2, 3, 4])
def test_environments_that_do_not_go_in_step_have_windows_of_their_own(stack: int) -> None:
    rng = np.random.default_rng(0)
    frames = FrameStack(stack, 4, {"observation/a": Field((2,), "float32"), "observation/b": Field((), "int64")})
    histories: list[list[int]] = [[] for _ in range(4)]
    which, starts = None, None
    for step in range(200):
        numbers = np.arange(4) if which is None else which
        values = {
            "observation/a": np.repeat(step * 10 + numbers, 2).reshape(-1, 2).astype(np.float32),
            "observation/b": step * 10 + numbers,
        }
        seen = frames.push(values, starts, which)
        assert len(seen["observation/b"]) == len(numbers)
        for row, env in enumerate(numbers.tolist()):
            history = histories[env]
            if starts is None or starts[row]:
                history[:] = [step * 10 + env] * stack
            else:
                history[:] = [*history[1:], step * 10 + env]
            assert seen["observation/b"][row].tolist() == history
            assert seen["observation/a"][row, :, 1].tolist() == history
        which = rng.permutation(4)[: rng.integers(1, 5)]
        starts = rng.random(len(which)) < 0.2


def test_one_frame_goes_through_without_a_stack_axis() -> None:
    observation = {"observation": np.zeros((3, 4), np.float32)}
    seen = FrameStack(1, 3, {"observation": Field((4,), "float32")}).push(observation)
    assert seen["observation"] is observation["observation"]


def test_no_frames_is_an_error() -> None:
    with pytest.raises(SpecError, match="stack is 0"):
        FrameStack(0, 3, {})
