"""What ``--recipe paper`` adds to ``catalogue.AGENTS[name].settings``: the rest of a paper's numbers, with sources.

"dqn_zoo" is google-deepmind/dqn_zoo, the authors' later code; its periods in frames are a quarter as many steps, and a
sixteenth as many updates. What belongs to the environment, such as clipped rewards and stacked frames, is the
environment's own setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from apexrl.agents.env_facts import SMALL_IMAGE_SIDE, EnvFacts

Settings = dict[str, Any]

# One actor, which acts with the newest weights: an update for every four of its steps, each of which is published.
_ONE_ACTOR: Settings = {"actors": 1, "envs_per_actor": 1, "pull_period": 4, "publish_period_updates": 1}

# Mnih et al. 2015, extended data table 1.
_DQN: Settings = _ONE_ACTOR | {
    "n_step": 1,
    "gamma": 0.99,
    "hidden": (512,),  # the layer behind the convolutions
    "image_units": 512,
    "huber": 1.0,  # errors are clipped to ±1
    "optimizer": "rmsprop",
    "centered": True,
    "momentum": 0.0,  # what the table calls momentum is the decay of the mean gradient
    "learning_rate": 2.5e-4,
    "rmsprop_decay": 0.95,
    "optimizer_eps": 0.01 / 32**2,  # 0.01 of summed losses; ours are means over the batch (dqn_zoo)
    "gradient_clip": 0.0,
    "batch_size": 32,
    "updates_per_step": 0.25,
    "capacity": 1_000_000,
    "min_size": 50_000,
    "random_start": True,
    "alpha": 0.0,  # uniform sampling
    "target_period_updates": 2_500,  # 10 000 steps in the authors' code and in dqn_zoo
    "polyak": 0.0,
    "epsilon": 0.1,
    "exploration_steps": 1_000_000,
    "epsilon_alpha": 0.0,  # the same for every environment
}
# dqn_zoo's optimizer for distributions: Adam, ε 0.01 over the batch, gradients clipped at 10.
_ADAM: Settings = {
    "optimizer": "adam",
    "first_moment_decay": 0.9,
    "optimizer_eps": 0.01 / 32,
    "gradient_clip": 10.0,
    "epsilon": 0.01,
}
_QUANTILES: Settings = _DQN | _ADAM | {"learning_rate": 5e-5, "huber": 1.0}  # Dabney et al. 2018a, 2018b: κ 1

# Horgan et al. 2018, table 1 and appendices C and E.
_APEX: Settings = {
    "n_step": 3,
    "gamma": 0.99,
    "image_units": 512,
    "huber": 0.0,
    "optimizer": "rmsprop",
    "centered": True,
    "momentum": 0.0,
    "learning_rate": 2.5e-4 / 4,
    "rmsprop_decay": 0.95,
    "optimizer_eps": 1.5e-7,
    "gradient_clip": 40.0,
    "batch_size": 512,
    "updates_per_step": 0.0,  # no limit
    "capacity": 2_000_000,
    "trim_every": 100,
    "min_size": 50_000,
    "alpha": 0.6,
    "beta": 0.4,
    "target_period_updates": 2_500,
    "polyak": 0.0,
    "epsilon": 0.4,
    "epsilon_alpha": 7.0,
    "envs_per_actor": 1,
    "pull_period": 100,  # 400 frames
}

_TEAMS: Settings = _ONE_ACTOR | {
    "n_step": 1,
    "gamma": 0.99,
    "hidden": (64, 64),
    "huber": 0.0,
    "optimizer": "rmsprop",
    "centered": False,
    "momentum": 0.0,
    "learning_rate": 5e-4,
    "rmsprop_decay": 0.99,
    "optimizer_eps": 1e-5,
    "gradient_clip": 10.0,
    "batch_size": 32,
    "updates_per_step": 0.25,
    "capacity": 250_000,
    "min_size": 1_000,
    "alpha": 0.0,
    "target_period_updates": 200,
    "polyak": 0.0,
    "epsilon": 0.05,
    "exploration_steps": 50_000,
    "epsilon_alpha": 0.0,
}

_PAPERS: Mapping[str, Settings] = {
    "dqn": _DQN,
    # van Hasselt et al. 2016, appendix: the tuned version (dqn_zoo's double_q too). Its bias that all actions share is
    # left out
    "double_dqn": _DQN | {"target_period_updates": 7_500, "epsilon": 0.01},
    "dueling_dqn": _APEX,
    # Bellemare et al. 2017, section 5
    "c51": _DQN | _ADAM | {"huber": 0.0, "learning_rate": 2.5e-4, "atoms": 51, "v_min": -10.0, "v_max": 10.0},
    "qr_dqn": _QUANTILES | {"quantiles": 200},
    "iqn": _QUANTILES | {"quantile_samples": 64, "cosines": 64},
    # Fortunato et al. 2018, appendix: as DQN, without ε
    "noisy_dqn": _DQN | {"noisy_sigma": 0.5, "epsilon": 0.0, "exploration_steps": 0},
    # Hessel et al. 2018, table 1; the clip is the dueling network's
    "rainbow": _DQN
    | {
        "n_step": 3,
        "huber": 0.0,
        "optimizer": "adam",
        "first_moment_decay": 0.9,
        "learning_rate": 6.25e-5,
        "optimizer_eps": 1.5e-4,
        "gradient_clip": 10.0,
        "min_size": 20_000,  # 80 000 frames
        "target_period_updates": 2_000,  # 32 000 frames
        "alpha": 0.5,
        "beta": 0.4,
        "noisy_sigma": 0.5,
        "epsilon": 0.0,
        "exploration_steps": 0,
        "atoms": 51,
        "v_min": -10.0,
        "v_max": 10.0,
    },
    # Schwarzer et al. 2023, and the authors' code (google-research: bigger_better_faster/bbf/configs/BBF.gin). Theirs
    # has one hidden layer of 2048 in front of both streams, ours one in each; no SPR loss and no shifted images here
    "bbf": _ONE_ACTOR
    | {
        "pull_period": 1,
        "image_units": 2_048,
        "learning_rate": 1e-4,
        "optimizer_eps": 1.5e-4,
        "gradient_clip": 0.0,
        "batch_size": 32,
        "updates_per_step": 2.0,
        "capacity": 200_000,
        "min_size": 2_000,
        "random_start": True,
        "reset_until_updates": 160_000,  # the last one of their 200 000 updates
        "epsilon": 0.0,
        "epsilon_alpha": 0.0,
        "exploration_steps": 4_000,  # it falls over the 2 000 behind the random ones
        "atoms": 51,
        "v_min": -10.0,
        "v_max": 10.0,
    },
    # Vieillard et al. 2020, appendix B: Dopamine's DQN with Adam (google-research: munchausen_rl/agents/m_dqn.py)
    "munchausen_dqn": _DQN
    | {
        "optimizer": "adam",
        "first_moment_decay": 0.9,
        "learning_rate": 5e-5,
        "optimizer_eps": 3.125e-4,
        "min_size": 20_000,
        "target_period_updates": 2_000,  # 8 000 steps
        "epsilon": 0.01,
        "exploration_steps": 250_000,
        "munchausen_alpha": 0.9,
        "munchausen_temperature": 0.03,
        "munchausen_clip": -1.0,
    },
    # Rashid et al. 2018, appendix, and their code (oxwhirl/pymarl) for what it leaves open. Theirs learn from episodes,
    # by a GRU: 32 of them, of 5 000 kept, at the end of each; here the same numbers are of transitions
    "vdn": _TEAMS,
    "qmix": _TEAMS | {"mixing_units": 32},
    # Kapturowski et al. 2019, table 2
    "r2d2": {"epsilon_alpha": 7.0, "envs_per_actor": 1, "pull_period": 400, "image_units": 512},
    # Christodoulou 2019, appendix; its target entropy is set below
    "discrete_sac": {
        "n_step": 1,
        "gamma": 0.99,
        "learning_rate": 3e-4,
        "optimizer_eps": 1e-8,
        "gradient_clip": 5.0,
        "polyak": 0.0,
        "target_period_updates": 2_000,  # 8 000 steps, as CleanRL reads it
        "batch_size": 64,
        "updates_per_step": 0.25,
        "capacity": 1_000_000,
        "min_size": 20_000,
        "random_start": True,
        "alpha": 0.0,
        **_ONE_ACTOR,
    },
    "sac": {"actors": 1, "envs_per_actor": 1},
    # The authors' code (SamsungLabs/tqc_pytorch) acts by its policy from the first step on
    "tqc": {"actors": 1, "envs_per_actor": 1, "min_size": 256, "random_start": False},
    "redq": {"actors": 1, "envs_per_actor": 1},
    "droq": {"actors": 1, "envs_per_actor": 1},
    "simba_v2": {"actors": 1, "envs_per_actor": 1},
    "crossq": {"actors": 1, "envs_per_actor": 1},
    # Fujimoto et al. 2018, appendix C. Random actions: 10 000 steps in HalfCheetah and Ant, 1 000 elsewhere
    "td3": {
        "hidden": (400, 300),
        "learning_rate": 1e-3,
        "batch_size": 100,
        "min_size": 1_000,
        "actors": 1,
        "envs_per_actor": 1,
    },
    # Fujimoto & Gu 2021, table 3; states are scaled by the dataset's statistics there, by running ones here
    "td3_bc": {"normalize_observations": True, "actors": 1, "envs_per_actor": 1},
    # The authors' code for D4RL (aviralkumar2907/CQL). Their Bellman error lacks the ½, so their 5 is 2.5 here
    "cql": {"hidden": (256, 256, 256), "conservative_weight": 2.5, "actors": 1, "envs_per_actor": 1},
    # Kostrikov et al. 2021, appendix B. Their policy's step size falls to 0 as a cosine
    "iql": {"actors": 1, "envs_per_actor": 1},
    "bc": {"normalize_observations": True, "actors": 1, "envs_per_actor": 1},  # Fujimoto & Gu 2021, as TD3+BC
    # Kumar et al. 2020, section 6: QR-DQN
    "discrete_cql": _QUANTILES | {"distribution": "quantile", "quantiles": 200},
    "ddpg": {"actors": 1, "envs_per_actor": 1},
    "bires_ddpg": {"actors": 1, "envs_per_actor": 1},
    "fast_td3": {"actors": 1, "envs_per_actor": 128, "capacity": 128 * 51_200, "pull_period": 1},
    "fast_sac": {"actors": 1, "envs_per_actor": 4_096, "capacity": 4_096 * 1_024, "pull_period": 1},
    "d4pg": {"envs_per_actor": 1},
    # Gallici et al. 2024, appendix; mttga/purejaxql: config/alg/pqn_atari.yaml. Small images and vectors are below
    "pqn": {"image_units": 512, "actors": 1, "envs_per_actor": 128, "queue_batches": 1},
    "a2c": {"actors": 16, "envs_per_actor": 1, "hidden": (256,), "image_units": 256},  # a worker's layer of 256
    "impala": {"envs_per_actor": 1, "image_units": 256},  # the shallow network
    "ppo": {"clip_ratio": 0.1, "image_units": 512, "actors": 1, "envs_per_actor": 8, "queue_batches": 1},
    "appo": {"image_units": 512},  # its bound on the values' change means nothing with one gradient step
}
# Schulman et al. 2017, table 3 (MuJoCo), in CleanRL's form.
_PPO_BOXES: Settings = {
    "hidden": (64, 64),
    "separate_values": True,
    "unroll_length": 2048,
    "batch_size": 1,
    "epochs": 10,
    "minibatches": 32,
    "learning_rate": 3e-4,
    "clip_ratio": 0.2,
    "entropy_coefficient": 0.0,
    "envs_per_actor": 1,
}
# config/alg/pqn_minatar.yaml, whose network has MinAtar's convolution and 128 units.
_PQN_SMALL_IMAGES: Settings = {"image_units": 128, "learning_rate": 5e-4, "epsilon": 0.05}
# config/alg/pqn_cartpole.yaml.
_PQN_VECTORS: Settings = {
    "hidden": (256, 256),
    "envs_per_actor": 32,
    "unroll_length": 64,
    "batch_size": 32,
    "epochs": 4,
    "minibatches": 16,
    "learning_rate": 1e-4,
    "trace_lambda": 0.95,
    "reward_scale": 0.1,
    "epsilon": 0.2,
    "exploration_steps": 100_000,
}
_UNTIL_THE_END: Mapping[str, Settings] = {
    **{agent: {"anneal": True} for agent in ("a2c", "impala", "ppo")},
    "simba_v2": {"anneal": True, "learning_rate_end": 0.5},  # the authors' code
    "rainbow": {"beta_end": 1.0},
}
"""Of papers where something changes until the last step of a run."""


def paper_settings(agent: str, facts: EnvFacts, env_steps: int = 0) -> dict[str, Any]:
    """Flat settings of the paper of shipped ``agent``, beyond those that its name stands for.

    Args:
        agent: a name of ``AGENTS``.
        facts: of the environment: PPO's paper has other numbers for boxes, PQN's for small images and vectors, discrete
            SAC's counts the actions.
        env_steps: of the run; what changes until its end can do so only where the end is known.
    """
    found = {**_PAPERS[agent]}
    action = facts.spec.action
    if agent == "ppo" and action.box:
        found |= _PPO_BOXES
    if agent in ("a2c", "impala") and facts.image_side >= SMALL_IMAGE_SIDE:
        found["encoder"] = "shallow"
    if agent == "bbf" and facts.image_side:
        found |= {"encoder": "resnet", "encoder_width": 4}
    if agent == "pqn":
        found |= _pqn(facts, env_steps)
    if agent == "discrete_sac":
        found["target_entropy"] = 0.98 * math.log(math.prod(action.nvec or (action.n,)))
    if agent in ("redq", "droq"):  # MBPO's for Ant, HalfCheetah and Walker2d; for Hopper −1, for Humanoid −2
        found["target_entropy"] = -0.5 * math.prod(action.shape)
    if agent == "simba_v2" and facts.time_limit:  # TD-MPC2's rule: a fifth of an episode counts
        found["gamma"] = min(max(1.0 - 5.0 / facts.time_limit, 0.95), 0.995)
    return found | (_UNTIL_THE_END.get(agent, {}) if env_steps else {})


def _pqn(facts: EnvFacts, env_steps: int) -> Settings:
    """Its ε falls over a share of the run; the step size falls until the end, but on Atari."""
    large = facts.image_side >= SMALL_IMAGE_SIDE
    found = {} if large else _PQN_SMALL_IMAGES if facts.image_side else _PQN_VECTORS
    if not env_steps:
        return found
    share = 0.1 if facts.image_side else 0.2
    return found | {"exploration_steps": round(share * env_steps)} | ({} if large else {"anneal": True})
