"""The driver's state of what runs where: an actor group with its memory, and its workers over all generations."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from apexrl.launch.actor_orders import actors_of
from apexrl.launch.ray.gateway_port import GatewayPort
from apexrl.launch.ray.group_plan import Plan, choosing
from apexrl.launch.ray.ray_actors import LEASE_SECONDS, Hello, Look, Report
from apexrl.launch.ray.shard_clients import samplers
from apexrl.launch.restart_budget import Ending, RestartBudget
from apexrl.launch.slot_state import SlotState
from apexrl.launch.stall_dump import START, hung_call, stood_still
from apexrl.links.local.control_board import COUNTERS, STATES
from apexrl.links.local.stall_detector import StallDetector
from apexrl.links.tcp.tls import made_certificate
from apexrl.run.status import WorkerState, WorkerStatus
from apexrl.topologies.learner_hosts import averages
from apexrl.topologies.program import Node, Program, ReplayLink, WeightsLink
from apexrl.topologies.ray_cut import actor_group_side, asking, learner_node_side, sampling
from apexrl.topologies.spread_learners import spread

_GRACE_SECONDS, _HURRIED_SECONDS = 20.0, 8.0  # from the stop to the kill
_KEEPER_SECONDS, _HURRIED_KEEPER_SECONDS = 120.0, 30.0  # of the role that writes checkpoints


class RaySlot(SlotState):
    """A worker's slot: it keeps its seed, ε and counters over all generations of workers."""

    def __init__(self, node: Node, index: int) -> None:
        super().__init__(node, index)
        self.handle: Any = None  # of the Ray actor that runs it; None: there is none now
        self.running: Any = None  # what comes when it ends
        self.polled: Any = None
        self.asked_at = self.heard_at = self.born_at = 0.0
        self.stacks: Any = None  # of a worker that hangs, once they arrive
        self._silence = StallDetector()
        self._paused = False  # it writes nothing into the run folder, as it was not heard
        self.report = Report({})
        self._before = dict.fromkeys(COUNTERS, 0)

    def begin(self, now: float, handle: Any) -> None:
        self.generation += 1
        self.restarts += not self._left
        self.handle, self.running, self.polled, self.hung, self.stacks = handle, None, None, "", None
        self._silence = StallDetector()
        self._paused = False
        self.errors = []
        self.report = Report({})
        self.born_at = self.heard_at = now
        self._work_at_birth = self.work_done

    def dismiss(self, now: float) -> None:
        """Ask the present worker, if there is one, to end cleanly, and start no other until it is called."""
        self.resting = True
        if self.handle is not None:
            self.leaving_since = now

    def hear(self, report: Report, now: float) -> None:
        self.report, self.heard_at = report, now
        self.errors += [message.values for message in report.said if message.kind == "error"]

    def grace(self, hurry: bool) -> float:
        """Seconds that it has for its end."""
        if self.node.traits.writes_checkpoints:
            return _HURRIED_KEEPER_SECONDS if hurry else _KEEPER_SECONDS
        if self.node.name == "evaluator" and not hurry:
            return float("inf")  # its last evaluation has a limit of its own
        return _HURRIED_SECONDS if hurry else _GRACE_SECONDS

    def awaited(self, now: float) -> float:
        """Seconds since its generation was begun, if nothing was heard of it; else 0."""
        return 0.0 if self.handle is None or self.report.pid else now - self.born_at

    def hangs(self, now: float, stall_timeout: float) -> str:
        """Why this worker must be killed: its environment, its loop or its process hangs; empty: none does. Call it at
        every tick.

        Args:
            stall_timeout: 0: the loop may stand still.
        """
        limit, starting = self.node.env_timeout, self.report.state == STATES[0]
        asked = self.polled is not None and self.report.pid > 0  # one that has answered before
        silent = self._silence.look(self.asked_at if asked else now, now)
        if limit is not None and self.report.busy_seconds > limit:
            return hung_call(limit)
        if limit is not None and silent > limit:
            return _silent(limit, "--env-timeout")
        if stall_timeout and silent > stall_timeout:
            return _silent(stall_timeout, "--stall-timeout")
        if stall_timeout and self.report.quiet_seconds > stall_timeout * (START if starting else 1.0):
            return stood_still(stall_timeout, starting)
        return ""

    def lapse(self, now: float) -> str:
        """What to say when a writer's lease has run out for want of answers, and when it was renewed; else empty."""
        if not self.node.traits.fenced or not self.report.pid:
            return ""
        paused = now - self.heard_at > LEASE_SECONDS
        if paused == self._paused:
            return ""
        self._paused = paused
        if paused:
            silent = f"{self.name} has not answered for {LEASE_SECONDS:g} s"
            return f"{silent}: it writes nothing into the run folder until it is heard again"
        return f"{self.name} answers again, and may write into the run folder"

    def end(self, now: float, how: Ending, why: str, sure: bool = True) -> None:
        """Record the end of this generation and keep its counters. Unless it is ``sure``, a successor that writes into
        the run folder waits until this generation's lease has expired."""
        self._left, self.leaving_since = self.leaving_since is not None, None
        worked = self.work_done > self._work_at_birth
        for name, value in self.report.counters.items():
            self._before[name] += value
        self.report = Report({})
        self.handle = self.running = self.polled = self.stacks = None
        if not self._left:
            self.patience.ended(now - self.born_at, worked, "failed" if self.hung else how)
        why = self.hung or why
        self.last_error = self.errors[-1]["traceback"].rstrip() if self.errors and not self.hung else why
        self.restart_at = now + self.patience.pause_seconds
        if self.node.traits.fenced and not sure:
            self.restart_at = max(self.restart_at, self.heard_at + LEASE_SECONDS)

    def total(self, counter: str) -> int:
        return self._before[counter] + self.report.counters.get(counter, 0)

    @property
    def counters(self) -> Mapping[str, int]:
        return self.report.counters

    @property
    def work_done(self) -> int:
        return self.total(self.node.traits.work.counter)

    def status(self, now: float) -> WorkerStatus:
        state: WorkerState = self.report.state  # type: ignore[assignment]  # STATES is a subset of WorkerState
        if self.gone:
            state = "failed" if self.last_error else "stopped"
        elif self.handle is None:
            state = "restarting" if self.generation >= 0 else "starting"
        elif self.hung:
            state = "hung"
        return WorkerStatus(
            name=self.name,
            role=self.node.name,
            index=self.index,
            pid=self.report.pid or None,
            state=state,
            restarts=self.restarts,
            rate=self._rate.add(now, self.work_done),
            heartbeat_age_seconds=max(0.0, now - self.heard_at),
            work=self.node.traits.work,
        )


