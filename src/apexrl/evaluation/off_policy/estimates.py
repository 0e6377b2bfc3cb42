"""What a dataset says of a trained agent: importance sampling, and fitted Q evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apexrl.config import Config
from apexrl.datasets.episode import Episode
from apexrl.datasets.minari_files import Dataset
from apexrl.errors import ConfigError, DatasetError
from apexrl.evaluation.off_policy import importance
from apexrl.evaluation.off_policy.importance import Estimate
from apexrl.spec import ACTION_MASK, Array

if TYPE_CHECKING:
    from apexrl.evaluation.loaded_agent import LoadedAgent
    from apexrl.evaluation.off_policy.fitted_q import Fit

FITTED = "fqe"
METHODS = (FITTED, *importance.METHODS)
_ROWS = 4096  # that an agent is shown at once


class Found(NamedTuple):
    """What was estimated."""

    recorded: Estimate  # the discounted return of the dataset's own policy
    estimates: dict[str, Estimate]  # method -> that of the agent's
    effective: float  # episodes that count in importance sampling; NaN: it was not asked for


def estimates(
    loaded: LoadedAgent,
    config: Config,
    dataset: str,
    methods: Sequence[str],
    fit: Fit,
    seed: int = 0,
    progress: Callable[[int], None] = lambda updates: None,
) -> Found:
    """The expected discounted return of the agent that acts greedily, or at random with the probability ``fit.epsilon``
    where actions are discrete, from the first states of a dataset.

    Args:
        progress: called after every update of fitted Q evaluation with how many were made.

    Raises:
        ConfigError: a method there is not, or that does not go with the agent.
        DatasetError: the dataset is of another environment, or lacks what a method needs.
    """
    if unknown := [name for name in methods if name not in METHODS]:
        raise ConfigError(f"there is no method {unknown[0]!r}: use {', '.join(METHODS)}")
    source = Dataset(dataset)
    source.check_fits(loaded.spec)
    if loaded.spec.stack > 1:
        raise ConfigError(f"--stack {loaded.spec.stack}: only agents that see one frame at a time can be estimated")
    if loaded.spec.action.hybrid:
        raise ConfigError(
            f"only agents of one kind of actions can be estimated, and these are {loaded.spec.action.words}"
        )
    weighing = [name for name in methods if name != FITTED]
    if weighing and loaded.spec.action.box:
        raise ConfigError(
            f"--method {weighing[0]} needs the probabilities of actions, which a greedy policy of a box has not: use "
            f"--method {FITTED}"
        )
    episodes = list(source)
    if weighing and any(episode.log_prob is None for episode in episodes):
        raise DatasetError(
            f"dataset {dataset} does not say with which probabilities its actions were chosen, which --method "
            f"{weighing[0]} needs: record it with apexrl dataset record, or use --method {FITTED}"
        )
    returns = np.array([float((one.reward * fit.gamma ** np.arange(one.steps)).sum()) for one in episodes])
    found = {}
    chosen = [_acts(loaded, one.observation) for one in episodes]
    effective = float("nan")
    if weighing:
        ratios = [
            _log_prob(loaded, ours[:-1], one, fit.epsilon) - one.log_prob
            for ours, one in zip(chosen, episodes, strict=True)
            if one.log_prob is not None
        ]
        of = importance.weighted([one.reward.astype(np.float64) for one in episodes], ratios, fit.gamma)
        effective = importance.effective_episodes(of)
        found = {name: importance.estimate(name, of, seed) for name in weighing}
    if FITTED in methods:
        found = {FITTED: _fitted(loaded, episodes, chosen, fit, seed, progress), **found}
    return Found(importance.mean_return(returns, seed), found, effective)


def _acts(loaded: LoadedAgent, observation: dict[str, Array]) -> Array:
    """Greedy actions of every observation, [T + 1, ...].

    Raises:
        ConfigError: the agent has a memory.
    """
    rows = len(next(iter(observation.values())))
    parts = []
    for start in range(0, rows, _ROWS):
        seen = {name: values[start : start + _ROWS] for name, values in observation.items()}
        count = len(next(iter(seen.values())))
        acted = loaded.agent.act(seen, None, np.zeros(count, np.float32), greedy=True)
        if acted.state:
            raise ConfigError("this agent has a memory; only agents that act on one observation can be estimated")
        parts.append(np.asarray(acted.actions))
    return np.concatenate(parts)


def _log_prob(loaded: LoadedAgent, ours: Array, episode: Episode, epsilon: float) -> NDArray[Any]:
    """log π(a|s) [T] of recorded discrete actions; −∞ where the policy never takes them."""
    action = loaded.spec.action
    same = (ours == episode.action).reshape(len(ours), -1).all(axis=1)
    random: Any = 1.0 / math.prod(action.choices)  # probability of a recorded action where a random one is executed
    if loaded.spec.masked:
        possible = importance.possible_together(action.choices, episode.observation[ACTION_MASK][:-1])
        taken = possible[np.arange(len(ours)), _numbers(loaded, episode.action)]
        random = taken / np.maximum(possible.sum(axis=1), 1)
    with np.errstate(divide="ignore"):
        found: NDArray[Any] = np.log(epsilon * random + (1.0 - epsilon) * same)
    return found


def _fitted(
    loaded: LoadedAgent,
    episodes: Sequence[Episode],
    chosen: Sequence[Array],
    fit: Fit,
    seed: int,
    progress: Callable[[int], None],
) -> Estimate:
    from apexrl.evaluation.off_policy.fitted_q import Recorded, fitted_q

    names = list(loaded.spec.observation)

    def together(cut: slice) -> dict[str, Array]:
        return {name: np.concatenate([one.observation[name][cut] for one in episodes]) for name in names}

    data = Recorded(
        together(slice(None, -1)),
        _numbers(loaded, np.concatenate([one.action for one in episodes])),
        np.concatenate([one.reward for one in episodes]),
        together(slice(1, None)),
        _numbers(loaded, np.concatenate([ours[1:] for ours in chosen])),
        np.concatenate([one.terminated for one in episodes]),
        np.repeat(np.arange(len(episodes)), [one.steps for one in episodes]),
        together(slice(None, 1)),
        _numbers(loaded, np.concatenate([ours[:1] for ours in chosen])),
    )
    return fitted_q(loaded.spec, data, fit, seed, progress)


def _numbers(loaded: LoadedAgent, actions: Array) -> Array:
    """Actions as critics take them: numbers of discrete ones, or of a box in its units (``ActionBox``)."""
    action = loaded.spec.action
    if action.box:
        import torch

        from apexrl.agents.box_actions import ActionBox

        box = ActionBox(action, "ope", bounds_needed=False)
        return box.to_unit(torch.from_numpy(actions.astype(np.float32))).numpy()
    numbers = actions.astype(np.int64, copy=False)
    return np.asarray(np.ravel_multi_index(tuple(numbers.T), action.nvec)) if action.nvec else numbers
