"""Every shipped agent by name: where it is, what it needs, what its name stands for, whose it is. Loads no PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

from apexrl.agents.agent_info import (
    ANY,
    ANY_OR_BOTH,
    DISCRETE,
    HORIZON,
    KEPT,
    LEARNED,
    POLYAK,
    REMEMBERS,
    SOFT,
    STEP_SIZE,
    AgentInfo,
)
from apexrl.agents.box_catalogue import BOX_AGENTS
from apexrl.config import agent_settings as families
from apexrl.config import value_settings as values
from apexrl.config.agent_game_settings import MixingSettings
from apexrl.config.schema import EpsilonSettings, HindsightSettings

_EPSILON = (EpsilonSettings, "exploration_steps")
_VALUES = (*KEPT, values.ValueSettings, families.TargetSettings, families.LayerSettings, *_EPSILON, "huber")
_DQN = (
    *_VALUES,
    *REMEMBERS,
    HindsightSettings,
    HORIZON,
    values.ResetSettings,
    values.NoisySettings,
    values.MunchausenSettings,
    values.DistributionSettings,
    values.CategoricalSettings,
    families.ConservativeSettings,
)
_GAMMA = ("anneal_horizon", "gamma_start", "horizon_updates")
_GRADIENTS = (
    *STEP_SIZE,
    *_GAMMA,
    families.ActorCriticSettings,
    families.ActingNoiseSettings,
    families.LayerSettings,
    families.MemorySettings,
)
_PQN = (
    *(*STEP_SIZE, *_GAMMA, families.LayerSettings, families.TraceSettings, *_EPSILON, "dueling", "huber"),
    *("unroll_length", "epochs", "minibatches"),
)
_team = partial(
    AgentInfo,
    "apexrl.agents.value_decomposition:ValueDecomposition",
    DISCRETE,
    (
        *(*KEPT, HORIZON, *REMEMBERS, *_EPSILON),
        *(MixingSettings, families.TargetSettings, families.LayerSettings, "double", "huber"),
    ),
)
_dqn = partial(AgentInfo, "apexrl.agents.dqn:DQN", DISCRETE, _DQN)
_actor_critic = partial(AgentInfo, "apexrl.agents.actor_critic:ActorCritic", ANY_OR_BOTH, _GRADIENTS, item="unroll")

# The switches of Q-learning, all off, and Ape-X's ε: a name below turns on its own.
_PLAIN: dict[str, Any] = {
    "double": False,
    "dueling": False,
    "noisy": False,
    "munchausen": False,
    "distribution": "expected",
    "conservative_weight": 0.0,
    "target_acts": False,
    "epsilon": 0.4,
}
# Of the teams that environments of several agents are; each agent explores by itself.
_TEAM: dict[str, Any] = {
    "team": True,
    "double": False,
    "epsilon": 0.05,
    "epsilon_alpha": 0.0,
    "alpha": 0.0,
    "n_step": 1,
}
# Policy gradients from unrolls (Mnih et al. 2016; what the later ones kept). Actors look for weights at every step, and
# every update publishes: whatever lag there is, is the topology's.
_UNROLLS: dict[str, Any] = {
    "gamma": 0.99,
    "gae_lambda": 1.0,
    "value_coefficient": 0.5,
    "entropy_coefficient": 0.01,
    "normalize_advantages": False,
    "summed_loss": False,
    "pink_noise": False,
    "epochs": 1,
    "minibatches": 1,
    "publish_period_updates": 1,
    "pull_period": 1,
}
_RMSPROP: dict[str, Any] = {"optimizer": "rmsprop", "centered": False, "momentum": 0.0, "rmsprop_decay": 0.99}

AGENTS: dict[str, AgentInfo] = {
    "dqn": _dqn(
        "Q-learning with a target network",
        "Mnih et al. 2015, Human-level control through deep reinforcement learning, Nature 518",
        _PLAIN,
    ),
    "double_dqn": _dqn(
        "DQN whose online network chooses the next action",
        "van Hasselt et al. 2016, Deep Reinforcement Learning with Double Q-learning, arXiv 1509.06461",
        _PLAIN | {"double": True},
        identity=("double",),
    ),
    "dueling_dqn": _dqn(
        "double DQN with value and advantage heads; with n-step returns and priorities it is Ape-X DQN",
        "Wang et al. 2016, Dueling Network Architectures, arXiv 1511.06581; Horgan et al. 2018, arXiv 1803.00933",
        _PLAIN | {"double": True, "dueling": True},
        identity=("double", "dueling"),
    ),
    "c51": _dqn(
        "DQN that learns the probabilities of 51 returns; set v_min and v_max to the least and greatest",
        "Bellemare et al. 2017, A Distributional Perspective on Reinforcement Learning, arXiv 1707.06887",
        _PLAIN | {"distribution": "categorical"},
        identity=("distribution",),
    ),
    "qr_dqn": _dqn(
        "DQN that learns quantiles of the return",
        "Dabney et al. 2018, Distributional Reinforcement Learning with Quantile Regression, arXiv 1710.10044",
        _PLAIN | {"distribution": "quantile"},
        identity=("distribution",),
    ),
    "iqn": _dqn(
        "DQN that learns the return's whole quantile function",
        "Dabney et al. 2018, Implicit Quantile Networks, arXiv 1806.06923",
        _PLAIN | {"distribution": "implicit_quantile"},
        identity=("distribution",),
    ),
    "noisy_dqn": _dqn(
        "DQN that explores by noise in its weights, and learns how much; no ε",
        "Fortunato et al. 2018, Noisy Networks for Exploration, arXiv 1706.10295",
        _PLAIN | {"noisy": True, "epsilon": 0.0},
        identity=("noisy",),
    ),
    "rainbow": _dqn(
        "DQN with everything: double, dueling, categorical, noisy, n-step, prioritized by divergence",
        "Hessel et al. 2018, Rainbow: Combining Improvements in Deep Reinforcement Learning, arXiv 1710.02298",
        _PLAIN
        | {
            "double": True,
            "dueling": True,
            "noisy": True,
            "distribution": "categorical",
            "epsilon": 0.0,
            "n_step": 3,
            "alpha": 0.5,
            "beta": 0.4,  # constant, as in Ape-X; theirs rises to 1
        },
        identity=("double", "dueling", "noisy", "distribution"),
    ),
    "bbf": _dqn(
        "Rainbow's for many updates a step: resets, n and γ that change after each, a slow target that acts; without "
        "the paper's self-prediction (SPR)",
        "Schwarzer et al. 2023, Bigger, Better, Faster: Human-level Atari with Human-level Efficiency, "
        "arXiv 2305.19452",
        _PLAIN
        | {
            "double": True,
            "dueling": True,
            "distribution": "categorical",
            "target_acts": True,
            "polyak": 0.005,
            "optimizer": "adamw",
            "weight_decay": 0.1,
            "n_step": 3,
            "gamma": 0.997,
            "anneal_horizon": True,
            "n_step_start": 10,
            "gamma_start": 0.97,
            "horizon_updates": 10_000,
            "reset_period_updates": 40_000,
            "shrink_factor": 0.5,
            "alpha": 0.5,
            "beta": 0.5,
        },
        identity=("double", "dueling", "distribution", "target_acts"),
        by_gradients=False,
    ),
    "munchausen_dqn": _dqn(
        "DQN with soft targets and the scaled log-policy added to the reward",
        "Vieillard et al. 2020, Munchausen Reinforcement Learning, arXiv 2007.14430",
        _PLAIN | {"munchausen": True, "n_step": 1},
        identity=("munchausen",),
    ),
    "discrete_cql": _dqn(
        "double DQN that gives low values to actions that were not recorded: for datasets",
        "Kumar et al. 2020, Conservative Q-Learning for Offline Reinforcement Learning, arXiv 2006.04779",
        _PLAIN | {"double": True, "conservative_weight": 1.0, "alpha": 0.0, "n_step": 1},
        identity=("double", "conservative_weight"),
        offline=True,
    ),
    "bc": AgentInfo(
        "apexrl.agents.behaviour_cloning:BehaviourCloning",
        ANY,
        KEPT,
        "behaviour cloning: supervised learning of recorded actions, for datasets",
        "Bain and Sammut 1999, A Framework for Behavioural Cloning, Machine Intelligence 15; Fujimoto & Gu 2021, "
        "arXiv 2106.06860",
        {  # as SAC's, where nothing of it is of values
            "n_step": 1,
            "hidden": (256, 256),
            "optimizer": "adam",
            "learning_rate": 3e-4,
            "gradient_clip": 0.0,
            "batch_size": 256,
            "alpha": 0.0,
        },
        offline=True,
    ),
    "vdn": _team(
        "Q-learning of a team: the values of its agents' own actions, by one network for all, are added",
        "Sunehag et al. 2018, Value-Decomposition Networks For Cooperative Multi-Agent Learning, arXiv 1706.05296",
        _TEAM | {"mixer": "sum"},
        identity=("mixer",),
    ),
    "qmix": _team(
        "Q-learning of a team: its agents' values are mixed by a monotonic network that sees the state",
        "Rashid et al. 2018, QMIX: Monotonic Value Function Factorisation, arXiv 1803.11485",
        _TEAM | {"mixer": "monotonic"},
        identity=("mixer",),
    ),
    "discrete_sac": AgentInfo(
        "apexrl.agents.discrete_sac:DiscreteSAC",
        DISCRETE,
        (*SOFT, *REMEMBERS, families.TargetSettings, families.ActingNoiseSettings, "huber"),
        "soft actor-critic over discrete actions: expectations where SAC samples",
        "Christodoulou 2019, Soft Actor-Critic for Discrete Action Settings, arXiv 1910.07207",
        # step sizes, batch and replay are the preset's, as n-step and priorities are
        POLYAK | LEARNED | {"optimizer": "adam", "policy_period_updates": 1},
    ),
    "r2d2": AgentInfo(
        "apexrl.agents.r2d2:R2D2",
        DISCRETE,
        (
            *_VALUES,
            families.SequenceSettings,
            "recurrent_units",
            families.RescalingSettings,
            families.TraceSettings,
            families.PolicyLadderSettings,
        ),
        "Q-learning with an LSTM, from sequences. The paper's network sees --last-action-reward too",
        "Kapturowski et al. 2019, Recurrent Experience Replay in Distributed Reinforcement Learning, ICLR",
        {
            "double": True,
            "dueling": True,
            "epsilon": 0.4,
            "multi_step": "n_step",
            "n_step": 5,
            "gamma": 0.997,
            "huber": 0.0,
            "optimizer": "adam",
            "learning_rate": 1e-4,
            "optimizer_eps": 1e-3,
            "gradient_clip": 40.0,  # SEED's; the paper names none
            "target_period_updates": 2500,
            "polyak": 0.0,
            "sequence_length": 80,
            "sequence_stride": 40,
            "burn_in": 40,
            "recurrent_units": 512,
            "rescaling_eps": 1e-3,
            "priority_eta": 0.9,
            "alpha": 0.9,
            "beta": 0.6,
            "batch_size": 64,
            "capacity": 100_000,  # sequences
            "min_size": 1_250,  # sequences: Ape-X's 50 000 steps
            "updates_per_step": 0.4 / (64 * 40),  # every step is trained on 0.8 times, as theirs were
        },
        item="sequence",
    ),
    "pqn": AgentInfo(
        "apexrl.agents.pqn:PQN",
        DISCRETE,
        _PQN,
        "Q-learning from unrolls of many environments: λ-returns and layer normalisation, no replay, no target network",
        "Gallici et al. 2024, Simplifying Deep Temporal Difference Learning, arXiv 2407.04811",
        # the authors' for Atari (mttga/purejaxql: purejaxql/config/alg/pqn_atari.yaml)
        {
            "gamma": 0.99,
            "multi_step": "peng",
            "trace_lambda": 0.65,
            "layer_norm": True,
            "dueling": False,
            "huber": 0.0,
            "unroll_length": 32,
            "batch_size": 128,  # unrolls: one of each of 128 environments
            "epochs": 2,
            "minibatches": 32,
            "optimizer": "radam",
            "learning_rate": 2.5e-4,
            "optimizer_eps": 1e-8,
            "gradient_clip": 10.0,
            "epsilon": 0.001,
            "epsilon_alpha": 0.0,
            "exploration_steps": 1_000_000,
            "publish_period_updates": 1,
            "pull_period": 1,
        },
        item="unroll",
    ),
    "a2c": _actor_critic(
        "policy gradient with returns of 5 steps and an entropy bonus: A3C's agent, and A2C's",
        "Mnih et al. 2016, Asynchronous Methods for Deep Reinforcement Learning, arXiv 1602.01783",
        # step size, ε (inside the root) and clip: pfrl's reproduction of A3C on Atari
        _UNROLLS
        | _RMSPROP
        | {
            "correction": "none",
            "surrogate": "log_prob",
            "unroll_length": 5,
            "summed_loss": True,  # gradients of the five steps accumulate (algorithm S3)
            "learning_rate": 7e-4,
            "optimizer_eps": 0.1,
            "gradient_clip": 40.0,
            "batch_size": 16,  # unrolls: A3C's 16 workers, A2C's 16 environments
        },
        identity=("correction", "surrogate"),
    ),
    "impala": _actor_critic(
        "policy gradient with V-trace, which corrects for the policy lag of its unrolls",
        "Espeholt et al. 2018, IMPALA: Scalable Distributed Deep-RL, arXiv 1802.01561",
        # appendix G.1, Atari; its step size falls to 0
        _UNROLLS
        | _RMSPROP
        | {
            "correction": "vtrace",
            "surrogate": "log_prob",
            "rho_clip": 1.0,
            "c_clip": 1.0,
            "unroll_length": 20,
            "summed_loss": True,
            "learning_rate": 6e-4,
            "optimizer_eps": 0.01,
            "gradient_clip": 40.0,
            "batch_size": 32,
        },
        identity=("correction", "surrogate"),
    ),
    "ppo": _actor_critic(
        "policy gradient with a clipped probability ratio; four passes over each batch",
        "Schulman et al. 2017, Proximal Policy Optimization Algorithms, arXiv 1707.06347",
        # CleanRL's for Atari, whose clip is 0.1 and whose step size falls to 0
        _UNROLLS
        | {
            "correction": "none",
            "surrogate": "clipped",
            "clip_ratio": 0.2,
            "gae_lambda": 0.95,
            "unroll_length": 128,
            "normalize_advantages": True,
            "epochs": 4,
            "minibatches": 4,
            "optimizer": "adam",
            "learning_rate": 2.5e-4,
            "optimizer_eps": 1e-5,
            "gradient_clip": 0.5,
            "batch_size": 8,  # unrolls: 8 environments
        },
        identity=("correction", "surrogate"),
    ),
    "appo": _actor_critic(
        "PPO's clipped ratio with V-trace: one pass over each batch, which may come from older policies",
        "Petrenko et al. 2020, Sample Factory, arXiv 2006.11751",
        # Sample Factory 2's defaults, but that V-trace is on, as in the paper; its ratio's range is [1/1.1, 1.1]
        _UNROLLS
        | {
            "correction": "vtrace",
            "surrogate": "clipped",
            "rho_clip": 1.0,
            "c_clip": 1.0,
            "clip_ratio": 0.1,
            "unroll_length": 32,
            "normalize_advantages": True,
            "entropy_coefficient": 0.003,
            "optimizer": "adam",
            "learning_rate": 1e-4,
            "optimizer_eps": 1e-6,
            "gradient_clip": 4.0,
            "batch_size": 32,  # unrolls: 1024 steps
            "max_policy_lag": 1000,
        },
        identity=("correction", "surrogate"),
    ),
    **BOX_AGENTS,
}
