"""The driver: starts, watches, restarts and stops the actor groups of a program on a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError, RayTaskError

from apexrl.config import Config
from apexrl.config.placement import Ray
from apexrl.errors import WorkerError
from apexrl.launch.actor_orders import ActorOrders
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.probe import fatal_error
from apexrl.launch.ray import run_totals
from apexrl.launch.ray.cluster import Cluster, kill
from apexrl.launch.ray.elastic_groups import ElasticGroups
from apexrl.launch.ray.group_control import GroupControl, ending_of, first_line
from apexrl.launch.ray.group_plan import Plan, check_room, plan, resource_bundles
from apexrl.launch.ray.learner_record import LearnerRecord
from apexrl.launch.ray.preflight import HELLO_SECONDS, receive, reserve
from apexrl.launch.ray.ray_actors import News, RayAssignment, Report, RoleProcess
from apexrl.launch.ray.ray_metrics import RayMetrics
from apexrl.launch.ray.ray_slots import ActorGroup, RaySlot, groups_of, in_turn, staff
from apexrl.launch.ray.role_output import OutputGathering
from apexrl.launch.restart_budget import Ending
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.stall_dump import DUMP_SECONDS
from apexrl.launch.worker_process import log_labels
from apexrl.launch.worker_slots import identity
from apexrl.links.local.control_board import COUNTERS, HURRY, RUN, STOP
from apexrl.topologies import Probe, Program
from apexrl.topologies.learner_hosts import averages
from apexrl.topologies.ray_cut import INFERENCE, LEARNERS, queues, sampling
from apexrl.topologies.spread_learners import AVERAGING, averaging_options

_TICK_SECONDS = 0.2
_NUMBER_SECONDS = 1.0  # between attempts to write a generation's number
_PERIOD_SECONDS = 0.5  # between polls of one worker: each wakes threads of Ray at both ends; and
_POLLS_PER_SECOND = 1000.0  # … of all together, at most


class Driver:
    """One run on a Ray cluster. Call ``probe``, then ``run``, and ``close`` in any case."""

    def __init__(self, config: Config, placement: Ray, interrupts: Interrupts) -> None:
        self._config = config
        self._placement = placement
        self._interrupts = interrupts
        self._plan = plan(
            config, placement, 1, queues(config, placement.learner_nodes)
        )  # on one machine, until it is known
        wanted = sum(bundle["CPU"] for bundle in resource_bundles(config, placement, self._plan)[: self._plan.base + 1])
        self._cluster = Cluster(placement, local_cpus=wanted)
        self.namespace = self._cluster.namespace  # of the run's named actors: shard-0.0, shard-1.0 …
        self._groups: list[ActorGroup] = []
        self._stop_at: float | None = None
        self._word = RUN
        self._longest = max(HELLO_SECONDS, placement.wait_seconds)  # for a process to begin
        self._heeded = self._hung_calls = 0
        self._env_change = b""
        self._come: set[Any] = set()  # references that were ready when this turn began
        self._sums = dict.fromkeys(COUNTERS, 0)  # of all generations of all slots
        self._record: LearnerRecord | None = None  # of learners on several nodes

    def close(self) -> None:
        """End every Ray actor of the run, and release its resources. May be called again."""
        groups, self._groups = self._groups, []
        try:
            for group in groups:
                for slot in group.slots:
                    kill(slot.handle)
                kill(group.memory)
            if self._record is not None:
                self._record.close()
        finally:
            self._cluster.close()

    def probe(self) -> Probe:
        """Reserve the run's resources, and probe environment and agent; see ``preflight.receive``."""
        seen, self._plan = receive(self._config, self._placement, self._cluster, self._interrupts)
        return seen

    def check(self, program: Program) -> None:
        """ConfigError: ``program`` cannot run so."""
        check_room(self._plan, sampling(program))

    def settle(self, plan: Plan) -> None:
        """Reserve the resources of these groups without a probe: for programs that are made by hand."""
        reserve(self._config, self._placement, plan, self._cluster, self._interrupts)
        self._plan = plan

    def run(self, program: Program, ledger: Ledger, figures: RayMetrics | None = None) -> None:
        """Run ``program`` until something stops it. Raises what made it fail; otherwise ``ledger`` knows the reason."""
        self._ledger, self._figures = ledger, figures
        ledger.carry_changes(self._set_env_change)
        nodes = self._placement.learner_nodes
        self._groups = groups_of(program, self._plan, self._cluster.namespace, nodes)
        self._record = LearnerRecord(averaging_options(program), self.namespace) if nodes > 1 else None
        bundles = resource_bundles(self._config, self._placement, self._plan)[1:]
        self._output = OutputGathering(ledger)
        self._growth = ElasticGroups(self._cluster, self._plan, self._groups[1:], bundles, ledger.tell)
        self._control = GroupControl(
            self._cluster, self._placement, self._plan, self._groups, self._growth, sampling(program), ledger
        )
        grows = self._plan.most > self._plan.least
        orders = ActorOrders(program, in_turn(self._groups[1:]), ledger, staff, self._plan.least if grows else 0)
        shown = polled = -1.0
        while not all(slot.gone for slot in self._slots()):
            self._sleep()
            now = time.monotonic()
            self._heed_interrupts()
            if self._stop_at is None:
                orders.step(now)
                self._growth.step(now)
            if self._record is not None and self._record.lost(self._come):
                self._begin_record(self._record, now)
            for group in self._groups:
                self._attend(group, now)
            if self._stop_at is None:
                self._control.check_missing(now, self._longest)
            if now - polled >= _TICK_SECONDS:
                polled = now
                self._output.step()
                self._tick(now)
            if self._stop_at is None and (ledger.stop_reason is not None or self._control.failure is not None):
                self._stop(now)
            if now - shown >= _PERIOD_SECONDS:
                shown = now
                ledger.show()
                if self._stop_at is not None:  # in a call that took long nobody could hear of the stop
                    self._stop_at += time.monotonic() - now
        self._output.step(1.0)
        self._tick(time.monotonic())
        ledger.show()
        if self._control.failure is not None:
            raise self._control.failure

    # --- groups and workers

    def _slots(self) -> Iterable[RaySlot]:
        return (slot for group in self._groups for slot in group.slots)

    def _sleep(self) -> None:
        """Until a tick has passed, or all has come that was asked for. Costs one call, however many there are."""
        waited = [group.greeting for group in self._groups] + [group.looked for group in self._groups]
        waited += [self._record.watched] if self._record is not None else []
        for slot in self._slots():
            waited += [slot.running, slot.polled, slot.stacks]
        waited = [reference for reference in waited if reference is not None]
        self._come = set()
        if waited:
            come, _ = ray.wait(waited, num_returns=len(waited), timeout=_TICK_SECONDS / 2, fetch_local=False)
            self._come = set(come)
        if len(self._come) == len(waited):
            time.sleep(_TICK_SECONDS / 4)

    def _attend(self, group: ActorGroup, now: float) -> None:
        """Start what is due, take in what has arrived, and handle what has ended."""
        if self._stop_at is not None:
            for slot in group.slots:
                slot.gone = slot.gone or slot.handle is None
        if group.memory is None:
            due = now >= group.restart_at and self._growth.may_begin(group)
            if due and group.dropped and self._stop_at is None:
                self._control.try_again(group)
            if due and not all(slot.gone for slot in group.slots):
                self._control.start(group, now)
            return
        if not self._control.hear(group, self._come, now):
            return
        if self._stop_at is None:
            self._control.dismiss(group, now)
        for slot in group.slots:
            if slot.handle is not None:
                self._hear(group, slot, now)
            elif slot.gone or slot.resting or now < slot.restart_at:
                continue
            elif self._groups[0].up or slot.node.name not in group.asks:  # what the worker asks is there
                self._begin(group, slot, now)

    def _begin(self, group: ActorGroup, slot: RaySlot, now: float) -> None:
        """Start a generation of a worker."""
        placement, node, generation = self._placement, slot.node, slot.generation + 1
        number = self._ledger.number(slot.name) if node.traits.fenced else 0
        if number is None:
            slot.restart_at = now + _NUMBER_SECONDS
            return
        cpus, gpus = placement.actor_cpus if node.moves else 0.0, 0.0
        if node.name in INFERENCE:
            cpus, gpus = placement.inference_cpus, placement.inference_gpus
        if node.name in LEARNERS:
            cpus, gpus = placement.learner_cpus, max(gpus, placement.learner_gpus)
        who = self._config.seed, node.name, slot.index, generation
        worker = identity(*who, self._ledger.base, self._ledger.folder.path.resolve(), number)
        labels = log_labels(self._config, worker)
        assignment = RayAssignment(
            worker, node.traits.writes_checkpoints and not group.number, node.factory, node.nice, labels
        )
        handle = self._cluster.actor(RoleProcess, group.number, cpus, gpus).remote(assignment)
        slot.begin(now, handle)
        asks = node.name in group.asks
        lent: Any = self._groups[0].memory.lent.remote(group.serves, group.place) if asks else {}
        if self._record is not None and averages(node):
            lent = {AVERAGING: self._record.averaging}
        slot.running = handle.run.remote(group.memory.ports.remote(node.name), lent, self._news(slot))

    def _begin_record(self, record: LearnerRecord, now: float) -> None:
        """Of a record that is lost nobody knows the group of learners any more: all begin anew, in a new one."""
        self._ledger.tell("the record of the learners was lost: they begin anew from the newest checkpoint", "warning")
        record.begin()
        for slot in self._slots():
            if averages(slot.node) and slot.handle is not None:
                kill(slot.handle)
                slot.end(now, "killed", "the record of the learners was lost", sure=False)

    def _hear(self, group: ActorGroup, slot: RaySlot, now: float) -> None:
        try:
            if slot.polled is not None and slot.polled in self._come:
                polled, slot.polled = slot.polled, None
                self._enter(slot, ray.get(polled), now)
            if slot.running in self._come:
                if slot.polled is not None:
                    with suppress(RayError):  # what was said before it ended
                        self._enter(slot, ray.get(slot.polled, timeout=1.0), now)
                report: Report = ray.get(slot.running)
                self._enter(slot, report, now)
                self._handle_end(group, slot, now, report.status or 0, "")
                return
        except RayTaskError as error:
            self._handle_end(group, slot, now, 1, str(error))
            return
        except RayError as error:
            ending = ending_of(error)
            dead = isinstance(error, ActorDiedError) and ending != "killed" and not slot.hung  # as its node says
            self._handle_end(group, slot, now, None, first_line(error), ending, dead)
            return
        if text := slot.lapse(now):
            self._ledger.tell(text, "warning")
        every = (
            _PERIOD_SECONDS
            if slot.node.traits.fenced
            else max(_PERIOD_SECONDS, sum(len(g.slots) for g in self._groups) / _POLLS_PER_SECOND)
        )
        if slot.polled is None and now - slot.asked_at >= every:
            slot.asked_at = now
            slot.polled = slot.handle.poll.remote(self._news(slot))
        if slot.hung:
            self._end_hung(slot, now)
        elif why := slot.hangs(now, self._stall_timeout(slot)):
            slot.hung, slot.kill_at = why, now + DUMP_SECONDS
            self._hung_calls += "--env-timeout" in why
            slot.stacks = slot.handle.stacks.remote()
        elif slot.leaving_since is not None and now > slot.leaving_since + slot.grace(hurry=False):
            kill(slot.handle)
        if self._stop_at is not None and now > self._stop_at + slot.grace(self._word == HURRY):
            self._ledger.tell(f"{slot.name} did not stop in time and was killed", "warning")
            kill(slot.handle)
            slot.gone = True
            slot.end(now, "killed", "")

    def _stall_timeout(self, slot: RaySlot) -> float:
        """Seconds without progress that are allowed; 0: no limit, as the grace period limits what must write much."""
        ends = self._stop_at is not None and slot.grace(self._word == HURRY) < float("inf")
        return 0.0 if ends else self._config.stall_timeout

    def _end_hung(self, slot: RaySlot, now: float) -> None:
        """Kill it once its stacks have arrived, or when they do not come in time."""
        if slot.stacks is not None and slot.stacks in self._come:
            stacks, slot.stacks, slot.kill_at = slot.stacks, None, now
            with suppress(RayError):
                slot.hung = f"{slot.hung}\n{ray.get(stacks)}"
        if now >= slot.kill_at:
            kill(slot.handle)

    def _enter(self, slot: RaySlot, report: Report, now: float) -> None:
        for name, value in report.counters.items():
            self._sums[name] += value - slot.counters.get(name, 0)
        slot.hear(report, now)
        self._output.enter(slot.name, report.printed)
        for message in report.said:
            if message.kind != "error":
                self._ledger.hear(message.kind, message.values)

    def _handle_end(
        self,
        group: ActorGroup,
        slot: RaySlot,
        now: float,
        status: int | None,
        why: str,
        ending: Ending = "failed",
        sure: bool = True,
    ) -> None:
        """Handle the end of a worker, with ``status`` or (None) killed. ``sure``: its process is certainly gone."""
        kill(slot.handle)  # an unreachable process may still run, and write checkpoints
        leaving = slot.leaving_since is not None
        if status is None and group.up:
            self._output.ask(slot.name, group.memory, slot.report.printed.places)
        slot.end(now, ending, why, sure)
        if self._stop_at is not None:
            slot.gone = True
            if status == 0:
                slot.last_error = ""
            elif slot.node.traits.writes_checkpoints and self._control.failure is None:
                ended = WorkerError(f"{slot.name} failed at the end:\n{slot.last_error}")
                self._control.failure = fatal_error(slot.name, slot.errors) or ended
            else:
                self._ledger.tell(f"{slot.name} did not stop cleanly: {slot.headline}", "warning")
            return
        role = [other for other in self._control.present_slots() if other.node.name == slot.node.name]
        fatal = fatal_error(slot.name, slot.errors)
        if fatal is not None:
            self._control.give_up(group, fatal, now)
        elif leaving:
            if slot.last_error:
                self._ledger.tell(f"{slot.name} did not leave cleanly: {slot.headline}", "warning")
                slot.last_error = ""
        elif (failure := slot.role_failure(role)) is not None:
            self._control.fail(failure)
        elif slot.patience.exhausted:
            why = slot.exhausted_account
            beside = [other for other in group.slots if other.node is slot.node and other is not slot]
            if any(not other.gone for other in beside) and self._control.can_spare([slot]):
                slot.gone = True
                self._ledger.give_up(slot.name, f"it {why}")
            else:
                self._control.do_without(group, WorkerError(f"{slot.name} {why}"), now)
        else:
            where = f"; {slot.last_error}" if "--stall-timeout" in slot.hung else ""
            self._ledger.tell(f"{slot.name}: {slot.headline}; starting it again{where}", "warning")

    def _set_env_change(self, data: bytes) -> None:
        self._env_change = data

    # --- the end

    def _stop(self, now: float) -> None:
        self._stop_at = now
        self._ledger.training_ends(now)
        self._word = HURRY if self._control.failure is not None or self._ledger.hurried else STOP
        for slot in self._slots():
            slot.asked_at = 0.0
            if slot.awaited(now) > self._longest:  # nobody is there who could end cleanly
                kill(slot.handle)
                slot.gone = True
                slot.end(now, "killed", "")

    def _heed_interrupts(self) -> None:
        if self._interrupts.count == self._heeded:
            return
        again, self._heeded = self._heeded > 0 or self._interrupts.count > 1, self._interrupts.count
        self._ledger.stop("interrupted")
        if again:
            self._ledger.tell("interrupted again: killing every worker", "warning")
            for slot in self._slots():
                kill(slot.handle)
                slot.gone = True
        elif self._stop_at is None:
            self._ledger.tell(self._interrupts.heeded("writing the final checkpoint"), "warning")
        else:
            self._word = HURRY
            self._stop_at = time.monotonic()

    # --- counters

    def _total(self, counter: str) -> int:
        base = getattr(self._ledger.base, counter, 0) if counter in ("env_steps", "updates", "episodes") else 0
        return int(base) + self._sums[counter]

    def _news(self, slot: RaySlot) -> News:
        word = STOP if slot.leaving_since is not None and self._word == RUN else self._word
        others = {name: self._total(name) - slot.counters.get(name, 0) for name in COUNTERS}
        return News(word, others, slot.report.said_at, self._env_change)

    def _tick(self, now: float) -> None:
        more = {"hung_env_calls": self._hung_calls, "log_bytes": self._output.left_out}
        sums = run_totals.enter(self._ledger, self._groups, self._total, more, now)
        if self._figures is not None:
            self._figures.tick(now, self._ledger.status, self._groups, sums)