def in_turn(groups: Sequence[ActorGroup]) -> list[RaySlot]:
    """Slots in the order in which they serve: of the groups that the run begins with by number, which deals them out
    evenly, then group by group."""
    first = [slot for group in groups if not group.optional for slot in group.slots]
    later = [slot for group in groups if group.optional for slot in group.slots]
    return [*sorted(first, key=lambda slot: slot.index), *later]


def staff(slots: Sequence[RaySlot], count: int, now: float) -> None:
    """Let the first ``count`` serve, and dismiss the others."""
    for slot in slots[:count]:
        slot.resting = False
    for slot in slots[count:]:
        if not slot.resting:
            slot.dismiss(now)


def _silent(seconds: float, flag: str) -> str:
    return (
        f"it has not answered for {seconds:g} s ({flag})\n"
        "Its process was stopped, or a call keeps Python's interpreter to itself: if calls may, for so long, raise "
        f"{flag}"
    )


def groups_of(program: Program, plan: Plan, namespace: str, nodes: int = 1) -> list[ActorGroup]:
    """The group on the learner's node, then the actor groups. ``namespace``: of the shards' Ray actors;
    ``nodes``: that have learners.

    Raises:
        ConfigError: the program cannot be cut so; or a package is missing.
    """
    config, slots, actors = program.config, plan.slots, actors_of(program)
    acting = "" if actors is None else actors.name
    replays, listen = sampling(program), None
    if asks := asking(program):
        listen = program.link(GatewayPort, token=secrets.token_urlsafe(32), certificate=made_certificate())
    home = learner_node_side(program, samplers(len(slots), namespace, replays) if replays else [], listen)
    dealt = enumerate(zip(slots, choosing(config, plan), strict=True))
    sides = [actor_group_side(program, k, len(slots), own, policies) for k, (own, policies) in dealt]
    if nodes > 1:
        home, sides = spread(home, sides, nodes)
    groups = [ActorGroup(0, home, config.learner.learner_restarts)]
    for k, (own, side) in enumerate(zip(slots, sides, strict=True)):
        gated = bool(replays) and replays[k % len(replays)].get("samples_per_insert", 0.0) > 0.0
        groups.append(ActorGroup(k + 1, side, config.actor.actor_restarts, k >= plan.base, gated))
        groups[-1].asks, groups[-1].serves, groups[-1].acting = asks, own, acting
    return groups


