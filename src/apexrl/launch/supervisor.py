"""The supervisor: starts the workers of a program as processes, watches them, restarts them, and stops the run.

It computes nothing and holds no lock that a worker could want. It shares memory with workers (replay, weights board,
control board) that it created; their messages to it never block the sender.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from apexrl.config import Config
from apexrl.errors import ApexrlError, WorkerError
from apexrl.launch.actor_orders import ActorOrders
from apexrl.launch.answers import Answers
from apexrl.launch.autotune import AutoTune
from apexrl.launch.fork_client import Born, Died, ForkClient, pickled
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.probe import fatal_error, probe, probe_answer, probe_work
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.stall_dump import DUMP_SECONDS, START, ask_for_dump, process_state
from apexrl.launch.wiring import Wiring
from apexrl.launch.worker_process import Assignment, log_labels, work
from apexrl.launch.worker_slots import Slot, identity, staff
from apexrl.links.local.control_board import DROPPED, HURRY, RUN, STOP, ControlBoard
from apexrl.links.local.stall_detector import StallDetector
from apexrl.topologies.program import Probe, Program
from apexrl.topologies.queue_links import queue_names

_TICK_SECONDS = 0.1
_FIRST_TICK_SECONDS = 0.02  # until the first environment step, so that its time is known closely
_SHOW_SECONDS = 0.25
_STARTER_SECONDS = 5.0  # of silence, after which the fork server is asked nothing
_LEAVE_SECONDS = 20.0  # from being asked to leave, while the run goes on, to the kill
_NUMBER_SECONDS = 1.0  # until a fence is tried to be written again


class Supervisor:
    """The worker processes of one run. Call ``probe``, then ``run``, and ``close`` in any case.

    Attributes:
        answers: of short-lived processes, before ``run``.

    Args:
        interrupts: counts Ctrl-C and the like.
        preload: modules that the fork server imports before the first worker.
        hurried: reasons to stop that leave no time for what takes long, such as a final evaluation.
    """

    def __init__(
        self,
        config: Config,
        interrupts: Interrupts,
        preload: Sequence[str],
        hurried: Collection[str] = ("interrupted",),
    ) -> None:
        self._config = config
        self._interrupts = interrupts
        self._hurried = hurried
        self._run_tag = uuid.uuid4().hex[:12]
        self._server = ForkClient(preload, config.stall_timeout)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._slots: list[Slot] = []
        self._tickets: dict[int, Slot] = {}
        self._next_ticket = 0
        self._failure: ApexrlError | None = None
        self._starter = StallDetector()  # of the fork server
        self.answers = Answers(config, interrupts, self._server, self._starter, f"{self._run_tag}/probe")
        self._hung_calls = 0
        self._stop_at: float | None = None
        self._heeded = 0

    def close(self) -> None:
        """End every process of the run."""
        self._selector.close()
        self._server.close()
        for slot in self._slots:
            slot.end_channel()

    def probe(self, look: Callable[[Config], Probe] = probe) -> Probe:
        """Look at the environment and the agent, or at what ``look`` does, in a process of their own.

        Raises:
            EnvError: the environment cannot be made, or takes longer than ``env_timeout``.
            ApexrlError: whatever else the probe met, under its own class.
        """
        return probe_answer(self.answers.of(probe_work, (self._config, look), "making the environment and the agent"))

    def hear_starter(self) -> None:
        """Listen to the fork server while no worker is wanted.

        Raises:
            WorkerError: it has ended.
        """
        self._server.events()

    def run(self, program: Program, ledger: Ledger, board: ControlBoard, wiring: Wiring) -> None:
        """Run ``program`` until something stops it. Raises what made it fail; otherwise ``ledger`` knows the reason.

        Args:
            wiring: the real links, in place of the program's placeholders.
        """
        self._ledger, self._board, self._wiring = ledger, board, wiring
        for node in program.nodes:
            for position, (index, lease) in enumerate(node.leases):
                self._slots.append(Slot(node, index, lease, board, len(self._slots), ledger.folder.path))
                self._slots[-1].resting = position >= node.count
        tune = AutoTune(program, self._slots, board, wiring, ledger) if self._config.wiring.autotune else None
        orders = ActorOrders(program, self._slots, ledger, staff)
        ticked = shown = -1.0
        while not all(slot.gone for slot in self._slots):
            tick = _TICK_SECONDS if ledger.started else _FIRST_TICK_SECONDS
            self._hear(max(0.0, ticked + tick - time.monotonic()))
            now = time.monotonic()
            if now - ticked < tick and ledger.stop_reason is None:
                continue
            ticked = now
            self._heed_interrupts()
            if self._stop_at is None:
                orders.step(now)
            self._watch(now)
            if tune is not None and self._stop_at is None:
                tune.step(now)
            self._tick(now)
            if self._stop_at is None and (ledger.stop_reason is not None or self._failure is not None):
                self._stop(now)
            if now - shown >= _SHOW_SECONDS:
                shown = now
                ledger.show()
        self._tick(time.monotonic())
        ledger.show()
        if self._failure is not None:
            raise self._failure

    def _begin(self, slot: Slot, now: float) -> None:
        """Start a worker, once its fence is written if it writes into the run folder."""
        folder_generation = self._ledger.number(slot.name) if slot.node.traits.fenced else 0
        if folder_generation is None:
            slot.restart_at = now + _NUMBER_SECONDS
            return
        theirs, log = slot.begin(now)
        if isinstance(log, OSError):
            self._ledger.tell(f"{slot.name} works without a log: {log}", "warning")
        ledger, node = self._ledger, slot.node
        who = self._config.seed, node.name, slot.index, slot.generation
        worker = identity(*who, ledger.base, ledger.folder.path, folder_generation, slot.lease)
        ports, labels = self._wiring.ports(node), log_labels(self._config, worker)
        assignment = Assignment(worker, self._board, slot.row_number, node.factory, ports, node.nice, labels)
        slot.ticket, self._next_ticket = self._next_ticket, self._next_ticket + 1
        self._tickets[slot.ticket] = slot
        assert slot.channel is not None
        self._selector.register(slot.channel, selectors.EVENT_READ, slot)
        tag = f"{self._run_tag}/{slot.name}.{slot.generation}"
        with theirs:
            self._fork(slot.ticket, work, (assignment,), tag, theirs, log if isinstance(log, int) else None)

    def _fork(
        self,
        ticket: int,
        function: Callable[..., int],
        args: tuple[Any, ...],
        tag: str,
        channel: Any,
        output: int | None,
    ) -> None:
        own = os.open(os.devnull, os.O_WRONLY) if output is None else output
        try:
            self._server.fork(ticket, pickled((function, args)), tag, channel, own)
        finally:
            os.close(own)

    def _hear(self, timeout: float) -> None:
        """Wait for messages and ends of workers, and handle them."""
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, Slot):
                self._listen(key.data)
        for news in self._server.events():
            slot = self._tickets.get(news.ticket)
            if slot is None:
                continue
            if isinstance(news, Born):
                slot.pid = news.pid
            else:
                del self._tickets[news.ticket]
                self._listen(slot)
                self._handle_end(slot, news)

    def _listen(self, slot: Slot) -> None:
        for message in slot.receive():
            if message.kind != "error":
                self._ledger.hear(message.kind, message.values)

    def _handle_end(self, slot: Slot, death: Died) -> None:
        """Handle the end of a worker: an orderly stop, or a failure that leads to a restart or ends the run."""
        now = time.monotonic()
        if slot.channel is not None:
            self._selector.unregister(slot.channel)
        leaving = slot.leaving_since is not None
        slot.end(now, death.status, death.error)
        if slot.gone:
            return  # killed because it did not stop
        if self._stop_at is not None:
            slot.gone = True
            if death.status == 0:
                slot.last_error = ""
            else:
                self._ledger.tell(f"{slot.name} did not stop cleanly: {slot.headline}", "warning")
            if slot.errors and slot.node.traits.writes_checkpoints and self._failure is None:
                trace = slot.errors[-1]["traceback"]
                self._failure = fatal_error(slot.name, slot.errors) or WorkerError(
                    f"{slot.name} failed at the end:\n{trace}"
                )
            return
        fatal = fatal_error(slot.name, slot.errors)
        role = [other for other in self._slots if other.node is slot.node and not (other.resting or other.gone)]
        if fatal is not None:
            self._give_up(slot, fatal)
        elif leaving:
            if slot.last_error:
                self._ledger.tell(f"{slot.name} did not leave cleanly: {slot.headline}", "warning")
                slot.last_error = ""
        elif (failure := slot.role_failure(role)) is not None:
            self._give_up(slot, failure)
        elif slot.patience.exhausted:
            why = slot.exhausted_account
            if self._can_go_on_without(slot):
                slot.gone = True
                self._ledger.give_up(slot.name, f"it {why}")
            else:
                self._give_up(slot, WorkerError(f"{slot.name} {why}"))
        else:
            end = f"; {slot.log_end()}" if slot.stalled else ""
            self._ledger.tell(f"{slot.name}: {slot.headline}; starting it again{end}", "warning")

    def _can_go_on_without(self, slot: Slot) -> bool:
        """Whether enough workers of the role are left, on every queue where there are several."""
        left = [other for other in self._slots if other.node is slot.node and not other.gone and other is not slot]
        queues = max(1, len(queue_names(slot.node.ports)))
        enough = 0 < slot.node.least <= len(left)
        return enough and len({other.index % queues for other in left}) == queues

    def _give_up(self, slot: Slot, error: ApexrlError) -> None:
        slot.gone = True
        if self._failure is None:
            self._failure = error

    def _watch(self, now: float) -> None:
        """Kill what hangs or does not stop, and restart what ended."""
        self._watch_starter(now)
        for slot in self._slots:
            if not slot.alive:
                if self._stop_at is not None:
                    slot.gone = True
                elif now >= slot.restart_at and not (slot.gone or slot.resting or self._starter_is_quiet):
                    self._begin(slot, now)
            elif self._overdue(slot, now):
                if not slot.gone:
                    self._ledger.tell(f"{slot.name} did not stop in time and was killed", "warning")
                slot.gone = True  # whatever still lives when all are gone is killed with the fork server
                self._kill(slot)
            elif slot.hung:
                if now >= slot.kill_at:
                    self._kill(slot)
            elif slot.hangs(now, self._stall_timeout(slot)):
                slot.kill_at = now + DUMP_SECONDS
                self._hung_calls += not slot.stalled
                if slot.pid:
                    ask_for_dump(slot.pid)
            elif slot.leaving_since is not None and now > slot.leaving_since + _LEAVE_SECONDS:
                self._kill(slot)

    def _watch_starter(self, now: float) -> None:
        """End the run cleanly when the fork server stands still."""
        limit = max(self._config.stall_timeout, _STARTER_SECONDS) * (1.0 if self._server.ready else START)
        quiet = self._starter.look(self._server.beats, now)
        if self._config.stall_timeout and self._failure is None and quiet > limit:
            self._failure = WorkerError(
                f"the process that starts workers stood still for {quiet:.0f} s (--stall-timeout): apexrl resume goes "
                "on from the last checkpoint"
            )
        if self._stop_at is not None and self._starter_is_quiet:  # nobody tells of ends
            for slot in self._slots:
                slot.gone = slot.gone or process_state(slot.pid) in ("", "Z")

    @property
    def _starter_is_quiet(self) -> bool:
        return self._starter.seconds > _STARTER_SECONDS and self._server.ready

    def _overdue(self, slot: Slot, now: float) -> bool:
        """Whether a worker has had its time to stop."""
        if self._stop_at is None:
            return False
        ended = bool(slot.hung) and now > slot.kill_at + _LEAVE_SECONDS
        return ended or now > self._stop_at + self._grace(slot)

    def _stall_timeout(self, slot: Slot) -> float:
        """Seconds without progress that are allowed; 0: no limit, as what ends or leaves has a grace period."""
        ends = slot.leaving_since is not None or (self._stop_at is not None and self._grace(slot) < float("inf"))
        return 0.0 if ends else self._config.stall_timeout

    def _grace(self, slot: Slot) -> float:
        return slot.grace(self._board.stop == HURRY, self._config.learner.save_replay)

    def _kill(self, slot: Slot) -> None:
        """Kill a worker with everything it started."""
        if slot.pid:
            with suppress(ProcessLookupError, PermissionError):  # its death is on the way to us
                os.killpg(slot.pid, signal.SIGKILL)

    def _stop(self, now: float) -> None:
        self._stop_at = now
        self._ledger.training_ends(now)
        ends_early = self._ledger.hurried or self._ledger.stop_reason in self._hurried
        hurry = self._failure is not None or ends_early
        self._board.stop = HURRY if hurry else STOP

    def _heed_interrupts(self) -> None:
        """The first interrupt stops the run cleanly, the second at once."""
        if self._interrupts.count == self._heeded:
            return
        again, self._heeded = self._heeded > 0, self._interrupts.count
        if again or self._interrupts.count > 1:
            self._ledger.stop("interrupted")
            self._ledger.tell("interrupted again: killing every worker", "warning")
            for slot in self._slots:
                self._kill(slot)
                slot.gone = True
        elif self._board.stop == RUN:
            self._ledger.stop("interrupted")
            keeps = any(slot.node.traits.writes_checkpoints for slot in self._slots)
            last = "writing the final checkpoint" if keeps else "handing over what there is"
            self._ledger.tell(self._interrupts.heeded(last), "warning")
        else:
            self._board.stop = HURRY
            self._stop_at = time.monotonic()
            self._ledger.tell("interrupted: the final evaluation is cut short", "warning")

    def _tick(self, now: float) -> None:
        stats = self._wiring.replay_stats()
        restarts = {slot.node.name: 0 for slot in self._slots}
        for slot in self._slots:
            restarts[slot.node.name] += slot.restarts
        self._ledger.tick(
            now,
            totals=self._board.total,
            replay=stats,
            version=self._wiring.weights_version(),
            workers=[slot.status(now) for slot in self._slots if slot.alive or not slot.resting],
            restarts=restarts,
            dropped={
                **{what: self._board.total(counter) for what, counter in DROPPED.items()},
                "hung_env_calls": self._hung_calls,
                "stale_priorities": stats.get("updates_stale", 0),
                "lost_items": stats.get("lost", 0),
                "spoilt_weight_reads": self._wiring.spoilt_weight_reads(),
            },
        )
