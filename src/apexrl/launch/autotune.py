"""Auto-tuning of a live run: adds and removes workers, changes thread counts, and measures the throughput.

The throughput of a window is √(env steps/s · learner updates/s). Where the two are coupled (``updates_per_step``, or
unrolls that are learned from once) they rise and fall together. Where they are not, more actors make more steps and
take processor time from the learner: either rate alone would drive the other to zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from apexrl.launch.run_ledger import Ledger
from apexrl.launch.tuner import Decision, Tuner
from apexrl.launch.wiring import Wiring
from apexrl.launch.worker_slots import Slot, staff
from apexrl.links.local.control_board import ControlBoard
from apexrl.topologies.program import Program

_SETTLE = 0.3  # of a window, between a change and the window that measures it: new workers fill their first chunks
_LEAST_UPDATES = 20  # in a window, or their number alone would be noise; slow learners get longer windows
_LONGEST = 10.0  # times --autotune-seconds, which no window exceeds
_MOST_SPOILT = 3  # windows in a row that a death may spoil; the next one counts as it is
_START_SECONDS = 60.0  # and twice env_timeout, for new workers to make their first step


class _Mark(NamedTuple):
    """Where the counters stood when a window began."""

    seconds: float
    env_steps: int
    updates: int
    restarts: int


class AutoTune:
    """Lets a ``Tuner`` set the numbers of a run's workers. Call it at every tick of the supervisor; it never waits.

    Nothing is measured before the learner has begun to learn, while workers come or go, or in a window in which one
    was restarted. A count at which new workers fail always, or do not come up in time, is out of reach from then on.
    """

    def __init__(
        self, program: Program, slots: Sequence[Slot], board: ControlBoard, wiring: Wiring, ledger: Ledger
    ) -> None:
        counts = program.tunable
        self._roles = {name: [slot for slot in slots if slot.node.name == name] for name in counts}
        self._slots, self._board, self._wiring, self._ledger = slots, board, wiring, ledger
        self._tuner = Tuner(
            {name: (1, most) for name, (_, most) in counts.items()},
            {name: start for name, (start, _) in counts.items()},
            program.config.seed,
        )
        self._now_run = self._tuner.next()
        self._updates_before = ledger.base.updates
        self._seconds = program.config.wiring.autotune_seconds  # of a window
        self._longest = _LONGEST * self._seconds
        self._began: _Mark | None = None  # the window in progress
        self._unsettled_since: float | None = None  # monotonic seconds
        self._ready_at = math.inf  # when the next window may begin
        self._spoilt = 0  # in a row

    def step(self, now: float) -> None:
        """Look where things are, at ``now`` (monotonic seconds), and do what is due."""
        self._do_without_lost(now)
        if self._board.total("updates") <= self._updates_before:
            return
        if self._began is not None:
            self._measure(self._began, now)
        elif not self._settled(now):
            self._give_up_on_failing(now)
        elif now >= self._ready_at:
            self._began = self._mark(now)

    def _mark(self, now: float) -> _Mark:
        restarts = sum(slot.restarts for slot in self._slots)
        return _Mark(now, self._board.total("env_steps"), self._board.total("updates"), restarts)

    def _settled(self, now: float) -> bool:
        """Whether everybody who should be at work is, and nobody else; from then on it takes a while until a window."""
        settled = all(slot.at_work or slot.gone or (slot.resting and not slot.alive) for slot in self._slots)
        if not settled:
            self._unsettled_since = now if self._unsettled_since is None else self._unsettled_since
            self._ready_at = math.inf
        else:
            self._unsettled_since = None
            if self._ready_at == math.inf:
                self._ready_at = now + _SETTLE * self._seconds
        return settled

    def _measure(self, began: _Mark, now: float) -> None:
        """End the window in progress when it is over, or spoilt."""
        ended = self._mark(now)
        spoilt = ended.restarts != began.restarts or not self._settled(now)
        if spoilt and self._spoilt < _MOST_SPOILT:
            self._spoilt += 1
            self._began, self._ready_at = None, math.inf
            return
        elapsed, updates = ended.seconds - began.seconds, ended.updates - began.updates
        if elapsed < self._seconds:
            return
        first = not self._tuner.decisions
        if first and updates < _LEAST_UPDATES and elapsed < self._longest:
            return
        if first:
            self._seconds = elapsed  # all windows are as long as the first
        self._spoilt = 0
        self._began = None
        steps = ended.env_steps - began.env_steps
        decision = self._tuner.tell(math.sqrt(steps * updates) / elapsed)
        self._record(decision, env_steps_per_second=steps / elapsed, updates_per_second=updates / elapsed)
        self._run(self._tuner.next(), now)

    def _run(self, setting: dict[str, int], now: float) -> None:
        """Call and dismiss workers, and set thread counts, until ``setting`` is what runs."""
        if setting == self._now_run:
            return
        for name, count in setting.items():
            if self._roles[name]:
                staff(self._roles[name], count, now)
            else:
                self._wiring.set_count(name, count)
        self._now_run = setting
        self._ready_at = math.inf

    def _do_without_lost(self, now: float) -> None:
        """Workers that the run gave up on serve no more: others replace them, as far as there are any."""
        for name, slots in self._roles.items():
            left = [slot for slot in slots if not slot.gone]
            if len(left) < len(slots):
                self._roles[name] = left
                self._tuner.limit(name, len(left))
                self._record(self._tuner.decisions[-1])
                self._now_run = {}  # whatever is asked for is to be staffed anew
                self._began = None
                self._run(self._tuner.next(), now)

    def _give_up_on_failing(self, now: float) -> None:
        """A worker that was added and cannot work (too little memory, too few licences): do with those who can."""
        for name, slots in self._roles.items():
            called = [slot for slot in slots if not slot.resting]
            able = [slot for slot in called if slot.at_work]
            failing = [slot for slot in called if slot.patience.fails_always]
            allowed = _START_SECONDS + 2.0 * max((slot.node.env_timeout or 0.0 for slot in called), default=0.0)
            late = self._unsettled_since is not None and now > self._unsettled_since + allowed
            if able and len(able) < len(called) and (failing or late):
                why = (failing or [slot for slot in called if not slot.at_work])[0].headline or "it does not come up"
                self._ledger.tell(f"auto-tuner: {len(called)} × {name} cannot be run: {why}", "warning")
                self._tuner.limit(name, len(able))
                self._record(self._tuner.decisions[-1])
                self._run(self._tuner.next(), now)
                return

    def _record(self, decision: Decision, **rates: float) -> None:
        """Tell log and picture of every decision, and a human of those that change something."""
        self._ledger.hear("tuning", {**decision._asdict(), **rates})
        self._ledger.tuned = {
            "best": decision.best,
            "settled": self._tuner.settled,
            "windows": decision.window + 1,
            "window_seconds": round(self._seconds, 3),
            "noise": round(self._tuner.noise, 4),
        }
        if decision.verdict in ("adopted", "settled", "looks again"):
            words = " and ".join(f"{count} × {name}" for name, count in decision.best.items())
            gain = f", which makes {decision.gain:+.0%}" if decision.verdict == "adopted" else ""
            self._ledger.tell(f"auto-tuner, window {decision.window}: {decision.verdict} {words}{gain}")
