"""The driver: starts, watches, restarts and stops the actor groups of a program on a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import ActorDiedError, NodeDiedError, RayError, RayTaskError

from apexrl.config import Config
from apexrl.config.placement import Ray
from apexrl.errors import ApexrlError, WorkerError
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.probe import fatal_error
from apexrl.launch.ray import run_totals
from apexrl.launch.ray.cluster import Cluster, kill
from apexrl.launch.ray.elastic_groups import ElasticGroups
from apexrl.launch.ray.group_plan import Plan, check_room, enough, plan, resource_bundles
from apexrl.launch.ray.preflight import HELLO_SECONDS, compare, receive, reserve
from apexrl.launch.ray.ray_actors import GroupMemory, Look, News, RayAssignment, Report, RoleProcess
from apexrl.launch.ray.ray_metrics import RayMetrics
from apexrl.launch.ray.ray_slots import ActorGroup, RaySlot, cut
from apexrl.launch.ray.shard_clients import generation_name
from apexrl.launch.restart_budget import REFILL_SECONDS, Ending
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.stall_dump import DUMP_SECONDS
from apexrl.launch.worker_slots import slot_seed
from apexrl.links.local.control_board import COUNTERS, HURRY, RUN, STOP
from apexrl.topologies import Probe, Program
from apexrl.topologies.ray_cut import LEARNERS, queues, sampling

_TICK_SECONDS = 0.1
_NUMBER_SECONDS = 1.0  # between attempts to write a generation's number
_NO_ROOM = "the cluster has no room for it now, or its node does not start processes (see `ray status`)"
_PERIOD_SECONDS = 0.25  # between polls of one worker; and
_POLLS_PER_SECOND = 1000.0  # … of all together, at most
_SILENT_SECONDS = 60.0  # after which a group's memory that does not answer is lost: who samples it waits for it


class Driver:
    """One run on a Ray cluster. Call ``probe``, then ``run``, and ``close`` in any case."""

    def __init__(self, config: Config, placement: Ray, interrupts: Interrupts) -> None:
        self._config = config
        self._placement = placement
        self._interrupts = interrupts
        self._plan = plan(config, placement, 1, queues(config))  # on one machine, until it is known
        wanted = sum(bundle["CPU"] for bundle in resource_bundles(config, placement, self._plan)[: self._plan.base + 1])
        self._cluster = Cluster(placement, local_cpus=wanted)
        self.namespace = self._cluster.namespace  # of the run's named actors: shard-0.0, shard-1.0 …
        self._groups: list[ActorGroup] = []
        self._failure: ApexrlError | None = None
        self._stop_at: float | None = None
        self._word = RUN
        self._longest = max(HELLO_SECONDS, placement.wait_seconds)  # for a process to begin
        self._heeded = self._hung_calls = 0
        self._come: set[Any] = set()  # references that were ready when this turn began
        self._refusing: set[int] = set()  # groups that took no weights when the learner's node was asked last
        self._sums = dict.fromkeys(COUNTERS, 0)  # of all generations of all slots

    def close(self) -> None:
        """End every Ray actor of the run, and release its resources. May be called again."""
        groups, self._groups = self._groups, []
        try:
            for group in groups:
                for slot in group.slots:
                    kill(slot.handle)
                kill(group.memory)
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
        self._groups = cut(program, self._plan, self._cluster.namespace)
        self._replays = sampling(program)
        bundles = resource_bundles(self._config, self._placement, self._plan)[1:]
        self._growth = ElasticGroups(self._cluster, self._plan, self._groups[1:], bundles, ledger.tell)
        shown = polled = -1.0
        while not all(slot.gone for slot in self._slots()):
            self._sleep()
            now = time.monotonic()
            self._heed_interrupts()
            if self._stop_at is None:
                self._growth.step(now)
            for group in self._groups:
                self._attend(group, now)
            self._miss(now)
            if now - polled >= _TICK_SECONDS:
                polled = now
                self._tick(now)
            if now - shown >= _PERIOD_SECONDS:
                shown = now
                ledger.show()
            if self._stop_at is None and (ledger.stop_reason is not None or self._failure is not None):
                self._stop(now)
        self._tick(time.monotonic())
        ledger.show()
        if self._failure is not None:
            raise self._failure

    # --- groups and workers

    def _slots(self) -> Iterable[RaySlot]:
        return (slot for group in self._groups for slot in group.slots)

    def _sleep(self) -> None:
        """Until a tick has passed, or all has come that was asked for. Costs one call, however many there are."""
        waited = [group.greeting for group in self._groups] + [group.looked for group in self._groups]
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
                self._try_again(group)
            if due and not all(slot.gone for slot in group.slots):
                self._start_memory(group, now)
            return
        if not self._hear_memory(group, now):
            return
        for slot in group.slots:
            if slot.handle is not None:
                self._hear(group, slot, now)
            elif not slot.gone and now >= slot.restart_at:
                self._begin(group, slot, now)

    def _miss(self, now: float) -> None:
        """End the run when a group waits too long for resources, or for its process to start."""
        if self._stop_at is not None:
            return
        limit = self._longest
        missing = [group for group in self._groups if group.awaited(now) > limit and self._growth.may_begin(group)]
        if self._groups[0] in missing:
            self._give_up(
                WorkerError(f"the learner's node has not started its processes within {limit:g} s: {_NO_ROOM}")
            )
        elif missing and all(group in missing or group.absent for group in self._groups[1:]):
            self._give_up(WorkerError(f"no group of actors has begun to work within {limit:g} s: {_NO_ROOM}"))
        for group in self._groups:
            if group in missing and not group.late:
                self._ledger.tell(f"{group.name} has not begun to work within {limit:g} s: {_NO_ROOM}", "warning")
            group.late = group in missing

    def _start_memory(self, group: ActorGroup, now: float) -> None:
        """Start a group: the process that holds its memory first."""
        cpus = self._placement.shard_cpus if group.number else 0.0
        name = generation_name(group.name, group.starts) if group.number else None
        group.born_at = now
        group.memory = self._cluster.actor(GroupMemory, group.number, cpus, name=name).remote(
            group.program, group.gated
        )
        group.starts += 1
        group.greeting = group.memory.hello.remote()

    def _hear_memory(self, group: ActorGroup, now: float) -> bool:
        """False: it is not up."""
        try:
            if group.greeting is not None:
                if group.greeting not in self._come:
                    return False
                greeting, group.greeting = group.greeting, None
                group.where = ray.get(greeting)
                compare(group.where)
                group.up = True
                group.begun += 1
                home = self._groups[0]
                if group.number and home.up:
                    home.memory.meet.remote(group.number, group.memory)
                elif not group.number:
                    for other in self._groups[1:]:
                        if other.up:
                            group.memory.meet.remote(other.number, other.memory)
            if group.looked is not None and group.looked in self._come:
                looked, group.looked = group.looked, None
                look: Look = ray.get(looked)
                group.look = look
                group.capacity = look.replay.get("capacity", 0)
                self._drop_refusing(look.refused, now)
            if group.looked is None and now - group.asked_at >= _PERIOD_SECONDS:
                group.asked_at = now
                group.looked = group.memory.look.remote()
            elif group.silence.look(group.asked_at, now) > _SILENT_SECONDS:
                self._lose(group, WorkerError(f"it has not answered for {_SILENT_SECONDS:g} s"), now)
                return False
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, ApexrlError) else WorkerError(str(error))
            self._give_up_group(group, cause, now)
            return False
        except ApexrlError as error:  # other versions than the driver's
            self._give_up_group(group, error, now)
            return False
        except RayError as error:
            self._lose(group, error, now, _ending(error))
            return False
        return True

    def _drop_refusing(self, refused: Mapping[int, str], now: float) -> None:
        """Restart groups that take no weights, as they would act with old ones for ever; it counts as a failure."""
        for group in self._groups[1:]:
            if group.up and group.number in refused and group.number not in self._refusing:
                self._lose(group, WorkerError(f"it takes no weights: {refused[group.number]}"), now, "failed")
        self._refusing = set(refused)  # until the learner's node has heard that they were ended

    def _lose(self, group: ActorGroup, error: Exception, now: float, ending: Ending = "vanished") -> None:
        """Handle the loss of a group's memory: its workers restart with it."""
        if not group.up and "creation task" in str(error):  # what its making raised, another would too
            group.memory = group.greeting = None
            group.restart_at = float("inf")
            self._give_up_group(group, WorkerError(f"{group.name} cannot be made on its node:\n{error}"), now)
            return
        size = group.look.replay.get("size", 0)
        what = f"{group.name} was lost with {size:,} items" if group.number else "the learner's node or memory was lost"
        if not group.up:  # often because Ray had not yet noticed that its node is gone
            what = f"{group.name} did not begin to work"
        again = "it begins again when there is room" if group.optional else "starting it again"
        self._ledger.tell(f"{what} ({_first_line(error)}); {again}", "warning")
        self._end_group(group, "its group was lost", now, ending)
        if group.patience.exhausted or group.patience.fails_always:
            self._do_without(group, WorkerError(f"{what} ({_first_line(error)}); it {group.patience.account}"), now)

    def _end_group(self, group: ActorGroup, why: str, now: float, ending: Ending = "vanished") -> None:
        """Kill the process that holds its memory, and its workers."""
        if group.memory is None:
            return
        for slot in group.slots:
            if slot.handle is not None:
                kill(slot.handle)
                slot.end(now, "killed", why, sure=False)
        kill(group.memory)  # who cannot be reached may still live, beside the next one
        group.end(now, ending)
        home = self._groups[0]
        if group.number and home.up:
            home.memory.meet.remote(group.number, None)

    def _begin(self, group: ActorGroup, slot: RaySlot, now: float) -> None:
        """Start a generation of a worker."""
        placement, node, generation = self._placement, slot.node, slot.generation + 1
        number = self._ledger.number(slot.name) if node.traits.fenced else 0
        if number is None:
            slot.restart_at = now + _NUMBER_SECONDS
            return
        cpus, gpus = placement.actor_cpus if group.number else 0.0, 0.0
        if node.name in LEARNERS:
            cpus, gpus = placement.learner_cpus, placement.learner_gpus
        assignment = RayAssignment(
            name=slot.name,
            role=node.name,
            index=slot.index,
            generation=generation,
            seed=slot_seed(self._config.seed, node.name, slot.index, generation, self._ledger.base.env_steps),
            folder=self._ledger.folder.path.resolve(),
            keeps=node.traits.writes_checkpoints,
            factory=node.factory,
            nice=node.nice,
            folder_generation=number,
        )
        handle = self._cluster.actor(RoleProcess, group.number, cpus, gpus).remote(assignment)
        slot.begin(now, handle)
        slot.running = handle.run.remote(group.memory.ports.remote(node.name), self._others(slot))

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
            ending = _ending(error)
            dead = isinstance(error, ActorDiedError) and ending != "killed" and not slot.hung  # as its node says
            self._handle_end(group, slot, now, None, _first_line(error), ending, dead)
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
            slot.polled = slot.handle.poll.remote(News(self._word, self._others(slot), slot.report.said_at))
        if slot.hung:
            self._end_hung(slot, now)
        elif why := slot.hangs(now, self._stall_timeout(slot)):
            slot.hung, slot.kill_at = why, now + DUMP_SECONDS
            self._hung_calls += "--env-timeout" in why
            slot.stacks = slot.handle.stacks.remote()
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
        slot.end(now, ending, why, sure)
        if self._stop_at is not None:
            slot.gone = True
            if status == 0:
                slot.last_error = ""
            elif slot.node.traits.writes_checkpoints and self._failure is None:
                ended = WorkerError(f"{slot.name} failed at the end:\n{slot.last_error}")
                self._failure = fatal_error(slot.name, slot.errors) or ended
            else:
                self._ledger.tell(f"{slot.name} did not stop in good order: {slot.headline}", "warning")
            return
        role = [other for other in self._there() if other.node.name == slot.node.name]
        fatal = fatal_error(slot.name, slot.errors)
        if fatal is not None:
            self._give_up_group(group, fatal, now)
        elif all(other.patience.fails_always for other in role):
            who = f"all {len(role)} {slot.node.name}s fail always; {slot.name}" if len(role) > 1 else slot.name
            often = f"{slot.patience.in_vain} times in a row"
            self._give_up(WorkerError(f"{who} failed {often}: {slot.account}"))
        elif slot.patience.exhausted:
            why = f"{slot.patience.account}. The last time: {slot.account}"
            if any(other is not slot and not other.gone for other in group.slots) and self._can_spare([slot]):
                slot.gone = True
                self._ledger.give_up(slot.name, f"it {why}")
            else:
                self._do_without(group, WorkerError(f"{slot.name} {why}"), now)
        else:
            where = f"; {slot.last_error}" if "--stall-timeout" in slot.hung else ""
            self._ledger.tell(f"{slot.name}: {slot.headline}; starting it again{where}", "warning")

    def _give_up(self, error: ApexrlError) -> None:
        if self._failure is None:
            self._failure = error

    def _there(self) -> list[RaySlot]:
        """Slots that have a worker, or will have one again."""
        groups = [group for group in self._groups if not group.absent]
        return [slot for group in groups for slot in group.slots if not slot.gone]

    def _can_spare(self, slots: Sequence[RaySlot]) -> bool:
        """Whether enough others are left that do the same work."""
        least = slots[0].node.least
        left = [one for one in self._there() if one.node.name == slots[0].node.name and one not in slots]
        return 0 < least <= len(left)

    def _do_without(self, group: ActorGroup, error: ApexrlError, now: float) -> None:
        """Go on without a group that fails often, if enough are left. A base group may come back."""
        others = [other.number - 1 for other in self._groups[1:] if other is not group and not other.absent]
        spared = group.number and self._can_spare(group.slots) and enough(self._plan, self._replays, others)
        if group.optional or not spared:
            self._give_up_group(group, error, now)
            return
        self._end_group(group, "the run goes on without its group", now)
        group.dropped, group.restart_at = True, now + REFILL_SECONDS
        for slot in group.slots:
            slot.gone = True
        minutes = f"it is tried again in {REFILL_SECONDS / 60:g} minutes"
        self._ledger.give_up(f"{group.name} and its actors", f"{error}; {minutes}")

    def _try_again(self, group: ActorGroup) -> None:
        self._ledger.tell(f"{group.name} and its actors are tried again")
        group.dropped = False
        group.patience.forgive()
        for slot in group.slots:
            slot.gone = False
            slot.patience.forgive()

    def _give_up_group(self, group: ActorGroup, error: ApexrlError, now: float) -> None:
        """Give up a group; the run fails if it cannot go on without it."""
        if not group.optional:
            self._give_up(error)
            return
        self._ledger.give_up(f"{group.name} and its actors", error)
        self._end_group(group, "the run goes on without its group", now)
        for slot in group.slots:
            slot.gone = True
        group.restart_at = float("inf")
        self._growth.leave(group)

    # --- the end

    def _stop(self, now: float) -> None:
        self._stop_at = now
        self._ledger.training_ends(now)
        self._word = HURRY if self._failure is not None or self._ledger.stop_reason == "interrupted" else STOP
        for slot in self._slots():
            slot.asked_at = 0.0
            if slot.awaited(now) > self._longest:  # nobody is there who could end in good order
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
            self._ledger.tell("interrupted: writing the final checkpoint (Ctrl-C again ends at once)", "warning")
        else:
            self._word = HURRY
            self._stop_at = time.monotonic()

    # --- counters

    def _total(self, counter: str) -> int:
        base = getattr(self._ledger.base, counter, 0) if counter in ("env_steps", "updates", "episodes") else 0
        return int(base) + self._sums[counter]

    def _others(self, slot: RaySlot) -> dict[str, int]:
        return {name: self._total(name) - slot.counters.get(name, 0) for name in COUNTERS}

    def _tick(self, now: float) -> None:
        sums = run_totals.enter(self._ledger, self._groups, self._total, self._hung_calls, now)
        if self._figures is not None:
            self._figures.tick(now, self._ledger.status, self._groups, sums)


def _ending(error: RayError) -> Ending:
    """Whoever was lost with a node is not to blame. Why else a process has gone, Ray does not say."""
    lost = isinstance(error, NodeDiedError) or getattr(error, "preempted", False) or "node has died" in str(error)
    return "killed" if lost else "vanished"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
