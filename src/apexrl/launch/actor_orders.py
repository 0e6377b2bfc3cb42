"""Lets as many actors serve as ``apexrl scale RUN`` orders, while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from apexrl.launch.run_ledger import Ledger
from apexrl.launch.slot_state import SlotState
from apexrl.run import actor_order
from apexrl.run.actor_order import ActorNumbers
from apexrl.topologies.program import Node, Program
from apexrl.topologies.queue_links import queue_names

_ELSEWHERE = "apexrl scale HOST|all --actors N --redis URL --run NAME changes those of other hosts"
_SlotT = TypeVar("_SlotT", bound=SlotState)


class ActorOrders(Generic[_SlotT]):
    """Call it at every tick of a supervisor or driver; it never waits.

    An order outlives the supervisor: a resumed run begins with the number that was ordered last. Where the run goes on
    without an actor that fails always, one that rests takes its place.

    Args:
        slots: of all roles.
        staff: ``staff(slots, count, now)`` lets ``count`` of these slots serve.
        least: actors that may be ordered; 0: as the role says.
    """

    def __init__(
        self,
        program: Program,
        slots: Sequence[_SlotT],
        ledger: Ledger,
        staff: Callable[[Sequence[_SlotT], int, float], None],
        least: int = 0,
    ) -> None:
        node = actors_of(program)
        self._fixed = why_fixed(program, node)
        self._slots = [slot for slot in slots if node is not None and slot.node.name == node.name]
        self._staff = staff
        self._wanted = 0 if node is None else node.count
        self._least = 0 if node is None else max(1, least, node.least)
        self._ledger = ledger
        self._heard = 0  # the order that was heeded, or refused
        self._told: tuple[int, int] | None = None  # how many serve, of how many that can
        self._hear(actor_order.read(ledger.folder.path))

    def step(self, now: float) -> None:
        """Do what is ordered, at ``now`` (monotonic seconds)."""
        self._hear(self._ledger.ordered_actors)
        left = [slot for slot in self._slots if not slot.gone]
        wanted = min(self._wanted, len(left))
        if not self._fixed and wanted != sum(not slot.resting for slot in left):
            self._staff(left, wanted, now)
        serving = sum(not slot.resting for slot in left), len(left)
        if serving != self._told:
            self._told = serving
            self._ledger.enter_actors(ActorNumbers(serving[0], self._least, serving[1], self._fixed))

    def _hear(self, order: int) -> None:
        if self._fixed or order in (0, self._heard):
            return
        self._heard = order
        most = sum(not slot.gone for slot in self._slots)
        if not self._least <= order <= most:
            self._ledger.tell(
                f"{actor_order.NAME} asks for {order} actors, and this run may have from {self._least} to {most}: it "
                f"goes on with {self._wanted}",
                "warning",
            )
        elif order != self._wanted:
            self._ledger.tell(f"{order} actors from now on, as apexrl scale asks; {self._wanted} before")
            self._wanted = order


def actors_of(program: Program) -> Node | None:
    """The role that steps environments to learn from; None: it is on other hosts, or there is none."""
    return next((node for node in program.nodes if node.traits.work.counter == "env_steps"), None)


def why_fixed(program: Program, actors: Node | None) -> str:
    """Why the number of actors cannot be changed while the run goes on; empty: it can."""
    topology = program.config.topology
    if program.config.wiring.autotune:
        return "--autotune finds out how many are best"
    if actors is None or actors.count == 0:
        return f"no actors of topology {topology} work on this machine; {_ELSEWHERE}"
    if actors.indices:
        return f"they are one host's of a run over several; {_ELSEWHERE}"
    if queue_names(actors.ports):
        return "each of several learners has actors of its own"
    if actors.most < actors.count:
        return f"topology {topology} has a fixed number of them"
    return ""
