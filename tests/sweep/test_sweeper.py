"""How a sweep treats its runs. Runs are written by hand here; ``test_whole_sweeps.py`` has real ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import TrialState

from apexrl import presets
from apexrl.config import Config
from apexrl.config.convert import from_toml, override
from apexrl.errors import ConfigError, WorkerError
from apexrl.evaluation.scores import iqm
from apexrl.sweep.active_trial import combined
from apexrl.sweep.plan import Plan, Scale
from apexrl.sweep.reference_returns import RETURNS
from apexrl.sweep.run_process import ENDED, FAILED, HELD, PRUNED, Request
from apexrl.sweep.search_space import search_space
from apexrl.sweep.study import Study
from apexrl.sweep.sweeper import open_plan, sweep
from benchmarks.generality.tasks import TASKS

CONFIG = override(presets.preset("cartpole").config, {"env_steps": 2000})
SPACE = search_space(CONFIG, ["learning_rate"])


def plan(trials: int, **more: object) -> Plan:
    return Plan((CONFIG,), SPACE, trials, **more)  # type: ignore[arg-type]


class WrittenRun:
    """Writes a point of its curve whenever it is asked how it is.

    Args:
        level: the return that it has all the time.
        code: how it ends.
        steps: after which it ends.
    """

    def __init__(self, wanted: Request, level: Callable[[Config], float], code: int = ENDED, steps: int = 2000) -> None:
        self._config = from_toml(wanted.config)
        self._stop = Path(wanted.stop_path)
        self._level = level(self._config)
        self._code = code
        self._steps = 0
        self._most = steps
        self.folder = Path(self._config.out) / self._config.name
        self.folder.mkdir(exist_ok=True)

    def poll(self) -> int | None:
        if self._code != ENDED:
            return self._code
        pruned = self._stop.exists()
        if pruned or self._steps >= self._most:
            summary = {"stopped_by": self._stop.read_text() if pruned else "env_steps", "env_steps": self._steps,
                       "wall_seconds": 1.0, "final_eval_return": self._level}  # fmt: skip
            (self.folder / "summary.json").write_text(json.dumps(summary))
            return ENDED
        self._steps += 100
        row = {"kind": "evaluation", "env_steps": self._steps, "wall_seconds": 0.1, "mean": self._level}
        with (self.folder / "metrics.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        return None

    def interrupt(self) -> None: ...

    def kill(self) -> None: ...


def by_step_size(config: Config) -> float:
    return -abs(config.agent.learning_rate - 1e-3)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.sweep.sweeper._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("apexrl.sweep.sweeper._OTHERS_SECONDS", 0.01)


def opened(folder: Path, wanted: Plan) -> Study:
    open_plan(folder, wanted)
    return Study(folder, wanted)


def test_bad_trials_end_early_and_the_best_is_written(tmp_path: Path) -> None:
    study = opened(tmp_path, plan(12))
    told: list[str] = []
    outcome = sweep(study, 1, told.append, lambda wanted, log: WrittenRun(wanted, by_step_size))
    states = [trial.state for trial in study.trials]
    assert len(states) == 12
    assert set(states) == {TrialState.COMPLETE, TrialState.PRUNED}
    assert json.loads((tmp_path / f"trial-{states.index(TrialState.PRUNED)}" / "summary.json").read_text())[
        "stopped_by"
    ] == (PRUNED)
    best = max((trial for trial in study.trials if trial.state == TrialState.COMPLETE), key=lambda trial: trial.value)
    assert outcome.best is not None
    assert from_toml(outcome.best.read_text()).agent.learning_rate == study.settings(best)["learning_rate"]
    assert sum(text.endswith("begins: --learning-rate 0.0023") for text in told) == 1  # the preset's own


def test_a_run_that_reaches_its_goal_early_is_compared_to_the_end_of_the_budget(tmp_path: Path) -> None:
    study = opened(tmp_path, plan(1))
    sweep(study, 1, str, lambda wanted, log: WrittenRun(wanted, lambda config: 7.0, steps=500))
    (trial,) = study.trials
    assert trial.intermediate_values == dict.fromkeys(range(20), 7.0)


def test_a_study_does_not_write_where_its_links_lead(tmp_path: Path) -> None:
    folder, outside = tmp_path / "study", tmp_path / "outside"
    opened(folder, plan(1))
    (folder / "journal" / "log").unlink()
    (folder / "journal" / "log").symlink_to(outside)
    with pytest.raises(ConfigError, match="leads out of"):
        Study(folder, plan(1))
    assert not outside.exists()


def test_a_trial_whose_process_is_gone_is_taken_up_by_the_next_one_that_looks(tmp_path: Path) -> None:
    study = opened(tmp_path, plan(3))
    lost, kept = study.next(), study.next()
    assert lost is not None
    assert kept is not None
    lost.claim.close()  # what the kernel does when its process dies
    again = Study(tmp_path, plan(3)).next()
    assert again is not None
    assert (again.trial.number, again.begun) == (lost.trial.number, True)
    assert study.settings(again.trial) == study.settings(lost.trial)
    third = study.next()
    assert third is not None
    assert third.trial.number == 2
    assert study.next() is None  # as many as wanted, and somebody works at each


def test_two_sweeps_of_one_study_make_as_many_trials_as_wanted(tmp_path: Path) -> None:
    open_plan(tmp_path, plan(6, pruner="none"))

    def work() -> None:
        sweep(Study(tmp_path, plan(6, pruner="none")), 2, str, lambda wanted, log: WrittenRun(wanted, by_step_size))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    trials = Study(tmp_path, plan(6, pruner="none")).trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 6
    assert len({trial.params["learning_rate"] for trial in trials}) == 6


def test_a_line_that_a_crash_cut_short_is_taken_out_of_the_journal(tmp_path: Path) -> None:
    study = opened(tmp_path, plan(3))
    assert study.next() is not None
    journal = tmp_path / "journal" / "log"
    with journal.open("ab") as file:
        file.write(b'{"op_code":4,"worker')
    other = Study(tmp_path, plan(3))
    assert other.next() is not None
    assert len(Study(tmp_path, plan(3)).trials) == 2


def test_a_sweep_whose_trials_all_fail_ends_with_the_reason(tmp_path: Path) -> None:
    def start(wanted: Request, log: Path) -> WrittenRun:
        log.write_text("something\nNonFiniteError: the loss is NaN\n")
        return WrittenRun(wanted, by_step_size, FAILED)

    with pytest.raises(WorkerError, match=r"all 3 trials failed.*the loss is NaN"):
        sweep(opened(tmp_path, plan(30)), 1, str, start)


@pytest.mark.parametrize(("code", "why"), [(-9, "killed 6 times"), (HELD, "another process held its folder 6 times")])
def test_a_trial_that_is_killed_again_and_again_has_failed(code: int, why: str, tmp_path: Path) -> None:
    study = opened(tmp_path, plan(1))
    assert sweep(study, 1, str, lambda wanted, log: WrittenRun(wanted, by_step_size, code)).best is None
    (trial,) = study.trials
    assert trial.state == TrialState.FAIL
    assert why in trial.user_attrs["why"]


def test_several_environments_count_by_their_interquartile_mean(tmp_path: Path) -> None:
    configs = tuple(override(CONFIG, {"env": env}) for env in ("CartPole-v1", "Acrobot-v1", "LunarLander-v3"))
    wanted = Plan(configs, SPACE, 1, seeds=2, scales=(Scale(0, 10), Scale(-100, 0), Scale(0, 1)))
    levels = {"CartPole-v1": 5.0, "Acrobot-v1": -25.0, "LunarLander-v3": 1.5}

    def level(config: Config) -> float:
        return levels[str(config.env.env)] * (1 if config.seed == CONFIG.seed else 0)

    study = opened(tmp_path, wanted)
    sweep(study, 1, str, lambda wanted, log: WrittenRun(wanted, level))
    (trial,) = study.trials
    scores = [[0.5, 0.0], [0.75, 1.0], [1.5, 0.0]]
    assert trial.value == pytest.approx(iqm(scores))
    assert (tmp_path / "trial-0-Acrobot-v1-seed2" / "summary.json").exists()
    assert Plan.read(tmp_path) == wanted
    assert combined(plan(1, seeds=2), [1.0, 2.0]) == 1.5


def test_a_folder_holds_one_sweep(tmp_path: Path) -> None:
    open_plan(tmp_path, plan(3))
    open_plan(tmp_path, plan(5))  # more trials of the same
    assert Plan.read(tmp_path).trials == 5
    with pytest.raises(ConfigError, match="another sweep: objective"):
        open_plan(tmp_path, plan(5, objective="last"))
    with pytest.raises(ConfigError, match="what is searched differs"):
        open_plan(tmp_path, Plan((CONFIG,), search_space(CONFIG, ["gamma"]), 5))
    with pytest.raises(ConfigError, match="settings of its runs"):
        open_plan(tmp_path, Plan((override(CONFIG, {"actors": 1}),), SPACE, 5))
    with pytest.raises(ConfigError, match="is not a study"):
        Plan.read(tmp_path / "journal")


def test_a_plan_needs_an_end_of_its_runs() -> None:
    with pytest.raises(ConfigError, match="length of a trial's runs"):
        Plan((presets.preset("cartpole").config,), SPACE, 3).check()


def test_known_returns_are_those_of_the_suite() -> None:
    suite = {task.env: (task.random, task.good) for task in TASKS.values()}
    assert all(suite[env] == returns for env, returns in RETURNS.items())
