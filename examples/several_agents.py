"""PettingZoo's simple_spread, or pistonball from pixels: python several_agents.py [spread|pistons] [environment steps].

One policy acts for all agents. It needs packages that apexrl itself does not, and says which.
"""

import importlib.util
import sys

import apexrl

GAMES = {
    "spread": ("mpe2", "pip install 'apexrl[pettingzoo]' mpe2", {"env": "mpe2.simple_spread_v3:parallel_env"}),
    "pistons": (
        "pymunk",
        "pip install 'apexrl[pettingzoo]' 'pettingzoo[butterfly]'",
        {
            "env": "pettingzoo.butterfly.pistonball_v6:parallel_env",
            "env_kwargs": {"continuous": False, "n_pistons": 10},
            "envs_per_actor": 10,
        },
    ),
}

if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "spread"
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    package, install, settings = GAMES[name]
    if importlib.util.find_spec(package) is None:
        sys.exit(f"this example needs {package}: {install}")
    run = apexrl.train(agent="ppo", env_steps=steps, show=False, **settings)
    print(f"mean return of an agent: {run.best_weights_return:.2f}")
