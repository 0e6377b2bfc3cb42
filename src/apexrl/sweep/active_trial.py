"""One trial at work: its runs one after another, its report to Optuna, its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optuna.trial import TrialState

from apexrl.config import Config
from apexrl.errors import ApexrlError
from apexrl.evaluation.scores import iqm
from apexrl.run.atomic_files import replace_text
from apexrl.run.folder import RunFolder
from apexrl.sweep.curve import RUNGS, CurveReader, final_height, height
from apexrl.sweep.plan import Plan
from apexrl.sweep.run_attempts import RunAttempts, Start
from apexrl.sweep.run_process import PRUNED
from apexrl.sweep.study import Claimed, Study


class ActiveTrial:
    """A claimed trial that is carried out by this process."""

    def __init__(self, study: Study, claimed: Claimed, start: Start) -> None:
        self.number = claimed.trial.number
        self.settings = study.settings(claimed.trial)
        self.outcome = ""
        """How it ended, in words; empty: it has not."""
        self._study, self._plan = study, study.plan
        self._claimed = claimed
        self._start = start
        self._stop_path = study.claim_folder(self.number) / "stop"
        self._ended: list[float] = []  # what its runs were worth that have ended
        self._areas: list[float] = []  # the same by the objective area, which decides between equals
        self._steps, self._seconds = 0, 0.0  # of those runs
        self._reported = claimed.last_rung
        self._stopping = False
        self._run: RunAttempts | None = None
        self._runs: list[Config] = []
        try:
            self._runs = self._plan.runs(self.number, self.settings, study.folder)
        except ApexrlError as error:
            self._fail(str(error))
            return
        if claimed.begun and self._stop_path.exists():  # its process died between the decision and the end
            self._end(TrialState.PRUNED)
        else:
            self._begin()

    def step(self) -> bool:
        """See what has become of it; returns whether it has ended, or was interrupted."""
        if self.outcome or self._run is None:
            return True
        self._report()
        if self._run.goes_on():
            return False
        run, self._run = self._run, None
        self._report()
        if run.result == "ended":
            self._enter_run()
        elif run.result == "failed":
            self._fail(run.why)
        else:
            self.release()
        return self._run is None

    def interrupt(self) -> None:
        """Stop its run with a checkpoint; whoever goes on with the study resumes it."""
        self._stopping = True
        if self._run is not None:
            self._run.interrupt()

    def kill(self) -> None:
        if self._run is not None:
            self._run.kill()
            self._run = None
        self.release()

    def release(self) -> None:
        """Let another process go on with it."""
        self._claimed.claim.close()

    def _begin(self) -> None:
        """Start or resume the run that is due, unless the sweep stops."""
        if self._stopping:
            self.release()
            return
        config = self._runs[len(self._ended)]
        self._folder = RunFolder(self._study.folder / config.name)
        self._curve = CurveReader(self._folder.metrics_path, config.stop)
        log_path = self._study.folder / "logs" / f"{config.name}.log"
        self._run = RunAttempts(config, log_path, self._stop_path, self._start)

    def _report(self) -> None:
        """Tell Optuna of the rungs that the curve has passed since, and stop the run if it shall not go on."""
        if not self._curve.read():
            return
        used = self._curve.points[-1][0]
        for _ in self._passed(used):
            if self._claimed.trial.should_prune():
                replace_text(self._stop_path, PRUNED)
                return

    def _passed(self, used: float) -> Iterator[int]:
        """Report the rungs up to a share of the run's budget that were not reported yet, one by one."""
        first = len(self._ended) * RUNGS
        for rung in range(max(0, self._reported + 1 - first), int(used * RUNGS)):
            worth = height(self._curve.points, self._plan.objective, (rung + 1) / RUNGS)
            if worth is not None:
                self._reported = first + rung
                self._claimed.trial.report(combined(self._plan, [*self._ended, self._scored(worth)]), self._reported)
                yield rung

    def _enter_run(self) -> None:
        """Go on after a run that has ended by itself, or was pruned."""
        summary = self._folder.summary()
        self._steps += int(summary.get("env_steps") or 0)
        self._seconds += float(summary.get("wall_seconds") or 0.0)
        if summary.get("stopped_by") == PRUNED:
            self._end(TrialState.PRUNED)
            return
        worth = final_height(self._curve.points, self._plan.objective, summary)
        if worth is None:
            self._fail("it ended before its first evaluation: give its runs more --env-steps or --minutes")
            return
        for _ in self._passed(1.0):  # one that reached its goal early is what others are compared with to the end
            pass
        area = height(self._curve.points, "area")
        self._areas.append(self._scored(worth if area is None else area))
        self._ended.append(self._scored(worth))
        if len(self._ended) < len(self._runs):
            self._begin()
        else:
            self._end(TrialState.COMPLETE, combined(self._plan, self._ended))

    def _scored(self, value: float) -> float:
        """A return on the scale of the environment of the run that is due."""
        scales = self._plan.scales
        return scales[len(self._ended) % len(scales)].score(value) if scales else value

    def _end(self, state: TrialState, value: float | None = None) -> None:
        about: dict[str, float] = {"env_steps": self._steps, "seconds": round(self._seconds, 1)}
        if state == TrialState.COMPLETE:
            about["area"] = combined(self._plan, self._areas)
        self._study.tell(self._claimed, state, value, **about)
        self.outcome = PRUNED if state == TrialState.PRUNED else f"{value:.4g}"

    def _fail(self, why: str) -> None:
        self._study.tell(self._claimed, TrialState.FAIL, why=why)
        self.outcome = f"failed: {why}"


def combined(plan: Plan, scores: Sequence[float]) -> float:
    """One number of those of several runs: of several environments the interquartile mean, of seeds the mean."""
    if not plan.scales:
        return sum(scores) / len(scores)
    each = [list(scores[place :: len(plan.scales)]) for place in range(min(len(plan.scales), len(scores)))]
    return iqm(each)
