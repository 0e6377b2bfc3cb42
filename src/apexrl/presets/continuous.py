"""Settings for environments with box actions.

They start from soft actor-critic as its authors and Stable-Baselines3 have it (``agents.catalogue``): one update for
every environment step, which one actor feeds well. "rl-zoo" is DLR-RM/rl-baselines3-zoo, ``hyperparams/sac.yml``.
"""

from __future__ import annotations

from typing import Any

from apexrl import agents
from apexrl.config import Config
from apexrl.presets.known import Preset
from apexrl.settings import override


def _sac(preset: str, env: str, **settings: Any) -> Config:
    """Soft actor-critic on ``env``, with flat ``settings`` beyond those that its name stands for."""
    return override(agents.with_agent(Config(preset=preset), "sac"), {"env": env, **_ALL, **settings})


# One actor: with an update for every step the learner is the slower part, and old weights cost more than they gain.
_ALL: dict[str, Any] = {"actors": 1, "envs_per_actor": 1, "pull_period": 10, "eval_period_seconds": 10.0}

PENDULUM = _sac(
    "pendulum",
    "Pendulum-v1",
    learning_rate=1e-3,  # rl-zoo
    hidden=(64, 64),  # rl-zoo's 256 units and batches of 256 are more than it needs, and four times the work
    batch_size=128,
    samples_per_insert=128.0,  # one update per environment step
    min_size=1_000,
    capacity=100_000,
    eval_period_seconds=5.0,
    eval_episodes=50,  # one start that a policy cannot swing up from costs more than all others together
    eval_envs=25,
    checkpoint_seconds=15.0,
    env_steps=30_000,
    stop_at_return=-160.0,  # -200 is solved
)

# rl-zoo's TD3 and DDPG (hyperparams/td3.yml) have 400-300 units and batches of 256, which Pendulum does not need.
_PENDULUM_DPG: dict[str, Any] = {
    "gamma": 0.98,  # rl-zoo, as are the next two
    "learning_rate": 1e-3,
    "sigma": 0.1,
    "policy_learning_rate": 1e-3,
    "polyak": 0.005,
    "hidden": (128, 128),
    "batch_size": 128,
    "samples_per_insert": 128.0,  # one update per environment step
    "min_size": 1_000,
    "capacity": 100_000,
    "stop_at_return": -150.0,  # near the best there is: the best of many evaluations flatters
}
# Values first fall from 0 to the returns of random actions, and the target network lags behind. The backward error
# takes the difference for merit of the policy's own action, which at DDPG's τ then never leaves a bound.
_PENDULUM_BIRES: dict[str, Any] = _PENDULUM_DPG | {"polyak": 0.02}
_PENDULUM_D4PG: dict[str, Any] = _PENDULUM_DPG | {
    "critic_hidden": (),
    "polyak": 0.0,
    "sigma": 0.3,  # Ape-X DPG
    "v_min": -500.0,  # hanging still costs π² a step, 494 for ever at this γ
    "v_max": 0.0,
}

_PENDULUM_CROSSQ: dict[str, Any] = {
    "hidden": (64, 64),
    "critic_hidden": (128, 128),  # the paper's 2048 are for a GPU
    "batch_size": 128,
    "samples_per_insert": 128.0,  # one update per environment step
    "publish_period_updates": 10,
    "min_size": 1_000,
    "capacity": 100_000,
}

LUNARLANDER_CONTINUOUS = _sac(
    "lunarlander-continuous",
    "LunarLanderContinuous-v3",
    learning_rate=7.3e-4,  # rl-zoo, which lets it fall to 0
    polyak=0.01,  # rl-zoo
    hidden=(400, 300),  # rl-zoo
    env_steps=500_000,  # rl-zoo
    stop_at_return=230.0,  # 200 is solved; more, so that fresh episodes show it too
)

_LUNARLANDER_TD3: dict[str, Any] = {  # rl-zoo
    "gamma": 0.98,
    "learning_rate": 1e-3,
    "hidden": (400, 300),
    "sigma": 0.1,
    "capacity": 200_000,
}

HALFCHEETAH = _sac("halfcheetah", "HalfCheetah-v5", env_steps=1_000_000, eval_period_seconds=60.0)

HOPPER = _sac("hopper", "Hopper-v5", env_steps=1_000_000, eval_period_seconds=60.0)

CONTINUOUS: dict[str, Preset] = {
    "pendulum": Preset(
        PENDULUM,
        "Pendulum-v1 to -160 (solved: -200) within 30k steps",
        agents={
            "td3": _PENDULUM_DPG,
            "ddpg": _PENDULUM_DPG,
            "bires_ddpg": _PENDULUM_BIRES,
            "d4pg": _PENDULUM_D4PG,
            "crossq": _PENDULUM_CROSSQ,
        },
    ),
    "lunarlander-continuous": Preset(
        LUNARLANDER_CONTINUOUS,
        "LunarLanderContinuous-v3 to 230 (solved: 200)",
        "box2d",
        ("Box2D",),
        agents={"td3": _LUNARLANDER_TD3},
    ),
    "halfcheetah": Preset(HALFCHEETAH, "HalfCheetah-v5, 1M steps", "mujoco", ("mujoco",)),
    "hopper": Preset(HOPPER, "Hopper-v5, 1M steps", "mujoco", ("mujoco",)),
}
