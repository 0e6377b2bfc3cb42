"""What an agent's name brings without a preset (``--recipe default``): settings that learn on an unseen environment.

They come on top of ``catalogue.AGENTS[name].settings``, in this order: what the agent's family has for vectors, small
images or large images; then what the agent has for itself; then what it has for box actions or in one topology. They
depend on facts of the environment alone. "rl-zoo" is DLR-RM/rl-baselines3-zoo, "SB3" Stable-Baselines3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from apexrl.agents.catalogue import AGENTS
from apexrl.agents.default_box_settings import BOXES_IMAGES, BOXES_OWN, BOXES_VECTORS
from apexrl.agents.default_memory_settings import with_memory
from apexrl.agents.default_scaling import CATEGORIES, FAST_IMAGES, SCALED, SCALED_IMAGES, Settings
from apexrl.agents.default_unroll_settings import (
    PQN_LARGE_IMAGES,
    PQN_SMALL_IMAGES,
    PQN_VECTORS,
    UNROLLS,
    UNROLLS_IMAGES,
    UNROLLS_VECTORS,
    of_policy_gradient,
)
from apexrl.agents.env_facts import EnvFacts
from apexrl.config.settings import names_of

_RANDOM_EPISODES = 3
_LARGEST_IMAGE_SIDE, _IMAGE_SIZE = 128, 84  # ours; the size of Atari's (Mnih et al. 2015)
_CATEGORIES_PERIOD = 100
"""Updates between copies of the target where observations are categories alone. Values travel a step a copy: with 500,
52 episodes of CliffWalking's first 40,000 steps reached the goal, with 100 there were 464."""
_REPLAY_BYTES = 2 << 30  # most memory of a replay's observations

# --- Q-learning: dqn, double_dqn, dueling_dqn, c51, qr_dqn, iqn, noisy_dqn, rainbow, bbf, munchausen_dqn

_Q_VECTORS: Settings = SCALED | {
    "hidden": (128, 128),
    "optimizer": "adam",
    "learning_rate": 1e-3,  # rl-zoo: 6.3e-4 to 2.3e-3
    "optimizer_eps": 1e-8,
    "gradient_clip": 10.0,  # SB3
    "huber": 1.0,  # SB3
    "gamma": 0.99,
    "n_step": 3,
    "batch_size": 128,  # rl-zoo: 64 to 128
    "updates_per_step": 0.25,
    "min_size": 1_000,
    "capacity": 200_000,
    "exploration_steps": 10_000,  # without, 0 of 496 episodes found a key and then a door; by chance 3 % do
    "target_period_updates": 500,  # CleanRL
    "actors": 2,
    "envs_per_actor": 8,
    "pull_period": 10,  # the publication period, in steps of one environment
}
_Q_SMALL_IMAGES: Settings = SCALED_IMAGES | {
    "image_units": 128,  # MinAtar's DQN, as are the next ones but for the step size
    "optimizer": "adam",
    "learning_rate": 2.5e-4,  # Dopamine's MinAtar settings, as is ε
    "optimizer_eps": 3.1e-4,
    "gradient_clip": 10.0,
    "huber": 1.0,
    "gamma": 0.99,
    "n_step": 3,
    "batch_size": 32,
    "updates_per_step": 0.25,  # Dopamine
    "min_size": 5_000,
    "capacity": 100_000,
    "target_period_updates": 1_000,
    "actors": 2,
    "envs_per_actor": 8,
    "pull_period": 20,
}
_Q_LARGE_IMAGES: Settings = FAST_IMAGES | {
    "image_units": 512,
    "optimizer": "adam",
    "learning_rate": 1e-4,  # rl-zoo, CleanRL
    "optimizer_eps": 1.5e-4,  # Rainbow
    "gradient_clip": 10.0,
    "huber": 1.0,
    "gamma": 0.99,
    "n_step": 3,
    "batch_size": 32,
    "updates_per_step": 0.25,
    "min_size": 10_000,
    "capacity": 200_000,
    "target_period_updates": 1_000,
    "actors": 2,
    "envs_per_actor": 8,
    "pull_period": 50,
}
# The papers scale nothing, and add squared errors. Scaled observations cost nothing in QMIX's two-step game and in
# simple_spread; with returns scaled too, the mixture did not learn. PyMARL too lets the online
# network choose; without, or with 500 updates between copies, the mixture's values rose above 0 in simple_spread, and
# its agents left.
_TEAMS: Settings = {
    "n_step": 1,
    "huber": 0.0,
    "normalize_returns": False,
    "double": True,
    "target_period_updates": 200,
    "exploration_steps": 0,
}
_Q_OWN: Mapping[str, Settings] = {
    "vdn": _TEAMS,
    "qmix": _TEAMS,
    "c51": CATEGORIES,
    "qr_dqn": {"quantiles": 50},  # 200 are for Atari; rl-zoo's CartPole has 10
    "iqn": {"quantile_samples": 8, "batch_size": 64},  # the paper: 8 do nearly as well; an update costs a fifth
    "noisy_dqn": {"exploration_steps": 0},  # its noise explores
    "rainbow": CATEGORIES | {"exploration_steps": 0},
    # γ ends at the family's: the longer it looks, the more the size of returns changes with each reset
    "bbf": CATEGORIES | {"optimizer": "adamw", "updates_per_step": 1.0, "batch_size": 32},
    # Its bonus is for the first reward. τ of the paper is for returns many times as large as scaled ones
    "munchausen_dqn": {"n_step": 1, "munchausen_temperature": 0.003},
}