class ActorGroup:
    """Roles that share memory on one node: those on the learner's node, or those that move, with a shard if they write
    into a replay."""

    def __init__(
        self, number: int, program: Program, restarts: int, optional: bool = False, gated: bool = False
    ) -> None:
        self.number = number  # of its bundle; 0 is the learner's node
        self.gated = gated  # see ``ray_actors.GroupMemory``
        self.optional = optional  # the run goes on without it, and it begins when there is room
        self.program = program
        links = [port for node in program.nodes for port in node.ports.values()]
        self.has_shard = number > 0 and any(isinstance(port, ReplayLink) for port in links)
        # A learner in the group publishes to it.
        own = any(averages(node) for node in program.nodes)
        self.reads_weights = number > 0 and not own and any(isinstance(port, WeightsLink) for port in links)
        self.asks: frozenset[str] = frozenset()  # roles that ask servers on the learner's node, and end with these
        self.serves: tuple[int, ...] = ()  # slots of the run
        self.acting = ""  # role of its actors
        kind = "shard" if self.has_shard else "group"
        self.name = "home" if number == 0 else f"{kind}-{number - 1}"
        self.patience = RestartBudget(restarts)
        self.slots = [RaySlot(node, index) for node in program.nodes for index, _ in node.leases]
        self.starts = 0  # that were tried; of them
        self.begun = 0  # … came up
        self.late = False  # and that was said
        self.dropped = False  # the run goes on without it, at least for a while
        self.memory: Any = None  # the actor that holds its memory; None: there is none now
        self.greeting: Any = None  # its answer to hello, until it has come
        self.up = False
        self.where: Hello | None = None  # it is, or was
        self.looked: Any = None
        self.silence = StallDetector()  # of its memory
        self.asked_at = self.restart_at = self.born_at = 0.0
        self.look = Look({}, 0, 0)
        self.capacity = 0
        self.sums = dict.fromkeys(("inserted", "sampled", "evicted", "updates_applied", "updates_stale", "lost"), 0)
        self.lost_items = 0

    def awaited(self, now: float) -> float:
        """Seconds for which it, or one that works in it, has been waited for in vain; 0: all are there."""
        if self.memory is not None and not self.up:
            return now - self.born_at
        return max((slot.awaited(now) for slot in self.slots), default=0.0)

    @property
    def place(self) -> str:
        """Ray's name of its node, where it is up."""
        return "" if self.where is None else self.where.node

    @property
    def restarts(self) -> int:
        return max(0, self.begun - 1)

    @property
    def resting(self) -> bool:
        """Whether the run can do without it, and nobody is to act in it at present."""
        actors = [slot for slot in self.slots if slot.node.name == self.acting]
        return self.optional and bool(actors) and all(slot.resting for slot in actors)

    @property
    def absent(self) -> bool:
        """Whether it may come some time, or not."""
        return self.dropped or (self.optional and not self.up)

    def end(self, now: float, how: Ending = "vanished") -> None:
        """Its memory is gone, with what lay there."""
        for name in self.sums:
            self.sums[name] += self.look.replay.get(name, 0)
        self.lost_items += self.look.replay.get("size", 0)
        worked = how != "failed" and bool(self.look.replay.get("inserted", 0) or self.look.version)
        self.patience.ended(now - self.born_at, worked, how)
        self.look, self.capacity = Look({}, 0, self.look.spoilt), 0
        self.memory = self.greeting = self.looked = None
        self.up = False
        self.restart_at = now + self.patience.pause_seconds
