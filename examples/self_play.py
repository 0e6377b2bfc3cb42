"""Tic-tac-toe or connect four by self-play: python self_play.py [tic_tac_toe|connect_four] [environment steps].

Afterwards it plays one who looks a move ahead; and in tic-tac-toe against every reply: whether it can be beaten at all.
"""

import sys

import numpy as np
import torch

import apexrl
from apexrl.envs.board_games import env

SETTINGS = {  # environment steps, and what learns
    "tic_tac_toe": (500_000, {"agent": "dueling_dqn"}),
    "connect_four": (
        2_500_000,
        {
            "agent": "ppo",
            "topology": "impala",
            "network": "self_play:Lines",
            "hidden": (256,),
            "gamma": 0.9,
            "gae_lambda": 0.9,
            "pink_noise": False,
            "entropy_coefficient": 0.1,
            "batch_size": 64,
            "epochs": 4,
            "actors": 1,
            "envs_per_actor": 64,
        },
    ),
}


class Lines(torch.nn.Module):
    """Filters of 4 × 4 cells of connect four, each of which sees whole lines wherever they lie."""

    def __init__(self, spec):
        super().__init__()
        (self.name,) = spec.observation
        self.filters, self.layer = torch.nn.Conv2d(2, 64, 4), torch.nn.Linear(64 * 3 * 4, 256)
        self.features = 256

    def forward(self, seen):
        board = seen[self.name].reshape(-1, 2, 6, 7)
        return torch.relu(self.layer(torch.relu(self.filters(board)).flatten(1)))


def after(game, name, move):
    """The game behind a move."""
    later = env(name)
    later.reset()
    later.board, later.agent_selection = game.board.copy(), game.agent_selection
    later.step(int(move))
    return later


def looks_ahead(game, name, rng):
    """A move that wins; else one that stops the other from winning; else any."""
    mine, moves = game.agent_selection, game.legal()
    other = next(agent for agent in game.possible_agents if agent != mine)
    for player in (mine, other):
        for move in moves:
            game.agent_selection = player
            wins = after(game, name, move).rewards[player] > 0
            game.agent_selection = mine
            if wins:
                return int(move)
    return int(rng.choice(moves))


def plays_at_random(game, name, rng):
    """Any move."""
    return int(rng.choice(game.legal()))


def score(agent, name, games, seed=0, other=looks_ahead):
    """The agent's share of games won against ``other``, draws half; it begins every second one."""
    rng, points = np.random.default_rng(seed), 0.0
    for number in range(games):
        game, seat = env(name), ("first", "second")[number % 2]
        game.reset()
        agent.reset()
        while not any(game.terminations.values()):
            own = game.agent_selection == seat
            game.step(agent.act(game.observe(seat)) if own else other(game, name, rng))
        points += 0.5 + 0.5 * game.rewards[seat]
    return points / games


def replies(agent, game, seat):
    """Games of tic-tac-toe lost and played by ``agent`` in ``seat``, over all that the other may do."""
    if any(game.terminations.values()):
        return np.array([game.rewards[seat] < 0, 1])
    if game.agent_selection == seat:
        agent.reset()
        moves = [agent.act(game.observe(seat))]
    else:
        moves = game.legal()
    return sum(replies(agent, after(game, "tic_tac_toe", move), seat) for move in moves)


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "tic_tac_toe"
    steps, settings = SETTINGS[name]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else steps
    run = apexrl.train(
        env="apexrl.envs.board_games:env",
        env_kwargs={"game": name},
        env_steps=steps,
        pool_period_steps=max(1, steps // 25),
        show=False,
        **settings,
    )
    agent = apexrl.load(run.path, checkpoint="latest", trust=("self_play",))
    print(f"against one who looks a move ahead: {score(agent, name, 100):.2f} of the games")
    if name == "tic_tac_toe":
        for seat in ("first", "second"):
            game = env()
            game.reset()
            lost, played = replies(agent, game, seat)
            print(f"{seat}: {lost} of {played} lines of play are lost")
