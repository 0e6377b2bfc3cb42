"""The configuration of a run: plain typed dataclasses, from which the command line and ``config.toml`` are made.

Every default states its unit and its source. "Ape-X" is Horgan et al. 2018 (arXiv 1803.00933), Table 1 and
appendix C; where a default is ours, it says why. ``presets/`` holds the settings for known environments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from apexrl.config.agent_game_settings import AgentGameSettings
from apexrl.config.agent_settings import AgentConfig
from apexrl.config.paths import expanded
from apexrl.config.settings import Matches, Needs, Range
from apexrl.config.topology_settings import WiringConfig


@dataclass(frozen=True)
class EnvConfig(AgentGameSettings):
    """Which environment, and how it is wrapped."""

    env: str | Callable[..., Any] = "CartPole-v1"
    """Gymnasium id, package.module:Id-v0 (imported first), envpool:Task, or package.module:parallel_env of PettingZoo.
    Also a callable that returns an env or, with the parameter num_envs, a vector env: as a flag package.module:NAME."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment's constructor."""
    atari: bool = False
    """Ape-X's Atari pipeline: 84×84 grey, action repeat 4, life loss ends the learner's episode, up to 30 no-ops.
    Games have a time limit of 108,000 frames, 27,000 steps, which is the emulator's."""
    life_loss_ends: Annotated[bool, Needs("atari")] = True
    """A lost life ends the learner's episode in the Atari pipeline (DQN, Ape-X: yes; R2D2: no).
    Reported returns are of whole games either way."""
    stack: Annotated[int, Range(1)] = 1
    """Consecutive frames in one observation (Ape-X on Atari: 4). The replay stores each frame once."""
    image_size: Annotated[int, Range(0, 1 << 16)] = 0
    """Longer sides of images are shrunk to so many pixels, each the average of the area that it stands for.
    0: images stay as they are. With recipe default it is 84 where a side has more than 128."""
    reward_clip: Annotated[float, Range(0)] = 0.0
    """Learning clips each reward to ± this value; 0: no clipping (Ape-X on Atari: 1)."""
    last_action_reward: bool = False
    """Adds the previous action and reward to the observation, as last_action and last_reward (R2D2)."""
    mask_in_info: bool = False
    """Takes info["action_mask"] as the mask of possible actions, as Gymnasium's Taxi tells it.
    A key action_mask of a Dict observation, or a method action_masks(), is one without being named."""
    max_episode_steps: Annotated[int, Range(0)] = 0
    """Time limit in environment steps, reported as truncation; 0 keeps the environment's own.
    In place of the one that an id is registered with; a limit of the environment itself can only be shortened."""
    max_sequence_length: Annotated[int, Range(1, 1 << 20)] = 128
    """Longest Sequence and Graph of observations, and longest text whose space says no length.
    In elements, nodes, edges, or bytes of UTF-8."""
    cut_long_sequences: bool = False
    """Cuts what is longer, and counts it in episode/cut_off; else it is an error."""
    info_metrics: tuple[str, ...] = ()
    """Keys of info, at an episode's last step, whose numbers become metrics: episode/KEY_mean, _min and _max.
    All of info["metrics"] do without being named."""
    native_envs: bool = True
    """Steps environments in the vectorised form that they bring, where that plays the same episodes.
    Off: as single environments, one after the other."""