# --- R2D2. Capacity and min_size count sequences, each of which brings 10 steps (40 of images)

_R2D2_VECTORS: Settings = SCALED | {
    "hidden": (128,),
    "recurrent_units": 128,
    "sequence_length": 20,  # RLlib's stateless CartPole
    "sequence_stride": 10,
    "burn_in": 10,
    "gamma": 0.99,
    "n_step": 3,
    "learning_rate": 5e-4,  # RLlib
    "optimizer_eps": 1e-5,
    "gradient_clip": 10.0,
    "rescaling_eps": 0.0,  # returns are scaled already
    "batch_size": 16,
    "updates_per_step": 0.1,  # every step is learned from 32 times, as of Q-learning from transitions
    "min_size": 100,
    "capacity": 20_000,
    "target_period_updates": 100,  # 1,000 environment steps; with 400 CartPole took up to 99,000 instead of 45,000
    "actors": 2,
    "envs_per_actor": 8,
    "pull_period": 10,
}
_R2D2_IMAGES: Settings = FAST_IMAGES | {
    "recurrent_units": 256,
    "sequence_length": 40,
    "sequence_stride": 40,
    "burn_in": 0,
    "gamma": 0.99,
    "learning_rate": 2.5e-4,
    "optimizer_eps": 1e-5,
    "gradient_clip": 10.0,
    "batch_size": 32,
    "updates_per_step": 0.0016,  # twice
    "min_size": 200,
    "capacity": 5_000,
    "target_period_updates": 500,
    "actors": 2,
    "envs_per_actor": 8,
    "pull_period": 40,
}

# --- soft actor-critic over discrete actions

_DISCRETE_SAC_VECTORS: Settings = SCALED | {
    "initial_temperature": 0.01,  # a step earns about that much of a return of size 1
    "hidden": (128, 128),
    "learning_rate": 5e-4,  # ours, between the paper's 3e-4 and Q-learning's 1e-3: docs/results/generality.md
    "optimizer_eps": 1e-8,
    "gradient_clip": 10.0,
    "gamma": 0.99,
    "n_step": 3,
    "alpha": 0.0,  # uniform sampling
    "batch_size": 128,
    "updates_per_step": 0.25,  # the paper's
    "random_start": True,
    "pink_noise": True,  # of Acrobot's random episodes 2 % reach the goal by independent actions, 15 % by these
    "capacity": 200_000,
    "actors": 2,
    "envs_per_actor": 4,
    "pull_period": 10,
}
_SOFT_CHOICES = ("discrete_sac",)
_DISCRETE_SAC_IMAGES: Settings = {key: value for key, value in _Q_LARGE_IMAGES.items() if key != "precision"} | {
    "initial_temperature": 0.01,
    "learning_rate": 3e-4,
    "n_step": 1,
    "alpha": 0.0,
    "batch_size": 64,
}

# --- behaviour cloning: bc

_BC: Settings = {
    "normalize_observations": True,
    "hidden": (256, 256),
    "image_units": 256,
    "learning_rate": 3e-4,
    "batch_size": 256,
    "capacity": 200_000,
    "min_size": 1_000,
    "actors": 1,
    "envs_per_actor": 4,
    "pull_period": 10,
}

_VECTORS_OWN: Mapping[str, Settings] = {
    **{agent: {"learning_rate": 5e-4} for agent in ("c51", "qr_dqn", "iqn", "bbf", "d4pg")},
    "rainbow": {"learning_rate": 5e-4, "noise_period": 4},  # noise of one step seldom reached Acrobot's goal
    "munchausen_dqn": {"target_period_updates": 150},  # targets of one step reach a third as far as those of three
    **{agent: {"learning_rate": 7.3e-4} for agent in ("sac", "tqc")},  # rl-zoo's most frequent
}
"""What agents have for themselves where observations are vectors; of images their families' step sizes are smaller."""

_SIZES: Mapping[str, tuple[Settings, Settings, Settings]] = {
    "r2d2": (_R2D2_VECTORS, _R2D2_IMAGES, _R2D2_IMAGES),
    "pqn": (PQN_VECTORS, PQN_SMALL_IMAGES, PQN_LARGE_IMAGES),
    "bc": (_BC, _BC, _BC),
    "discrete_sac": (_DISCRETE_SAC_VECTORS, _DISCRETE_SAC_IMAGES, _DISCRETE_SAC_IMAGES),
}
"""Families of one agent: for vectors, for small images, and for large ones."""


