"""The serial launcher: all roles in lock-step in this process. Slow, simple to debug, and reproducible to the last bit.

Only counts decide what happens next. Wall-clock time paces what is shown, and the stop rule ``minutes``.
"""

from __future__ import annotations

import time
from typing import Any

from apexrl.errors import WorkerError
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.wiring import Wiring
from apexrl.launch.worker_slots import identity
from apexrl.links.local.control_board import DROPPED
from apexrl.links.local.role_context import InlineContext, InlineRun
from apexrl.protocols import Role
from apexrl.run.metrics import RateMeter
from apexrl.run.status import WorkerStatus
from apexrl.topologies.program import BatchesLink, Node, Program, ReplayLink

STEPS_PER_SECOND = 10_000.0
"""Environment steps that count as one second for periods (evaluations, checkpoints): a usual speed of a small run."""

UPDATES_PER_SECOND = 500.0
"""The same in learner updates, where nobody steps an environment to learn from."""

_STUCK_ROUNDS = 2000
_SHOW_SECONDS = 0.25


def run_serial(program: Program, ledger: Ledger, wiring: Wiring, interrupts: Interrupts) -> None:
    """Run ``program`` until something stops it; ``ledger`` then knows what."""
    config = ledger.config
    shared = InlineRun(lambda name, kind, values: ledger.hear(kind, _detached(values)), STEPS_PER_SECOND)
    if not any(node.traits.work.counter == "env_steps" for node in program.nodes):
        shared.clock_counter, shared.steps_per_second = "updates", UPDATES_PER_SECOND
    ledger.carry_changes(shared.set_env_change)
    base = ledger.base
    shared.totals.update(env_steps=base.env_steps, updates=base.updates, episodes=base.episodes)
    members: list[tuple[Node, InlineContext, Role]] = []
    for node in program.nodes:
        for index in range(node.count):
            number = ledger.folder.generations.grant(f"{node.name}-{index}") if node.traits.fenced else 0
            worker = identity(config.seed, node.name, index, 0, base, ledger.folder.path, number)
            context = InlineContext(shared, worker)
            members.append((node, context, node.factory(context, **wiring.ports(node))))
    limited = _limited(program)
    rates = {context.name: RateMeter() for _, context, _ in members}
    stuck = 0
    shown = float("-inf")

    def show() -> None:
        workers = [_status(node, context, rates[context.name]) for node, context, _ in members]
        ledger.tick(
            time.monotonic(),
            totals=shared.totals.__getitem__,
            replay=wiring.replay_stats(),
            version=wiring.weights_version(),
            workers=workers,
            restarts={node.name: 0 for node in program.nodes},
            dropped={what: shared.totals[counter] for what, counter in DROPPED.items()},
        )
        ledger.show()

    while ledger.stop_reason is None:
        moved = False
        for node, _, role in members:
            traits = node.traits
            left = _STUCK_ROUNDS if limited and traits.serial_limited else traits.serial_steps or -1
            while left != 0 and ledger.stop_reason is None and not interrupts.count and role.step():
                moved = True
                left -= 1
        for counter in ("env_steps", "updates"):
            if (limit := getattr(config.stop, counter)) and shared.totals[counter] >= limit:
                ledger.stop(counter)
        stuck = 0 if moved else stuck + 1
        if stuck > _STUCK_ROUNDS:
            raise WorkerError(
                "no role can go on: the actors wait for the replay and the learner waits for the actors. "
                "Check --min-size against --capacity, and --updates-per-step"
            )
        if interrupts.count:
            ledger.stop("interrupted")
            ledger.tell(interrupts.heeded("writing the final checkpoint"), "warning")
        if time.monotonic() - shown >= _SHOW_SECONDS or not ledger.started:
            shown = time.monotonic()
            show()
    ledger.training_ends(time.monotonic())
    shared.stopping = True
    shared.hurried = ledger.hurried
    for _, _, role in members:
        role.close()
    show()


def _limited(program: Program) -> bool:
    """Whether a limiter or a queue decides how many updates follow a step of the actors."""
    ports = [port for node in program.nodes for port in node.ports.values()]
    replays = [port.replay if isinstance(port, BatchesLink) else port for port in ports]  # of a mix actors have theirs
    options = [replay.options for replay in replays if isinstance(replay, ReplayLink)]
    return any(one.get("sampler") == "fifo" or one.get("samples_per_insert", 0.0) > 0 for one in options)


def _status(node: Node, context: InlineContext, rate: RateMeter) -> WorkerStatus:
    work = node.traits.work
    return WorkerStatus(
        name=context.name,
        role=context.role,
        index=context.index,
        state=work.activity,
        rate=rate.add(time.monotonic(), context.counts[work.counter]),
        work=work,
    )


def _detached(values: dict[str, Any]) -> dict[str, Any]:
    """A message's lists belong to the receiver, as they would after crossing a process."""
    return {name: list(value) if isinstance(value, list) else value for name, value in values.items()}
