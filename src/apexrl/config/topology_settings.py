"""The settings of topologies, a dataclass for each of them or for what several have in common.

``topologies.TOPOLOGIES`` says which of them a topology reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from apexrl.config.settings import Limit, Range


@dataclass(frozen=True)
class AutotuneSettings:
    """Every topology: the number of its processes may change while it runs."""

    autotune: bool = False
    """Every topology: try other numbers of actors (workers, threads) while the run goes on, and keep what gives most.
    They begin as they are given; --actor-slots is the most actors (0: four times --actors, at least 16)."""
    autotune_seconds: Annotated[float, Range(above=0)] = 10.0
    """Length of the windows that are compared (GA3C: 20)."""


@dataclass(frozen=True)
class QueueSettings:
    """Topologies that queue unrolls."""

    queue_batches: Annotated[int, Range(1)] = 2
    """Batches of unrolls that may wait for the learner, then actors wait (ours: one to learn from, one to fill)."""


@dataclass(frozen=True)
class LearnersSettings:
    """Topologies with several learners."""

    learners: Annotated[int, Range(1), Limit(4096)] = 1
    """Learners side by side (Gorila: 100)."""


@dataclass(frozen=True)
class ParameterServerSettings:
    """Parameter servers of gorila and a3c."""

    parameter_servers: Annotated[int, Range(1), Limit(4096)] = 1
    """Processes that share the parameters among them, and their optimizer's state (Gorila: 31)."""
    max_gradient_lag: Annotated[int, Range(0)] = 0
    """Gradients of parameters that are more updates old than this are refused; 0: no limit (Gorila: a threshold)."""


@dataclass(frozen=True)
class GorilaSettings:
    """Gorila alone."""

    replay: Literal["global", "local"] = "global"
    """Of all gorila's learners together, or of each its own (Gorila's bundles).
    Its own is filled by the learner's share of the actors, and has its share of capacity and min_size."""
    outlier_deviations: Annotated[float, Range(0)] = 0.0
    """Batches whose loss is this many standard deviations above its running mean are left out; 0: none (Gorila)."""


@dataclass(frozen=True)
class A3CSettings:
    """A3C alone."""

    hogwild: bool = True
    """a3c: workers change the parameters in place, in shared memory; else through parameter servers."""
    shared_statistics: bool = True
    """a3c: all workers share the optimizer's statistics (A3C's shared RMSProp)."""


@dataclass(frozen=True)
class InferenceSettings:
    """Topologies in which environments ask for actions."""

    inference_batch: Annotated[int, Range(0)] = 0
    """Environments that an inference server answers at once at most; 0: all that wait."""
    inference_wait_ms: Annotated[float, Range(0)] = 5.0
    """Milliseconds that it waits for more than a third of them (Sample Factory: 25)."""
    splits: Annotated[int, Range(0)] = 0
    """Groups of a worker's environments, of which one steps while the others wait for actions (Sample Factory: 2).
    0: one where actors share cores, so that others step meanwhile; else, or where hosts may join, two."""


@dataclass(frozen=True)
class SampleFactorySettings:
    """Sample Factory alone."""

    policy_workers: Annotated[int, Range(1), Limit(4096)] = 1
    """Processes that choose the actions of rollout workers (Sample Factory: 1)."""


@dataclass(frozen=True)
class GA3CSettings:
    """GA3C alone."""

    predictors: Annotated[int, Range(1), Limit(4096)] = 2
    """Threads that answer environments (GA3C: 2)."""
    trainers: Annotated[int, Range(1), Limit(4096)] = 2
    """Threads that learn (GA3C: 2)."""
    training_min_batch: Annotated[int, Range(1)] = 1
    """Unrolls that one of these takes at least, and batch_size at most: as many as wait (GA3C: 1)."""


@dataclass(frozen=True)
class WiringConfig(  # a dataclass has the fields of its last base first
    AutotuneSettings,
    GA3CSettings,
    SampleFactorySettings,
    InferenceSettings,
    A3CSettings,
    GorilaSettings,
    ParameterServerSettings,
    LearnersSettings,
    QueueSettings,
):
    """How the topology is wired; apexrl list NAME says which of these a topology reads."""

    topology_settings: dict[str, Any] = field(default_factory=dict)
    """Settings that a topology from outside this package declares, by name."""