@dataclass(frozen=True)
class ReplaySettings:
    """The prioritized replay and how fast it may be read. It counts transitions, or the sequences of an agent that
    learns from them (r2d2): each brings sequence_stride new steps. Unrolls are queued and use none of this."""

    capacity: Annotated[int, Range(1)] = 1_000_000
    """Transitions or sequences kept (Ape-X: a soft 2M; R2D2: 100 000 sequences)."""
    alpha: Annotated[float, Range(0)] = 0.6
    """Priority exponent; 0 samples uniformly (Ape-X: 0.6)."""
    beta: Annotated[float, Range(0), Needs("alpha", unless=(0.0,))] = 0.4
    """Importance-weight exponent, constant unless beta_end is set (Ape-X: 0.4)."""
    priority_eps: Annotated[float, Range(above=0), Needs("alpha", unless=(0.0,))] = 1e-6
    """Added to |δ| before the exponent (CleanRL's and tf2rl's value)."""
    recency_half_life: Annotated[float, Range(0)] = 0.0
    """Age at which an item's chance to be drawn has halved: how many came after it, as a share of capacity.
    0: age does not count (truncated geometric replay, arXiv 2605.10236). With alpha 0 only age counts."""
    lag_half_life: Annotated[int, Range(0)] = 0
    """Policy lag, in learner updates, at which an item's chance to be drawn has halved; 0: it does not count.
    With priorities: FreshPER (arXiv 2604.16918), whose half-life is 0.69 τ."""
    remover: Literal["fifo", "proportional"] = "fifo"
    """Which item a full replay removes: the oldest, or one with probability ∝ priority^remover_alpha (Ape-X DPG)."""
    remover_alpha: Annotated[float, Range(), Needs("remover", ("proportional",))] = -0.4
    """Exponent of the proportional remover (Ape-X DPG: −0.4, which removes low priorities first)."""
    trim_every: Annotated[int, Range(1)] = 1
    """Learner updates between removals; in between the replay may exceed --capacity by 25 % (Ape-X: 100)."""
    min_size: Annotated[int, Range(1)] = 50_000
    """Transitions or sequences before the first update (Ape-X: 50 000)."""
    updates_per_step: Annotated[float, Range(0)] = 0.0
    """Learner updates per environment step of all actors together, whatever batch_size is; the faster side waits.
    0: uncoupled, both go as fast as they can (Ape-X; it observed ≈ 0.0015). DQN: 0.25, SAC: 1.
    With sequences it assumes one of them for each sequence_stride steps. That holds for long episodes.
    Episodes shorter than a sequence give more or fewer."""
    insert_band: Annotated[float, Range(0), Needs("updates_per_step", unless=(0.0,))] = 0.1
    """How far updates_per_step may be exceeded or missed: as many steps as this fraction of min_size brings.
    Reverb's error buffer."""
    compress_images: bool = False
    """Keep images of observations as blocks of LZ4: of Atari's games several times as many fit the memory.
    Acting and sampling take more processor time. check_memory counts images as if they stayed as large."""

    @property
    def correction(self) -> float:
        """Importance-weight exponent of draws: without priorities nothing is corrected, age is meant to count."""
        return self.beta if self.alpha else 0.0


@dataclass(frozen=True)
class DatasetSettings:
    """Experience that was recorded before the run."""

    dataset: str = ""
    """Minari dataset: its folder, or its id among those on this machine. Empty: none (extra minari).
    Topology offline learns from nothing else; in others it is mixed with what actors do."""
    dataset_share: Annotated[float, Range(above=0, below=1), Needs("dataset", unless=("",))] = 0.5
    """Share of every batch that is drawn from dataset; the rest is drawn from the actors' replay (RLPD: 0.5)."""


@dataclass(frozen=True)
class HindsightSettings:
    """Hindsight experience replay (Andrychowicz et al. 2017), for environments with goals."""

    hindsight: Literal["none", "future", "final", "episode"] = "none"
    """Learns from steps as if what their episode achieved had been desired: at a later step, at its last, or at any.
    For environments that show achieved_goal and desired_goal and have compute_reward (gymnasium-robotics)."""
    hindsight_share: Annotated[float, Range(0, 1), Needs("hindsight", ("future", "final", "episode"))] = 0.8
    """Share of a batch that has such goals; 0.8: four for one that was desired (the paper's k = 4)."""


@dataclass(frozen=True)
class ReplayConfig(HindsightSettings, DatasetSettings, ReplaySettings):
    """The replay."""

    check_memory: bool = True
    """Refuse a replay that, when full, needs more memory than the machine and its cgroups have left.
    Off: the replay is made without the check; if memory runs out, the kernel kills processes."""


