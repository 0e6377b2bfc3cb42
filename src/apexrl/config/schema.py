"""The configuration of a run: plain typed dataclasses, from which the command line and ``config.toml`` are made.

Every default states its unit and its source. "Ape-X" is Horgan et al. 2018 (arXiv 1803.00933), Table 1 and
appendix C; where a default is ours, it says why. ``presets/`` holds the settings for known environments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and how it is wrapped."""

    env: str | Callable[..., Any] = "CartPole-v1"
    """Gymnasium id, package.module:Id-v0 (imported first), or from Python a callable that returns an env."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment's constructor."""
    atari: bool = False
    """Ape-X's Atari pipeline: 84×84 grey, action repeat 4, life loss ends the learner's episode, up to 30 no-ops."""
    stack: int = 1
    """Frames that the agent sees at once (Ape-X on Atari: 4). The replay stores each frame once."""
    reward_clip: float = 0.0
    """Rewards are clipped to ±this for learning, in reward units; 0 leaves them (Ape-X on Atari: 1)."""
    last_action_reward: bool = False
    """The observation holds the previous action and reward too, as last_action and last_reward (R2D2 sees them)."""
    max_episode_steps: int = 0
    """Time limit in environment steps, reported as truncation; 0 keeps the environment's own."""


@dataclass(frozen=True)
class AgentConfig:
    """The learning rule and its network; apexrl list agents says which settings an agent's name stands for."""

    agent: str = "dueling_dqn"
    """A shipped agent's name, which as --agent or train(agent=…) brings its settings; or package.module:Class."""
    network: str = ""
    """package.module:Class of your own encoder; empty: an MLP for vectors, convolutions for images."""
    n_step: int = 3
    """Environment steps of reward before bootstrapping (Ape-X: 3)."""
    gamma: float = 0.99
    """Discount per environment step (Ape-X: 0.99)."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of the fully connected layers for vector observations (rl-zoo's CartPole DQN: 256, 256)."""
    image_units: int = 512
    """Units of the fully connected layer behind convolutions (Mnih et al. 2015: 512)."""
    optimizer: Literal["adam", "rmsprop", "adagrad", "sgd"] = "adam"
    """rmsprop has ε inside its root, as TensorFlow's, Ape-X's and A3C's; adagrad: Gorila's."""
    centered: bool = True
    """rmsprop divides by the standard deviation of gradients (Ape-X), not by their root mean square (A3C, IMPALA)."""
    momentum: float = 0.0
    """Of sgd and rmsprop (Ape-X, A3C and IMPALA on Atari: 0)."""
    learning_rate: float = 1e-3
    """Step size (Ape-X on Atari: 2.5e-4 / 4)."""
    optimizer_eps: float = 1e-8
    """Added to the denominator; inside its root for rmsprop (Ape-X: 1.5e-7; PyTorch's Adam: 1e-8)."""
    first_moment_decay: float = 0.9
    """Adam's β1 (Kingma & Ba 2015: 0.9)."""
    rmsprop_decay: float = 0.95
    """Decay of RMSProp's running averages (Ape-X: 0.95)."""
    gradient_clip: float = 40.0
    """Largest global L2 norm of a gradient; 0 turns it off (Ape-X: 40)."""
    huber: float = 0.0
    """κ of the Huber loss, in TD-error units; 0 is the plain ½δ² (Ape-X). Quantile losses take 0 as 1 (their paper)."""
    target_period_updates: int = 2500
    """Learner updates between copies to the target network (Ape-X: 2500 learner updates)."""
    polyak: float = 0.0
    """τ: instead of copies, the target moves by this fraction with every update (of the policy, if any); 0: copies."""

    # Q-learning
    double: bool = True
    """The online network chooses the next action, the target network values it (van Hasselt et al. 2016)."""
    dueling: bool = True
    """Value and advantage heads (Wang et al. 2016)."""
    noisy: bool = False
    """Noisy layers explore instead of ε (Fortunato et al. 2018)."""
    noisy_sigma: float = 0.5
    """σ0, their initial noise (Fortunato et al.: 0.5)."""
    munchausen: bool = False
    """Soft targets with a scaled log-policy added to the reward (Vieillard et al. 2020)."""
    munchausen_alpha: float = 0.9
    """Weight of the log-policy (Vieillard et al.: 0.9)."""
    munchausen_temperature: float = 0.03
    """τ of the softmax policy (Vieillard et al.: 0.03)."""
    munchausen_clip: float = -1.0
    """l0, the least that τ·log π may be (Vieillard et al.: −1)."""
    distribution: Literal["expected", "categorical", "quantile", "implicit_quantile"] = "expected"
    """What is learned of the return: its mean; C51's categories; QR-DQN's quantiles; IQN's quantile function."""
    atoms: int = 51
    """Categories of the categorical distribution (C51: 51)."""
    v_min: float = -10.0
    """Least return that the categories cover (C51: −10, for clipped rewards)."""
    v_max: float = 10.0
    """Greatest return that they cover (C51: 10)."""
    quantiles: int = 200
    """Quantiles that QR-DQN learns (Dabney et al. 2018a: 200)."""
    quantile_samples: int = 64
    """Fractions τ that IQN draws for each of its two states (Dabney et al. 2018b: 64); it acts on half of them."""
    cosines: int = 64
    """Cosines in IQN's embedding of τ (Dabney et al. 2018b: 64)."""

    # Continuous actions, and discrete SAC
    critic_hidden: tuple[int, ...] = ()
    """Units of the critics' layers; empty: as hidden, which is then the policy's alone."""
    policy_learning_rate: float = 0.0
    """Step size of the policy; 0: learning_rate, which is then the critics' alone."""
    policy_period_updates: int = 1
    """Critic updates per update of policy and targets (TD3: 2, CrossQ: 3)."""
    target_noise: float = 0.2
    """TD3: standard deviation of the noise on target actions, in half widths of the action's range (0.2)."""
    target_noise_clip: float = 0.5
    """TD3: the most that noise may be, in the same unit (0.5)."""
    residual: float = 0.0
    """BiResDDPG's η: weight of the residual error (authors: 0.05; 0 is DDPG). tf2rl's is this one divided by γ."""
    temperature: float = 0.0
    """SAC's α; 0: learned (Haarnoja et al. 2018b)."""
    initial_temperature: float = 1.0
    """SAC's first α where it is learned (SB3: 1)."""
    temperature_learning_rate: float = 0.0
    """Step size of log α; 0: learning_rate."""
    target_entropy: float | None = None
    """SAC: nats that α is steered to; None: −dim(A) for boxes, 0.89·log n for n discrete actions (CleanRL)."""

    # R2D2
    sequence_length: int = 80
    """Steps of a sequence that are trained on (R2D2: 80)."""
    sequence_stride: int = 40
    """Steps between the starts of sequences (R2D2: 40)."""
    burn_in: int = 40
    """Steps before them that only warm the recurrent state (R2D2: 40)."""
    recurrent_units: int = 512
    """Units of the LSTM (R2D2: 512)."""
    rescaling_eps: float = 1e-3
    """ε of the value rescaling h (R2D2: 1e-3); 0: values are not rescaled."""
    priority_eta: float = 0.9
    """η: a sequence's priority is η·max|δ| + (1 − η)·mean|δ| (R2D2: 0.9)."""

    # Policy gradients from unrolls
    unroll_length: int = 20
    """Steps of an unroll (IMPALA on Atari: 20, A3C: 5)."""
    correction: Literal["none", "vtrace"] = "none"
    """For the policy lag of unrolls: none, GAE as if there were none; or V-trace (Espeholt et al. 2018)."""
    gae_lambda: float = 1.0
    """λ of GAE and of V-trace's traces (PPO: 0.95); 1: returns of all steps up to the unroll's end (A3C, IMPALA)."""
    rho_clip: float = 1.0
    """V-trace's ρ̄ (IMPALA: 1)."""
    c_clip: float = 1.0
    """V-trace's c̄ (IMPALA: 1)."""
    surrogate: Literal["log_prob", "clipped"] = "log_prob"
    """What the policy climbs: A·log π (A3C, IMPALA), or PPO's clipped ratio."""
    clip_ratio: float = 0.2
    """PPO's ε: how far the ratio to the policy that acted may go (Schulman et al. 2017: 0.2)."""
    probability_floor: float = 0.0
    """ε of A·log(π + ε): actions that the policy has since all but ruled out move it no more (GA3C: 1e-6); 0: none."""
    value_coefficient: float = 0.5
    """Weight of the values' ½δ² (IMPALA and CleanRL's PPO: 0.5).
    Where returns are large, layers that policy and values have in common then belong to the values."""
    separate_values: bool = False
    """Values have layers of their own, of the same sizes as the policy's (CleanRL and SB3 for vectors: yes)."""
    value_clip: float = 0.0
    """How far an update may take a value from where it was, in units of return; 0: anywhere (OpenAI's PPO: 0.2)."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy (A3C and IMPALA on Atari: 0.01)."""
    normalize_advantages: bool = False
    """Advantages of a minibatch have mean 0 and deviation 1 (PPO)."""
    summed_loss: bool = False
    """Losses are sums over unrolls and steps (IMPALA), not means; step size and clip are to be read accordingly."""
    epochs: int = 1
    """Times that an update goes over its batch (PPO on Atari: 4)."""
    minibatches: int = 1
    """Gradient steps of one epoch, each on its share of the steps; of the unrolls, if recurrent (PPO on Atari: 4)."""
    recurrent: bool = False
    """An LSTM of recurrent_units between encoder and heads."""
    anneal: bool = False
    """The step size falls from learning_rate to 0 while the run makes its --env-steps (A3C, IMPALA, PPO on Atari)."""


