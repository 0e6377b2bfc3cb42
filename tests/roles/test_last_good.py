"""A checkpoint is something that a run can go on from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from apexrl import checkpoint
from apexrl.roles import checkpoints
from apexrl.run_folder import RunFolder


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_state_that_is_not_finite_is_never_the_newest_checkpoint(stage: Any, bad: float) -> None:
    context = stage.context("learner")
    state = {"online/w": np.ones(3, np.float32), "rng": np.arange(5, dtype=np.uint8), "updates": np.array(7)}
    checkpoints.write_state(context, state, keep=1)
    context.count(updates=1)
    checkpoints.write_state(context, state | {"online/w": np.array([1.0, bad, 1.0], np.float32)}, keep=1)
    found = checkpoint.load_latest(RunFolder(context.folder).checkpoints)
    assert found is not None
    assert found.metadata["updates"] == 0
    (said,) = stage.values("log")
    assert said["level"] == "warning"
    assert "online/w is NaN or infinite: no checkpoint is written" in said["text"]
    assert str(found.path) in said["text"]
