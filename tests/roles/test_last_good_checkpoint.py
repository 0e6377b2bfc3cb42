"""A checkpoint is something that a run can go on from."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from apexrl.errors import SpecError
from apexrl.roles import checkpointing
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.shared.weights_board import InlineWeights


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_state_that_is_not_finite_is_never_the_newest_checkpoint(stage: Any, bad: float) -> None:
    context = stage.context("learner")
    state = {"online/w": np.ones(3, np.float32), "rng": np.arange(5, dtype=np.uint8), "updates": np.array(7)}
    checkpointing.write_state(context, state, keep=1)
    context.count(updates=1)
    spoilt = state | {"online/w": np.array([1.0, bad, 1.0], np.float32)}
    assert not checkpointing.Saving(context, 60.0).now(lambda: checkpointing.write_state(context, spoilt, keep=1))
    found = checkpoint.load_latest(RunFolder(context.folder).checkpoints)
    assert found is not None
    assert found.metadata["updates"] == 0
    (said,) = stage.values("log")
    assert said["level"] == "warning"
    assert "could not write a checkpoint: online/w is NaN or infinite. The run goes on" in said["text"]
    assert str(found.path) in said["text"]
    began = time.monotonic()
    checkpointing.Saving(context, 60.0).last(lambda: checkpointing.write_state(context, spoilt, keep=1))
    assert time.monotonic() - began < checkpointing.LAST_SECONDS / 2  # it would be no better a second later
    assert [said["what"] for said in stage.values("not_saved")] == ["a checkpoint"]


class Vector:
    """An agent that is one array."""

    def __init__(self) -> None:
        self.w = np.zeros(2, np.float32)

    def load(self, weights: Any) -> None:
        self.w = np.array(weights["w"])

    load_state_dict = load

    def state_dict(self) -> dict[str, Any]:
        return {"w": self.w}


def test_a_learner_restarted_before_the_first_checkpoint_takes_up_what_was_published(stage: Any) -> None:
    context, agent, weights = stage.context("learner"), Vector(), InlineWeights()
    context.count(updates=5)
    weights.publish({"w": np.ones(2, np.float32)}, 6)
    checkpointing.restore(context, agent, weights)  # type: ignore[arg-type]
    assert agent.w.tolist() == [1.0, 1.0]
    (said,) = stage.values("log")
    assert "took up the published weights, version 6" in said["text"]


def test_where_nothing_is_left_of_what_was_learned_it_is_said(stage: Any) -> None:
    context, agent = stage.context("learner"), Vector()
    checkpointing.restore(context, agent, InlineWeights())  # type: ignore[arg-type]
    assert not stage.values("log")
    context.count(updates=5)
    checkpointing.restore(context, agent, InlineWeights())  # type: ignore[arg-type]
    (said,) = stage.values("log")
    assert said["level"] == "warning"
    assert "begins with new weights: of the 5 updates made so far" in said["text"]


@pytest.mark.parametrize("counts", [True, False])
def test_updates_that_only_a_checkpoint_knows_of_are_counted(stage: Any, counts: bool) -> None:
    """Whoever made them was lost before the books elsewhere heard of them."""
    context, folder = stage.context("learner"), RunFolder(stage.context("learner").folder).checkpoints
    checkpoint.save(folder, {"w": np.ones(2, np.float32)}, {"updates": 100})
    context.count(updates=76)
    assert checkpointing.restore(context, Vector(), InlineWeights(), counts=counts) == 100  # type: ignore[arg-type]
    assert context.total("updates") == (100 if counts else 76)
    context.count(updates=50)
    made = context.total("updates")
    assert checkpointing.restore(context, Vector(), InlineWeights(), counts=counts) == made  # type: ignore[arg-type]
    assert context.total("updates") == made
    checkpointing.write_state(context, {"w": np.zeros(2, np.float32)}, keep=1)
    found = checkpoint.load_latest(folder)
    assert found is not None
    assert not found.arrays["w"].any()


@pytest.mark.parametrize("kind", ["state", "weights"])
def test_a_checkpoint_of_another_agent_is_named_with_this_one(stage: Any, kind: str) -> None:
    context = stage.context("learner")
    context.count(updates=5)
    folder, arrays = RunFolder(context.folder).checkpoints, {"v": np.ones(2, np.float32)}
    write = checkpoint.save if kind == "state" else checkpoint.save_best
    path = write(folder, arrays, {"updates": 5})
    with pytest.raises(SpecError) as caught:
        checkpointing.restore(context, Vector(), InlineWeights(), "own:Vector")  # type: ignore[arg-type]
    assert f"{path} does not fit agent own:Vector: KeyError: 'w'" in str(caught.value)