@dataclass(frozen=True)
class ReplayConfig:
    """The prioritized replay and how fast it may be read. What it counts are transitions, or the sequences of an agent
    that learns from them (r2d2): each brings sequence_stride new steps."""

    capacity: int = 1_000_000
    """Transitions or sequences kept (Ape-X: a soft 2M; R2D2: 100 000 sequences)."""
    alpha: float = 0.6
    """Priority exponent; 0 samples uniformly (Ape-X: 0.6)."""
    beta: float = 0.4
    """Importance-weight exponent, constant (Ape-X: 0.4)."""
    priority_eps: float = 1e-6
    """Added to |δ| before the exponent (CleanRL's and tf2rl's value)."""
    remover: Literal["fifo", "proportional"] = "fifo"
    """What goes beyond capacity: the oldest, or one with probability ∝ priority^remover_alpha (Ape-X DPG)."""
    remover_alpha: float = -0.4
    """That exponent (Ape-X DPG: −0.4, so that what surprises least goes first)."""
    trim_every: int = 1
    """Learner updates between removals; up to a quarter more than capacity is kept in between (Ape-X: 100)."""
    min_size: int = 50_000
    """Transitions or sequences before the first update (Ape-X: 50 000)."""
    samples_per_insert: float = 0.0
    """Sampled transitions or sequences per inserted one; 0 does not couple the two (Ape-X; it observed ≈ 0.78)."""
    insert_band: float = 0.1
    """How far sampling and inserting may drift apart, as a fraction of min_size's samples (Reverb's error buffer)."""
    check_memory: bool = True
    """Refuse a replay that, when full, needs more memory than the machine and its cgroups have left.
    Off: it is made all the same, and what it takes beyond that gets processes killed."""


