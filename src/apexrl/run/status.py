"""What a running training run looks like at one moment: plain data, filled by a launcher, read by everyone else.

The terminal panel, the run log, callbacks and tests all see the run through these two dataclasses and the
``Observer`` interface. Nothing here imports anything but the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from apexrl.config import Config

Phase = Literal["starting", "filling", "training", "stopping", "evaluating", "finished", "failed"]
"""``filling``: the replay is below ``min_size``; ``evaluating``: the final evaluation, after training stopped."""

WorkerState = Literal[
    "starting",
    "acting",
    "learning",
    "evaluating",
    "serving",
    "carrying",
    "waiting",
    "restarting",
    "hung",
    "stopped",
    "failed",
]
"""``carrying``: between hosts; ``hung``: an environment call beyond ``env_timeout``, or a loop that stands still, about
to be killed; ``failed``: given up on."""


class Work(NamedTuple):
    """What a role's progress is counted in."""

    counter: str  # of the control board
    unit: str  # of the rate
    activity: WorkerState  # while it works


OTHER_WORK: Final = Work("env_steps", "/s", "acting")
"""Work of a role that does not say what it does."""

Level = Literal["info", "warning", "error"]


class PolicyLag(NamedTuple):
    """Learner's version at training minus the step's version, in learner updates; NaN before the first update."""

    mean: float
    p95: float
    max: float


NO_LAG = PolicyLag(float("nan"), float("nan"), float("nan"))


@dataclass(slots=True)
class WorkerStatus:
    """One worker process (or, in serial mode, one role)."""

    name: str
    """``role-index``: ``actor-0``, ``learner-0``, ``evaluator-0``."""
    role: str
    """``actor``, ``learner``, ``evaluator`` …"""
    index: int
    """The leased slot: of the whole run, on whichever host it works."""
    pid: int | None = None
    """Process id; None while there is no process."""
    state: WorkerState = "starting"
    restarts: int = 0
    """Times that this worker was started again."""
    rate: float = 0.0
    """Per second, lately: environment steps of an actor, updates of a learner, evaluations of an evaluator,
    batches of a replay, chunks of an intake or uplink."""
    heartbeat_age_seconds: float = 0.0
    """Seconds since the worker's last sign of life."""
    work: Work = OTHER_WORK
    """What ``rate`` counts."""


@dataclass(slots=True)
class RunStatus:
    """The whole run. Counters include resumed runs and restarts; rates are over the last few seconds."""

    phase: Phase = "starting"
    elapsed_seconds: float = 0.0
    """Seconds of training: since the first environment step; 0 before it."""
    startup_seconds: float = 0.0
    """Seconds from the command to the first environment step (still growing before it)."""
    env_steps: int = 0
    """Environment steps of all actors together (final observations not counted)."""
    env_steps_per_second: float = 0.0
    updates: int = 0
    """Learner updates."""
    updates_per_second: float = 0.0
    episodes: int = 0
    """Training episodes finished."""
    train_return: float | None = None
    """Mean undiscounted return of the latest training episodes (exploring, all actors); None before the first."""
    eval_return: float | None = None
    """Mean greedy return of the newest evaluation; None before the first."""
    best_eval_return: float | None = None
    """Largest ``eval_return`` so far."""
    replay_size: int = 0
    """Items that can be sampled."""
    replay_capacity: int = 0
    """0: there is no replay."""
    samples_per_insert: float = 0.0
    """Observed: sampled items per inserted item, since the start."""
    policy_lag: PolicyLag = NO_LAG
    """Of the steps that were learned from since the learner's last report."""
    lag_histogram: Mapping[int, int] = field(default_factory=dict)
    """The same steps by their lag: least lag of a bin -> steps. Bins: 0, 1, 2, 3, 4, 6, 8, 12, 16 …"""
    weights_version: int = 0
    """Newest published weights version, in learner updates."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The agent's newest metrics by name: ``loss``, ``gradient_norm`` …"""
    inference: dict[str, float] = field(default_factory=dict)
    """Lately, of an inference server: ``batch``, environments per batch, and ``wait_ms``, milliseconds from a request
    to its answer, both means; empty without one."""
    workers: list[WorkerStatus] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts by role: ``{"actor": 1, "learner": 0}``."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Things counted as lost, by what was lost: ``{"messages": 0, "steps": 12}``."""
    hosts: dict[str, float] = field(default_factory=dict)
    """Of a run over several hosts, totals of what went between them, by name: ``committed``, ``weights_failures`` …;
    ``weights_behind``: versions by which what other hosts can have is older than ``weights_version``."""
    trouble: str = ""
    """Why weights do not get from the learner to other hosts just now; empty when all is well."""
    progress: float | None = None
    """0 … 1 towards whichever of the stop rules is nearest; None when no rule allows an estimate."""
    eta_seconds: float | None = None
    """Seconds until that rule stops the run, at the present rates; None when unknown."""


class Observer(Protocol):
    """Watches a run. A launcher calls it from one thread: ``started`` once, ``finished`` once, the rest between.

    An OSError of an observer is told and counted (``dropped``: ``reports``); anything else that it raises ends the run.
    One that is slow delays the supervisor, so ``update`` must be quick.

    One that shows or stores the run says so with an attribute ``writes``: what it writes to, in words. It is called
    from a thread of its own, nothing that it raises ends the run, and its answers are not heard. ``ours = True`` says
    that nothing ends the run either that a part of apexrl raises which is called at once.
    """

    def started(self, config: Config, folder: Path) -> None:
        """The run folder exists; no worker is started yet."""
        ...

    def update(self, status: RunStatus) -> bool | str | None:
        """A fresh status, a few times a second; it may be kept. Returning True asks the run to stop, and a text does
        so with this word for the reason."""
        ...

    def event(self, kind: str, values: dict[str, Any]) -> None:
        """A worker's message (``evaluation``, ``episodes``, ``metrics``, ``checkpoint`` …) with its values."""
        ...

    def message(self, text: str, level: Level = "info") -> None:
        """Something to tell a human: a restart, a warning, an error."""
        ...

    def finished(self, summary: dict[str, Any]) -> None:
        """The run is over (well or not) and ``summary.json`` is written."""
        ...
