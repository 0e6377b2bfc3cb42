"""Settings without a preset for actor-critics of box actions (agents.box_catalogue): one update for every step.

SB3 and rl-zoo make as many. "rl-zoo" is DLR-RM/rl-baselines3-zoo, "SB3" Stable-Baselines3.
"""

from __future__ import annotations

from collections.abc import Mapping

from apexrl.agents.default_scaling import CATEGORIES, SCALED, SCALED_IMAGES, Settings

BOXES_VECTORS: Settings = SCALED | {
    "pink_noise": True,  # finds what takes many steps in one direction (Eberhard et al. 2023)
    "hidden": (256, 256),
    "learning_rate": 1e-3,  # rl-zoo's of Pendulum and of small robots; SB3's default is 3e-4
    "batch_size": 256,
    "updates_per_step": 1.0,
    "capacity": 1_000_000,
    "gamma": 0.99,
    "actors": 1,
    "envs_per_actor": 1,
    "pull_period": 10,
}
BOXES_IMAGES: Settings = SCALED_IMAGES | {
    "pink_noise": True,
    "hidden": (256,),
    "image_units": 256,
    "learning_rate": 3e-4,
    "batch_size": 128,
    "updates_per_step": 0.5,
    "min_size": 2_000,
    "capacity": 100_000,
    "gamma": 0.99,
    "actors": 1,
    "envs_per_actor": 4,
    "pull_period": 10,
}
_LARGE_RETURNS: Settings = {"reward_scale": 100.0}  # a step then earns about 1, which the first temperature of 1 suits
# The papers' 20 updates for every step take hours for what these do in minutes
_FOUR_UPDATES: Settings = {"updates_per_step": 4.0, "policy_period_updates": 4, "learning_rate": 3e-4}
BOXES_OWN: Mapping[str, Settings] = {
    "sac": _LARGE_RETURNS,
    "tqc": _LARGE_RETURNS | {"critics": 2, "critic_hidden": ()},  # sb3-contrib, rl-zoo: a tenth of the paper's work
    "redq": _LARGE_RETURNS | {"critics": 5} | _FOUR_UPDATES,
    "droq": _LARGE_RETURNS | _FOUR_UPDATES,
    # The authors' critics of 512 units are for a GPU
    "simba_v2": CATEGORIES | {"hidden": (128,), "critic_hidden": (128,)},
    "crossq": _LARGE_RETURNS
    | {"critic_hidden": (256, 256), "publish_period_updates": 10},  # the authors' 2048 units are for a GPU
    "td3": {"sigma": 0.3},  # of pink noise, as Eberhard et al. 2023 have it
    "ddpg": {"policy_learning_rate": 0.0, "polyak": 0.005, "sigma": 0.3},
    "bires_ddpg": {"policy_learning_rate": 0.0, "polyak": 0.005, "sigma": 0.3},
    # The authors' rewards are scaled too, to about 1 a step
    "cql": _LARGE_RETURNS | {"learning_rate": 3e-4},
    "iql": _LARGE_RETURNS | {"learning_rate": 3e-4},
    "td3_bc": {"learning_rate": 3e-4},
    # The authors' 128 environments and batches of 32 768 are for a GPU
    "fast_td3": CATEGORIES
    | {
        "critic_hidden": (),
        "batch_size": 1_024,
        "updates_per_step": 0.25,
        "envs_per_actor": 16,
        "pull_period": 1,
        "target_noise": 0.1,  # this and the next: theirs for a simple body (CheetahRun)
        "sigma_least": 0.1,
    },
    # The authors' 4096 environments and batches of 8192 are for a GPU
    "fast_sac": CATEGORIES
    | {
        "critic_hidden": (),
        "gamma": 0.99,
        "batch_size": 1_024,
        "updates_per_step": 0.25,
        "envs_per_actor": 16,
        "pull_period": 1,
        "policy_period_updates": 2,
        "polyak": 0.05,
        "random_start": True,
    },
    "d4pg": CATEGORIES | {"critic_hidden": (), "target_period_updates": 100, "sigma": 0.3},
}
