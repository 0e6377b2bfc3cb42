"""The settings of agents, a dataclass for each family of them; those of Q-learning are in ``value_settings``.

``agents.catalogue`` says which families an agent reads. "Ape-X" is Horgan et al. 2018 (arXiv 1803.00933), Table 1 and
appendix C; where a default is ours, it says why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from apexrl.config.agent_game_settings import MixingSettings
from apexrl.config.settings import Needs, Range
from apexrl.config.value_settings import (
    CategoricalSettings,
    DistributionSettings,
    HorizonSettings,
    MunchausenSettings,
    NoisySettings,
    ResetSettings,
    ValueSettings,
)


@dataclass(frozen=True)
class AgentChoice:
    """Which agent and which encoder."""

    agent: str = "dueling_dqn"
    """Name of a shipped agent, which also sets its defaults, or package.module:Class."""
    network: str = ""
    """package.module:Class of your own encoder; empty: an MLP for vectors, convolutions for images."""
    agent_settings: dict[str, Any] = field(default_factory=dict)
    """Settings that an agent of your own declares (its attribute ``Settings``), by name."""


@dataclass(frozen=True)
class LearningSettings:
    """Settings of every agent: discount, encoder sizes, loss of TD errors."""

    n_step: Annotated[int, Range(1, 1_000), Needs("multi_step", ("n_step",))] = 3
    """Environment steps of reward before bootstrapping (Ape-X: 3)."""
    gamma: Annotated[float, Range(0, 1)] = 0.99
    """Discount per environment step (Ape-X: 0.99)."""
    hidden: Annotated[tuple[int, ...], Range(1, 1 << 20)] = (256, 256)
    """Units of the fully connected layers for vector observations (rl-zoo's CartPole DQN: 256, 256)."""
    image_units: Annotated[int, Range(1, 1 << 20)] = 512
    """Units of the fully connected layer behind convolutions (Mnih et al. 2015: 512)."""
    normalize_observations: bool = False
    """Scales observations to mean 0 and deviation 1 by running statistics. Bytes are divided by 255 instead."""
    byte_maximum: Annotated[int, Range(1, 255), Needs("network", ("",))] = 255
    """Images and vectors of bytes are divided by this in place of 255.
    Without a preset: the least power of 2 that no byte exceeds in random steps, if at most 64 and no image is large."""
    observation_clip: Annotated[float, Range(above=0), Needs("normalize_observations")] = 10.0
    """Bound of scaled observations, in deviations (Stable-Baselines3's VecNormalize: 10)."""
    normalize_returns: bool = False
    """Divides rewards, when they are learned from, by the running size of discounted returns.
    Learned returns are then of size 1, whatever the rewards' scale is."""
    reward_scale: Annotated[float, Range(above=0)] = 1.0
    """Factor of every reward that is learned from; with normalize_returns the size of learned returns."""
    huber: Annotated[float, Range(0), Needs("distribution", unless=("categorical",))] = 0.0
    """κ of the Huber loss, in TD-error units; 0 is the plain ½δ² (Ape-X). Quantile losses take 0 as 1 (their paper)."""


@dataclass(frozen=True)
class LayerSettings:
    """Layers of encoders and heads."""

    encoder: Annotated[Literal["auto", "minatar", "small", "nature", "shallow", "resnet"], Needs("network", ("",))] = (
        "auto"
    )
    """Convolutions for images: IMPALA's residual network, DQN's (nature), A3C's (shallow), or those for small images.
    auto: nature from 36 pixels a side on, small from 16, else minatar. shallow has a third of nature's work."""
    encoder_width: Annotated[int, Range(1, 64), Needs("network", ("",))] = 1
    """Factor of the filters of every convolution (BBF: 4, of resnet)."""
    layer_norm: bool = False
    """Layer normalisation before every ReLU of encoder and head (PQN; Ba et al. 2016)."""
    precision: Annotated[Literal["float32", "bfloat16", "auto"], Needs("network", ("",))] = "float32"
    """Numbers in which convolutions compute; weights stay float32.
    auto: bfloat16 where processor or GPU multiplies such numbers itself (AVX512-BF16, AMX)."""


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer of every network."""

    optimizer: Literal["adam", "adamw", "radam", "rmsprop", "adagrad", "sgd"] = "adam"
    """Optimizer. adamw is adam with weight_decay; radam is PQN's; adagrad is Gorila's.
    rmsprop adds ε inside the root, like TensorFlow, Ape-X and A3C."""
    centered: Annotated[bool, Needs("optimizer", ("rmsprop",))] = True
    """rmsprop divides by the standard deviation of gradients (Ape-X), not by their root mean square (A3C, IMPALA)."""
    momentum: Annotated[float, Range(0, below=1), Needs("optimizer", ("rmsprop", "sgd"))] = 0.0
    """Momentum of sgd and rmsprop (Ape-X, A3C and IMPALA on Atari: 0)."""
    learning_rate: Annotated[float, Range(above=0)] = 1e-3
    """Step size (Ape-X on Atari: 2.5e-4 / 4)."""
    optimizer_eps: Annotated[
        float, Range(above=0), Needs("optimizer", ("adam", "adamw", "radam", "rmsprop", "adagrad"))
    ] = 1e-8
    """Added to the denominator; inside its root for rmsprop (Ape-X: 1.5e-7; PyTorch's Adam: 1e-8)."""
    first_moment_decay: Annotated[float, Range(0, below=1), Needs("optimizer", ("adam", "adamw", "radam"))] = 0.9
    """Adam's β1 (Kingma & Ba 2015: 0.9)."""
    second_moment_decay: Annotated[float, Range(0, below=1), Needs("optimizer", ("adam", "adamw", "radam"))] = 0.999
    """Adam's β2 (Kingma & Ba 2015: 0.999; FastSAC: 0.95)."""
    weight_decay: Annotated[float, Range(0), Needs("optimizer", ("adamw",))] = 0.01
    """λ: every step makes weights smaller by learning_rate · λ of themselves (PyTorch: 0.01).
    Biases and gains stay."""
    rmsprop_decay: Annotated[float, Range(0, 1), Needs("optimizer", ("rmsprop",))] = 0.95
    """Decay of RMSProp's running averages (Ape-X: 0.95)."""
    gradient_clip: Annotated[float, Range(0)] = 40.0
    """Largest global L2 norm of a gradient; 0 turns it off (Ape-X: 40)."""


@dataclass(frozen=True)
class TargetSettings:
    """Target networks."""

    target_period_updates: Annotated[int, Range(1), Needs("polyak", (0.0,))] = 2500
    """Learner updates between copies to the target network (Ape-X: 2500 learner updates)."""
    polyak: Annotated[float, Range(0, 1)] = 0.0
    """τ: fraction by which the target network follows at every (policy) update; 0: periodic copies instead."""


@dataclass(frozen=True)
class CriticSettings:
    """Agents with critics and a policy that learn from transitions: deterministic and soft ones."""

    critic_hidden: Annotated[tuple[int, ...], Range(1, 1 << 20)] = ()
    """Units of the critics' layers, or of their residual blocks (simba_v2); empty: the same as hidden."""
    policy_learning_rate: Annotated[float, Range(0)] = 0.0
    """Step size of the policy; 0: the same as learning_rate."""
    policy_period_updates: Annotated[int, Range(1)] = 1
    """Critic updates per update of policy and targets (TD3: 2, CrossQ: 3)."""


@dataclass(frozen=True)
class EnsembleSettings:
    """Soft actor-critics of several critics."""

    critics: Annotated[int, Range(1, 1_000)] = 2
    """Critics, each with layers of its own (TQC: 5, REDQ: 10, FastSAC: 2).
    SimbaV2: 2, or 1 where episodes end by time alone."""


@dataclass(frozen=True)
class FrequentUpdateSettings:
    """REDQ and DroQ, which update many times for every step of the environment."""

    target_critics: Annotated[int, Range(1, 1_000)] = 2
    """Critics, drawn for every update, of whose values the smallest makes the target (REDQ: 2)."""
    critic_dropout: Annotated[float, Range(0, below=1)] = 0.0
    """Share of their hidden units that critics leave out while they learn (DroQ: 0.01)."""
    critic_layer_norm: bool = False
    """Normalises the units of the critics' hidden layers, each row for itself (DroQ)."""
    eager_targets: Annotated[bool, Needs("polyak", unless=(0.0,))] = False
    """Targets move with every update (REDQ, FastTD3, FastSAC); without, only with those of the policy (TD3)."""


@dataclass(frozen=True)
class TruncationSettings:
    """TQC's targets."""

    dropped_quantiles: Annotated[int, Range(0)] = 2
    """Greatest quantiles that targets leave out, for each critic, against overestimation.
    Kuznetsov et al. 2020: 2; Hopper 5, HalfCheetah 0."""


@dataclass(frozen=True)
class ActingNoiseSettings:
    """Noise by which policies explore."""

    pink_noise: bool = False
    """Explore with noise of spectrum 1/f, which stays in one direction for a while (Eberhard et al. 2023).
    Policies of unrolls: three quarters of it in boxes (ours; Hollenstein et al. 2024 mix them, too).
    It also draws discrete actions (ours).
    Else every step's noise is independent."""


@dataclass(frozen=True)
class DeterministicSettings:
    """Settings of TD3 and of DDPG with residuals."""

    target_noise: Annotated[float, Range(0)] = 0.2
    """TD3: standard deviation of the noise on target actions, in half widths of the action's range (0.2)."""
    target_noise_clip: Annotated[float, Range(0), Needs("target_noise", unless=(0.0,))] = 0.5
    """TD3: bound of that noise, in the same unit (0.5)."""
    residual: Annotated[float, Range(0)] = 0.0
    """BiResDDPG's η: weight of the residual error (authors: 0.05; 0 is DDPG). tf2rl's is this one divided by γ."""


@dataclass(frozen=True)
class SoftSettings:
    """Entropy of soft actor-critics: SAC and its relatives, discrete SAC."""

    temperature: Annotated[float, Range(0)] = 0.0
    """SAC's entropy weight α; 0: α is learned (Haarnoja et al. 2018b)."""
    initial_temperature: Annotated[float, Range(above=0), Needs("temperature", (0.0,))] = 1.0
    """Initial value of a learned α (SB3: 1)."""
    temperature_learning_rate: Annotated[float, Range(0), Needs("temperature", (0.0,))] = 0.0
    """Step size of log α; 0: learning_rate."""
    target_entropy: Annotated[float | None, Range(), Needs("temperature", (0.0,))] = None
    """SAC: entropy in nats that a learned α aims at.
    None: −dim(A) for boxes (simba_v2: half of it; fast_sac: 0), 0.89·log n for n actions (CleanRL)."""


@dataclass(frozen=True)
class CloningSettings:
    """TD3+BC's policy, which stays near the recorded actions."""

    cloned_value_weight: Annotated[float, Range(0)] = 0.0
    """TD3+BC's α: weight of the value that the policy climbs, scaled to size 1 (Fujimoto & Gu 2021: 2.5).
    Beside it stands the squared distance from recorded actions. 0 is TD3, without that distance."""


@dataclass(frozen=True)
class ConservativeSettings:
    """CQL's penalty of high values of actions that were not recorded."""

    conservative_weight: Annotated[float, Range(0)] = 0.0
    """CQL's α: weight of the penalty beside ½δ² (Kumar et al. 2020 for MuJoCo: 5); 0: none."""


@dataclass(frozen=True)
class ConservativeBoxSettings:
    """CQL's penalty where actions are a box."""

    conservative_actions: Annotated[int, Range(1, 1_000), Needs("conservative_weight", unless=(0.0,))] = 10
    """Actions that the penalty draws uniformly, as many of the policy and of that at the later state (CQL: 10)."""


@dataclass(frozen=True)
class ImplicitSettings:
    """IQL."""

    expectile: Annotated[float, Range(above=0, below=1)] = 0.7
    """τ: which expectile of Q over recorded actions V is (Kostrikov et al. 2021: 0.7; AntMaze 0.9)."""
    advantage_scale: Annotated[float, Range(0)] = 3.0
    """β: recorded actions are imitated with the weight exp(β·advantage) (IQL: 3; AntMaze 10, Adroit 0.5)."""
    advantage_clip: Annotated[float, Range(above=0)] = 100.0
    """The greatest such weight (IQL: 100)."""


@dataclass(frozen=True)
class MemorySettings:
    """What networks remember of the steps before, for observations that do not show all that matters."""

    memory: Literal["none", "lstm", "gru", "transformer"] = "none"
    """Memory of the networks: an LSTM, a GRU, or a small gated transformer (GTrXL). Critics have one of their own.
    Agents with a replay then learn from sequences, as R2D2 does, which itself always has an LSTM."""
    recurrent_units: Annotated[int, Range(1, 1 << 20), Needs("memory", unless=("none",))] = 512
    """Units of the memory (R2D2: 512)."""
    memory_layers: Annotated[int, Range(1, 64), Needs("memory", ("transformer",))] = 1
    """Layers of the transformer (GTrXL: 12)."""
    memory_heads: Annotated[int, Range(1, 64), Needs("memory", ("transformer",))] = 4
    """Heads of each layer's attention; they divide recurrent_units (GTrXL: 8)."""
    memory_context: Annotated[int, Range(1, 4096), Needs("memory", ("transformer",))] = 32
    """Steps that each layer looks back and that the cache holds (GTrXL: 512)."""


@dataclass(frozen=True)
class SequenceSettings:
    """Sequences of steps from the replay, of networks with a memory."""

    sequence_length: Annotated[int, Range(1), Needs("memory", unless=("none",))] = 80
    """Trained steps of a sequence (R2D2: 80)."""
    sequence_stride: Annotated[int, Range(1), Needs("memory", unless=("none",))] = 40
    """Steps between the starts of sequences (R2D2: 40)."""
    burn_in: Annotated[int, Range(0, 255), Needs("memory", unless=("none",))] = 40
    """Steps before these that only build up the recurrent state (R2D2: 40)."""
    priority_eta: Annotated[float, Range(0, 1), Needs("memory", unless=("none",))] = 0.9
    """η: a sequence's priority is η·max|δ| + (1 − η)·mean|δ| (R2D2: 0.9)."""


@dataclass(frozen=True)
class RescalingSettings:
    """R2D2's values."""

    rescaling_eps: Annotated[float, Range(0)] = 1e-3
    """ε of the value rescaling h (R2D2: 1e-3); 0: values are not rescaled."""


@dataclass(frozen=True)
class PolicyLadderSettings:
    """Policies that look ahead differently far, of one network (R2D2 with the γ of Never Give Up and Agent57)."""

    policies: Annotated[int, Range(1, 256)] = 1
    """Policies, each with a γ of its own between gamma and gamma_least; 1: gamma alone (NGU: 32).
    Each episode is acted by one of them, and learned from for it. The first, with gamma, is what is evaluated."""
    gamma_least: Annotated[float, Range(0, below=1), Needs("policies", unless=(1,))] = 0.99
    """γ of the last policy (NGU: 0.99, with a gamma of 0.997)."""


@dataclass(frozen=True)
class TraceSettings:
    """Returns over several steps, of Q-learning from sequences and unrolls."""

    multi_step: Literal["n_step", "peng", "retrace"] = "n_step"
    """How rewards of several steps make a target: n of them, or λ-returns: Peng's Q(λ) (PQN), or Retrace.
    Retrace of the greedy policy ends a return before the next action that is not greedy now (Watkins's Q(λ))."""
    trace_lambda: Annotated[float, Range(0, 1), Needs("multi_step", unless=("n_step",))] = 0.65
    """λ of λ-returns: 0 is one step, 1 goes to the end of the sequence or unroll (PQN on Atari: 0.65)."""


@dataclass(frozen=True)
class ActorCriticSettings:
    """Policy gradients from unrolls: A2C, IMPALA, PPO and APPO."""

    unroll_length: Annotated[int, Range(1)] = 20
    """Steps of an unroll (IMPALA on Atari: 20, A3C: 5)."""
    correction: Literal["none", "vtrace"] = "none"
    """Correction for policy lag: none (GAE), or V-trace (Espeholt et al. 2018)."""
    gae_lambda: Annotated[float, Range(0, 1)] = 1.0
    """λ of GAE and of V-trace's traces (PPO: 0.95); 1: returns up to the end of the unroll (A3C, IMPALA)."""
    rho_clip: Annotated[float, Range(above=0), Needs("correction", ("vtrace",))] = 1.0
    """V-trace's ρ̄ (IMPALA: 1)."""
    c_clip: Annotated[float, Range(above=0), Needs("correction", ("vtrace",))] = 1.0
    """V-trace's c̄ (IMPALA: 1)."""
    surrogate: Literal["log_prob", "clipped"] = "log_prob"
    """Policy objective: A·log π (A3C, IMPALA), or PPO's clipped ratio."""
    clip_ratio: Annotated[float, Range(above=0), Needs("surrogate", ("clipped",))] = 0.2
    """PPO's ε: bound of the probability ratio to the acting policy (Schulman et al. 2017: 0.2)."""
    probability_floor: Annotated[float, Range(0), Needs("surrogate", ("log_prob",))] = 0.0
    """ε of A·log(π + ε), which bounds the gradient of very unlikely actions (GA3C: 1e-6); 0: none."""
    value_coefficient: Annotated[float, Range(0)] = 0.5
    """Weight of the values' ½δ² (IMPALA and CleanRL's PPO: 0.5).
    With large returns the value loss dominates the layers that policy and values share."""
    separate_values: Annotated[bool, Needs("memory", ("none",))] = False
    """The value function has its own layers, of the policy's sizes (CleanRL and SB3 for vectors: yes)."""
    central_value: bool = False
    """The value function, in layers of its own, sees the state of the environment; the policy does not (MAPPO).
    The state is an observation's entry state, as --show-state adds it (Yu et al. 2022)."""
    popart: bool = False
    """Values are learned in units of their targets' running mean and deviation (van Hasselt et al. 2016).
    They keep what they say as these change, but with parameter servers (a3c --no-hogwild)."""
    value_clip: Annotated[float, Range(0)] = 0.0
    """Bound of a value's change in one update, in units of return; 0: none (OpenAI's PPO: 0.2)."""
    entropy_coefficient: Annotated[float, Range(0)] = 0.01
    """Weight of the entropy (A3C and IMPALA on Atari: 0.01)."""
    initial_std: Annotated[float, Range(0.01, 7.0)] = 1.0
    """Standard deviation of the first actions in a box, half of whose width is 1 (CleanRL's and SB3's PPO: 1).
    Where a bound is missing it is in the environment's units."""
    least_std: Annotated[float, Range(0, 7.0)] = 0.0
    """Least standard deviation of actions in a box; it is never below exp(−5).
    Where it nearly vanishes a small step changes the policy beyond measure, and it is lost."""
    normalize_advantages: bool = False
    """Scales the advantages of a minibatch to mean 0 and standard deviation 1 (PPO)."""
    summed_loss: bool = False
    """Losses are sums over unrolls and steps (IMPALA) instead of means; choose step size and clip accordingly."""
    epochs: Annotated[int, Range(1)] = 1
    """Passes over the batch in one update (PPO on Atari: 4). More than one needs surrogate clipped."""
    minibatches: Annotated[int, Range(1)] = 1
    """Gradient steps per epoch, each on a share of the steps (of the unrolls with a memory; PPO on Atari: 4).
    More than one needs surrogate clipped."""


@dataclass(frozen=True)
class ScheduleSettings:
    """What changes while a run goes on: linearly, by the environment steps of all actors together."""

    anneal: bool = False
    """The step size falls from learning_rate to a share of it over schedule_env_steps (A3C, IMPALA, PPO on Atari)."""
    learning_rate_end: Annotated[float, Range(0, 1), Needs("anneal")] = 0.0
    """The share of learning_rate that is left at the end (A3C, IMPALA, PPO on Atari: 0)."""
    exploration_steps: Annotated[int, Range(0)] = 0
    """Environment steps over which ε falls from 1 to what it then stays at (DQN: 1 million); 0: it never falls."""
    beta_end: Annotated[float, Range(0), Needs("alpha", unless=(0.0,))] = 0.0
    """beta becomes this over schedule_env_steps (Rainbow: 1); 0: it stays as it is (Ape-X)."""


@dataclass(frozen=True)
class AgentConfig(  # a dataclass has the fields of its last base first
    ScheduleSettings,
    ActorCriticSettings,
    TraceSettings,
    PolicyLadderSettings,
    ImplicitSettings,
    ConservativeBoxSettings,
    ConservativeSettings,
    CloningSettings,
    RescalingSettings,
    SequenceSettings,
    MemorySettings,
    SoftSettings,
    DeterministicSettings,
    TruncationSettings,
    FrequentUpdateSettings,
    EnsembleSettings,
    ActingNoiseSettings,
    CriticSettings,
    CategoricalSettings,
    DistributionSettings,
    MunchausenSettings,
    NoisySettings,
    HorizonSettings,
    ResetSettings,
    MixingSettings,
    ValueSettings,
    TargetSettings,
    OptimizerSettings,
    LayerSettings,
    LearningSettings,
    AgentChoice,
):
    """The learning rule and its network; apexrl list NAME says which settings an agent's name stands for."""
