"""The configuration of a run: plain typed dataclasses, from which the command line and ``config.toml`` are made.

Every default states its unit and its source. "Ape-X" is Horgan et al. 2018 (arXiv 1803.00933), Table 1 and
appendix C; where a default is ours, it says why. ``presets/`` holds the settings for known environments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from apexrl.config.agent_settings import AgentConfig
from apexrl.config.settings import Limit, Matches, Needs, Range
from apexrl.config.topology_settings import WiringConfig


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and how it is wrapped."""

    env: str | Callable[..., Any] = "CartPole-v1"
    """Gymnasium id, package.module:Id-v0 (imported first), or from Python a callable that returns an env."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the environment's constructor."""
    atari: bool = False
    """Ape-X's Atari pipeline: 84×84 grey, action repeat 4, life loss ends the learner's episode, up to 30 no-ops."""
    stack: Annotated[int, Range(1)] = 1
    """Frames that the agent sees at once (Ape-X on Atari: 4). The replay stores each frame once."""
    reward_clip: Annotated[float, Range(0)] = 0.0
    """Rewards are clipped to ±this for learning, in reward units; 0 leaves them (Ape-X on Atari: 1)."""
    last_action_reward: bool = False
    """The observation holds the previous action and reward too, as last_action and last_reward (R2D2 sees them)."""
    max_episode_steps: Annotated[int, Range(0)] = 0
    """Time limit in environment steps, reported as truncation; 0 keeps the environment's own."""


@dataclass(frozen=True)
class ReplaySettings:
    """The prioritized replay and how fast it may be read. It counts transitions, or the sequences of an agent that
    learns from them (r2d2): each brings sequence_stride new steps. Unrolls are queued and use none of this."""

    capacity: Annotated[int, Range(1)] = 1_000_000
    """Transitions or sequences kept (Ape-X: a soft 2M; R2D2: 100 000 sequences)."""
    alpha: Annotated[float, Range(0)] = 0.6
    """Priority exponent; 0 samples uniformly (Ape-X: 0.6)."""
    beta: Annotated[float, Range(0), Needs("alpha", unless=(0.0,))] = 0.4
    """Importance-weight exponent, constant (Ape-X: 0.4)."""
    priority_eps: Annotated[float, Range(0), Needs("alpha", unless=(0.0,))] = 1e-6
    """Added to |δ| before the exponent (CleanRL's and tf2rl's value)."""
    remover: Literal["fifo", "proportional"] = "fifo"
    """What goes beyond capacity: the oldest, or one with probability ∝ priority^remover_alpha (Ape-X DPG)."""
    remover_alpha: Annotated[float, Range(), Needs("remover", ("proportional",))] = -0.4
    """That exponent (Ape-X DPG: −0.4, so that what surprises least goes first)."""
    trim_every: Annotated[int, Range(1)] = 1
    """Learner updates between removals; up to a quarter more than capacity is kept in between (Ape-X: 100)."""
    min_size: Annotated[int, Range(1)] = 50_000
    """Transitions or sequences before the first update (Ape-X: 50 000)."""
    samples_per_insert: Annotated[float, Range(0)] = 0.0
    """Sampled transitions or sequences per inserted one; 0 does not couple the two (Ape-X; it observed ≈ 0.78)."""
    insert_band: Annotated[float, Range(0), Needs("samples_per_insert", unless=(0.0,))] = 0.1
    """How far sampling and inserting may drift apart, as a fraction of min_size's samples (Reverb's error buffer)."""


@dataclass(frozen=True)
class ReplayConfig(ReplaySettings):
    """The replay."""

    check_memory: bool = True
    """Refuse a replay that, when full, needs more memory than the machine and its cgroups have left.
    Off: it is made all the same, and what it takes beyond that gets processes killed."""


@dataclass(frozen=True)
class ActorSettings:
    """Actor processes and their environments."""

    actors: Annotated[int, Range(0), Limit(4096)] = 2
    """Actor processes (Ape-X: 360)."""
    envs_per_actor: Annotated[int, Range(1), Limit(65536)] = 8
    """Environments stepped together in one actor process (Ape-X: 1)."""
    vector: Literal["sync", "threads"] = "sync"
    """sync: one after the other; threads: each in its own, served as they come (for simulators that wait)."""
    actor_slots: Annotated[int, Range(0), Limit(65536)] = 0
    """Actors that the ε ladder has room for, on all hosts together; on a Ray cluster those that may come to be.
    0: --actors, or 64 when other hosts may join."""
    random_start: bool = False
    """Actions are uniformly random until the learner has learned something (SAC, TD3: learning starts)."""
    pull_period: Annotated[int, Range(1)] = 400
    """Environment steps of one environment between looks for newer weights (Ape-X: 400 frames)."""
    env_timeout: Annotated[float, Range(above=0)] = 60.0
    """Seconds that one reset or vector step may take before the actor is killed and restarted."""
    actor_restarts: Annotated[int, Range(0)] = 100
    """Failures of one actor before it is given up, of which ten minutes of work give one back (as in Kubernetes).
    Within 2 s of a start they count threefold. Being killed from outside is no failure."""
    min_actors: Annotated[int, Range(1)] = 1
    """The run goes on without actors that it gave up on while at least these are left (of each host's)."""


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


