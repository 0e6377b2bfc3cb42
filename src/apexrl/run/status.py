"""The status of a run at one moment, as plain data, and the ``Observer`` interface.

The launcher fills it in; the terminal panel, the run log, callbacks and tests read it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from apexrl.run.episode_metrics import Spread

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
"""``carrying``: transfers data between hosts; ``hung``: an environment call beyond ``env_timeout`` or a loop without
progress, about to be killed; ``failed``: not restarted any more."""


class Work(NamedTuple):
    """The unit of a role's progress."""

    counter: str  # of the control board
    unit: str  # of the rate
    activity: WorkerState  # while it works


OTHER_WORK: Final = Work("env_steps", "/s", "acting")
"""Work of a role that declares none."""

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
    """Number of restarts of this worker."""
    rate: float = 0.0
    """Per second, lately: environment steps of an actor, updates of a learner, evaluations of an evaluator,
    batches of a replay, chunks of an intake or uplink."""
    heartbeat_age_seconds: float = 0.0
    """Seconds since the worker's last heartbeat."""
    work: Work = OTHER_WORK
    """The unit of ``rate``."""


@dataclass(slots=True)
class RunStatus:
    """The whole run. Counters include resumed runs and restarts; rates are over the last few seconds."""

    phase: Phase = "starting"
    elapsed_seconds: float = 0.0
    """Seconds of training: since the first environment step; 0 before it."""
    ending_seconds: float = 0.0
    """Seconds since training ended: of the last checkpoint and the final evaluations."""
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
    updates_per_step: float = 0.0
    """Reached: learner updates per environment step, since the first update of this part of the run."""
    policy_lag: PolicyLag = NO_LAG
    """Of the steps that were learned from since the learner's last report."""
    lag_histogram: Mapping[int, int] = field(default_factory=dict)
    """The same steps by their lag: least lag of a bin -> steps. Bins: 0, 1, 2, 3, 4, 6, 8, 12, 16 …"""
    lag_wait_seconds: float = 0.0
    """Seconds that all actors together waited for ``wait_at_policy_lag``."""
    weights_version: int = 0
    """Newest published weights version, in learner updates."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The agent's newest metrics by name: ``loss``, ``gradient_norm`` …"""
    episode_metrics: dict[str, Spread] = field(default_factory=dict)
    """What environments tell of the latest 100 training episodes, by name: ``info["metrics"]`` and ``info_metrics``."""
    custom_metrics: dict[str, float] = field(default_factory=dict)
    """What callbacks have recorded, by name."""
    machine: dict[str, float] = field(default_factory=dict)
    """How busy the learner's machine is: ``MachineLoad.sample``."""
    inference: dict[str, float] = field(default_factory=dict)
    """Lately, of an inference server: ``batch``, environments per batch, and ``wait_ms``, milliseconds from a request
    to its answer, both means; empty without one."""
    workers: list[WorkerStatus] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts by role: ``{"actor": 1, "learner": 0}``."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Counts of lost data by kind: ``{"messages": 0, "steps": 12}``."""
    hosts: dict[str, float] = field(default_factory=dict)
    """Of a run over several hosts, totals of their traffic by name: ``committed``, ``weights_failures`` …;
    ``weights_behind``: how many versions the weights on other hosts are older than ``weights_version``."""
    trouble: str = ""
    """Why weights do not reach other hosts at present; empty: they do."""
    progress: float | None = None
    """0 … 1 towards whichever of the stop rules is nearest; None when no rule allows an estimate."""
    eta_seconds: float | None = None
    """Seconds until that rule stops the run, at the present rates; None: unknown."""

    @property
    def shown_seconds(self) -> float:
        """What a clock shows, that goes on while a run ends."""
        return self.elapsed_seconds + self.ending_seconds

    @property
    def axis_steps(self) -> int:
        """What curves are drawn over: environment steps; of a run that makes none, updates."""
        return self.env_steps or self.updates


class Observer(Protocol):
    """Watches a run. A launcher calls it from one thread: ``started`` once, ``finished`` once, the rest between.

    An OSError of an observer is reported and counted (``dropped``: ``reports``); any other error ends the run. A slow
    observer delays the supervisor, so ``update`` must be quick.

    An observer that shows or stores the run has an attribute ``writes``, which names what it writes to. It is called
    from a thread of its own, its errors do not end the run, and its return values are ignored. ``ours = True`` marks a
    part of apexrl that is called directly and whose errors do not end the run either.
    """

    def started(self, config: Config, folder: Path) -> None:
        """The run folder exists; no worker is started yet."""

    def update(self, status: RunStatus) -> bool | str | None:
        """A fresh status, a few times a second; it may be kept. Returning True stops the run; so does a text, which
        becomes the reason."""

    def event(self, kind: str, values: dict[str, Any]) -> None:
        """A message of a worker (``evaluation``, ``episodes``, ``metrics``, ``checkpoint`` …) and its values."""

    def message(self, text: str, level: Level = "info") -> None:
        """A text for the user: a restart, a warning, an error."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The run has ended and ``summary.json`` is written."""
