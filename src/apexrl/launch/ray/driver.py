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
from apexrl.launch.probe import revive
from apexrl.launch.ray import run_totals
from apexrl.launch.ray.cluster import Cluster, kill
from apexrl.launch.ray.elastic_groups import Growth
from apexrl.launch.ray.group_plan import Plan, check_room, enough, places, plan
from apexrl.launch.ray.preflight import HELLO_SECONDS, compare, receive, reserve
from apexrl.launch.ray.ray_actors import Errand, Ground, Look, News, Report, RoleProcess
from apexrl.launch.ray.ray_metrics import Figures
from apexrl.launch.ray.ray_slots import Group, Place, cut
from apexrl.launch.ray.shard_clients import life_name
from apexrl.launch.restart_budget import REFILL_SECONDS, Ending
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.stall_dump import DUMP_SECONDS
from apexrl.launch.supervisor import Interrupts
from apexrl.launch.worker_slots import slot_seed
from apexrl.links.local.control_board import COUNTERS, HURRY, RUN, STOP
from apexrl.topologies import Probe, Program
from apexrl.topologies.ray_cut import LEARNERS, queues, sampling

_TICK_SECONDS = 0.1
_NUMBER_SECONDS = 1.0  # until a life's number is tried to be written again
_NO_ROOM = "the cluster has no room for it now, or its node does not start processes (see `ray status`)"
_PERIOD_SECONDS = 0.25  # between polls of one worker; and
_POLLS_PER_SECOND = 1000.0  # … of all together, at most
_SILENT_SECONDS = 60.0  # after which a group's memory that does not answer is lost: who samples it waits for it