@dataclass(frozen=True)
class ActorConfig(ActionNoiseSettings, EpsilonSettings, ActorSettings):
    """Actors, which gather experience."""


@dataclass(frozen=True)
class LearnerConfig:
    """Who learns."""

    batch_size: Annotated[int, Range(1)] = 512
    """Transitions or sequences per learner update (Ape-X: 512, R2D2: 64)."""
    publish_period_updates: Annotated[int, Range(1)] = 10
    """Learner updates between publications of the weights (ours: a publication is one copy in memory)."""
    prefetch: Annotated[int, Range(-1)] = -1
    """Batches sampled ahead (Ape-X: 16); −1 chooses 4 on CUDA and 0 on the CPU, where a thread more only takes time."""
    learner_threads: Annotated[int, Range(1), Limit(4096)] = 1
    """CPU threads of PyTorch in the learner (ours: the other cores belong to the actors)."""
    device: Annotated[str, Matches(r"auto|cpu|mps|cuda(:\d+)?", "auto, cpu, cuda, cuda:N or mps")] = "auto"
    """auto (learners and servers take the visible GPUs in turn, or the CPU if there is none), cpu, cuda, cuda:1 …"""
    max_policy_lag: Annotated[int, Range(0)] = 0
    """Steps whose policy is more updates old than this have no weight in losses; 0: no limit (Sample Factory: 1000).
    Of transitions it is the critics' loss alone."""
    updates_per_second: Annotated[float, Range(0)] = 0.0
    """Holds the learner to this rate; 0 lets it run (for experiments on the number of actors)."""
    learner_restarts: Annotated[int, Range(0)] = 20
    """Failures of the learner before the run gives up, counted as those of an actor."""
    checkpoint_seconds: Annotated[float, Range(above=0)] = 60.0
    """Seconds between checkpoints (ours)."""
    checkpoints_kept: Annotated[int, Range(1)] = 3
    """Newest checkpoints kept, beside best (ours)."""
    save_replay: bool = False
    """Write the replay beside the final checkpoint, so that resume goes on with it."""


@dataclass(frozen=True)
class EvaluatorConfig:
    """Who measures: greedy episodes on the newest weights, with seeds of its own."""

    eval_episodes: Annotated[int, Range(1)] = 20
    """Episodes per evaluation, and fresh ones at the end."""
    eval_period_seconds: Annotated[float, Range(above=0)] = 1.0
    """Seconds between the starts of two evaluations."""
    eval_envs: Annotated[int, Range(1), Limit(65536)] = 10
    """Environments that the evaluator steps together."""
    eval_timeout: Annotated[float, Range(above=0)] = 600.0
    """Seconds that one evaluation may take (ours: an episode without a time limit may never end)."""


@dataclass(frozen=True)
class StopConfig:
    """What ends a run, whichever comes first; with none of them it runs until Ctrl-C."""

    env_steps: Annotated[int, Range(0)] = 0
    """Environment steps of all actors together; 0: no limit."""
    minutes: Annotated[float, Range(0)] = 0.0
    """Minutes since the first environment step; 0: no limit."""
    stop_at_return: float | None = None
    """Mean greedy return of one evaluation."""


@dataclass(frozen=True)
class HostsConfig:
    """Runs over several machines, through Redis."""

    send_period: Annotated[float, Range(0)] = 0.1
    """Seconds that a chunk still being written waits before it is sent as it is (ours; full ones go at once)."""
    window_mb: Annotated[float, Range(above=0), Limit(1 << 20)] = 64.0
    """Megabytes that one host may have sent, or ready to send, and the learner not yet committed (ours: memory)."""
    when_full: Literal["wait", "drop-oldest"] = "wait"
    """When the window is full: actors wait, or the oldest experience in it is dropped and counted."""
    compression: Literal["none", "zlib"] = "none"
    """Of experience and weights on the wire (zlib at level 1, for slow links)."""
    lease_seconds: Annotated[float, Range(above=0)] = 10.0
    """Seconds of silence after which a host's slots, or the learner's place, are free (ours: ten heartbeats)."""
    patience_minutes: Annotated[float, Range(above=0)] = 30.0
    """Minutes that actors wait for a learner, or for the server, before they give up (ours: a machine's restart)."""


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
    seed: Annotated[int, Range(0, below=2**63)] = 1
    """Of everything: networks, exploration, environments, sampling."""
    stall_timeout: Annotated[float, Range(0)] = 300.0
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
