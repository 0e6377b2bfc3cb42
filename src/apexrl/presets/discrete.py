"""Settings for environments with discrete actions.

"Ape-X" is Horgan et al. 2018 (arXiv 1803.00933), section 4.1, Table 1 and appendix C; "rl-zoo" is
DLR-RM/rl-baselines3-zoo, ``hyperparams/dqn.yml``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apexrl.config import (
    ActorConfig,
    AgentConfig,
    Config,
    EnvConfig,
    EvaluatorConfig,
    LearnerConfig,
    ReplayConfig,
    StopConfig,
)
from apexrl.presets.known import Preset

CARTPOLE = Config(
    preset="cartpole",
    env=EnvConfig(env="CartPole-v1"),
    # rl-zoo's step size and batch; it reads every step 32 times, n = 3 needs fewer
    agent=AgentConfig(hidden=(128, 128), learning_rate=2.3e-3, gradient_clip=10.0, target_period_updates=200),
    replay=ReplayConfig(capacity=100_000, min_size=1_000, updates_per_step=0.125),
    actor=ActorConfig(actors=2, envs_per_actor=16, pull_period=20),
    learner=LearnerConfig(batch_size=64, checkpoint_seconds=5.0),
    stop=StopConfig(stop_at_return=499.0),  # 475 is solved; more, so that fresh episodes show it too
)

# RLlib's R2D2 on CartPole without velocities: LSTM 64, sequences of 20, step size 5e-4. Its burn-in of 20 would take
# as many steps as are trained on; 10 are ours.
_POSITION_R2D2: dict[str, Any] = {
    "hidden": (64,),
    "recurrent_units": 64,
    "sequence_length": 20,
    "sequence_stride": 10,
    "burn_in": 10,
    "gamma": 0.99,
    "learning_rate": 5e-4,
    "batch_size": 32,
    # These two count sequences: each brings 10 steps
    "capacity": 20_000,
    "min_size": 200,
    "updates_per_step": 0.025,  # every step is read 16 times
    "target_period_updates": 200,
}

# Returns here are at most 1/(1 − γ) = 100; papers that clip rewards have ±10. Step size between C51's and rl-zoo's.
_CARTPOLE_CATEGORIES: dict[str, Any] = {"v_min": 0.0, "v_max": 100.0, "learning_rate": 1e-3}
# More updates and copies of the target: without n-step returns values come one step further with every copy, and
# without ε a policy that drifts out of the picture is left sooner.
_CARTPOLE_OFTEN: dict[str, Any] = {"updates_per_step": 0.25, "target_period_updates": 100}
# Ours: a shorter horizon keeps returns within the categories; the paper makes two updates a step.
_BBF: dict[str, Any] = {"gamma": 0.99, "updates_per_step": 0.5, "batch_size": 32}
# Policy gradients here: CleanRL's PPO step size times four and its clip; Adam, and means over the steps, for all of
# them. An update for every 128 environment steps, or several gradient steps for 256 or 512.
_CARTPOLE_UNROLLS: dict[str, Any] = {
    "hidden": (64, 64),
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "optimizer_eps": 1e-5,
    "gradient_clip": 0.5,
    "summed_loss": False,
    "unroll_length": 16,
    "batch_size": 8,
}
# The authors' λ, reward scale and epochs for CartPole; larger steps, which the larger ε of Adam holds back where
# gradients are nearly 0.
_CARTPOLE_PQN: dict[str, Any] = {
    "trace_lambda": 0.95,
    "reward_scale": 0.1,
    "epochs": 4,
    "minibatches": 8,
    "batch_size": 32,
    "learning_rate": 2.5e-4,
    "optimizer_eps": 1e-5,
    "epsilon": 0.05,
    "exploration_steps": 20_000,
    "queue_batches": 1,
}
CARTPOLE_AGENTS: dict[str, dict[str, Any]] = {
    "c51": _CARTPOLE_CATEGORIES,
    "qr_dqn": {"quantiles": 10},  # rl-zoo
    "iqn": {"quantile_samples": 16},
    "rainbow": {**_CARTPOLE_CATEGORIES, **_CARTPOLE_OFTEN},
    "bbf": {**_CARTPOLE_CATEGORIES, **_BBF},
    "munchausen_dqn": _CARTPOLE_OFTEN,
    "r2d2": _POSITION_R2D2,
    "pqn": _CARTPOLE_PQN,
    "a2c": {**_CARTPOLE_UNROLLS, "learning_rate": 2e-3, "gae_lambda": 0.95},
    "impala": _CARTPOLE_UNROLLS,
    "ppo": {**_CARTPOLE_UNROLLS, "batch_size": 32},
    "appo": {**_CARTPOLE_UNROLLS, "batch_size": 16, "epochs": 2, "minibatches": 2, "clip_ratio": 0.2},
}

CARTPOLE_TOPOLOGIES: dict[str, dict[str, dict[str, Any]]] = {
    # Unrolls of all environments become full at the same time: what is learned from last has the most lag. Larger
    # batches are fewer updates meanwhile, and smaller ones than these are too noisy for the step size.
    "ga3c": {"a2c": {"batch_size": 16, "training_min_batch": 16}},
}

# The same with a memory. Returns are 100, and at the usual weight of 0.5 the LSTM was the values' alone: the policy
# stayed where it began. λ is PPO's.
_POSITION_IMPALA: dict[str, Any] = {
    **_CARTPOLE_UNROLLS,
    "memory": "lstm",
    "recurrent_units": 64,
    "hidden": (64,),
    "unroll_length": 32,
    "gae_lambda": 0.95,
    "value_coefficient": 0.005,
    "entropy_coefficient": 0.001,
}

POSITION_CARTPOLE = replace(
    CARTPOLE,
    preset="position-cartpole",
    env=EnvConfig(env="apexrl.envs.toy:PositionCartPole-v0"),
    evaluator=EvaluatorConfig(eval_period_seconds=2.0),
    stop=StopConfig(stop_at_return=475.0),
)

SLOW_CARTPOLE = replace(
    CARTPOLE,
    preset="slow-cartpole",
    env=EnvConfig(env="apexrl.envs.toy:SlowCartPole-v0", env_kwargs={"seconds": 0.005}),
    # They step at the same time, in threads: a third of the processor time of a process each
    actor=ActorConfig(actors=2, envs_per_actor=8, pull_period=20),
    # an evaluation episode of 500 steps takes 2.5 s here
    evaluator=EvaluatorConfig(eval_period_seconds=5.0),
)

CATCH = Config(
    preset="catch",
    env=EnvConfig(env="apexrl.envs.toy:Catch-v0"),
    agent=AgentConfig(learning_rate=2.5e-4, gradient_clip=10.0, target_period_updates=200),
    replay=ReplayConfig(capacity=50_000, min_size=1_000, updates_per_step=0.125),
    actor=ActorConfig(actors=2, envs_per_actor=16, pull_period=10),
    learner=LearnerConfig(batch_size=32),  # DQN's (Mnih et al. 2015)
    evaluator=EvaluatorConfig(eval_period_seconds=3.0),
    stop=StopConfig(stop_at_return=0.95, minutes=15.0),
)

LUNARLANDER = Config(
    preset="lunarlander",
    env=EnvConfig(env="LunarLander-v3"),
    # SLM-Lab's double DQN with PER reads every step 16 times; n = 3 needs fewer. Step size: rl-zoo's is 6.3e-4
    agent=AgentConfig(hidden=(128, 128), learning_rate=5e-4, gradient_clip=10.0, target_period_updates=500),
    replay=ReplayConfig(capacity=200_000, min_size=5_000, updates_per_step=0.125),
    actor=ActorConfig(actors=2, envs_per_actor=16, pull_period=20),
    learner=LearnerConfig(batch_size=64, checkpoint_seconds=15.0),
    evaluator=EvaluatorConfig(eval_period_seconds=5.0),
    stop=StopConfig(stop_at_return=230.0, minutes=30.0),  # 200 is solved; more, so that fresh episodes show it too
)

# Ours: a landing is worth 100 to 140, a crash -100, and the way there as much again.
_LUNARLANDER_CATEGORIES: dict[str, Any] = {"v_min": -300.0, "v_max": 300.0}

# Policy gradients here. Returns are hundreds, so values have layers of their own, as in SB3.
_LUNARLANDER_UNROLLS: dict[str, Any] = {
    **_CARTPOLE_UNROLLS,
    "separate_values": True,
    "anneal": True,
    "gamma": 0.995,
    "env_steps": 1_000_000,  # rl-zoo
}
_LUNARLANDER_IMPALA: dict[str, Any] = {
    **_LUNARLANDER_UNROLLS,
    "unroll_length": 32,
    "gae_lambda": 0.95,
    "entropy_coefficient": 0.1,  # beside advantages that are tens
}
_LUNARLANDER_APPO: dict[str, Any] = {
    **_LUNARLANDER_UNROLLS,
    # rl-zoo's PPO, which has twice the steps in an update, minibatches of half the size, and a step size that stays
    "gamma": 0.999,
    "gae_lambda": 0.98,
    "epochs": 4,
    "entropy_coefficient": 0.01,
    "learning_rate": 3e-4,  # SB3
    "clip_ratio": 0.2,  # SB3
    "unroll_length": 128,
    "batch_size": 64,
    "minibatches": 64,
    "env_steps": 2_000_000,
    "queue_batches": 1,  # with several epochs an update takes the policy far: the next one is to act soon
}

MINATAR_BREAKOUT = Config(
    preset="minatar-breakout",
    # sticky actions 0.1 and the least set of actions: -v1 as MinAtar registers it (Young & Tian 2019)
    env=EnvConfig(env="MinAtar/Breakout-v1"),
    agent=AgentConfig(
        learning_rate=2.5e-4,  # Dopamine's MinAtar settings
        optimizer_eps=3.1e-4,  # the same
        gradient_clip=10.0,
        image_units=128,  # MinAtar's DQN
        v_min=0.0,  # no reward is negative
        v_max=20.0,
        target_period_updates=1_000,  # MinAtar's DQN
    ),
    # capacity and first update: MinAtar's DQN; Dopamine samples 32 every 4 steps
    replay=ReplayConfig(capacity=100_000, min_size=5_000, updates_per_step=0.25),
    actor=ActorConfig(actors=2, envs_per_actor=8, pull_period=20),
    learner=LearnerConfig(batch_size=32, checkpoint_seconds=30.0),  # the batch: MinAtar's DQN
    evaluator=EvaluatorConfig(eval_period_seconds=20.0, eval_episodes=50, eval_envs=25),
    stop=StopConfig(env_steps=1_000_000, stop_at_return=10.0),  # ours: a margin over 8
)

# The authors' step size, ε and its share of the run, with batches of a quarter.
_MINATAR_PQN: dict[str, Any] = {
    "learning_rate": 5e-4,
    "anneal": True,
    "epsilon": 0.05,
    "exploration_steps": 100_000,
    "batch_size": 32,
    "minibatches": 8,
    "envs_per_actor": 16,
    "queue_batches": 1,
}

PONG = Config(
    preset="pong",
    env=EnvConfig(env="ALE/Pong-v5", atari=True, stack=4, reward_clip=1.0),  # Ape-X, appendix C
    agent=AgentConfig(
        n_step=3,  # Ape-X
        gamma=0.99,  # Ape-X
        image_units=512,  # of each dueling head (Wang et al. 2016)
        optimizer="rmsprop",  # Ape-X: centred RMSProp, no momentum
        learning_rate=2.5e-4 / 4,  # Ape-X
        optimizer_eps=1.5e-7,  # Ape-X
        rmsprop_decay=0.95,  # Ape-X
        gradient_clip=40.0,  # Ape-X
        target_period_updates=2_500,  # Ape-X, in learner updates
    ),
    # Ape-X keeps 2M transitions; 1M of ours are 7.1 GB, as every frame is stored once
    replay=ReplayConfig(capacity=1_000_000, alpha=0.6, beta=0.4, min_size=50_000),
    actor=ActorConfig(actors=8, envs_per_actor=4, epsilon=0.4, epsilon_alpha=7.0, pull_period=100),  # 400 frames
    learner=LearnerConfig(batch_size=512, prefetch=-1),
    evaluator=EvaluatorConfig(eval_episodes=10, eval_period_seconds=60.0),
    stop=StopConfig(stop_at_return=20.0),
)

DISCRETE: dict[str, Preset] = {
    "cartpole": Preset(
        CARTPOLE,
        "CartPole-v1 to a mean return of 499, in under a minute on two cores",
        agents=CARTPOLE_AGENTS,
        topologies=CARTPOLE_TOPOLOGIES,
    ),
    "slow-cartpole": Preset(
        SLOW_CARTPOLE,
        "the same with 5 ms a step, like a slow simulator: add actors and see",
        agents=CARTPOLE_AGENTS,
        topologies=CARTPOLE_TOPOLOGIES,
    ),
    "position-cartpole": Preset(
        POSITION_CARTPOLE,
        "CartPole-v1 without velocities to 475, by a network with a memory (r2d2, impala), minutes on a CPU",
        agent="r2d2",
        agents={
            "c51": _CARTPOLE_CATEGORIES,
            "rainbow": _CARTPOLE_CATEGORIES,
            "bbf": {**_CARTPOLE_CATEGORIES, **_BBF},
            "r2d2": _POSITION_R2D2,
            "impala": _POSITION_IMPALA,
        },
    ),
    "catch": Preset(CATCH, "Catch on 84×84 pixels to 0.95 (best: 1), minutes on a CPU"),
    "lunarlander": Preset(
        LUNARLANDER,
        "LunarLander-v3 to 230 (solved: 200)",
        "box2d",
        ("Box2D",),
        agents={
            "c51": _LUNARLANDER_CATEGORIES,
            "rainbow": _LUNARLANDER_CATEGORIES,
            "bbf": {**_LUNARLANDER_CATEGORIES, **_BBF},
            "impala": _LUNARLANDER_IMPALA,
            "appo": _LUNARLANDER_APPO,
        },
    ),
    "minatar-breakout": Preset(
        MINATAR_BREAKOUT,
        "MinAtar Breakout with Rainbow, 1M frames",
        "minatar",
        ("minatar",),
        agent="rainbow",
        agents={"pqn": _MINATAR_PQN, "bbf": {**_BBF, "updates_per_step": 1.0}},
    ),
    "pong": Preset(
        PONG,
        "Atari Pong from pixels to 20, with Ape-X's numbers",
        "atari",
        ("ale_py", "cv2"),
        # its name's numbers are the authors' for Atari: 128 environments, one unroll of each in a batch
        agents={"pqn": {"envs_per_actor": 16, "queue_batches": 1}},
    ),
}
