"""The actions that an evaluation's environments execute, as the evaluation's settings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from apexrl.config import EvaluatorConfig
from apexrl.errors import ConfigError
from apexrl.spec import ACTION_MASK, ActionSpec, Array, EnvSpec

NO_OP = 0  # of Atari and MinAtar
CHANGES = ("eval_epsilon", "eval_sticky", "eval_noops")


class ExecutedActions:
    """Replaces an agent's actions in B environments: by no-ops at the start of an episode, by the action executed
    before (Machado et al. 2018, section 5.2), or by a uniformly random one; never by one that is not possible.

    An episode is a whole game: a lost life neither forgets the action before nor brings new no-ops.

    Args:
        settings: how often.
        envs: B.
        seed: of all that is drawn here.

    Raises:
        ConfigError: the settings mean nothing for such actions.
    """

    def __init__(self, settings: EvaluatorConfig, spec: EnvSpec, envs: int, seed: int) -> None:
        check_actions(settings, spec.action)
        self._settings = settings
        self._space, self._masked, self._stacked = spec.action, spec.masked, spec.stack > 1
        self._envs = envs
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))  # environments have the root
        self._executed: Array | None = None  # [B, ...], the last actions that no reset ignored
        self._repeatable = np.zeros(envs, np.bool_)  # where one was executed in this episode
        self._noops = self._draw_noops(envs)  # [B], still to come

    def of(self, chosen: Array, seen: Mapping[str, Array]) -> Array:
        """What is executed where the agent, seeing ``seen``, has ``chosen`` [B, ...]."""
        settings, agents, masks = self._settings, chosen, self._masks(seen)
        if settings.eval_epsilon:
            chosen = _where(self._rng.random(self._envs) < settings.eval_epsilon, self._random(masks), chosen)
        if settings.eval_sticky and self._executed is not None:
            repeats = self._repeatable & (self._rng.random(self._envs) < settings.eval_sticky)
            chosen = _where(repeats, self._executed, chosen)
        if settings.eval_noops:
            chosen = _where(self._noops > 0, np.full_like(chosen, NO_OP), chosen)
        if masks:
            numbers = chosen.reshape(self._envs, -1).astype(np.int64, copy=False)
            left: NDArray[np.bool_] = np.ones(self._envs, np.bool_)
            for mask, number in zip(masks, numbers.T, strict=True):
                left &= mask[np.arange(self._envs), number]
            chosen = _where(left, chosen, agents)
        return chosen

    def stepped(self, executed: Array, starts: NDArray[np.bool_], ended: Sequence[int]) -> None:
        """The environments made a step.

        Args:
            executed: what ``of`` returned.
            starts: [B], where the step was a reset, which ignored its action.
            ended: environments whose game is over.
        """
        made = ~starts
        self._executed = executed if self._executed is None else _where(made, executed, self._executed)
        self._repeatable |= made
        self._noops[made & (self._noops > 0)] -= 1
        games = list(ended)
        self._repeatable[games] = False
        self._noops[games] = self._draw_noops(len(games))

    def _masks(self, seen: Mapping[str, Array]) -> list[NDArray[np.bool_]]:
        """Which alternatives of every choice are possible, [B, n] each; nothing where there are no masks."""
        if not self._masked:
            return []
        mask = np.asarray(seen[ACTION_MASK], np.bool_)
        return np.split(mask[:, -1] if self._stacked else mask, np.cumsum(self._space.choices)[:-1], axis=1)

    def _random(self, masks: Sequence[NDArray[np.bool_]]) -> Array:
        if masks:
            from apexrl.agents.action_masks import random_possible

            drawn = np.stack([random_possible(mask, self._rng) for mask in masks], axis=1)
            return drawn if self._space.nvec else drawn[:, 0]
        if self._space.nvec:
            return self._rng.integers(np.array(self._space.nvec), size=(self._envs, *self._space.shape))
        return self._rng.integers(self._space.n, size=self._envs)

    def _draw_noops(self, count: int) -> NDArray[np.int64]:
        return self._rng.integers(self._settings.eval_noops + 1, size=count)


def described(settings: EvaluatorConfig) -> str:
    """How actions are chosen, in words: ``greedy, epsilon 0.05``."""
    changes = {name: getattr(settings, name) for name in CHANGES}
    return ", ".join([settings.eval_actions, *(f"{name[5:]} {value:g}" for name, value in changes.items() if value)])


def changes_actions(settings: EvaluatorConfig) -> bool:
    """Whether an evaluation executes other actions than the agent's."""
    return any(getattr(settings, name) for name in CHANGES)


def check_actions(settings: EvaluatorConfig, space: ActionSpec) -> None:
    """Refuse settings that mean nothing for such actions.

    Raises:
        ConfigError: the message names the setting.
    """
    if settings.eval_epsilon and (space.box or space.hybrid):
        kind = "a box" if space.box else space.words
        raise ConfigError(
            f"eval_epsilon {settings.eval_epsilon:g} means nothing here: it is a share of uniformly random actions, "
            f"for discrete actions only, and this environment's are {kind}. Set it to 0; where the policy is random by "
            "itself, eval_actions = sampled draws from it"
        )
    if settings.eval_noops and not space.discrete:
        kind = "a box" if space.box else space.words if space.hybrid else "several choices at once"
        raise ConfigError(
            f"eval_noops {settings.eval_noops} means nothing here: a no-op is action {NO_OP} of Discrete actions, and "
            f"this environment's actions are {kind}. Set it to 0"
        )


def _where(mask: NDArray[np.bool_], those: Array, others: Array) -> Array:
    """Rows of ``those`` where ``mask`` [B] is true, else of ``others``."""
    return np.where(mask.reshape(-1, *[1] * (others.ndim - 1)), those, others)
