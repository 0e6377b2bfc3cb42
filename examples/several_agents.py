"""PettingZoo's simple_spread, pistonball from pixels, or the two-step game: python several_agents.py [NAME] [steps].

    spread      one PPO policy acts for all agents, and its value sees the whole environment (MAPPO)
    spread_qmix the agents are one team, whose value a monotonic network makes of theirs (QMIX)
    pistons     one policy of pixels
    two_steps   QMIX's own example, where a sum of values earns 7 and their mixture 8; it needs no package

The others need packages that apexrl itself does not, and say which.
"""

import importlib.util
import sys

import apexrl

SPREAD = "pip install 'apexrl[pettingzoo]' mpe2"
PISTONS = "pip install 'apexrl[pettingzoo]' 'pettingzoo[butterfly]'"
SIMPLE_SPREAD = {"env": "mpe2.simple_spread_v3:parallel_env", "show_state": True, "show_agent": True}
GAMES = {  # package, how to install it, steps, settings
    "spread": (
        "mpe2",
        SPREAD,
        1_000_000,
        SIMPLE_SPREAD | {"agent": "ppo", "topology": "impala", "central_value": True},
    ),
    "spread_qmix": ("mpe2", SPREAD, 300_000, SIMPLE_SPREAD | {"agent": "qmix", "exploration_steps": 50_000}),
    "pistons": (
        "pymunk",
        PISTONS,
        1_000_000,
        {
            "env": "pettingzoo.butterfly.pistonball_v6:parallel_env",
            "env_kwargs": {"continuous": False, "n_pistons": 10},
            "envs_per_actor": 10,
            "agent": "ppo",
        },
    ),
    "two_steps": (
        "apexrl",
        "",
        10_000,
        {"env": "apexrl.envs.team_games:parallel_env", "agent": "qmix", "show_state": True, "epsilon": 1.0},
    ),
}

if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "spread"
    package, install, steps, settings = GAMES[name]
    if importlib.util.find_spec(package) is None:
        sys.exit(f"this example needs {package}: {install}")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else steps
    run = apexrl.train(env_steps=steps, show=False, **settings)
    print(f"mean return of an agent: {run.best_weights_return:.2f}")