@dataclass(frozen=True)
class ActorSettings:
    """Actor processes and their environments."""

    actors: Annotated[int, Range(0, 4096)] = 2
    """Actor processes (Ape-X: 360)."""
    envs_per_actor: Annotated[int, Range(1, 65536)] = 8
    """Environments stepped together in one actor process (Ape-X: 1)."""
    vector: Literal["auto", "sync", "threads"] = "auto"
    """sync: steps environments one after the other; threads: one thread each, for simulators that mostly wait.
    auto: threads where steps are seen to wait; with --serial: sync."""
    actor_slots: Annotated[int, Range(0, 65536)] = 0
    """Most actors that the run may have, on all hosts together (apexrl scale); the ε ladder is spread over them.
    0: --actors, or 64 when other hosts may join."""
    random_start: bool = False
    """Actions are uniformly random until the first learner update (SAC's and TD3's learning starts)."""
    pull_period: Annotated[int, Range(1)] = 400
    """Steps of one environment between checks for newer weights (Ape-X: 400 frames)."""
    env_timeout: Annotated[float, Range(above=0)] = 60.0
    """Seconds that one reset or vector step may take before the actor is killed and restarted."""
    actor_restarts: Annotated[int, Range(0)] = 100
    """Failures after which an actor is given up; ten minutes of work restore one (as in Kubernetes).
    A failure within 2 s of the start counts threefold. Being killed from outside does not count."""
    min_actors: Annotated[int, Range(1)] = 1
    """Fewest actors with which the run goes on after others were given up (on each host)."""


@dataclass(frozen=True)
class EpsilonSettings:
    """ε-greedy exploration."""

    epsilon: Annotated[float, Range(0, 1)] = 0.4
    """Largest ε of the ladder ε_i = ε^(1 + α·i/(N−1)) over all N environments (Ape-X: 0.4)."""
    epsilon_alpha: Annotated[float, Range(0), Needs("epsilon", unless=(0.0, 1.0))] = 7.0
    """α of the same formula (Ape-X: 7)."""


@dataclass(frozen=True)
class ActionNoiseSettings:
    """Exploration by noise on actions."""

    sigma: Annotated[float, Range(0, 1)] = 0.1
    """Gaussian noise on deterministic actions, in half widths of the action's range (TD3: 0.1; Ape-X DPG: 0.3)."""
    sigma_alpha: Annotated[float, Range(0), Needs("sigma", unless=(0.0, 1.0))] = 0.0
    """α of a ladder of σ like that of ε, from sigma down; 0 gives every environment sigma (Ape-X DPG)."""
    sigma_least: Annotated[float | None, Range(0, 1), Needs("sigma_alpha", (0.0,))] = None
    """σ of the environments lie evenly from sigma down to this (FastTD3: 0.4 to 0.001); None: as sigma_alpha says."""


@dataclass(frozen=True)
class ActorConfig(ActionNoiseSettings, EpsilonSettings, ActorSettings):
    """Actors, which gather experience."""


