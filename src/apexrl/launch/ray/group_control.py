"""Starts, watches and ends actor groups: the process that holds a group's memory, with all workers of the group."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import NodeDiedError, RayError, RayTaskError

from apexrl.config.placement import Ray
from apexrl.errors import ApexrlError, WorkerError
from apexrl.launch.ray.cluster import Cluster, kill
from apexrl.launch.ray.elastic_groups import ElasticGroups
from apexrl.launch.ray.group_plan import Plan, enough
from apexrl.launch.ray.preflight import compare
from apexrl.launch.ray.ray_actors import GroupMemory, Look
from apexrl.launch.ray.ray_slots import ActorGroup, RaySlot
from apexrl.launch.ray.shard_clients import generation_name
from apexrl.launch.restart_budget import REFILL_SECONDS, Ending
from apexrl.launch.run_ledger import Ledger

_NO_ROOM = "the cluster has no room for it now, or its node does not start processes (see `ray status`)"
_LOOK_SECONDS = 0.5  # between status requests to a group's memory
_SILENT_SECONDS = 60.0  # without an answer, after which a group's memory counts as lost: its sampler waits for it


class GroupControl:
    """Controls the groups of one run.

    Args:
        groups: of the run, that on the learner's node first.
        elastic: says which groups have resources.
        replays: options of each replay that is sampled.

    Attributes:
        failure: why the run cannot go on; None: it can.
    """

    def __init__(
        self,
        cluster: Cluster,
        placement: Ray,
        plan: Plan,
        groups: Sequence[ActorGroup],
        elastic: ElasticGroups,
        replays: Sequence[Mapping[str, Any]],
        ledger: Ledger,
    ) -> None:
        self.failure: ApexrlError | None = None
        self._cluster, self._placement, self._plan = cluster, placement, plan
        self._groups, self._elastic, self._replays, self._ledger = groups, elastic, replays, ledger
        self._refusing: set[int] = set()  # groups that took no weights when the learner's node was last asked

    def start(self, group: ActorGroup, now: float) -> None:
        """Start a group: the process that holds its memory first."""
        cpus = self._placement.shard_cpus if group.has_shard else 0.0
        name = generation_name(group.name, group.starts)
        group.born_at = now
        ledger = self._ledger
        group.memory = self._cluster.actor(GroupMemory, group.number, cpus, name=name).remote(
            group.program, not group.number, group.gated, max(ledger.base.updates, ledger.status.updates)
        )
        group.starts += 1
        group.greeting = group.memory.hello.remote()

    def hear(self, group: ActorGroup, come: Collection[Any], now: float) -> bool:
        """False: it is not up."""
        try:
            if group.greeting is not None:
                if group.greeting not in come:
                    return False
                greeting, group.greeting = group.greeting, None
                group.where = ray.get(greeting)
                compare(group.where)
                group.up = True
                group.begun += 1
                home = self._groups[0]
                if group.reads_weights and home.up:
                    home.memory.meet.remote(group.number, group.memory)
                elif not group.number:
                    for other in self._groups[1:]:
                        if other.up and other.reads_weights:
                            group.memory.meet.remote(other.number, other.memory)
            if group.looked is not None and group.looked in come:
                looked, group.looked = group.looked, None
                look: Look = ray.get(looked)
                group.look = look
                group.capacity = look.replay.get("capacity", 0)
                self._drop_refusing(look.refused, now)
            if group.looked is None and now - group.asked_at >= _LOOK_SECONDS:
                group.asked_at = now
                group.looked = group.memory.look.remote()
            elif group.silence.look(group.asked_at, now) > _SILENT_SECONDS:
                self._lose(group, WorkerError(f"it has not answered for {_SILENT_SECONDS:g} s"), now)
                return False
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, ApexrlError) else WorkerError(str(error))
            self.give_up(group, cause, now)
            return False
        except ApexrlError as error:  # other versions than the driver's
            self.give_up(group, error, now)
            return False
        except RayError as error:
            self._lose(group, error, now, ending_of(error))
            return False
        return True

    def check_missing(self, now: float, limit: float) -> None:
        """End the run when a group waits too long for resources, or for its process to start."""
        missing = [group for group in self._groups if group.awaited(now) > limit and self._elastic.may_begin(group)]
        if self._groups[0] in missing:
            self.fail(WorkerError(f"the learner's node has not started its processes within {limit:g} s: {_NO_ROOM}"))
        elif missing and all(group in missing or group.absent for group in self._groups[1:]):
            self.fail(WorkerError(f"no group of actors has begun to work within {limit:g} s: {_NO_ROOM}"))
        for group in self._groups:
            if group in missing and not group.late:
                self._ledger.tell(f"{group.name} has not begun to work within {limit:g} s: {_NO_ROOM}", "warning")
            group.late = group in missing

    def present_slots(self, resting: bool = False) -> list[RaySlot]:
        """Slots that have a worker, or will have one again; with ``resting`` also those that stand in for others."""
        there = [slot for group in self._groups if not group.absent for slot in group.slots]
        return [slot for slot in there if not (slot.gone or (slot.resting and not resting))]

    def can_spare(self, slots: Sequence[RaySlot]) -> bool:
        """Whether enough others are left that do the same work, of every role."""
        left = [one for one in self.present_slots(resting=True) if one not in slots]
        return all(
            0 < node.least <= sum(one.node.name == node.name for one in left)
            for node in {slot.node.name: slot.node for slot in slots}.values()
        )

    def dismiss(self, group: ActorGroup, now: float) -> None:
        """End a group in which nobody is to act, once its actors have ended: others may have its resources."""
        if group.resting and not any(slot.resting and slot.handle is not None for slot in group.slots):
            items = f" with {group.look.replay.get('size', 0):,} items" if group.has_shard else ""
            self._ledger.tell(f"{group.name} ends{items}: its actors rest")
            for slot in group.slots:
                if slot.handle is not None:
                    slot.leaving_since = now  # its end is no failure either
            self._end(group, "its group's actors rest", now, "killed")
            group.begun -= 1
            group.patience.forgive()

    def do_without(self, group: ActorGroup, error: ApexrlError, now: float) -> None:
        """Go on without a group that fails often, if enough are left. A base group may come back."""
        others = [other.number - 1 for other in self._groups[1:] if other is not group and not other.absent]
        spared = group.number and self.can_spare(group.slots) and enough(self._plan, self._replays, others)
        if group.optional or not spared:
            self.give_up(group, error, now)
            return
        self._end(group, "the run goes on without its group", now)
        group.dropped, group.restart_at = True, now + REFILL_SECONDS
        for slot in group.slots:
            slot.gone = True
        minutes = f"it is tried again in {REFILL_SECONDS / 60:g} minutes"
        self._ledger.give_up(f"{group.name} and its actors", f"{error}; {minutes}")

    def try_again(self, group: ActorGroup) -> None:
        self._ledger.tell(f"{group.name} and its actors are tried again")
        group.dropped = False
        group.patience.forgive()
        for slot in group.slots:
            slot.gone = False
            slot.patience.forgive()

    def give_up(self, group: ActorGroup, error: ApexrlError, now: float) -> None:
        """Give up a group; the run fails if it cannot go on without it."""
        if not group.optional:
            self.fail(error)
            return
        self._ledger.give_up(f"{group.name} and its actors", error)
        self._end(group, "the run goes on without its group", now)
        for slot in group.slots:
            slot.gone = True
        group.restart_at = float("inf")
        self._elastic.leave(group)

    def fail(self, error: ApexrlError) -> None:
        if self.failure is None:
            self.failure = error

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
            self.give_up(group, WorkerError(f"{group.name} cannot be made on its node:\n{error}"), now)
            return
        size = group.look.replay.get("size", 0)
        items = f" with {size:,} items" if group.has_shard else ""
        what = f"{group.name} was lost{items}" if group.number else "the learner's node or memory was lost"
        if not group.up:  # often because Ray had not yet noticed that its node is gone
            what = f"{group.name} did not begin to work"
        again = "it begins again when there is room" if group.optional else "starting it again"
        self._ledger.tell(f"{what} ({first_line(error)}); {again}", "warning")
        self._end(group, "its group was lost", now, ending)
        if group.patience.exhausted or group.patience.fails_always:
            self.do_without(group, WorkerError(f"{what} ({first_line(error)}); it {group.patience.account}"), now)

    def _end(self, group: ActorGroup, why: str, now: float, ending: Ending = "vanished") -> None:
        """Kill the process that holds its memory, its workers, and those in other groups that ask them."""
        if group.memory is None:
            return
        others = self._groups[1:] if not group.number else []
        asking = [slot for other in others for slot in other.slots if slot.node.name in other.asks]
        for slot in (*group.slots, *asking):
            if slot.handle is not None:
                kill(slot.handle)
                slot.end(now, "killed", why, sure=False)
        kill(group.memory)  # who cannot be reached may still live, beside the next one
        group.end(now, ending)
        home = self._groups[0]
        if group.reads_weights and home.up:
            home.memory.meet.remote(group.number, None)


def ending_of(error: RayError) -> Ending:
    """Whoever was lost with a node is not to blame. Why else a process has gone, Ray does not say."""
    lost = isinstance(error, NodeDiedError) or getattr(error, "preempted", False) or "node has died" in str(error)
    return "killed" if lost else "vanished"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
