"""Games whose agents take turns (PettingZoo's AEC): each game is a row, which has the turns of one agent in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from apexrl.envs.action_spaces import action_spec
from apexrl.envs.agent_rows import EMPTY_GAMES, MOST_TURNS, Shown, store, time_limit, told_names
from apexrl.envs.lockstep import (
    Bools,
    EnvCall,
    Rows,
    Which,
    blame,
    close_all,
    each_of,
    empty_rows,
    flag,
    only_number,
    refuse_not_finite,
)
from apexrl.envs.played_agents import PlayedAgents
from apexrl.envs.players import Asked, Players
from apexrl.envs.spaces import LIMIT, Leaf, observation_leaves
from apexrl.envs.told_metrics import told_metrics
from apexrl.errors import EnvError
from apexrl.space_values import LengthLimit
from apexrl.spec import Array

WON = "won"
"""Metric of a game: the share of the others whose return the learned agent's is above; equal ones count ½."""


class SeatRows:
    """B games. In each one agent is learned, another one from game to game; ``Players`` play the others.

    A step of a row is a turn of its agent: its reward is what came to the agent until its next turn, or the end of its
    part, and the observation is what it sees then. So nobody else's turn is in a stream. Those who are asked at the
    same time, in all games, are asked together.

    Args:
        games: equal ones.
        name: of the environment, for errors.
        learned: agents of which one is learned in each game, in turn.
        players: who play the others.
        show_agent, show_state: as ``Shown``.
        call: entered around every call.
        info_metrics: keys of the agent's info that are told of an episode (``told_metrics``).
        limit: turns of the learned agent after which a game is truncated; 0: none.
        lengths: of values of variable length.

    Attributes:
        time_limit: as the games say it.
    """

    lockstep = True

    def __init__(
        self,
        games: Sequence[Any],
        name: str,
        learned: Sequence[str],
        players: Players,
        show_agent: bool = False,
        show_state: bool = False,
        call: EnvCall = nullcontext,
        info_metrics: Sequence[str] = (),
        limit: int = 0,
        lengths: LengthLimit = LIMIT,
    ) -> None:
        self._games, self._name, self._learned, self._call = games, name, tuple(learned), call
        self._info_metrics, self._limit = info_metrics, limit
        self.time_limit = time_limit(games[0])
        self.num_envs = len(games)
        self._show = [Shown(game, name, self._learned, show_agent, show_state) for game in games]
        self.observation_space, self.action_space = self._show[0].observation_space, self._show[0].action_space
        self.leaves: tuple[Leaf, ...] = observation_leaves(self.observation_space, lengths)
        self._each = each_of(action_spec(self.action_space))
        self._others = PlayedAgents(games, name, players, show_agent, show_state, lengths)
        self._told = told_names(self._learned)
        self._seats = ["" for _ in games]
        self._played = list(range(len(games)))  # games that were begun: who is learned follows from it
        self._totals: list[dict[str, float]] = [{} for _ in games]
        self._turns = [0 for _ in games]
        self._rows: Rows | None = None

    def reset(self, seeds: Sequence[int]) -> dict[str, Array]:
        rows = empty_rows(self.leaves, self.num_envs)
        self._played = list(range(self.num_envs))
        with self._call():
            self._begin(range(self.num_envs), rows, seeds)
        refuse_not_finite(rows, self.leaves, self._name)
        return rows.observation

    def send(self, actions: Array, starting: Bools, which: Which = None) -> None:
        rows, chosen = empty_rows(self.leaves, self.num_envs), self._each(actions)
        with self._call():
            playing = np.flatnonzero(~starting).tolist()
            for number in playing:
                self._turns[number] += 1
                self._play(number, chosen[number])
            self._until_turn(playing, rows)
            self._begin(np.flatnonzero(starting).tolist(), rows)
        refuse_not_finite(rows, self.leaves, self._name)
        self._rows = rows

    def receive(self, least: int = 1, timeout: float = 0.0) -> Rows | None:
        rows, self._rows = self._rows, None
        return rows

    def close(self) -> None:
        with self._call():
            close_all([game.close for game in self._games], self._name)

    def _begin(self, numbers: Sequence[int], rows: Rows, seeds: Sequence[int] | None = None) -> None:
        """Begin games, up to the first turn of the learned agent. One that ends before it is played again."""
        left = list(numbers)
        for _ in range(EMPTY_GAMES):
            for number in left:
                self._seats[number] = self._learned[self._played[number] % len(self._learned)]
                self._played[number] += 1
                self._turns[number], self._totals[number] = 0, {}
                with blame(self._name, "reset", number):
                    self._games[number].reset(seed=None if seeds is None else seeds[number])
                self._others.begin(number, self._seats[number])
            self._until_turn(left, rows)
            left = [number for number in left if rows.terminated[number] or rows.truncated[number]]
            for number in left:
                rows.terminated[number] = rows.truncated[number] = False
                if rows.metrics is not None:
                    rows.metrics.pop(number, None)
            rows.reward[numbers] = 0.0  # what came before its first turn is no action's result
            if not left:
                return
            seeds = None
        raise EnvError(
            f"{self._name}: {EMPTY_GAMES} games in a row ended before agent {self._seats[left[0]]!r} had a "
            "turn: leave it out of --learned-agents"
        )

    def _until_turn(self, numbers: Sequence[int], rows: Rows) -> None:
        """Let the others play until the learned agent of each game has its turn, or its part has ended."""
        left = list(numbers)
        for _ in range(MOST_TURNS):
            asked: list[Asked] = []
            seen: list[Any] = []
            for number in left:
                self._look(number, rows, asked, seen)
            if not asked:
                return
            for one, action in zip(asked, self._others.actions(asked, seen), strict=True):
                self._play(one.game, action)
            left = [one.game for one in asked]
        raise EnvError(
            f"{self._name}: agent {self._seats[left[0]]!r} of game {left[0]} had no turn for {MOST_TURNS:,} turns of "
            "the others, and did not end"
        )

    def _look(self, number: int, rows: Rows, asked: list[Asked], seen: list[Any]) -> None:
        """Whose turn it is in a game: note another's, or what the learned agent got and sees."""
        game, seat = self._games[number], self._seats[number]
        for _ in range(MOST_TURNS):
            with blame(self._name, "last", number):
                agent = game.agent_selection
                observation, reward, ended, cut, info = game.last()
            who = f"{self._name}: last() of game {number}, agent {agent!r},"
            ended, cut = flag(ended, "terminated", who), flag(cut, "truncated", who)
            if agent == seat:
                limited = bool(self._limit) and self._turns[number] >= self._limit
                rows.reward[number] = reward if isinstance(reward, float | int) else only_number(reward, who)
                rows.terminated[number] = ended
                rows.truncated[number] = (cut or limited) and not ended
                shown = self._show[number].of(seat, observation)
                store(self.leaves, shown, rows.observation, number, f"{self._name}: game {number}", seat)
                if (ended or rows.truncated[number]) and rows.metrics is not None:
                    rows.metrics[number] = told_metrics(info, self._info_metrics) | self._result(number)
                return
            if not (ended or cut):
                asked.append(self._others.asked(number, agent))
                seen.append(self._others.shown(number, agent, observation))
                return
            self._play(number, None)  # an agent that has ended leaves
            if seat not in game.agents:
                raise EnvError(
                    f"{self._name}: agent {seat!r} left game {number} without a last turn, as PettingZoo has it"
                )
        raise EnvError(f"{self._name}: in game {number} agents that have ended did not leave")

    def _play(self, number: int, action: Any) -> None:
        game = self._games[number]
        with blame(self._name, "step", number):
            game.step(action)
            if action is not None:
                for agent, reward in game.rewards.items():
                    self._totals[number][agent] = self._totals[number].get(agent, 0.0) + float(reward)

    def _result(self, number: int) -> dict[str, float]:
        """The metrics of a game that has ended for its learned agent."""
        totals, seat = self._totals[number], self._seats[number]
        own = totals.get(seat, 0.0)
        beaten = [1.0 if own > total else 0.5 if own == total else 0.0 for one, total in totals.items() if one != seat]
        return {self._told[seat]: own, WON: sum(beaten) / len(beaten) if beaten else 0.5}