@dataclass(frozen=True)
class LearnerConfig:
    """The learner."""

    batch_size: Annotated[int, Range(1)] = 512
    """Transitions or sequences per learner update (Ape-X: 512, R2D2: 64)."""
    publish_period_updates: Annotated[int, Range(1)] = 10
    """Learner updates between two publications of the weights (ours: publishing copies them once)."""
    prefetch: Annotated[int, Range(-1)] = -1
    """Batches sampled ahead by a thread (Ape-X: 16); −1: 4 on CUDA, 0 on the CPU."""
    learner_threads: Annotated[int, Range(1, 4096)] = 1
    """CPU threads of PyTorch in the learner (ours: the other cores belong to the actors)."""
    initial_weights: str = ""
    """Run folder whose best weights a new run begins with, or a file of weights; empty: random weights.
    Networks, normalisation, and the forms of observations and actions must be the same.
    Optimizer, counters and replay begin anew. There is no --random-start then."""
    device: Annotated[str, Matches(r"auto|cpu|mps|cuda(:\d+)?", "auto, cpu, cuda, cuda:N or mps")] = "auto"
    """auto, cpu, cuda or cuda:N. auto assigns visible GPUs to learners and servers in turn.
    It takes the CPU for networks that are too small for a GPU."""
    max_policy_lag: Annotated[int, Range(0)] = 0
    """Losses ignore steps whose policy is more updates old than this; 0: no limit (Sample Factory: 1000).
    With transitions, only the critics' loss ignores them."""
    updates_per_second: Annotated[float, Range(0)] = 0.0
    """Most learner updates per second; 0: no limit (for experiments on the number of actors)."""
    learner_restarts: Annotated[int, Range(0)] = 20
    """Failures of the learner after which the run ends; counted like an actor's."""
    checkpoint_seconds: Annotated[float, Range(above=0)] = 60.0
    """Seconds between checkpoints (ours)."""
    checkpoints_kept: Annotated[int, Range(1)] = 3
    """Checkpoints kept besides the best one (ours)."""
    save_replay: bool = False
    """Write the replay beside the final checkpoint, so that resume goes on with it."""

    def __post_init__(self) -> None:
        if self.initial_weights and "://" not in self.initial_weights:  # may be resumed from another working folder
            object.__setattr__(self, "initial_weights", str(expanded(self.initial_weights).absolute()))


@dataclass(frozen=True)
class EvaluatorConfig:
    """The evaluator plays episodes with the newest weights, on seeds of its own. At the end it measures the best and
    the last weights once more, both on the same new seeds, which have chosen neither."""

    eval_episodes: Annotated[int, Range(1)] = 20
    """Episodes per evaluation, and again on new seeds at the end.
    At the end fewer are played where all would take longer than the run did, and than a minute.
    On the way fewer are played, at least five, where all would take longer than a minute and than a tenth of the run.
    That is not so where a return may end the run, with --eval-period-steps or with --serial.
    Fewer are played, too, where all would take longer than --eval-timeout."""
    eval_period_seconds: Annotated[float, Range(above=0)] = 1.0
    """Seconds between the starts of two evaluations. They are further apart where one lasts longer.
    Where one had to wait for a core, a rest as long as that wait follows: it takes less from the actors."""
    eval_period_steps: Annotated[int, Range(0)] = 0
    """Environment steps between the weights that are evaluated, in place of seconds; 0: seconds count.
    Weights wait until the evaluator has time, 1 GiB of them at most; training does not wait.
    Those that still wait at its end are evaluated then, which may take long; Ctrl-C leaves them out.
    Rules that stop a run by its returns learn of these late."""
    eval_envs: Annotated[int, Range(1, 65536)] = 10
    """Environments that the evaluator steps as one batch."""
    eval_timeout: Annotated[float, Range(above=0)] = 600.0
    """Seconds that one evaluation may take (ours: an episode without a time limit may never end)."""
    eval_actions: Literal["greedy", "sampled"] = "greedy"
    """How an evaluation chooses actions. greedy: the best one, or the policy's mode.
    sampled: drawn from the policy as while acting (actor-critics, SAC, noisy networks)."""
    eval_epsilon: Annotated[float, Range(0, 1)] = 0.0
    """Probability that an evaluation's action is uniformly random instead (DQN: 0.05; Rainbow, IQN: 0.001).
    Not for box actions."""
    eval_sticky: Annotated[float, Range(0, below=1)] = 0.0
    """Probability that an evaluation's environment repeats its previous action (Machado et al. 2018: 0.25)."""
    eval_noops: Annotated[int, Range(0, 65536)] = 0
    """Most no-ops (action 0) at the start of an evaluation's episode; how many is drawn uniformly.
    Discrete actions only. The Atari pipeline has up to 30 of its own."""
    eval_seed: Annotated[int, Range(0, below=2**63)] = 0
    """Seed of the episodes of every evaluation; 0: each has fresh ones.
    The best weights were chosen on these seeds, so the final evaluations have others, derived from this one."""