@dataclass(frozen=True)
class ActorConfig:
    """Who gathers experience."""

    actors: int = 2
    """Actor processes (Ape-X: 360)."""
    envs_per_actor: int = 8
    """Environments stepped together in one actor process (Ape-X: 1)."""
    vector: Literal["sync", "threads"] = "sync"
    """sync: one after the other; threads: each in its own, served as they come (for simulators that wait)."""
    actor_slots: int = 0
    """Actors that the ε ladder has room for, on all hosts together; on a Ray cluster those that may come to be.
    0: --actors, or 64 when other hosts may join."""
    epsilon: float = 0.4
    """Largest ε of the ladder ε_i = ε^(1 + α·i/(N−1)) over all N environments (Ape-X: 0.4)."""
    epsilon_alpha: float = 7.0
    """α of the same formula (Ape-X: 7)."""
    sigma: float = 0.1
    """Gaussian noise on deterministic actions, in half widths of the action's range (TD3: 0.1; Ape-X DPG: 0.3)."""
    sigma_alpha: float = 0.0
    """α of a ladder of σ like that of ε, from sigma down; 0 gives every environment sigma (Ape-X DPG)."""
    random_start: bool = False
    """Actions are uniformly random until the learner has learned something (SAC, TD3: learning starts)."""
    pull_period: int = 400
    """Environment steps of one environment between looks for newer weights (Ape-X: 400 frames)."""
    env_timeout: float = 60.0
    """Seconds that one reset or vector step may take before the actor is killed and restarted."""
    actor_restarts: int = 100
    """Failures of one actor before it is given up, of which ten minutes of work give one back (as in Kubernetes).
    Within 2 s of a start they count threefold. Being killed from outside is no failure."""
    min_actors: int = 1
    """The run goes on without actors that it gave up on while at least these are left (of each host's)."""


