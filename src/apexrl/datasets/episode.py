"""One recorded episode, and what must hold of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import DatasetError
from apexrl.spec import ACTION_MASK, Array, EnvSpec

LOG_PROB = "log_prob"
"""Entry of a Minari episode's ``infos``, float [T]: the log-probability, or log-density, with which the recorded policy
chose each action, where that is known."""

_MEND = "mend the dataset, or leave the episode out"


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


def checked(episode: Episode, spec: EnvSpec, where: str) -> Episode:
    """``episode`` if it can be learned from. One that ends in the middle of things counts as truncated at its last
    step: more would have followed, and nobody knows what.

    Args:
        spec: of the environment that it is of.
        where: begins a message: dataset and number of the episode.

    Raises:
        DatasetError: shapes that do not fit, a value that is not finite, a category or an action that there is not, an
            action that its mask leaves out, a mask that leaves none, or an end before the last step.
    """
    steps, action = episode.steps, spec.action
    if not steps:
        raise DatasetError(f"{where} has no step: leave it out of the dataset")
    for name, field in spec.observation.items():
        shape = (steps + 1, *field.shape)
        if episode.observation[name].shape != shape:
            raise DatasetError(
                f"{where}: {name} has shape {episode.observation[name].shape}, not {shape}: an observation for every "
                f"one of {steps} steps, and that behind the last"
            )
        _check_finite(episode.observation[name], f"{where}: {name}")
        if name in spec.categories:
            _check_categories(episode.observation[name], spec, name, where)
    for what, values in (("actions", episode.action), ("terminations", episode.terminated),
                         ("truncations", episode.truncated)):  # fmt: skip
        if len(values) != steps:
            raise DatasetError(f"{where} has {steps} rewards and {len(values)} {what}: it must have as many of each")
    for what, values in (("rewards", episode.reward), ("terminations", episode.terminated),
                         ("truncations", episode.truncated)):  # fmt: skip
        if values.ndim != 1:
            raise DatasetError(f"{where}: {what} have shape {values.shape}, not ({steps},): one number for each step")
    if episode.action.shape[1:] != action.shape:
        raise DatasetError(f"{where}: an action has shape {episode.action.shape[1:]}, not {action.shape}")
    _check_finite(episode.action, f"{where}: action")
    _check_finite(episode.reward, f"{where}: reward")
    if action.choices:
        columns = episode.action[:, : len(action.nvec)] if action.hybrid else episode.action
        chosen = columns.astype(np.int64, copy=False)
        wrong = (chosen < 0) | (chosen >= np.array(action.nvec or action.n))
        if wrong.any():
            step = int(np.argwhere(wrong)[0][0])
            raise DatasetError(f"{where}: action {episode.action[step]} of step {step} is none of the environment's")
    if spec.masked:
        _check_masks(episode, spec, where)
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
        raise DatasetError(f"{what} of step {step} is NaN or infinite: {_MEND}")


def _check_categories(values: Any, spec: EnvSpec, name: str, where: str) -> None:
    first, count = spec.starts.get(name, 0), spec.categories[name]
    wrong = (values < 0) | (values >= count)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        raise DatasetError(
            f"{where}: {name} of step {place[0]} holds {values[place] + first}, and its space {first} to "
            f"{first + count - 1}: {_MEND}"
        )


def _check_masks(episode: Episode, spec: EnvSpec, where: str) -> None:
    """Every mask but that behind a termination leaves something, and what was done is possible."""
    masks, action, steps = episode.observation[ACTION_MASK], spec.action, episode.steps
    some = action.possible_in(masks)
    some[-1] |= episode.terminated[-1]
    if not some.all():
        step = int(np.flatnonzero(~some)[0])
        seen = f"of step {step}" if step < steps else "behind the last step"
        raise DatasetError(
            f"{where}: the mask {seen} {action.nothing_left}: it must leave one, unless the episode has terminated"
        )
    firsts = np.cumsum((0, *action.choices[:-1]))
    possible = np.take_along_axis(masks[:-1], episode.action.reshape(steps, -1) + firsts, axis=1).all(axis=1)
    if not possible.all():
        step = int(np.flatnonzero(~possible)[0])
        raise DatasetError(
            f"{where}: action {episode.action[step]} of step {step} is one that its mask leaves out: {_MEND}"
        )