def default_settings(
    agent: str, topology: str, facts: EnvFacts, memory: bool = False, env_steps: int = 0, learners: int = 1
) -> Settings:
    """Flat settings that shipped ``agent`` has without a preset, beyond those that its name stands for.

    Args:
        agent: a name of ``AGENTS``.
        topology: in which it runs.
        memory: whether its networks are to have one.
        env_steps: of the run; 0: not known.
        learners: that make every update together.
    """
    if topology != "offline" and (size := default_image_size(facts)):
        small = facts.shrunk(size)
        return default_settings(agent, topology, small, memory, env_steps, learners) | {"image_size": size}
    found = dict(_of_family(agent, facts)) | {**_Q_OWN, **BOXES_OWN}.get(agent, {})
    if agent in UNROLLS:
        alone = learners == 1 and not memory  # with a memory step sizes that fall were not tried
        found |= of_policy_gradient(agent, topology, facts, env_steps if alone else 0)
    elif not facts.image_side:
        found |= _VECTORS_OWN.get(agent, {})
    if agent in BOXES_OWN and not facts.image_side:
        found |= {"min_size": _random_steps(facts, _RANDOM_EPISODES)}
    if agent in _SOFT_CHOICES and not facts.image_side:
        envs = found["actors"] * found["envs_per_actor"]
        found |= {"min_size": _random_steps(facts, envs), "target_entropy": _half_entropy(facts)}
    if memory and "memory" in names_of(AGENTS[agent].reads):
        found = dict(with_memory(agent, found, bool(facts.image_side)))
    annealed = AGENTS[agent].settings.get("anneal_horizon")
    if facts.time_limit and facts.several_agents and "gamma" in found and not annealed:
        found["gamma"] = _within_episode(found["gamma"], facts.time_limit)
    if facts.codes_bound:
        # Divided by 255, a MiniGrid of 5 x 5 cells with a door taught ppo nothing in 120,000 steps.
        found["byte_maximum"] = facts.codes_bound
    if "capacity" in found:
        found |= _room(found, "sequence_stride" in found, facts)
    if env_steps and _of_family(agent, facts) is _Q_VECTORS:  # also a short run is to act by what it learned
        found["exploration_steps"] = min(found["exploration_steps"], env_steps // 4)
    if facts.categorical and _of_family(agent, facts) is _Q_VECTORS:
        found["target_period_updates"] = min(found["target_period_updates"], _CATEGORIES_PERIOD)
        found["n_step"] = 1  # three include explored steps, by which greedy actions kept away from CliffWalking's cliff
    if AGENTS[agent].settings.get("reset_period_updates"):  # BBF: the last of 200 000 updates' resets is at 160 000
        found["reset_until_updates"] = int(0.8 * env_steps * found["updates_per_step"])
    return found


def default_image_size(facts: EnvFacts) -> int:
    """``image_size`` without a preset; 0: images stay as they are."""
    return _IMAGE_SIZE if facts.shrinks and facts.longest_image_side > _LARGEST_IMAGE_SIDE else 0


def _within_episode(gamma: float, time_limit: int) -> float:
    """What comes behind a cut is bootstrapped and never seen. Where γ looks far beyond it, as with 0.99 in PettingZoo's
    particle worlds of 25 steps, values were mostly that, rose to +120 where rewards are negative, and spoilt the
    policy."""
    return min(gamma, 1.0 - 1.0 / time_limit)


def _random_steps(facts: EnvFacts, episodes: int) -> int:
    """Some whole episodes of random actions: what is rewarded once an episode is then seen."""
    return min(max(1_000, episodes * (facts.time_limit or 0)), 5_000)


def _half_entropy(facts: EnvFacts) -> float:
    """Half of the choices' greatest entropy, in nats. With 0.89 of it, which the agent has by itself, Acrobot was not
    solved in 100,000 steps, and CartPole later. Boxes have no choices, and are refused later."""
    return 0.5 * math.log(math.prod(facts.spec.action.choices))


def _of_family(agent: str, facts: EnvFacts) -> Settings:
    if agent in _SIZES:
        vectors, small_images, large_images = _SIZES[agent]
    elif AGENTS[agent].item == "unroll":
        vectors, small_images, large_images = UNROLLS_VECTORS, UNROLLS_IMAGES, UNROLLS_IMAGES
    elif agent in BOXES_OWN:
        vectors, small_images, large_images = BOXES_VECTORS, BOXES_IMAGES, BOXES_IMAGES
    else:
        vectors, small_images, large_images = _Q_VECTORS, _Q_SMALL_IMAGES, _Q_LARGE_IMAGES
    if not facts.image_side:
        return vectors
    return small_images if facts.small_image else large_images


def _room(settings: Settings, sequences: bool, facts: EnvFacts) -> Settings:
    """A replay of bounded memory: its items, and with how many of them learning begins, at most half of these."""
    steps = settings["sequence_stride"] if sequences else 1
    most = _REPLAY_BYTES // max(1, steps * facts.observation_nbytes)
    capacity = max(2 * int(settings["batch_size"]), min(int(settings["capacity"]), most))
    return {"capacity": capacity, "min_size": min(int(settings["min_size"]), capacity // 2)}
