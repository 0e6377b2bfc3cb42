"""Shipped agents of box actions that learn from transitions: soft and deterministic actor-critics. Loads no PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

from apexrl.agents.agent_info import BOX, BOX_OR_BOTH, HORIZON, KEPT, LEARNED, POLYAK, REMEMBERS, SOFT, AgentInfo
from apexrl.config import agent_settings as families
from apexrl.config import value_settings as values
from apexrl.config.schema import ActionNoiseSettings, HindsightSettings

_SOFT = (*SOFT, families.ActingNoiseSettings)
_DETERMINISTIC = (
    *KEPT,
    HORIZON,
    *REMEMBERS,
    HindsightSettings,
    families.CriticSettings,
    families.TargetSettings,
    ActionNoiseSettings,
    families.ActingNoiseSettings,
)

# What actor-critic methods of one transition have in common (SB3's SAC; much of TD3's later code). With alpha 0 nobody
# asks actors for priorities; critics are published all the same (docs/how-to/run-on-many-machines.md has sizes).
_ACTOR_CRITIC: dict[str, Any] = {
    "n_step": 1,
    "gamma": 0.99,
    "hidden": (256, 256),
    "critic_hidden": (),
    "optimizer": "adam",
    "learning_rate": 3e-4,
    "policy_learning_rate": 0.0,
    "policy_period_updates": 1,
    "pink_noise": False,
    "gradient_clip": 0.0,
    "batch_size": 256,
    "capacity": 1_000_000,
    "alpha": 0.0,
    "min_size": 10_000,  # rl-zoo's learning_starts for MuJoCo, of SAC and of TD3
    "updates_per_step": 1.0,
    "random_start": True,
    "pull_period": 10,  # ours: one publication, if every step has its update (they act with the newest weights)
}
# DDPG's paper, but for its weight decay of 1e-2 and its Ornstein-Uhlenbeck noise, which later work leaves out.
_DDPG: dict[str, Any] = _ACTOR_CRITIC | {
    "hidden": (400, 300),
    "learning_rate": 1e-3,  # of the critic
    "policy_learning_rate": 1e-4,
    "polyak": 0.001,
    "batch_size": 64,
    "sigma": 0.2,
    "residual": 0.0,
}
_TD3 = (*_DETERMINISTIC, families.CloningSettings, "target_noise", "target_noise_clip", "huber")
_TD3_SETTINGS: dict[str, Any] = {
    "policy_period_updates": 2,
    "target_noise": 0.2,
    "target_noise_clip": 0.5,
    "sigma": 0.1,
}
_FREQUENT = (
    *_SOFT,
    *REMEMBERS,
    families.TargetSettings,
    families.EnsembleSettings,
    families.FrequentUpdateSettings,
    "huber",
)
_redq = partial(AgentInfo, "apexrl.agents.redq:REDQ", BOX, _FREQUENT)
# Both papers have these numbers; the step sizes, layers and batch are SAC's.
_REDQ: dict[str, Any] = (
    _ACTOR_CRITIC
    | POLYAK
    | LEARNED
    | {
        "target_critics": 2,
        "eager_targets": True,
        "updates_per_step": 20.0,
        "policy_period_updates": 20,
        "min_size": 5_000,
        "publish_period_updates": 20,  # ours: with every update of the policy
    }
)

BOX_AGENTS: dict[str, AgentInfo] = {
    "sac": AgentInfo(
        "apexrl.agents.sac:SAC",
        BOX_OR_BOTH,
        (*_SOFT, *REMEMBERS, families.TargetSettings, "huber"),
        "soft actor-critic: two critics, a random policy, a learned temperature",
        "Haarnoja et al. 2018, Soft Actor-Critic Algorithms and Applications, arXiv 1812.05905",
        _ACTOR_CRITIC | POLYAK | LEARNED,
    ),
    "tqc": AgentInfo(
        "apexrl.agents.tqc:TQC",
        BOX,
        (
            *_SOFT,
            *REMEMBERS,
            families.TargetSettings,
            families.EnsembleSettings,
            families.TruncationSettings,
            "quantiles",
            "huber",
        ),
        "SAC with five critics of 25 quantiles; targets leave out the greatest, which overestimation makes",
        "Kuznetsov et al. 2020, Controlling Overestimation Bias with Truncated Mixture of Continuous Distributional "
        "Quantile Critics, arXiv 2005.04269",
        _ACTOR_CRITIC
        | POLYAK
        | LEARNED
        | {"critics": 5, "critic_hidden": (512, 512, 512), "quantiles": 25, "dropped_quantiles": 2},
    ),
    "redq": _redq(
        "SAC with ten critics, two drawn for each target, and 20 updates for every step: learns from fewer steps",
        "Chen et al. 2021, Randomized Ensembled Double Q-Learning: Learning Fast Without a Model, arXiv 2101.05982",
        _REDQ | {"critics": 10, "critic_dropout": 0.0, "critic_layer_norm": False},
    ),
    "droq": _redq(
        "REDQ with two critics only, which have dropout and layer norm instead",
        "Hiraoka et al. 2022, Dropout Q-Functions for Doubly Efficient Reinforcement Learning, arXiv 2110.02034",
        _REDQ | {"critics": 2, "critic_dropout": 0.01, "critic_layer_norm": True},
        identity=("critic_dropout", "critic_layer_norm"),
    ),
    "simba_v2": AgentInfo(
        "apexrl.agents.simba_v2:SimbaV2",
        BOX,
        (*_SOFT, families.TargetSettings, families.EnsembleSettings, values.CategoricalSettings),
        "SAC on residual blocks whose features and weights have length 1, with categorical critics",
        "Lee et al. 2025, Hyperspherical Normalization for Scalable Deep Reinforcement Learning, arXiv 2502.15280",
        _ACTOR_CRITIC
        | POLYAK
        | LEARNED
        | {  # all the authors', with the two updates for every step of their MuJoCo curves
            "hidden": (128,),
            "critic_hidden": (512, 512),
            "critics": 2,
            "atoms": 101,
            "v_min": -5.0,
            "v_max": 5.0,
            "normalize_observations": True,
            "normalize_returns": True,
            "initial_temperature": 0.01,
            "learning_rate": 1e-4,
            "updates_per_step": 2.0,
            "min_size": 5_000,
        },
        by_gradients=False,
    ),
    "fast_sac": AgentInfo(
        "apexrl.agents.fast_sac:FastSAC",
        BOX,
        (
            *_SOFT,
            *REMEMBERS,
            families.TargetSettings,
            families.EnsembleSettings,
            values.CategoricalSettings,
            "layer_norm",
            "eager_targets",
        ),
        "SAC with categorical critics, for many environments: large batches, few updates. Set --v-min, --v-max",
        "Seo et al. 2025, Learning Sim-to-Real Humanoid Locomotion in 15 Minutes, arXiv 2512.01996",
        _ACTOR_CRITIC
        | LEARNED
        | {  # all the authors', for the locomotion of humanoids
            "gamma": 0.97,
            "hidden": (512, 256, 128),
            "critic_hidden": (768, 384, 192),
            "critics": 2,
            "layer_norm": True,
            "atoms": 101,
            "v_min": -20.0,
            "v_max": 20.0,
            "normalize_observations": True,
            "optimizer": "adamw",
            "weight_decay": 0.001,
            "second_moment_decay": 0.95,
            "initial_temperature": 0.001,
            "batch_size": 8_192,
            "updates_per_step": 8 / 4_096,  # eight for each step of their 4096 environments
            "min_size": 40_960,  # ten steps of each
            "policy_period_updates": 4,
            "polyak": 0.125,
            "eager_targets": True,
            "random_start": False,
        },
    ),
    "crossq": AgentInfo(
        "apexrl.agents.crossq:CrossQ",
        BOX,
        (*_SOFT, *REMEMBERS, "huber"),
        "SAC with batch normalisation and wide critics instead of target networks: learns from fewer steps",
        "Bhatt et al. 2024, CrossQ: Batch Normalization in Deep Reinforcement Learning, arXiv 1902.05605",
        _ACTOR_CRITIC
        | LEARNED
        | {  # all the authors'
            "critic_hidden": (2048, 2048),
            "learning_rate": 1e-3,
            "first_moment_decay": 0.5,
            "policy_period_updates": 3,
            "min_size": 5_000,
            "publish_period_updates": 100,  # ours: the critics travel too, 17 MB each
        },
        by_gradients=False,
    ),
    "ddpg": AgentInfo(
        "apexrl.agents.ddpg:DDPG",
        BOX,
        (*_DETERMINISTIC, "residual", "huber"),
        "one critic, and a deterministic policy that maximises it; Gaussian noise explores",
        "Lillicrap et al. 2016, Continuous control with deep reinforcement learning, arXiv 1509.02971",
        _DDPG,
    ),
    "bires_ddpg": AgentInfo(
        "apexrl.agents.ddpg:DDPG",
        BOX,
        (*_DETERMINISTIC, "residual", "huber"),
        "DDPG whose critic learns backwards in time too; residual is the authors' η (tf2rl's is this divided by γ)",
        "Zhang et al. 2019, Deep Residual Reinforcement Learning, arXiv 1905.01072",
        _DDPG | {"residual": 0.05},  # the authors' main runs
        identity=("residual",),
    ),
    "td3": AgentInfo(
        "apexrl.agents.td3:TD3",
        BOX,
        _TD3,
        "DDPG with two critics, noise on target actions, and a policy update with every second critic update",
        "Fujimoto et al. 2018, Addressing Function Approximation Error in Actor-Critic Methods, arXiv 1802.09477",
        # delay, noise and its clip, σ: the paper's; step size, layers and batch: its authors' later code's
        _ACTOR_CRITIC | POLYAK | _TD3_SETTINGS | {"cloned_value_weight": 0.0},
    ),
    "td3_bc": AgentInfo(
        "apexrl.agents.td3:TD3",
        BOX,
        _TD3,
        "TD3 whose policy also stays near the recorded actions: for datasets",
        "Fujimoto & Gu 2021, A Minimalist Approach to Offline Reinforcement Learning, arXiv 2106.06860",
        _ACTOR_CRITIC | POLYAK | _TD3_SETTINGS | {"cloned_value_weight": 2.5},
        identity=("cloned_value_weight",),
        offline=True,
    ),
    "cql": AgentInfo(
        "apexrl.agents.cql:CQL",
        BOX,
        (
            *_SOFT,
            families.TargetSettings,
            families.ConservativeSettings,
            families.ConservativeBoxSettings,
            "huber",
        ),
        "SAC whose critics give low values to actions that were not recorded: for datasets",
        "Kumar et al. 2020, Conservative Q-Learning for Offline Reinforcement Learning, arXiv 2006.04779",
        _ACTOR_CRITIC
        | POLYAK
        | LEARNED
        | {"conservative_weight": 5.0, "conservative_actions": 10, "policy_learning_rate": 1e-4},
        identity=("conservative_weight",),
        offline=True,
    ),
    "iql": AgentInfo(
        "apexrl.agents.iql:IQL",
        BOX,
        (
            *KEPT,
            HORIZON,
            families.CriticSettings,
            families.TargetSettings,
            families.ImplicitSettings,
            families.ActingNoiseSettings,
            "huber",
        ),
        "a value, critics and a policy that learn from recorded actions alone: for datasets, and to go on with actors",
        "Kostrikov et al. 2021, Offline Reinforcement Learning with Implicit Q-Learning, arXiv 2110.06169",
        _ACTOR_CRITIC | POLYAK | {"expectile": 0.7, "advantage_scale": 3.0, "advantage_clip": 100.0},
        offline=True,
    ),
    "fast_td3": AgentInfo(
        "apexrl.agents.fast_td3:FastTD3",
        BOX,
        (
            *_DETERMINISTIC,
            values.CategoricalSettings,
            "target_noise",
            "target_noise_clip",
            "eager_targets",
        ),
        "TD3 with categorical critics, for many environments: large batches, few updates. Set --v-min, --v-max",
        "Seo et al. 2025, FastTD3: Simple, Fast, and Capable Reinforcement Learning for Humanoid Control, "
        "arXiv 2505.22642",
        _ACTOR_CRITIC
        | {  # all the authors', for HumanoidBench
            "hidden": (512, 256, 128),
            "critic_hidden": (1024, 512, 256),
            "atoms": 101,
            "v_min": -250.0,
            "v_max": 250.0,
            "normalize_observations": True,
            "optimizer": "adamw",
            "weight_decay": 0.1,
            "batch_size": 32_768,
            "updates_per_step": 2 / 128,  # two for each step of their 128 environments
            "min_size": 1_280,  # ten steps of each
            "policy_period_updates": 2,
            "polyak": 0.1,
            "eager_targets": True,
            "target_noise": 0.001,
            "target_noise_clip": 0.5,
            "sigma": 0.4,
            "sigma_least": 0.001,
            "random_start": False,
        },
    ),
    "d4pg": AgentInfo(
        "apexrl.agents.d4pg:D4PG",
        BOX,
        (*_DETERMINISTIC, values.CategoricalSettings),
        "DDPG with a distributional critic, five-step returns and priorities: Ape-X DPG's replay. Set --v-min, --v-max",
        "Barth-Maron et al. 2018, Distributed Distributional Deterministic Policy Gradients, arXiv 1804.08617; "
        "Horgan et al. 2018, Distributed Prioritized Experience Replay, arXiv 1803.00933, appendix D",
        _ACTOR_CRITIC
        | {
            "n_step": 5,
            "hidden": (300, 200),  # this and the next ones: Acme's
            "critic_hidden": (400, 300),
            "learning_rate": 1e-4,
            "atoms": 51,
            "v_min": -150.0,
            "v_max": 150.0,
            "polyak": 0.0,
            "target_period_updates": 100,  # Ape-X DPG's too, as are all that follow
            "sigma": 0.3,
            "alpha": 0.6,
            "beta": 0.4,
            "remover": "proportional",
            "remover_alpha": -0.4,
            "trim_every": 100,
        },
    ),
}
