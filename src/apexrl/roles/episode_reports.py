"""Reports finished episodes: counts them, and sends returns to the supervisor a few times a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from apexrl.protocols import Context
from apexrl.run.episode_metrics import Spreads

if TYPE_CHECKING:
    from apexrl.envs.vector import Episode

_REPORT_SECONDS = 0.25
_REPORT_EPISODES = 1000  # a message holds no more


class Episodes:
    """Returns, lengths and metrics that one worker has not reported yet."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._metrics = Spreads()
        self._next_report = context.clock() + _REPORT_SECONDS

    def add(self, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            self._returns.append(episode.episode_return)
            self._lengths.append(episode.length)
            if episode.metrics:
                self._metrics.add(episode.metrics)

    def report(self, last: bool = False) -> None:
        """Report what there is, when it is time or the ``last`` chance."""
        if not self._returns:
            return
        now = self._context.clock()
        if now >= self._next_report or last or len(self._returns) >= _REPORT_EPISODES:
            self._context.count(episodes=len(self._returns))
            env_steps = self._context.total("env_steps")
            metrics = self._metrics.take()
            told = {"metrics": metrics} if metrics else {}
            self._context.send("episodes", returns=self._returns, lengths=self._lengths, env_steps=env_steps, **told)
            self._returns, self._lengths = [], []
            self._next_report = now + _REPORT_SECONDS
