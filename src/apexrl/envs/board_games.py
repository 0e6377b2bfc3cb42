"""Tic-tac-toe and connect four, in PettingZoo's convention for agents that take turns; without PettingZoo."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from apexrl.errors import EnvError

_LINES = ((0, 1), (1, 0), (1, 1), (1, -1))


class BoardGame:
    """Two players put stones on a board; who has ``in_a_row`` of them in a line has won: 1, and −1 to the other.

    An observation has ``observation`` float32 [2·rows·columns], 1 where the own stones lie and where the other's,
    and ``action_mask`` int8 [n]: where a stone may be put, at the own turn. Who puts it elsewhere has lost.

    Args:
        rows, columns: of the board.
        in_a_row: stones of a line that wins.
        falls: an action names a column, in which the stone falls (connect four); otherwise a cell.
    """

    def __init__(self, rows: int = 3, columns: int = 3, in_a_row: int = 3, falls: bool = False) -> None:
        if not 1 <= in_a_row <= max(rows, columns) or min(rows, columns) < 1:
            raise EnvError(f"a board of {rows} × {columns} has no line of {in_a_row}")
        self.possible_agents = ["first", "second"]
        self.agents: list[str] = []
        self.agent_selection = "first"
        self._shape, self._in_a_row, self._falls = (rows, columns), in_a_row, falls
        self._actions = columns if falls else rows * columns
        self.board: NDArray[np.int8] = np.zeros((rows, columns), np.int8)  # 1: of the first player, −1: of the second

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Dict(
            {
                "observation": gym.spaces.Box(0.0, 1.0, (2 * self.board.size,), np.float32),
                "action_mask": gym.spaces.Box(0, 1, (self._actions,), np.int8),
            }
        )

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(self._actions)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.board[:] = 0
        self.agents, self.agent_selection = list(self.possible_agents), "first"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._owed = dict.fromkeys(self.agents, 0.0)  # since the agent's last turn
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)

    def observe(self, agent: str) -> dict[str, NDArray[Any]]:
        own = 1 if agent == "first" else -1
        stones = np.concatenate([self.board == own, self.board == -own], axis=None).astype(np.float32)
        mask = np.zeros(self._actions, np.int8)
        if agent == self.agent_selection and not self.terminations.get(agent, True):
            mask[self.legal()] = 1
        return {"observation": stones, "action_mask": mask}

    def last(self) -> tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]:
        agent = self.agent_selection
        return self.observe(agent), self._owed[agent], self.terminations[agent], False, {}

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        other = self.possible_agents[agent == "first"]
        if self.terminations[agent]:
            self.agents.remove(agent)
            self.agent_selection = other
            return
        self._owed[agent], self.rewards = 0.0, dict.fromkeys(self.possible_agents, 0.0)
        stone = 1 if agent == "first" else -1
        if action is None or action not in self.legal():
            self._end(other, agent)
        elif self.put(int(action), stone):
            self._end(agent, other)
        elif not len(self.legal()):
            self._end(agent, other, drawn=True)
        for one, reward in self.rewards.items():
            self._owed[one] += reward
        self.agent_selection = other

    def close(self) -> None:
        pass

    def legal(self) -> NDArray[np.int64]:
        """The actions that are possible."""
        free = self.board[0] if self._falls else self.board.reshape(-1)
        return np.flatnonzero(free == 0)

    def put(self, action: int, stone: int) -> bool:
        """Put a stone; whether it completes a line."""
        if self._falls:
            row, column = int(np.flatnonzero(self.board[:, action] == 0)[-1]), action
        else:
            row, column = divmod(action, self._shape[1])
        self.board[row, column] = stone
        return any(
            1 + self._reach(row, column, dr, dc, stone) + self._reach(row, column, -dr, -dc, stone) >= self._in_a_row
            for dr, dc in _LINES
        )

    def _reach(self, row: int, column: int, dr: int, dc: int, stone: int) -> int:
        """Stones in a line from a cell on, without it."""
        count, (rows, columns) = 0, self._shape
        row, column = row + dr, column + dc
        while 0 <= row < rows and 0 <= column < columns and self.board[row, column] == stone:
            count, row, column = count + 1, row + dr, column + dc
        return count

    def _end(self, winner: str, loser: str, drawn: bool = False) -> None:
        self.terminations = dict.fromkeys(self.possible_agents, True)
        if not drawn:
            self.rewards = {winner: 1.0, loser: -1.0}


def env(game: Literal["tic_tac_toe", "connect_four"] = "tic_tac_toe", **kwargs: Any) -> BoardGame:
    """Tic-tac-toe on 3 × 3, or connect four on 6 × 7; ``kwargs`` as for ``BoardGame``.

    Raises:
        EnvError: there is no such game.
    """
    known: dict[str, dict[str, Any]] = {
        "tic_tac_toe": {},
        "connect_four": {"rows": 6, "columns": 7, "in_a_row": 4, "falls": True},
    }
    if game not in known:
        raise EnvError(f"there is no game {game!r}: use {' or '.join(known)}")
    return BoardGame(**{**known[game], **kwargs})
