"""A program that owns its main loop, as a test harness or a game does, and lets a run of apexrl choose its actions.

    export APEXRL_REDIS_URL=redis://localhost:6379
    apexrl learner cartpole --run demo                  # on one machine
    python examples/external_env.py --run demo          # on this and any others, as often as you like

Here the loop plays CartPole. Nothing in it is called by apexrl: it asks for an action when it wants one, and tells what
came of it. The policy runs in this process; what happened goes to the learner, and newer weights come from it, behind
its back. It ends when the run has.
"""

from __future__ import annotations

import argparse
import os

import gymnasium

import apexrl.client
from apexrl.errors import ClosedError


def play(url: str, run: str, episodes: int) -> list[float]:
    """The returns of the episodes played until the run ended, or there were enough."""
    game = gymnasium.make("CartPole-v1")
    returns: list[float] = []
    with apexrl.client.connect(url, run) as actor:
        print(f"slot {actor.slot}, epsilon {actor.exploration:.3f}", flush=True)
        try:
            while len(returns) < episodes:
                observation, _ = game.reset()
                score, over = 0.0, False
                while not over:
                    action = actor.act(observation)
                    observation, reward, terminated, truncated, _ = game.step(action)
                    actor.observe(float(reward), terminated, truncated, observation)
                    score += float(reward)
                    over = terminated or truncated
                returns.append(score)
        except ClosedError as ended:
            print(ended)
    game.close()
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description="CartPole played by hand for a run of apexrl")
    parser.add_argument("--redis", default=os.environ.get("APEXRL_REDIS_URL", ""), help="URL of the Redis server")
    parser.add_argument("--run", required=True, help="as given to `apexrl learner`")
    parser.add_argument("--episodes", type=int, default=1_000_000, help="to play at most")
    arguments = parser.parse_args()
    returns = play(arguments.redis, arguments.run, arguments.episodes)
    last = returns[-20:]
    print(f"{len(returns)} episodes, mean return of the last {len(last)}: {sum(last) / max(1, len(last)):.1f}")


if __name__ == "__main__":
    main()