@dataclass(frozen=True)
class StopConfig:
    """Limits of a run; the first one reached ends it. Without any, it runs until Ctrl-C."""

    env_steps: Annotated[int, Range(0)] = 0
    """Environment steps of all actors together; 0: no limit."""
    minutes: Annotated[float, Range(0)] = 0.0
    """Minutes since the first environment step, or the first update from a dataset; 0: no limit."""
    stop_at_return: Annotated[float | None, Range()] = None
    """The run ends when one evaluation's mean return reaches this; none: no goal."""
    stop_without_improvement: Annotated[int, Range(0)] = 0
    """Evaluations in a row without a higher mean return after which the run ends; 0: no limit.
    A resumed run counts anew."""
    stop_when: tuple[str, ...] = ()
    """The run ends when a metric of metrics.jsonl crosses a limit, as 'agent/loss>1e6' 'train_return<-500'."""
    updates: Annotated[int, Range(0)] = 0
    """Learner updates; 0: no limit."""
    schedule_env_steps: Annotated[int, Range(0)] = 0
    """Environment steps over which anneal and beta_end change their settings; 0: env_steps."""


@dataclass(frozen=True)
class HostsConfig:
    """Runs over several machines, through Redis."""

    send_period: Annotated[float, Range(0)] = 0.1
    """Seconds after which a partly filled chunk is sent (ours); a full one is sent at once."""
    window_mb: Annotated[float, Range(above=0, at_most=1 << 20)] = 64.0
    """Megabytes of one host's experience that the learner has not yet committed, at most (ours)."""
    when_full: Literal["wait", "drop-oldest"] = "wait"
    """When window_mb is reached: actors wait, or the oldest experience is dropped and counted."""
    compression: Literal["none", "zlib"] = "none"
    """Compresses experience and weights on the network (zlib level 1, for slow links)."""
    weights_precision: Literal["float32", "bfloat16"] = "float32"
    """Numbers in which weights travel to other machines, over Redis and on Ray. bfloat16: half the bytes.
    Actors then act with 8 binary digits of each weight. The learner, evaluations and checkpoints keep all."""
    lease_seconds: Annotated[float, Range(above=0)] = 10.0
    """Seconds without a renewal after which a host's actor slots are free for another (ours: ten heartbeats)."""
    learner_lease_seconds: Annotated[float, Range(above=0)] = 5.0
    """Seconds without a renewal after which another learner, such as a standby, may go on with the run.
    Ours: five heartbeats, so that a standby learns again within ten seconds."""
    patience_minutes: Annotated[float, Range(above=0)] = 30.0
    """Minutes after which actors without a learner or server give up (ours: a machine's restart)."""


@dataclass(frozen=True)
class Config:
    """A whole run. Complete and re-runnable from config.toml."""

    preset: str = ""
    """The preset that the run started from; empty: none."""
    recipe: Literal["none", "default", "paper"] = "none"
    """Hyperparameters where no preset is given: defaults that learn on an unseen environment, or those of the paper.
    Settings that are given win. none: what a preset, a file or a Config has."""
    topology: str = "apex"
    """The distributed architecture: see apexrl list topologies."""
    name: str = ""
    """Name of the run folder; empty: preset or environment, date and time."""
    out: str = "runs"
    """Folder that holds the run folders."""
    seed: Annotated[int, Range(0, below=2**63)] = 1
    """Seed of networks, exploration, environments and sampling."""
    stall_timeout: Annotated[float, Range(0)] = 300.0
    """Seconds without progress after which a worker is killed and restarted; three times as long at its start.
    Ours: longer than a compilation, or a checkpoint of many gigabytes. 0: no limit."""
    log_format: Literal["text", "json"] = "text"
    """Format of lines that are printed, and of the logs of roles. json: an object a line, also on a terminal."""
    serial: bool = False
    """Runs all roles in turn in this process; reproducible bit for bit."""
    env: EnvConfig = field(default_factory=EnvConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    hosts: HostsConfig = field(default_factory=HostsConfig)
    wiring: WiringConfig = field(default_factory=WiringConfig)
