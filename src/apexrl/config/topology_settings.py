"""The settings of topologies, a dataclass for each of them or for what several have in common.

``topologies.TOPOLOGIES`` says which of them a topology reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from apexrl.config.settings import Needs, Range


@dataclass(frozen=True)
class AutotuneSettings:
    """Every topology: the number of its processes may change while it runs."""

    autotune: bool = False
    """Tries other numbers of actors, workers or threads during the run, and keeps the fastest.
    --actor-slots is the most actors (0: four times --actors, at least 16)."""
    autotune_seconds: Annotated[float, Range(above=0)] = 10.0
    """Seconds of each measurement that --autotune compares (GA3C: 20)."""


@dataclass(frozen=True)
class QueueSettings:
    """Topologies that queue unrolls."""

    queue_batches: Annotated[int, Range(1)] = 2
    """Batches of unrolls that the queue holds before actors wait (ours: one to learn from, one to fill)."""


@dataclass(frozen=True)
class LagWaitSettings:
    """Topologies whose actors see the whole queue."""

    wait_at_policy_lag: Annotated[int, Range(0)] = 0
    """Actors choose no actions that would be learned from more updates late than this, and wait instead; 0: no limit.
    Holds for environments of about equal speed (AReaL's bound on staleness)."""


@dataclass(frozen=True)
class LearnersSettings:
    """Topologies with several learners."""

    learners: Annotated[int, Range(1, 4096)] = 1
    """Number of learners (Gorila: 100)."""
    averaging_timeout: Annotated[float, Range(above=0)] = 10.0
    """Seconds that learners which average gradients wait for one that does not answer, before they go on without it."""


@dataclass(frozen=True)
class AveragingSettings:
    """Topologies whose learners average gradients."""

    averaging_transport: Literal["auto", "sockets", "gloo", "nccl"] = "auto"
    """What carries sums of gradients: sockets, or torch.distributed over gloo or NCCL.
    With nccl they stay on the GPUs, of which each learner needs one of its own. auto: sockets."""
    gradient_compression: Annotated[
        Literal["none", "bf16", "top-k"], Needs("averaging_transport", ("auto", "sockets"))
    ] = "none"
    """What learners send each other of a gradient: all, values rounded to bfloat16 (half the bytes), or the greatest.
    What top-k leaves out is added to the next gradient (Stich et al. 2018).
    The metric compression_error says how much was left out."""
    gradient_share: Annotated[float, Range(above=0, at_most=0.5), Needs("gradient_compression", ("top-k",))] = 0.01
    """Share of a gradient's values that top-k sends, each with its place: at 0.5 as many bytes as without."""


@dataclass(frozen=True)
class ParameterServerSettings:
    """Parameter servers of gorila and a3c."""

    parameter_servers: Annotated[int, Range(1, 4096)] = 1
    """Parameter server processes; each owns a slice of parameters and optimizer state (Gorila: 31)."""
    max_gradient_lag: Annotated[int, Range(0)] = 0
    """Refuses gradients of parameters more updates old than this; 0: no limit (Gorila: a threshold)."""


@dataclass(frozen=True)
class GorilaSettings:
    """Gorila alone."""

    replay: Literal["global", "local"] = "global"
    """One replay for all learners, or one for each (Gorila's bundles).
    A local replay gets the learner's share of actors, capacity and min_size."""
    outlier_deviations: Annotated[float, Range(0)] = 0.0
    """Skips batches whose loss is this many standard deviations above its running mean; 0: none (Gorila)."""


@dataclass(frozen=True)
class A3CSettings:
    """A3C alone."""

    hogwild: bool = True
    """a3c: workers update parameters in shared memory without locks; off: through parameter servers."""
    shared_statistics: bool = True
    """a3c: all workers share the optimizer's statistics (A3C's shared RMSProp)."""


@dataclass(frozen=True)
class InferenceSettings:
    """Topologies in which environments ask for actions."""

    inference_batch: Annotated[int, Range(0)] = 0
    """Most environments in one inference batch; 0: all that wait."""
    inference_wait_ms: Annotated[float, Range(0)] = 5.0
    """Milliseconds that a server waits for a third of its environments (Sample Factory: 25)."""
    splits: Annotated[int, Range(0)] = 0
    """Groups of a worker's environments; one steps while others wait for actions (Sample Factory: 2).
    0: one if actors share cores; two otherwise, or if hosts may join."""


@dataclass(frozen=True)
class SampleFactorySettings:
    """Sample Factory alone."""

    policy_workers: Annotated[int, Range(1, 4096)] = 1
    """Policy worker processes, which choose actions for rollout workers (Sample Factory: 1)."""


@dataclass(frozen=True)
class GA3CSettings:
    """GA3C alone."""

    predictors: Annotated[int, Range(1, 4096)] = 2
    """Predictor threads, which choose actions (GA3C: 2)."""
    trainers: Annotated[int, Range(1, 4096)] = 2
    """Trainer threads, which learn (GA3C: 2)."""
    training_min_batch: Annotated[int, Range(1)] = 1
    """Fewest unrolls in a trainer's batch; batch_size is the most (GA3C: 1)."""


@dataclass(frozen=True)
class WiringConfig(  # a dataclass has the fields of its last base first
    AutotuneSettings,
    GA3CSettings,
    SampleFactorySettings,
    InferenceSettings,
    A3CSettings,
    GorilaSettings,
    ParameterServerSettings,
    AveragingSettings,
    LearnersSettings,
    LagWaitSettings,
    QueueSettings,
):
    """How the topology is wired; apexrl list NAME says which of these a topology reads."""

    topology_settings: dict[str, Any] = field(default_factory=dict)
    """Settings that a topology from outside this package declares, by name."""
