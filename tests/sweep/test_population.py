"""Population-based training: what is decided, what is taken over, and what survives kill -9."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from whole_sweeps import WORDS, checkpoints, ended, holder, kill, processes_at, started, wait_until

from apexrl import presets
from apexrl.config.convert import flat, from_toml, override
from apexrl.errors import ConfigError, SnapshotError
from apexrl.launch import run_claim
from apexrl.launch.resumed_from import Base, base_of
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import read_rows
from apexrl.sweep.member_copy import take_over
from apexrl.sweep.plan import Plan
from apexrl.sweep.population import Member, Round, check_space, decide, member_config, perturbed, rounds_of
from apexrl.sweep.search_space import search_space
from new_folders import new_folder

CONFIG = override(presets.preset("cartpole").config, {"env_steps": 1000})
SPACE = search_space(CONFIG, ["learning_rate", "gamma", "target_period_updates"])
PLAN = Plan((CONFIG,), SPACE, trials=10, rounds=4, objective="last", pruner="none")
OWN = {one.setting: flat(CONFIG)[one.setting] for one in SPACE}


def begun(members: int = 10) -> Round:
    return Round(
        0, True, [Member(m, OWN, None, None, OWN | {"learning_rate": 1e-3 + m * 1e-4}) for m in range(members)]
    )


def test_the_worst_fifth_take_over_the_best_and_change_a_little() -> None:
    after = decide(PLAN, begun(), [float(score) for score in range(10)])
    assert [one.takes_over is not None for one in after.members] == [True] * 2 + [False] * 8
    assert not after.done
    for one in after.members[:2]:
        assert one.takes_over in (8, 9)
        theirs = after.members[one.takes_over].had
        for name in OWN:
            ratio = (1 - one.next[name]) / (1 - theirs[name]) if name == "gamma" else one.next[name] / theirs[name]
            assert ratio == pytest.approx(0.8, rel=0.01) or ratio == pytest.approx(1.2, rel=0.01)
    assert all(one.next == one.had for one in after.members[2:])
    assert decide(PLAN, begun(), [float(score) for score in range(10)]) == after  # nothing is drawn anew after a crash


def test_equals_keep_their_state_failures_do_not_and_nobody_changes_at_the_end() -> None:
    assert decide(PLAN, begun(), [5.0] * 10).done
    after = decide(PLAN, begun(), [None] * 3 + [1.0] * 7)
    assert [one.takes_over is not None for one in after.members] == [True] * 3 + [False] * 7
    last = Round(3, True, begun().members)
    assert decide(PLAN, last, [float(score) for score in range(10)]).done


def test_changes_stay_in_their_ranges_and_whole_numbers_do_change() -> None:
    rng = np.random.default_rng(0)
    step, gamma, period = SPACE
    changed = sorted({perturbed(step, step.high, rng) for _ in range(20)})
    assert changed == pytest.approx([0.8 * step.high, step.high])
    assert all(gamma.low <= perturbed(gamma, gamma.high, rng) <= gamma.high for _ in range(20))
    (small,) = search_space(CONFIG, ["target_period_updates=1..5"])
    assert {perturbed(small, 2, rng) for _ in range(30)} == {1, 3}
    assert isinstance(perturbed(period, 200, rng), int)


@pytest.mark.parametrize("word", ["hidden", "n_step", "optimizer=adam,sgd", "capacity"])
def test_what_a_checkpoint_is_made_for_cannot_change(word: str) -> None:
    with pytest.raises(ConfigError, match="cannot change while a member"):
        check_space(search_space(CONFIG, [word]))


def test_schedules_of_a_member_go_over_all_rounds(tmp_path: Path) -> None:
    ends = [member_config(PLAN, tmp_path, 0, {}, number).stop for number in (1, 4)]
    assert [(stop.env_steps, stop.schedule_env_steps) for stop in ends] == [(250, 1000), (1000, 0)]


def test_a_member_goes_on_with_anothers_state_and_other_settings(tmp_path: Path) -> None:
    folders = []
    for member, updates in ((0, 50), (1, 80)):
        config = member_config(PLAN, tmp_path, member, {"learning_rate": 1e-3}, 1)
        folder = new_folder(config)
        about = {"updates": updates, "env_steps": 250 + member, "episodes": 9 + member}
        arrays = {"weights": np.full(3, float(member), np.float32)}
        checkpoint.save(folder.checkpoints, arrays, about)
        checkpoint.save_best(folder.checkpoints, arrays, {**about, "eval_return": 9.0 * member, "version": updates})
        folder.replay_path.write_bytes(b"replay %d" % member)
        folder.write_summary({**about, "wall_seconds": 30.0, "best_eval_return": 9.0 * member})
        row = {"kind": "status", **about, "wall_seconds": 31.0 + member, "best_eval_return": 9.0 * member}
        folder.metrics_path.write_text(json.dumps(row) + "\n")
        folders.append(folder)
    worse, better = folders[1], folders[0]
    changed = member_config(PLAN, tmp_path, 1, {"learning_rate": 2e-3}, 2)
    for _ in range(2):  # killed after the first time, and done again
        take_over(better, worse, changed, "member 1 takes over")
        found = checkpoint.load_latest(worse.checkpoints)
        assert found is not None
        assert (found.arrays["weights"] == 0.0).all()
        assert len(checkpoint.numbered(worse.checkpoints)) == 1
        best = checkpoint.best(worse.checkpoints)
        assert best is not None
        assert checkpoint.load(best).metadata["eval_return"] == 0.0
        assert worse.replay_path.read_bytes() == b"replay 0"
        assert worse.config().agent.learning_rate == 2e-3
        assert "takes over" in read_rows(worse.metrics_path)[-1]["text"]
        assert base_of(worse) == Base(250, 50, 9, elapsed_seconds=32.0, best_eval_return=0.0, best_updates=50), (
            "its own time alone"
        )
    for path in better.checkpoints.glob("best.*"):
        path.unlink()
    take_over(better, worse, changed, "member 1 takes over")
    assert checkpoint.best(worse.checkpoints) is None, "its own best weights are of the state that is gone"
    claim = run_claim.resume_or_start(changed, lambda text: None)  # what the next round does
    assert not claim.begins
    assert not claim.ended
    claim.close()
    (tmp_path / "empty").mkdir()
    with pytest.raises(SnapshotError, match="has no checkpoint"):
        take_over(RunFolder(tmp_path / "empty"), worse, changed, "")


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_population_killed_with_everything_goes_on_where_it_was(tmp_path: Path) -> None:
    words = (*WORDS, "--env-steps", "9000", "--population", "3", "--rounds", "3", "--over", "learning_rate",
             "--study", "population")  # fmt: skip
    folder = tmp_path / "sweeps" / "population"

    first = started(tmp_path, *words, "--parallel", "2")
    wait_until(lambda: checkpoints(folder / "member-1"), "a checkpoint of member 1")
    kill(first)
    wait_until(lambda: not processes_at(folder), "the end of the runs without their sweep")

    second = started(tmp_path, *words, "--parallel", "3")
    wait_until(lambda: len(rounds_of(folder)) == 2, "the end of the first round")
    wait_until(lambda: (folder / "member-0" / "lock").stat().st_size, "the next round")
    os.kill(holder(folder / "member-0"), signal.SIGKILL)
    kill(second)

    output = ended(started(tmp_path, "--resume", "population", "--parallel", "3"))
    rounds = rounds_of(folder)
    assert [one.number for one in rounds] == [0, 1, 2, 3]
    taken = [one for each in rounds for one in each.members if one.takes_over is not None]
    for member in range(3):
        run = folder / f"member-{member}"
        assert json.loads((run / "summary.json").read_text())["env_steps"] >= 9000
        config = from_toml((run / "config.toml").read_text())
        assert config.agent.learning_rate == rounds[2].members[member].next["learning_rate"]
        told = [row["text"] for row in read_rows(run / "metrics.jsonl") if row.get("kind") == "message"]
        own = [one for one in taken if one.member == member]
        assert sum("takes over the state of member" in text for text in told) >= len(own)
    assert output.splitlines()[-1].startswith("sweeps/population/member-")
    assert not processes_at(folder)
