"""Settings without a preset for agents that learn from unrolls: policy gradients, and Q-learning (``pqn``).

Batches count unrolls. "rl-zoo" is DLR-RM/rl-baselines3-zoo, "SB3" Stable-Baselines3.
"""

from __future__ import annotations

from collections.abc import Mapping

from apexrl.agents.default_scaling import FAST_IMAGES, SCALED, Settings
from apexrl.agents.env_facts import EnvFacts

_LONG_EPISODE_STEPS, _SHORT_EPISODE_STEPS = 1_000, 200

# --- policy gradients: a2c, impala, ppo, appo

_UNROLLS: Settings = {
    "normalize_advantages": True,
    "summed_loss": False,
    "optimizer": "adam",
    "optimizer_eps": 1e-5,
    "gradient_clip": 0.5,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "value_coefficient": 0.5,
    "entropy_coefficient": 0.01,
    "actors": 2,
}
UNROLLS_VECTORS: Settings = (
    _UNROLLS
    | SCALED
    | {
        "hidden": (64, 64),  # SB3, CleanRL
        "separate_values": True,  # SB3, CleanRL
        "learning_rate": 1e-3,
        "envs_per_actor": 8,
        # of Acrobot's random episodes 1 % reach the goal by independent actions, 25 % by those of pink noise
        "pink_noise": True,
    }
)
UNROLLS_IMAGES: Settings = _UNROLLS | FAST_IMAGES | {"learning_rate": 5e-4, "envs_per_actor": 16}
UNROLLS: Mapping[str, Settings] = {
    "a2c": {"unroll_length": 16, "batch_size": 8},
    "impala": {"unroll_length": 32, "batch_size": 8},
    "ppo": {  # CleanRL's and SB3's 2048 steps; a third of their gradient steps, each on twice as many steps
        "unroll_length": 128,
        "batch_size": 16,
        "epochs": 6,
        "minibatches": 16,
        "learning_rate": 5e-4,
        "queue_batches": 1,  # several epochs take the policy far: the next one is to act soon
    },
    "appo": {
        "unroll_length": 32,
        "batch_size": 16,
        "epochs": 2,
        "minibatches": 4,
        "clip_ratio": 0.2,
        "learning_rate": 5e-4,
    },
}
_UNROLLS_BOXES: Settings = {
    "pink_noise": True,
    "entropy_coefficient": 0.0,  # SB3, CleanRL: the policy's deviation is a parameter of its own
    # Where the best actions leave no room for noise, it fell to 0.008: KL rose to thousands of nats, and a thermostat's
    # policy was lost after 140,000 steps.
    "least_std": 0.1,
}
# RAdam's first hundreds of steps are small: with Adam's, it stood still in MountainCarContinuous before the goal.
_SMALL_FIRST_STEPS: Settings = {"optimizer": "radam", "second_moment_decay": 0.997}
_UNROLLS_BOXES_VECTORS: Mapping[str, Settings] = {
    # With 128 steps an update, HalfCheetah had not begun to run after 100,000 steps in 3 of 3 seeds; it had with 32.
    "a2c": _SMALL_FIRST_STEPS | {"unroll_length": 8, "batch_size": 4, "envs_per_actor": 4},
    "appo": _SMALL_FIRST_STEPS,
}
# With 1 a third of the first actions of each joint are its bounds, and HalfCheetah came to 1550 in 500,000 steps of
# ppo; with 0.13 to 0.41 to 2990 and more. A lander of two engines learned less with 0.71.
_SEVERAL_JOINTS: Mapping[str, Settings] = {
    **{agent: {"initial_std": 0.35} for agent in ("a2c", "impala")},
    # By pink noise one seed of ppo came to 1600 in each of three runs, by independent noise to 3840.
    "appo": {"initial_std": 0.35, "pink_noise": False},
    # With 5e-4 three seeds came to 2426 on average after a million steps, with this to 3157; CleanRL, SB3: 3e-4.
    "ppo": {"initial_std": 0.35, "pink_noise": False, "learning_rate": 2.5e-4},
}
_SEVERAL = 3
# 2048 steps are ten such episodes, or more. With a γ of 0.99 Pendulum took 48,000 steps (rl-zoo: 0.9; HER, of 50
# steps: 0.98).
_SHORT_EPISODES: Mapping[str, Settings] = {
    "ppo": {"unroll_length": 64, "epochs": 10, "gamma": 0.98},
    "appo": {"epochs": 10, "gamma": 0.98},
}
# As a policy's deviation shrinks, steps of one size change it more and more: HalfCheetah's was lost for ever in one of
# four seeds within a million steps. In shorter runs all there is to learn may be new until the end.
_LONG_RUNS: Mapping[str, Settings] = {"ppo": {"anneal": True}}
_LONG_RUN_STEPS = 500_000
_IMAGES_OWN: Mapping[str, Settings] = {"ppo": {"epochs": 4, "minibatches": 8}}  # CleanRL on Atari: 4 and 4
# With 0.01 the policy of MinAtar's Breakout, which no clipped ratio holds back, was certain of its actions before the
# ball was kept in play: entropy 0.1 nats and a return of 5 after 400,000 steps.
_SMALL_IMAGES_OWN: Mapping[str, Settings] = {agent: {"entropy_coefficient": 0.1} for agent in ("a2c", "impala")}
_IN_TOPOLOGY: Mapping[tuple[str, str], Settings] = {
    # Unrolls of all environments become full at the same time: larger batches are fewer updates meanwhile.
    ("a2c", "ga3c"): {"batch_size": 16, "training_min_batch": 16},
}

