"""One recorded episode, and what must hold of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import DatasetError
from apexrl.spec import ActionSpec, Array, Field

LOG_PROB = "log_prob"
"""Entry of a Minari episode's ``infos``, float [T]: the log-probability, or log-density, with which the recorded policy
chose each action, where that is known."""


class Episode(NamedTuple):
    """T steps of one episode, and the observation behind the last one."""

    observation: dict[str, Array]  # name -> [T + 1, *shape]
    action: Array  # [T] or [T, *shape]; discrete ones are counted from 0
    reward: NDArray[np.float32]  # [T]
    terminated: NDArray[np.bool_]  # [T]
    truncated: NDArray[np.bool_]  # [T]
    log_prob: NDArray[np.float64] | None = None  # [T] of the recorded policy; None: not known

    @property
    def steps(self) -> int:
        return len(self.reward)


def checked(episode: Episode, fields: Mapping[str, Field], action: ActionSpec, where: str) -> Episode:
    """``episode`` if it can be learned from. One that ends in the middle of things counts as truncated at its last
    step: more would have followed, and nobody knows what.

    Args:
        where: begins a message: dataset and number of the episode.

    Raises:
        DatasetError: lengths that do not fit, a value that is not finite, an action that there is not, or an end before
            the last step.
    """
    steps = episode.steps
    if not steps:
        raise DatasetError(f"{where} has no step: leave it out of the dataset")
    for name, field in fields.items():
        shape = (steps + 1, *field.shape)
        if episode.observation[name].shape != shape:
            raise DatasetError(
                f"{where}: {name} has shape {episode.observation[name].shape}, not {shape}: an observation for every "
                f"one of {steps} steps, and that behind the last"
            )
        _check_finite(episode.observation[name], f"{where}: {name}")
    for what, length in (("actions", len(episode.action)), ("terminations", len(episode.terminated)),
                         ("truncations", len(episode.truncated))):  # fmt: skip
        if length != steps:
            raise DatasetError(f"{where} has {steps} rewards and {length} {what}: it must have as many of each")
    if episode.action.shape[1:] != action.shape:
        raise DatasetError(f"{where}: an action has shape {episode.action.shape[1:]}, not {action.shape}")
    _check_finite(episode.action, f"{where}: action")
    _check_finite(episode.reward, f"{where}: reward")
    if not action.box:
        chosen = episode.action.astype(np.int64, copy=False)
        wrong = (chosen < 0) | (chosen >= np.array(action.nvec or action.n))
        if wrong.any():
            step = int(np.argwhere(wrong)[0][0])
            raise DatasetError(f"{where}: action {episode.action[step]} of step {step} is none of the environment's")
    ends = episode.terminated | episode.truncated
    if ends[:-1].any():
        step = int(np.flatnonzero(ends)[0])
        raise DatasetError(
            f"{where} ends at step {step} of {steps} and goes on: make an episode of what follows (an end is the last "
            "step of its episode)"
        )
    truncated = episode.truncated.copy()
    truncated[-1] |= not episode.terminated[-1]
    return episode._replace(truncated=truncated)


def _check_finite(values: Array, what: str) -> None:
    if values.dtype.kind != "f":
        return
    fine = np.isfinite(values)
    if not fine.all():
        step = int(np.argwhere(~fine)[0][0])
        raise DatasetError(f"{what} of step {step} is NaN or infinite: mend the dataset, or leave the episode out")
