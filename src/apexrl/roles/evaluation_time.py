"""How many episodes an evaluation may play, by how long an episode takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from apexrl.config import Config
from apexrl.protocols import Context
from apexrl.roles.trial import Trial

if TYPE_CHECKING:
    from apexrl.envs import VectorEnv

_LEAST_SECONDS = 60.0  # that an evaluation may always take
_FEWEST = 5  # episodes of an evaluation on the way, unless they take too long for it
_PART = 0.1  # of the run so far, that an evaluation on the way may take
_FINAL_TRIALS = 4  # of the newest weights, of the best, of newer ones, and of the last


class EvaluationTime:
    """Plays fewer than ``eval_episodes`` where episodes are slow.

    An evaluation on the way is to take no longer than a tenth of the run so far, or than a minute. Else a run would
    have few of them, or none, as all would reach ``eval_timeout``. All final ones together are to take no longer than
    the run, or than a minute. A serial run does not depend on seconds.

    Args:
        env: in which the evaluator plays.
    """

    def __init__(self, context: Context, config: Config, env: VectorEnv) -> None:
        from apexrl.envs.make import known_limit

        settings, stop = config.evaluator, config.stop
        self.episodes = settings.eval_episodes
        """Of a final evaluation."""
        self._all = settings.eval_episodes
        self._context = context
        self._env = env
        self._serial = config.serial
        self._timeout = settings.eval_timeout
        # Who compares by steps wants them all; and a few lucky episodes must not end a run
        self._by_timeout = settings.eval_period_steps > 0 or stop.stop_at_return is not None
        self._by_timeout |= stop.stop_without_improvement > 0
        self._limit = known_limit(config.env)
        self._acting = config.actor.actors * config.actor.envs_per_actor  # environments of the actors
        self._seconds = 0.0  # that an episode took lately; 0: nothing is known
        self._began = time.monotonic()
        self._ended: float | None = None  # when training ended
        self._told = False

    @property
    def now(self) -> float:
        """Of the monotonic clock; since training has ended, when that was."""
        return time.monotonic() if self._ended is None else self._ended

    @property
    def lasted(self) -> float:
        """Seconds of the run so far; at least a minute."""
        return max(_LEAST_SECONDS, self.now - self._began)

    def played(self, trial: Trial) -> None:
        """A trial has ended."""
        self._seconds = trial.seconds / max(1, len(trial.returns))

    def left(self, trial: Trial) -> None:
        """A trial was given up."""
        self._seconds = self.expected(trial)

    def end(self) -> None:
        """Training has ended."""
        self._ended = time.monotonic()

    def on_the_way(self) -> int:
        """Episodes of an evaluation while the run goes on."""
        if self._serial or not self._seconds:
            return self.episodes
        episodes = self._possible(self._timeout * 0.8, 1)  # what it takes is an estimate
        if not self._by_timeout:
            episodes = min(episodes, self._possible(max(_LEAST_SECONDS, _PART * self.lasted), _FEWEST))
        if episodes < self._all and not self._told:
            self._told = True
            text = (
                f"an episode takes about {self._seconds:.3g} s: evaluations play {episodes} of {self._all} "
                "(--eval-episodes says why)"
            )
            self._context.send("log", text=text, level="info")
        return episodes

    def shorten(self, judged: bool, trial: Trial | None = None) -> None:
        """Where episodes are slow, play fewer in final evaluations: of the best weights and of the last.

        Args:
            judged: whether the best weights are chosen; else there is to be time for that, too.
            trial: one that was under way when training ended.
        """
        if trial is not None:
            self._seconds = max(self._seconds, self.expected(trial))
        if self._serial or self._seconds * self.episodes * _FINAL_TRIALS <= self.lasted:
            return
        episodes = self._possible(self.lasted / (2 if judged else 3), 1)
        if episodes >= self.episodes:
            return
        self.episodes = episodes
        text = (
            f"an episode takes about {self._seconds:.3g} s: final evaluations play {episodes} of {self._all}, to take "
            "no longer than the run, or than a minute. apexrl eval plays more"
        )
        self._context.send("log", text=text, level="info")

    def expected(self, trial: Trial) -> float:
        """What an episode of a trial takes that has not ended. Where none has ended in training, one is as long as the
        environment's limit, or as training was."""
        if not trial.steps:
            return 0.0
        ended = self._context.total("episodes")
        played = ended or self._acting  # neither, where other hosts act, or nobody does
        length = self._context.total("env_steps") / played if played else 0.0
        if self._limit:
            length = min(length, self._limit) if ended else self._limit
        if not trial.returns:
            length = max(length, trial.steps)
        return trial.seconds / (trial.steps * self._env.num_envs) * length

    def _possible(self, seconds: float, least: int) -> int:
        """Episodes that can be played in this time."""
        envs = 1 if self._env.rests else self._env.num_envs  # which are all stepped, anyway
        rounds = max(int(seconds / self._seconds / envs), -(-least // envs))
        return min(self.episodes, rounds * envs)
