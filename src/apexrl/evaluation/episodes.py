"""Episodes that a trained agent plays, and their returns."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apexrl.agents import check_evaluation
from apexrl.config import Config, EvaluatorConfig
from apexrl.config.settings import settings_of
from apexrl.errors import ConfigError
from apexrl.roles.executed_actions import described

if TYPE_CHECKING:
    from apexrl.evaluation.loaded_agent import LoadedAgent


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The result of ``evaluate``."""

    returns: list[float]
    """Undiscounted, unclipped return of each episode."""
    checkpoint: Path
    """The file that the weights came from."""
    films: list[Path] = dataclasses.field(default_factory=list)
    """One video per episode, when ``video`` was given."""
    protocol: str = "greedy"
    """How actions were chosen: ``greedy, epsilon 0.05``."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation over the episodes (population)."""
        return float(np.std(self.returns))


def check(config: Config, episodes: int) -> None:
    """Refuse what cannot be played, before anything is loaded.

    Raises:
        ConfigError: a number is out of range, or the agent draws no actions; the message names the flag.
    """
    if episodes < 1:
        raise ConfigError(f"--episodes must be at least 1, not {episodes}")
    for name, setting in settings_of(EvaluatorConfig).items():
        setting.check(getattr(config.evaluator, name))
    check_evaluation(config, prefix="--")


def play(loaded: LoadedAgent, config: Config, episodes: int, seed: int, video: str | Path | None = None) -> Evaluation:
    """Play episodes in fresh environments, as the evaluator's settings in ``config`` say.

    Args:
        video: folder for one video per episode.

    Raises:
        ConfigError: the settings mean nothing for the environment's actions.
        EnvError: an environment cannot be made, raised an error, or cannot be recorded.
    """
    from apexrl.envs import FrameStack, make_vector
    from apexrl.roles.trial import Trial

    wanted, films = config.env, list[Path]()
    count = min(episodes, config.evaluator.eval_envs)
    if video is not None:
        from apexrl.evaluation.video import filmed

        count, (wanted, films) = 1, filmed(wanted, Path(video))
    vector = make_vector(wanted, count, seed)
    try:
        frames = FrameStack(vector.spec.stack, vector.num_envs, vector.spec.observation)
        trial = Trial(loaded.agent, vector, frames, episodes, seed, settings=config.evaluator)
        while trial.step():
            pass
    finally:
        vector.close()
    assert loaded.checkpoint is not None
    return Evaluation(trial.returns, loaded.checkpoint, films, described(config.evaluator))