class Driver:
    """One run on a cluster. Make it, ``probe``, then ``run``; ``close`` always."""

    def __init__(self, config: Config, placement: Ray, interrupts: Interrupts) -> None:
        self._config = config
        self._placement = placement
        self._interrupts = interrupts
        self._plan = plan(config, placement, 1, queues(config))  # on one machine, until it is known
        wanted = sum(place["CPU"] for place in places(config, placement, self._plan)[: self._plan.base + 1])
        self._cluster = Cluster(placement, local_cpus=wanted)
        self.namespace = self._cluster.namespace  # of the run's named actors: shard-0.0, shard-1.0 …
        self._groups: list[Group] = []
        self._failure: ApexrlError | None = None
        self._stop_at: float | None = None
        self._word = RUN
        self._longest = max(HELLO_SECONDS, placement.wait_seconds)  # for a process to begin
        self._heeded = self._hung_calls = 0
        self._come: set[Any] = set()  # references that were ready when this turn began
        self._refusing: set[int] = set()  # groups that took no weights when home was asked last
        self._sums = dict.fromkeys(COUNTERS, 0)  # of all lives of all places

    def close(self) -> None:
        """End every actor of the run, and give the places back. May be called again."""
        groups, self._groups = self._groups, []
        try:
            for group in groups:
                for place in group.places:
                    kill(place.handle)
                kill(group.ground)
        finally:
            self._cluster.close()

    def probe(self) -> Probe:
        """Reserve the run's places, and look at environment and agent; see ``reception.receive``."""
        seen, self._plan = receive(self._config, self._placement, self._cluster, self._interrupts)
        return seen

    def check(self, program: Program) -> None:
        """ConfigError: ``program`` cannot run so."""
        check_room(self._plan, sampling(program))

    def settle(self, plan: Plan) -> None:
        """Reserve places for these groups without looking at anything: for programs of one's own."""
        reserve(self._config, self._placement, plan, self._cluster, self._interrupts)
        self._plan = plan

    def run(self, program: Program, ledger: Ledger, figures: Figures | None = None) -> None:
        """Run ``program`` until something stops it. Raises what made it fail; otherwise ``ledger`` knows the reason."""
        self._ledger, self._figures = ledger, figures
        self._groups = cut(program, self._plan, self._cluster.namespace)
        self._replays = sampling(program)
        bundles = places(self._config, self._placement, self._plan)[1:]
        self._growth = Growth(self._cluster, self._plan, self._groups[1:], bundles, ledger.tell)
        shown = polled = -1.0
        while not all(place.gone for place in self._places()):
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

    # --- lives

    def _places(self) -> Iterable[Place]:
        return (place for group in self._groups for place in group.places)

    def _sleep(self) -> None:
        """Until a tick has passed, or all has come that was asked for. Costs one call, however many there are."""
        waited = [group.greeting for group in self._groups] + [group.looked for group in self._groups]
        for place in self._places():
            waited += [place.life, place.polled, place.stacks]
        waited = [reference for reference in waited if reference is not None]
        self._come = set()
        if waited:
            come, _ = ray.wait(waited, num_returns=len(waited), timeout=_TICK_SECONDS / 2, fetch_local=False)
            self._come = set(come)
        if len(self._come) == len(waited):
            time.sleep(_TICK_SECONDS / 4)

    def _attend(self, group: Group, now: float) -> None:
        """Begin what is to begin, hear what has come, bury what has died."""
        if self._stop_at is not None:
            for place in group.places:
                place.gone = place.gone or place.handle is None
        if group.ground is None:
            due = now >= group.restart_at and self._growth.may_begin(group)
            if due and group.dropped and self._stop_at is None:
                self._take_back(group)
            if due and not all(place.gone for place in group.places):
                self._found(group, now)
            return
        if not self._hear_ground(group, now):
            return
        for place in group.places:
            if place.handle is not None:
                self._hear(group, place, now)
            elif not place.gone and now >= place.restart_at:
                self._begin(group, place, now)

    def _miss(self, now: float) -> None:
        """Who has no place on the cluster, or whose process does not start, is not waited for in silence for ever."""
        if self._stop_at is not None:
            return
        limit = self._longest
        missing = [group for group in self._groups if group.awaited(now) > limit and self._growth.may_begin(group)]
        if self._groups[0] in missing:
            self._give_up(WorkerError(f"the learner's place has not begun to work within {limit:g} s: {_NO_ROOM}"))
        elif missing and all(group in missing or group.absent for group in self._groups[1:]):
            self._give_up(WorkerError(f"no group of actors has begun to work within {limit:g} s: {_NO_ROOM}"))
        for group in self._groups:
            if group in missing and not group.late:
                self._ledger.tell(f"{group.name} has not begun to work within {limit:g} s: {_NO_ROOM}", "warning")
            group.late = group in missing

    def _found(self, group: Group, now: float) -> None:
        """Start a group: the process that holds its memory first."""
        cpus = self._placement.shard_cpus if group.number else 0.0
        name = life_name(group.name, group.lives) if group.number else None
        group.born_at = now
        group.ground = self._cluster.actor(Ground, group.number, cpus, name=name).remote(group.program, group.gated)
        group.lives += 1
        group.greeting = group.ground.hello.remote()

    def _hear_ground(self, group: Group, now: float) -> bool:
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
                    home.ground.meet.remote(group.number, group.ground)
                elif not group.number:
                    for other in self._groups[1:]:
                        if other.up:
                            group.ground.meet.remote(other.number, other.ground)
            if group.looked is not None and group.looked in self._come:
                looked, group.looked = group.looked, None
                look: Look = ray.get(looked)
                group.look = look
                group.capacity = look.replay.get("capacity", 0)
                self._drop_refusing(look.refused, now)
            if group.looked is None and now - group.asked_at >= _PERIOD_SECONDS:
                group.asked_at = now
                group.looked = group.ground.look.remote()
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
        """Groups that take no weights act with old ones for ever: they begin anew, in vain as it was."""
        for group in self._groups[1:]:
            if group.up and group.number in refused and group.number not in self._refusing:
                self._lose(group, WorkerError(f"it takes no weights: {refused[group.number]}"), now, "failed")
        self._refusing = set(refused)  # until home has heard that they were ended

    def _lose(self, group: Group, error: Exception, now: float, ending: Ending = "vanished") -> None:
        """A group's memory is gone: its workers begin anew with it."""
        if not group.up and "creation task" in str(error):  # what its making raised, another would too
            group.ground = group.greeting = None
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

    def _end_group(self, group: Group, why: str, now: float, ending: Ending = "vanished") -> None:
        """End its memory, and whoever works there."""
        if group.ground is None:
            return
        for place in group.places:
            if place.handle is not None:
                kill(place.handle)
                place.end(now, "killed", why, sure=False)
        kill(group.ground)  # who cannot be reached may still live, beside the next one
        group.end(now, ending)
        home = self._groups[0]
        if group.number and home.up:
            home.ground.meet.remote(group.number, None)

    def _begin(self, group: Group, place: Place, now: float) -> None:
        """Start a life."""
        placement, node, generation = self._placement, place.node, place.generation + 1
        life = self._ledger.number(place.name) if node.traits.fenced else 0
        if life is None:
            place.restart_at = now + _NUMBER_SECONDS
            return
        cpus, gpus = placement.actor_cpus if group.number else 0.0, 0.0
        if node.name in LEARNERS:
            cpus, gpus = placement.learner_cpus, placement.learner_gpus
        errand = Errand(
            name=place.name,
            role=node.name,
            index=place.index,
            generation=generation,
            seed=slot_seed(self._config.seed, node.name, place.index, generation, self._ledger.base.env_steps),
            folder=self._ledger.folder.path.resolve(),
            keeps=node.traits.writes_checkpoints,
            factory=node.factory,
            nice=node.nice,
            life=life,
        )
        handle = self._cluster.actor(RoleProcess, group.number, cpus, gpus).remote(errand)
        place.begin(now, handle)
        place.life = handle.live.remote(group.ground.ports.remote(node.name), self._others(place))

    def _hear(self, group: Group, place: Place, now: float) -> None:
        try:
            if place.polled is not None and place.polled in self._come:
                polled, place.polled = place.polled, None
                self._enter(place, ray.get(polled), now)
            if place.life in self._come:
                if place.polled is not None:
                    with suppress(RayError):  # what was said before it ended
                        self._enter(place, ray.get(place.polled, timeout=1.0), now)
                report: Report = ray.get(place.life)
                self._enter(place, report, now)
                self._bury(group, place, now, report.status or 0, "")
                return
        except RayTaskError as error:
            self._bury(group, place, now, 1, str(error))
            return
        except RayError as error:
            ending = _ending(error)
            dead = isinstance(error, ActorDiedError) and ending != "killed" and not place.hung  # as its node says
            self._bury(group, place, now, None, _first_line(error), ending, dead)
            return
        if text := place.lapse(now):
            self._ledger.tell(text, "warning")
        every = (
            _PERIOD_SECONDS
            if place.node.traits.fenced
            else max(_PERIOD_SECONDS, sum(len(g.places) for g in self._groups) / _POLLS_PER_SECOND)
        )
        if place.polled is None and now - place.asked_at >= every:
            place.asked_at = now
            place.polled = place.handle.poll.remote(News(self._word, self._others(place), place.report.said_at))
        if place.hung:
            self._end_hung(place, now)
        elif why := place.hangs(now, self._stall_timeout(place)):
            place.hung, place.kill_at = why, now + DUMP_SECONDS
            self._hung_calls += "--env-timeout" in why
            place.stacks = place.handle.stacks.remote()
        if self._stop_at is not None and now > self._stop_at + place.grace(self._word == HURRY):
            self._ledger.tell(f"{place.name} did not stop in time and was killed", "warning")
            kill(place.handle)
            place.gone = True
            place.end(now, "killed", "")

    def _stall_timeout(self, place: Place) -> float:
        """0: it has time. What ends has a limit of its own, if it must write much."""
        ends = self._stop_at is not None and place.grace(self._word == HURRY) < float("inf")
        return 0.0 if ends else self._config.stall_timeout

    def _end_hung(self, place: Place, now: float) -> None:
        """Kill it as soon as it has told where it is, or when it does not."""
        if place.stacks is not None and place.stacks in self._come:
            stacks, place.stacks, place.kill_at = place.stacks, None, now
            with suppress(RayError):
                place.hung = f"{place.hung}\n{ray.get(stacks)}"
        if now >= place.kill_at:
            kill(place.handle)

    def _enter(self, place: Place, report: Report, now: float) -> None:
        for name, value in report.counters.items():
            self._sums[name] += value - place.lived.get(name, 0)
        place.hear(report, now)
        for message in report.said:
            if message.kind != "error":
                self._ledger.hear(message.kind, message.values)

    def _bury(
        self,
        group: Group,
        place: Place,
        now: float,
        status: int | None,
        why: str,
        ending: Ending = "failed",
        sure: bool = True,
    ) -> None:
        """A life has ended, with ``status`` or (None) killed: in good order, or to be followed by another. ``sure``: it
        cannot live on unseen."""
        kill(place.handle)  # who cannot be reached may still live, and write checkpoints
        place.end(now, ending, why, sure)
        if self._stop_at is not None:
            place.gone = True
            if status == 0:
                place.last_error = ""
            elif place.node.traits.writes_checkpoints and self._failure is None:
                ended = WorkerError(f"{place.name} failed at the end:\n{place.last_error}")
                self._failure = self._fatal(place) or ended
            else:
                self._ledger.tell(f"{place.name} did not stop in good order: {place.headline}", "warning")
            return
        role = [other for other in self._there() if other.node.name == place.node.name]
        fatal = self._fatal(place)
        if fatal is not None:
            self._give_up_group(group, fatal, now)
        elif all(other.patience.fails_always for other in role):
            who = f"all {len(role)} {place.node.name}s fail always; {place.name}" if len(role) > 1 else place.name
            often = f"{place.patience.in_vain} times in a row"
            self._give_up(WorkerError(f"{who} failed {often}: {place.account}"))
        elif place.patience.exhausted:
            why = f"{place.patience.account}. The last time: {place.account}"
            if any(other is not place and not other.gone for other in group.places) and self._can_spare([place]):
                place.gone = True
                self._ledger.give_up(place.name, f"it {why}")
            else:
                self._do_without(group, WorkerError(f"{place.name} {why}"), now)
        else:
            where = f"; {place.last_error}" if "--stall-timeout" in place.hung else ""
            self._ledger.tell(f"{place.name}: {place.headline}; starting it again{where}", "warning")

    def _fatal(self, place: Place) -> ApexrlError | None:
        for values in place.errors:
            if values["fatal"]:
                kind, _, text = str(values["error"]).partition(": ")
                return revive(kind, f"{place.name}: {text}", str(values["traceback"]))
        return None

    def _give_up(self, error: ApexrlError) -> None:
        if self._failure is None:
            self._failure = error

    def _there(self) -> list[Place]:
        """Who works, or soon will again."""
        groups = [group for group in self._groups if not group.absent]
        return [place for group in groups for place in group.places if not place.gone]

    def _can_spare(self, places: Sequence[Place]) -> bool:
        """Whether enough others are left that do the same work."""
        least = places[0].node.least
        left = [one for one in self._there() if one.node.name == places[0].node.name and one not in places]
        return 0 < least <= len(left)

    def _do_without(self, group: Group, error: ApexrlError, now: float) -> None:
        """A group that fails often costs itself, if enough are left to go on; one with a place of its own may come back
        later."""
        others = [other.number - 1 for other in self._groups[1:] if other is not group and not other.absent]
        spared = group.number and self._can_spare(group.places) and enough(self._plan, self._replays, others)
        if group.optional or not spared:
            self._give_up_group(group, error, now)
            return
        self._end_group(group, "the run goes on without its group", now)
        group.dropped, group.restart_at = True, now + REFILL_SECONDS
        for place in group.places:
            place.gone = True
        minutes = f"it is tried again in {REFILL_SECONDS / 60:g} minutes"
        self._ledger.give_up(f"{group.name} and its actors", f"{error}; {minutes}")

    def _take_back(self, group: Group) -> None:
        self._ledger.tell(f"{group.name} and its actors are tried again")
        group.dropped = False
        group.patience.forgive()
        for place in group.places:
            place.gone = False
            place.patience.forgive()

    def _give_up_group(self, group: Group, error: ApexrlError, now: float) -> None:
        """The end of the run, if it cannot do without."""
        if not group.optional:
            self._give_up(error)
            return
        self._ledger.give_up(f"{group.name} and its actors", error)
        self._end_group(group, "the run goes on without its group", now)
        for place in group.places:
            place.gone = True
        group.restart_at = float("inf")
        self._growth.leave(group)

    # --- the end

    def _stop(self, now: float) -> None:
        self._stop_at = now
        self._ledger.training_ends(now)
        self._word = HURRY if self._failure is not None or self._ledger.stop_reason == "interrupted" else STOP
        for place in self._places():
            place.asked_at = 0.0
            if place.awaited(now) > self._longest:  # nobody is there who could end in good order
                kill(place.handle)
                place.gone = True
                place.end(now, "killed", "")

    def _heed_interrupts(self) -> None:
        if self._interrupts.count == self._heeded:
            return
        again, self._heeded = self._heeded > 0 or self._interrupts.count > 1, self._interrupts.count
        self._ledger.stop("interrupted")
        if again:
            self._ledger.tell("interrupted again: killing every worker", "warning")
            for place in self._places():
                kill(place.handle)
                place.gone = True
        elif self._stop_at is None:
            self._ledger.tell("interrupted: writing the final checkpoint (Ctrl-C again ends at once)", "warning")
        else:
            self._word = HURRY
            self._stop_at = time.monotonic()

    # --- the books

    def _total(self, counter: str) -> int:
        base = getattr(self._ledger.base, counter, 0) if counter in ("env_steps", "updates", "episodes") else 0
        return int(base) + self._sums[counter]

    def _others(self, place: Place) -> dict[str, int]:
        return {name: self._total(name) - place.lived.get(name, 0) for name in COUNTERS}

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
