"""Tic-tac-toe played out against every reply: whether an agent can be beaten at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from apexrl.envs.board_games import BoardGame

Choose = Callable[[dict[str, Any]], int]
"""From observations with a leading axis of 1, as agents are shown them, an action."""


def results(choose: Choose, agent: str) -> dict[str, int]:
    """Games won, drawn and lost by ``agent``, over all that others may do: each of their moves is tried."""
    found = {"won": 0, "drawn": 0, "lost": 0}
    game = BoardGame()
    game.reset()
    _play(game, choose, agent, found)
    return found


def _play(game: BoardGame, choose: Choose, agent: str, found: dict[str, int]) -> None:
    if any(game.terminations.values()):
        own = game.rewards[agent]
        found["won" if own > 0 else "lost" if own < 0 else "drawn"] += 1
        return
    if game.agent_selection == agent:
        seen = game.observe(agent)
        shown = {f"observation/{name}": value[None] for name, value in seen.items()}
        shown["observation/action_mask"] = shown["observation/action_mask"].astype(bool)
        moves = [choose(shown)]
    else:
        moves = game.legal().tolist()
    for move in moves:
        board, selection, owed = game.board.copy(), game.agent_selection, dict(game._owed)
        game.step(int(move))
        _play(game, choose, agent, found)
        game.board[:], game.agent_selection, game._owed = board, selection, owed
        game.terminations = dict.fromkeys(game.possible_agents, False)
        game.rewards = dict.fromkeys(game.possible_agents, 0.0)


def minimax(board: np.ndarray[Any, Any], stone: int) -> tuple[int, int]:
    """(value for ``stone``, a move that has it): perfect play by search."""
    best = (-2, -1)
    for move in np.flatnonzero(board.reshape(-1) == 0).tolist():
        game = BoardGame()
        game.board = board.copy()
        if game.put(move, stone):
            value = 1
        elif not len(game.legal()):
            value = 0
        else:
            value = -minimax(game.board, -stone)[0]
        best = max(best, (value, move))
        if value == 1:
            break
    return best
