"""The page's questions and their answers: the server sends them, and a page in one file holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from apexrl.dashboard import group_views, run_views
from apexrl.dashboard.run_index import RunFiles, RunIndex

if TYPE_CHECKING:
    from apexrl.dashboard.player import Player

MOST_ASKED: Final = 4096
"""Characters of one parameter."""


class UnknownRunError(Exception):
    """There is no such run below the folder."""


class UnknownQuestionError(Exception):
    """The page has no such question."""


class Answers:
    """Answers by name of the question. For any thread.

    Args:
        player: plays one of them; None: nothing is played.
    """

    def __init__(self, index: RunIndex, player: Player | None = None) -> None:
        self.index = index
        self.player = player
        self._diagnoses = run_views.Diagnoses()
        self._replays = run_views.SavedReplays()

    def answer(self, question: str, asked: Mapping[str, str]) -> Any:
        """The answer to a question.

        Args:
            question: ``runs``, ``curves``, ``workers``, ``diagnosis``, ``settings``, ``films``, ``replay``, ``watched``
                or ``compare``.
            asked: parameters by name; ``run`` names a run, ``runs`` several, a line each.

        Raises:
            UnknownRunError: there is no such run.
            UnknownQuestionError: there is no such question.
        """
        if question == "runs":
            return [run.overview() for run in list(self.index.runs().values())]
        if question == "compare":
            names = [name for name in asked.get("runs", "").split("\n") if name]
            known = self.index.runs()
            runs = [known[name] for name in names if name in known] if names else list(known.values())
            by = [name for name in asked.get("by", "").split(",") if name]
            return group_views.comparison(runs, asked.get("metric", "evaluation"), asked.get("axis", "env_steps"), by)
        of_run: dict[str, Callable[[RunFiles], Any]] = {
            "curves": lambda run: run_views.curves(run, asked.get("cursor", "")),
            "workers": run_views.workers,
            "diagnosis": self._diagnoses.of,
            "settings": run_views.settings,
            "films": run_views.films,
            "replay": self._replays.of,
            "watched": lambda run: self.player.state() if self.player and self.player.name == run.name else {},
        }
        if question not in of_run:
            raise UnknownQuestionError(question)
        return of_run[question](self.run(asked.get("run", "")))

    def run(self, name: str) -> RunFiles:
        """The run of that name. UnknownRunError: there is none."""
        found = self.index.run(name)
        if found is None:
            raise UnknownRunError(name)
        return found