# --- Q-learning: pqn

_PQN: Settings = SCALED | {
    "optimizer": "radam",
    "optimizer_eps": 1e-5,  # gradients of learned returns of size 1 are small, and mostly noise in the end
    "gradient_clip": 10.0,
    "gamma": 0.99,
    "unroll_length": 32,
    "batch_size": 32,
    "epochs": 2,
    "queue_batches": 1,  # several epochs take Q far: the next one is to act soon
    "actors": 2,
    "envs_per_actor": 16,
}
PQN_VECTORS: Settings = _PQN | {
    "hidden": (128, 128),
    "dueling": True,  # ours: differences between actions survive when all of them are about as good
    "trace_lambda": 0.95,  # the authors' on CartPole
    "learning_rate": 1e-4,  # as is this
    "epochs": 4,
    "minibatches": 8,
    "epsilon": 0.05,
    "exploration_steps": 50_000,
}
PQN_SMALL_IMAGES: Settings = _PQN | {
    "image_units": 128,
    "trace_lambda": 0.65,  # the authors', as is ε
    "learning_rate": 5e-4,
    "minibatches": 8,
    "epsilon": 0.05,
    "exploration_steps": 100_000,
}
PQN_LARGE_IMAGES: Settings = _PQN | {
    "precision": "auto",
    "image_units": 512,
    "trace_lambda": 0.65,
    "learning_rate": 2.5e-4,
    "minibatches": 8,
    "epsilon": 0.01,
    "exploration_steps": 250_000,
}


def of_policy_gradient(agent: str, topology: str, facts: EnvFacts, env_steps: int = 0) -> Settings:
    """What ``agent``, of ``UNROLLS``, has beyond its family.

    Args:
        env_steps: of the run; 0: not known, or its learners must make steps of one size.
    """
    boxes = facts.spec.action.box or facts.spec.action.hybrid
    in_topology = _IN_TOPOLOGY.get((agent, topology), {})
    found = UNROLLS[agent] | (_IMAGES_OWN.get(agent, {}) if facts.image_side else {})
    found |= _SMALL_IMAGES_OWN.get(agent, {}) if facts.small_image else {}
    found |= _UNROLLS_BOXES if boxes else _discrete(facts)
    if boxes and not facts.image_side and not in_topology:
        found |= _UNROLLS_BOXES_VECTORS.get(agent, {})
        if facts.time_limit and facts.time_limit <= _SHORT_EPISODE_STEPS:
            found |= _SHORT_EPISODES.get(agent, {})
    low = facts.spec.action.low
    if low is not None and low.size >= _SEVERAL and not facts.image_side:
        found |= _SEVERAL_JOINTS[agent]
    if boxes and env_steps >= _LONG_RUN_STEPS and topology != "a3c":  # whose parameter servers make steps of one size
        found |= _LONG_RUNS.get(agent, {})
    return found | in_topology


def _discrete(facts: EnvFacts) -> Settings:
    """Where episodes may be long, γ reaches further: with 0.99 a lander hovers instead of landing (rl-zoo: 0.995 to
    0.999 for LunarLander)."""
    return {"gamma": 0.995} if facts.time_limit and facts.time_limit >= _LONG_EPISODE_STEPS else {}
