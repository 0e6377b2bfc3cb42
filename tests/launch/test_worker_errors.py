"""What a human reads of an error in a worker."""

from __future__ import annotations

import gymnasium as gym
import pytest

from apexrl.envs.action_spaces import action_spec
from apexrl.envs.lockstep import blame
from apexrl.errors import ApexrlError, EnvError, SpecError
from apexrl.launch.worker_process import describe


def faulty_step() -> None:
    raise KeyError("left")


def raised(ours: bool) -> Exception:
    with pytest.raises(Exception) as caught:
        if not ours:
            faulty_step()
        with blame("Toy-v0", "step", 3):
            faulty_step()
    return caught.value


def test_an_environments_error_shows_its_own_lines_and_none_of_ours() -> None:
    told = describe(raised(ours=True))
    assert told["error"] == "EnvError: Toy-v0: step() of environment 3 raised KeyError: 'left'"
    first, *lines = told["traceback"].splitlines()
    assert first == told["error"]
    assert "in faulty_step" in told["traceback"]
    assert "lockstep.py" not in told["traceback"]
    assert "contextlib.py" not in told["traceback"]
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize("caused", [False, True])
def test_what_we_refuse_ourselves_shows_none_of_our_lines(caused: bool) -> None:
    with pytest.raises(ApexrlError) as caught:
        try:
            action_spec(gym.spaces.Text(3))
        except SpecError as error:
            if not caused:
                raise
            raise EnvError("Toy-v0") from error
    told = describe(caught.value)["traceback"]
    assert told.splitlines()[0] == f"{type(caught.value).__name__}: {caught.value}"
    assert "action_spaces.py" not in told


def test_an_error_that_is_none_of_ours_has_its_whole_traceback() -> None:
    assert describe(raised(ours=False))["traceback"].startswith("Traceback (most recent call last):")
