"""The ledger of a run: takes in messages and counters of workers; gives out statuses, stop reasons and the summary.

Every launcher uses the same ledger. It knows no processes and reads no clock: its caller passes the time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from apexrl.config import Config
from apexrl.errors import AgentError, SnapshotError
from apexrl.launch import contained_observers
from apexrl.launch.folder_upkeep import Upkeep, write_summary
from apexrl.launch.recent_returns import LatestReturns
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_policy_lag import Lags
from apexrl.launch.stop_rules import StopRules
from apexrl.run import env_changes
from apexrl.run.actor_order import ActorNumbers
from apexrl.run.env_changes import EnvChange
from apexrl.run.episode_metrics import MOST_NAMES, LatestEpisodes, told_spreads
from apexrl.run.folder import RunFolder, make_summary
from apexrl.run.machine_load import MachineLoad
from apexrl.run.metrics import RateMeter, progress
from apexrl.run.status import Level, Observer, Phase, RunStatus, WorkerStatus

SUMMARY_SECONDS = 5.0
"""How long a summary is tried to be written."""

_UPKEEP_SECONDS = 10.0
_CARRIERS = ("gateway", "intake", "uplink")  # of one name, the later one counts


class Ledger:
    """Keeps the state of one run and informs its observers.

    Args:
        observers: told of everything, from the thread that keeps the ledger.
        base: what a resumed run had reached.
        began: the clock when the command started, in seconds.
    """

    def __init__(self, config: Config, folder: RunFolder, observers: Sequence[Observer], base: Base, began: float):
        self.config = config
        self.folder = folder
        self.stop_reason: str | None = None
        self.failure: Exception | None = None  # of a callback; the run then stops cleanly
        self.finals: dict[str, Mapping[str, Any]] = {}  # final evaluations: of the `best` and of the `last` weights
        self._carriers: dict[str, Mapping[str, Any]] = {}
        self.carried: Mapping[str, Any] = {}  # between hosts: the newest totals of whoever carries
        self.tuned: Mapping[str, Any] = {}  # what an auto-tuner has found
        self.given_up: list[str] = []  # workers without which the run goes on
        self._told_once: set[str] = set()  # what several roles say, and one may
        self._unnumbered: set[str] = set()  # whose next generation waits for the run folder
        self._observers = contained_observers.contained(observers)
        self._upkeep = Upkeep(folder)
        self._upkeep_thread = contained_observers.Contained(self._upkeep)
        self._upkeep_at = 0.0
        self.base = base
        self._began = began
        self._first_step: float | None = None
        self._filled_until = self.base.env_steps  # at the last look before the first update here
        self._learning_since: tuple[int, int] | None = None  # environment steps and updates made then
        self._stopped: float | None = None
        self.env_change = EnvChange()
        self._carry: Callable[[bytes], None] | None = None  # what tells workers of it
        self._returns = LatestReturns()
        # whether the best weights were never trained
        self._untrained = not (base.best_updates or config.learner.initial_weights)
        self._not_saved: list[str] = []
        self._rules = StopRules(config.stop, base.best_eval_return)
        self._told_of_episodes = LatestEpisodes()
        self._unrecorded = 0  # values of callbacks
        self._env_rate, self._update_rate = RateMeter(), RateMeter()
        self._lags = Lags()
        self._machine = MachineLoad()
        self.status = RunStatus(best_eval_return=base.best_eval_return)

    def open(self) -> None:
        """Tell the observers that the run begins.

        Raises:
            ConfigError: the folder holds settings of environments that are none.
        """
        resumed = self.env_change = env_changes.read(self.folder.path)
        for observer in self._observers:
            observer.steer(self)
        for observer in (*self._observers, self._upkeep_thread):
            observer.started(self.config, self.folder.path)
        if self.env_change.version and self.env_change is resumed:
            self._tell_of_change()

    def hear(self, kind: str, values: dict[str, Any]) -> None:
        """Enter a worker's message."""
        status = self.status
        if kind == "episodes":
            status.train_return = self._returns.hear(values)
            if "metrics" in values:
                self._told_of_episodes.hear(told_spreads(values["metrics"]))
        elif kind == "metrics":
            status.metrics = {name: _number(name, value) for name, value in values["values"].items()}
            self._lags.hear(values)
            status.policy_lag, status.lag_histogram = self._lags.lately
        elif kind == "evaluation" and values["final"]:
            self.finals[values.get("weights", "best")] = values
        elif kind == "evaluation":
            mean = float(values["mean"])
            status.eval_return = mean
            first = self._untrained and values.get("updates", 1) > 0  # untrained weights are the best no longer
            if first:
                self._rules.forget_best()
            if first or status.best_eval_return is None or mean > status.best_eval_return:
                status.best_eval_return = mean
            self._untrained &= not first
            self._heed(self._rules.evaluated(mean))
        elif kind == "checkpoint":
            self._upkeep_thread.event(kind, {})
        elif kind in _CARRIERS:
            self._carriers[kind] = values  # a learner's host may have a gateway beside its intake
            self.carried = {name: value for one in _CARRIERS for name, value in self._carriers.get(one, {}).items()}
        elif kind == "not_saved":
            self._not_saved.append(values["what"])
        elif kind == "ratings":
            self.record({f"pool_{name}": float(number) for name, number in values.items()})
        elif kind == "inference":
            status.inference = {name: float(value) for name, value in values.items()}
        elif kind == "log" and values.get("once") not in self._told_once:
            self.tell(values["text"], values.get("level", "info"))
            if "once" in values:
                self._told_once.add(values["once"])
        for observer in self._observers:
            observer.event(kind, values)

    def tell(self, text: str, level: Level = "info") -> None:
        """Pass something on to a human."""
        contained_observers.tell(self._observers, text, level)

    def note(self, what: str, write: Callable[[], object]) -> None:
        """Let ``write`` write a small file of the run folder, soon or as soon as that can be done."""
        self._upkeep_thread.event("note", {"what": what, "write": write})

    def keep_output(self, role: str, data: bytes) -> None:
        """Append what a role elsewhere has printed to its log in the run folder."""
        self._upkeep_thread.event("output", {"role": role, "data": data})

    def give_up(self, worker: str, why: object) -> None:
        """Enter that the run goes on without a worker."""
        self.given_up.append(worker)
        self.tell(f"the run goes on without {worker}: {why}", "warning")

    @property
    def ordered_actors(self) -> int:
        """How many actors ``apexrl scale`` has ordered; 0: nobody has."""
        return self._upkeep.ordered_actors

    def enter_actors(self, numbers: ActorNumbers) -> None:
        """Enter how many actors serve, and how many may."""
        self._upkeep.actors = numbers
        self._upkeep_at = 0.0  # whoever has ordered them waits for it

    def stop(self, reason: str) -> None:
        """Enter why the run stops; the first reason holds."""
        if self.stop_reason is None:
            self.stop_reason = reason

    def fail(self, error: Exception) -> None:
        """Enter that a callback raised an error: the run stops, and ``check`` raises it."""
        if self.failure is None:
            self.failure = error
            self.stop("error")

    def check(self) -> None:
        """Raise what a callback raised."""
        if self.failure is not None:
            raise self.failure

    @property
    def hurried(self) -> bool:
        """Whether the run ends without what takes long, such as a final evaluation."""
        return self.stop_reason == "interrupted" or self.failure is not None

    def record(self, metrics: Mapping[str, float]) -> None:
        """Enter metrics of a callback."""
        recorded = dict(self.status.custom_metrics)  # its own: some look at the old one later
        for name, value in metrics.items():
            if name in recorded or len(recorded) < MOST_NAMES:
                recorded[name] = value
            else:
                self._unrecorded += 1
        self.status.custom_metrics = recorded

    def change_env(self, attributes: Mapping[str, Any], options: Mapping[str, Any]) -> int:
        """Change settings of every environment, at its next reset; returns the number of the change.

        Raises:
            ConfigError: they cannot be told to environments.
        """
        old = self.env_change
        change = EnvChange(old.version + 1, {**old.attributes, **attributes}, {**old.options, **options})
        data = env_changes.encoded(change, "change_env")
        self.env_change = change
        check = self.folder.generations.check
        self.note(env_changes.FILE, lambda: env_changes.write(self.folder.path, data, check))
        if self._carry is not None:
            self._carry(data)
        self._tell_of_change()
        return change.version

    def carry_changes(self, carry: Callable[[bytes], None]) -> None:
        """Let ``carry`` tell workers of changes of their environments, and of those that there were already."""
        self._carry = carry
        if self.env_change.version:
            carry(env_changes.encoded(self.env_change, "change_env"))

    def _tell_of_change(self) -> None:
        for observer in self._observers:
            observer.event("env_change", self.env_change._asdict())

    def number(self, name: str) -> int | None:
        """The number of a new generation of a role that writes into the run folder; None: it cannot be stored now.

        Raises:
            FencedError: another process has started a newer generation of the run.
        """
        try:
            number = self.folder.generations.grant(name)
        except (OSError, SnapshotError) as error:
            if name not in self._unnumbered:
                self._unnumbered.add(name)
                self.tell(f"{name} cannot begin before {self.folder.path} can be written: {error}", "warning")
            return None
        self._unnumbered.discard(name)
        return number

    @property
    def started(self) -> bool:
        """Whether an environment step was made in this process's part of the run."""
        return self._first_step is not None

    def tick(
        self,
        now: float,
        *,
        totals: Callable[[str], int],
        replay: Mapping[str, Any],
        version: int,
        workers: list[WorkerStatus],
        restarts: Mapping[str, int],
        dropped: Mapping[str, int],
    ) -> RunStatus:
        """Enter the counters, apply the stop rules, and return a fresh status.

        Args:
            now: seconds, of the clock that ``began`` was read from.
            totals: counter name -> total over the whole run.
            replay: ``Replay.stats()``, as far as is known.
        """
        self._tell_of_upkeep()
        if now - self._upkeep_at >= _UPKEEP_SECONDS:
            self._upkeep_at = now
            self._upkeep_thread.update(self.status)
        env_steps, updates = totals("env_steps"), totals("updates")
        if self._first_step is None and (env_steps > self.base.env_steps or updates > self.base.updates):
            # It was made since the look before. That one counts: a short run may end within a single look.
            self._first_step = self._began + (self.status.startup_seconds or now - self._began)
        until = now if self._stopped is None else self._stopped
        elapsed = self.base.elapsed_seconds + (0.0 if self._first_step is None else until - self._first_step)
        # experience that did not get from one host to the other, as far as this side knows
        missing = [self.carried[name] for name in ("missing", "dropped_items") if name in self.carried]
        lost = {"items": int(missing[0])} if missing else {}
        status = replace(
            self.status,
            elapsed_seconds=elapsed,
            ending_seconds=now - until,
            startup_seconds=(now if self._first_step is None else self._first_step) - self._began,
            env_steps=env_steps,
            updates=updates,
            episodes=totals("episodes"),
            episode_metrics=self._told_of_episodes.lately,  # not with each report: there may be thousands a second
            env_steps_per_second=self._env_rate.add(now, env_steps),
            updates_per_second=self._update_rate.add(now, updates),
            replay_size=int(replay.get("size", 0)),
            replay_capacity=int(replay.get("capacity", 0)),
            samples_per_insert=float(replay.get("observed_samples_per_insert", 0.0)),
            updates_per_step=self._updates_per_step(env_steps, updates),
            lag_wait_seconds=totals("lag_wait_ms") / 1000.0,
            weights_version=version,
            workers=workers,
            restarts=self._everywhere(restarts),
            dropped=dict(dropped) | lost | self._lost_reports() | self._unnamed_metrics(),
            machine=self._machine.lately(now),
            hosts=self._between_hosts(version),
            trouble=str(self.carried.get("weights_trouble", "")),
        )
        status.progress, status.eta_seconds = progress(self.config.stop, status)
        status.phase = self._phase(status)
        self.status = status
        self._heed(self._rules.look(status))
        while self._rules.warnings:
            self.tell(self._rules.warnings.pop(0), "warning")
        return status

    def show(self) -> None:
        """Give the observers the newest status; one that answers True, or with a reason, stops the run.

        Raises:
            FencedError: another process has started a newer generation of the run.
        """
        if not self._upkeep.looking:
            self._upkeep.looking = True
            self._upkeep_thread.event("look", {})
        if self._upkeep.fenced is not None:
            raise self._upkeep.fenced
        contained_observers.pass_on_news(self._observers, time.monotonic())
        status = replace(self.status)  # its own: some look at it later, from threads of their own
        answers = [observer.update(status) for observer in self._observers]
        for answer in answers:
            if answer is True or (isinstance(answer, str) and answer):
                self.stop(answer if isinstance(answer, str) else "callback")

    def training_ends(self, now: float) -> None:
        """Training is over; what follows (final checkpoint, final evaluation) is not counted as its time."""
        if self._stopped is None:
            self._stopped = now

    def close(self, error: str | None = None) -> dict[str, Any]:
        """Write the summary, tell the observers, and return it. A folder that takes none hides nothing of it."""
        self._upkeep_thread.finished({})
        self._upkeep_thread.settle(time.monotonic() + SUMMARY_SECONDS)
        self._tell_of_upkeep()
        self.status.phase = "finished" if error is None else "failed"
        self.status.dropped |= self._lost_reports()
        lag, histogram = self._lags.ever
        summary = make_summary(
            self.config,
            replace(self.status, policy_lag=lag, lag_histogram=histogram),
            stopped_by="error" if error is not None else self.stop_reason or "interrupted",
            finals=self.finals,
            carried=self.carried,
            tuned=self.tuned,
            given_up=self.given_up,
            actors=0 if self._upkeep.actors is None else self._upkeep.actors.serving,
            error=error,
        )
        summary["generation"] = self.folder.generations.run
        summary["not_saved"] = self._not_saved
        if not write_summary(self.folder, summary, self.tell, time.monotonic() + SUMMARY_SECONDS):
            self._not_saved.append("the summary")
        contained_observers.pass_on_news(self._observers, time.monotonic())
        contained_observers.finish(self._observers, summary)
        return summary

    def _tell_of_upkeep(self) -> None:
        for text, level in (*self._upkeep.news(), *self._upkeep_thread.news(time.monotonic())):
            self.tell(text, level)

    def _updates_per_step(self, env_steps: int, updates: int) -> float:
        """What is reached since the first update was seen here: before it, steps only fill the replay. With a single
        look since then, counted from the look before it."""
        if updates <= self.base.updates:
            self._filled_until = env_steps
            return 0.0
        if self._learning_since is None:
            self._learning_since = env_steps, updates
        steps, made = self._learning_since
        if env_steps == steps:
            steps, made = self._filled_until, self.base.updates
        return (updates - made) / (env_steps - steps) if env_steps > steps else 0.0

    def _everywhere(self, restarts: Mapping[str, int]) -> dict[str, int]:
        """Restarts by role, those of environment workers on other hosts among them."""
        here = dict(restarts)
        if "worker_restarts" in self.carried:
            here["env_worker"] = here.get("env_worker", 0) + int(self.carried["worker_restarts"])
        return here

    def _between_hosts(self, version: int) -> dict[str, float]:
        numbers = {name: float(n) for name, n in self.carried.items() if isinstance(n, int | float)}
        if "weights_published" in numbers:
            numbers["weights_behind"] = max(0.0, version - numbers["weights_published"])
        return numbers

    def _lost_reports(self) -> dict[str, int]:
        """What could not be shown or stored of the run."""
        lost = self._upkeep.failed + sum(one.lost for one in (*self._observers, self._upkeep_thread))
        counted = [getattr(one.observer, "dropped", {}) for one in self._observers]
        return ({"reports": lost} if lost else {}) | {name: n for one in counted for name, n in one.items() if n}

    def _unnamed_metrics(self) -> dict[str, int]:
        left_out = self._told_of_episodes.left_out
        counted = {"episode_metrics": left_out, "custom_metrics": self._unrecorded}
        return {what: count for what, count in counted.items() if count}

    def _phase(self, status: RunStatus) -> Phase:
        if self._stopped is not None:
            busy = any(worker.state == "evaluating" for worker in status.workers)
            return "evaluating" if busy else "stopping"
        if self._first_step is None:
            return "starting"
        here = {worker.role for worker in status.workers}
        # the first learner is on another host
        elsewhere = here & {"uplink", "relay"} or here in ({"env_worker"}, {"learner", "actor"})
        return "training" if elsewhere or status.updates > self.base.updates else "filling"

    def _heed(self, reason: str) -> None:
        """Stop for a reason of the rules, if there is one."""
        if reason and self.stop_reason is None:
            if self._rules.told:
                self.tell(self._rules.told)
            self.stop(reason)


def _number(name: str, value: Any) -> float:
    """A metric; None stands for NaN. AgentError: it is no number."""
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise AgentError(f"the agent returned the metric {name!r} as {value!r:.60}; it must be a number") from error
