"""Tic-tac-toe or connect four by self-play: python self_play.py [tic_tac_toe|connect_four] [environment steps].

Afterwards it plays against every reply: whether the agent can be beaten in tic-tac-toe at all.
"""

import sys

import numpy as np

import apexrl
from apexrl.envs.board_games import env


def replies(agent, game, seat):
    """Games lost and played by ``agent`` in ``seat``, over all that the other may do."""
    if any(game.terminations.values()):
        return np.array([game.rewards[seat] < 0, 1])
    if game.agent_selection == seat:
        agent.reset()
        moves = [agent.act(game.observe(seat))]
    else:
        moves = game.legal()
    return sum(replies(agent, after(game, int(move)), seat) for move in moves)


def after(game, move):
    """The game behind a move."""
    later = env()
    later.reset()
    later.board, later.agent_selection = game.board.copy(), game.agent_selection
    later.step(move)
    return later


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "tic_tac_toe"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 500_000
    run = apexrl.train(
        env="apexrl.envs.board_games:env",
        env_kwargs={"game": name},
        agent="dueling_dqn",
        env_steps=steps,
        pool_period_steps=max(1, steps // 25),
        show=False,
    )
    if name == "tic_tac_toe":
        agent = apexrl.load(run.path, checkpoint="latest")
        for seat in ("first", "second"):
            game = env()
            game.reset()
            lost, played = replies(agent, game, seat)
            print(f"{seat}: {lost} of {played} lines of play are lost")