@dataclass(frozen=True)
class LearnerConfig:
    """Who learns."""

    batch_size: int = 512
    """Transitions or sequences per learner update (Ape-X: 512, R2D2: 64)."""
    publish_period_updates: int = 10
    """Learner updates between publications of the weights (ours: a publication is one copy in memory)."""
    prefetch: int = -1
    """Batches sampled ahead (Ape-X: 16); −1 chooses 4 on CUDA and 0 on the CPU, where a thread more only takes time."""
    learner_threads: int = 1
    """CPU threads of PyTorch in the learner (ours: the other cores belong to the actors)."""
    device: str = "auto"
    """auto (learners and servers take the visible GPUs in turn, or the CPU if there is none), cpu, cuda, cuda:1 …"""
    max_policy_lag: int = 0
    """Steps whose policy is more updates old than this have no weight in losses; 0: no limit (Sample Factory: 1000).
    Of transitions it is the critics' loss alone."""
    updates_per_second: float = 0.0
    """Holds the learner to this rate; 0 lets it run (for experiments on the number of actors)."""
    learner_restarts: int = 20
    """Failures of the learner before the run gives up, counted as those of an actor."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints (ours)."""
    checkpoints_kept: int = 3
    """Newest checkpoints kept, beside best (ours)."""
    save_replay: bool = False
    """Write the replay beside the final checkpoint, so that resume goes on with it."""


@dataclass(frozen=True)
class EvaluatorConfig:
    """Who measures: greedy episodes on the newest weights, with seeds of its own."""

    eval_episodes: int = 20
    """Episodes per evaluation, and fresh ones at the end."""
    eval_period_seconds: float = 1.0
    """Seconds between the starts of two evaluations."""
    eval_envs: int = 10
    """Environments that the evaluator steps together."""
    eval_timeout: float = 600.0
    """Seconds that one evaluation may take (ours: an episode without a time limit may never end)."""


@dataclass(frozen=True)
class StopConfig:
    """What ends a run, whichever comes first; with none of them it runs until Ctrl-C."""

    env_steps: int = 0
    """Environment steps of all actors together; 0: no limit."""
    minutes: float = 0.0
    """Minutes since the first environment step; 0: no limit."""
    stop_at_return: float | None = None
    """Mean greedy return of one evaluation."""


@dataclass(frozen=True)
class HostsConfig:
    """Runs over several machines, through Redis."""

    send_period: float = 0.1
    """Seconds that a chunk still being written waits before it is sent as it is (ours; full ones go at once)."""
    window_mb: float = 64.0
    """Megabytes that one host may have sent, or ready to send, and the learner not yet committed (ours: memory)."""
    when_full: Literal["wait", "drop-oldest"] = "wait"
    """When the window is full: actors wait, or the oldest experience in it is dropped and counted."""
    compression: Literal["none", "zlib"] = "none"
    """Of experience and weights on the wire (zlib at level 1, for slow links)."""
    lease_seconds: float = 10.0
    """Seconds of silence after which a host's slots, or the learner's place, are free (ours: ten heartbeats)."""
    patience_minutes: float = 30.0
    """Minutes that actors wait for a learner, or for the server, before they give up (ours: a machine's restart)."""


@dataclass(frozen=True)
class WiringConfig:
    """What other topologies than Ape-X are made of; apexrl list topologies says which has what."""

    queue_batches: int = 2
    """Batches of unrolls that may wait for the learner, then actors wait (ours: one to learn from, one to fill)."""
    learners: int = 1
    """Learners side by side (Gorila: 100)."""
    parameter_servers: int = 1
    """Processes that share the parameters among them, and their optimizer's state (Gorila: 31)."""
    replay: Literal["global", "local"] = "global"
    """Of all gorila's learners together, or of each its own (Gorila's bundles).
    Its own is filled by the learner's share of the actors, and has its share of capacity and min_size."""
    max_gradient_lag: int = 0
    """Gradients of parameters that are more updates old than this are refused; 0: no limit (Gorila: a threshold)."""
    outlier_deviations: float = 0.0
    """Batches whose loss is this many standard deviations above its running mean are left out; 0: none (Gorila)."""
    hogwild: bool = True
    """a3c: workers change the parameters in place, in shared memory; else through parameter servers."""
    shared_statistics: bool = True
    """a3c: all workers share the optimizer's statistics (A3C's shared RMSProp)."""
    inference_batch: int = 0
    """Environments that an inference server answers at once at most; 0: all that wait."""
    inference_wait_ms: float = 5.0
    """Milliseconds that it waits for more than a third of them (Sample Factory: 25)."""
    splits: int = 0
    """Groups of a worker's environments, of which one steps while the others wait for actions (Sample Factory: 2).
    0: one where actors share cores, so that others step meanwhile; else, or where hosts may join, two."""
    policy_workers: int = 1
    """Processes that choose the actions of rollout workers (Sample Factory: 1)."""
    predictors: int = 2
    """Threads that answer environments (GA3C: 2)."""
    trainers: int = 2
    """Threads that learn (GA3C: 2)."""
    training_min_batch: int = 1
    """Unrolls that one of these takes at least, and batch_size at most: as many as wait (GA3C: 1)."""
    autotune: bool = False
    """Every topology: try other numbers of actors (workers, threads) while the run goes on, and keep what gives most.
    They begin as they are given; --actor-slots is the most actors (0: four times --actors, at least 16)."""
    autotune_seconds: float = 10.0
    """Length of the windows that are compared (GA3C: 20)."""


@dataclass(frozen=True)
class Config:
    """A whole run. Complete and re-runnable from config.toml."""

    preset: str = ""
    """The preset that this began from; empty when none."""
    topology: str = "apex"
    """How the roles are wired: see apexrl list topologies."""
    name: str = ""
    """Run folder's name; empty: preset or env, date and time."""
    out: str = "runs"
    """Folder of run folders."""
    seed: int = 1
    """Of everything: networks, exploration, environments, sampling."""
    stall_timeout: float = 300.0
    """Seconds for which a worker's loop may stand still before it is killed and restarted; at its start thrice.
    Ours: longer than a compilation, or a checkpoint of many gigabytes. 0: for ever."""
    serial: bool = False
    """All roles in lock-step in this process, bit-for-bit reproducible."""
    env: EnvConfig = field(default_factory=EnvConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    hosts: HostsConfig = field(default_factory=HostsConfig)
    wiring: WiringConfig = field(default_factory=WiringConfig)
