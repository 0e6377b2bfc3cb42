"""Lock-step runs: the same to the last bit, and the same roles as in processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recording_observer import Watcher, small

from apexrl.agents import matrix_products
from apexrl.config import Config, StopConfig
from apexrl.envs.toy import Endless
from apexrl.errors import EnvError, NonFiniteError, WorkerError
from apexrl.launch import launch
from apexrl.run import checkpoint


def serial(tmp_path: Path, name: str, **changes: Any) -> Config:
    config = replace(small(tmp_path, stop=StopConfig(env_steps=1600)), serial=True, name=name)
    # a second of serial time is 10 000 steps
    evaluator = replace(config.evaluator, eval_period_seconds=0.05)
    learner = replace(config.learner, checkpoint_seconds=0.15)
    return replace(config, evaluator=evaluator, learner=learner, **changes)


def run(config: Config) -> tuple[Watcher, dict[str, Any], checkpoint.Checkpoint]:
    summary = launch(config, [watcher := Watcher()])
    found = checkpoint.load_latest(watcher.folder / "checkpoints")
    assert found is not None
    return watcher, summary, found


def same(one: checkpoint.Checkpoint, two: checkpoint.Checkpoint) -> bool:
    return one.arrays.keys() == two.arrays.keys() and all(
        np.array_equal(value, two.arrays[name], equal_nan=False) for name, value in one.arrays.items()
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Watcher, dict[str, Any], checkpoint.Checkpoint]:
    return run(serial(tmp_path_factory.mktemp("serial"), "first"))


def test_two_runs_are_equal_to_the_last_bit(first: Any, tmp_path: Path) -> None:
    watcher, summary, found = first
    again_watcher, again_summary, again = run(serial(tmp_path, "second"))
    assert same(found, again)
    assert found.metadata == again.metadata
    assert len(watcher.said("evaluation")) >= 4
    for kind in ("evaluation", "episodes", "metrics"):
        assert watcher.said(kind)
        assert repr(watcher.said(kind)) == repr(again_watcher.said(kind))  # repr: NaN is not equal to itself
    for name in ("env_steps", "updates", "episodes", "samples_per_insert", "policy_lag", "final_eval_return"):
        assert summary[name] == again_summary[name]


def test_another_seed_is_another_run(first: Any, tmp_path: Path) -> None:
    _, _, found = first
    _, _, other = run(serial(tmp_path, "other", seed=2))
    assert not same(found, other)


def test_the_limiter_couples_updates_to_steps(first: Any) -> None:
    _, summary, _ = first
    assert summary["samples_per_insert"] == pytest.approx(4.0, rel=0.2)
    assert 1600 <= summary["env_steps"] < 1600 + 8


def test_without_a_limiter_each_round_has_one_update(tmp_path: Path) -> None:
    config = serial(tmp_path, "free")
    config = replace(config, replay=replace(config.replay, updates_per_step=0.0))
    summary = launch(config)
    rounds = summary["env_steps"] / 8
    assert 0.7 * rounds < summary["updates"] <= rounds * 1.1


def test_a_return_stops_the_run_and_the_final_evaluation_has_other_seeds(tmp_path: Path) -> None:
    config = serial(tmp_path, "goal", stop=StopConfig(stop_at_return=5.0))
    summary = launch(config, [watcher := Watcher()])
    assert summary["stopped_by"] == "stop_at_return"
    *earlier, best, last = watcher.said("evaluation")
    assert (best["weights"], last["weights"]) == ("best", "last")
    assert best["version"] == earlier[-1]["version"]
    assert best["returns"] != earlier[-1]["returns"]
    assert last["version"] >= best["version"]
    assert (summary["final_eval_return"], summary["last_weights_return"]) == (best["mean"], last["mean"])


def test_a_resumed_run_goes_on(first: Any, tmp_path: Path) -> None:
    config = serial(tmp_path, "resumed")
    config = replace(config, learner=replace(config.learner, save_replay=True))
    before = launch(config)
    more = replace(config, stop=StopConfig(env_steps=2400))
    after = launch(more, [watcher := Watcher()], resume=tmp_path / "resumed")
    steps, updates = (after[name] - before[name] for name in ("env_steps", "updates"))
    assert after["env_steps"] >= 2400
    assert updates == pytest.approx(4.0 * steps / 16, rel=0.3)
    assert watcher.statuses[0].replay_size > 1200


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    config = serial(tmp_path, "sick")
    config = replace(config, agent=replace(config.agent, agent="nan_loss_agent:Sick"))
    with pytest.raises(NonFiniteError, match=r"update 41 \(batch of 16 items, keys 0x") as caught:
        launch(config, [watcher := Watcher()])
    assert "row 3 is nan" in str(caught.value)
    assert watcher.summary["stopped_by"] == "error"


def test_an_environment_error_reaches_the_caller(tmp_path: Path) -> None:
    config = serial(tmp_path, "faulty")
    config = replace(config, env=replace(config.env, env="apexrl.envs.faulty:Raises-v0", env_kwargs={"at_step": 50}))
    with pytest.raises(EnvError, match="the simulator broke at step 50"):
        launch(config)


def test_roles_that_wait_for_each_other_are_an_error(tmp_path: Path) -> None:
    config = serial(tmp_path, "stuck")
    config = replace(config, learner=replace(config.learner, updates_per_second=1e-9))
    with pytest.raises(WorkerError, match="no role can go on"):
        launch(config)


def test_the_process_gets_its_pytorch_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose it is may go on with models of its own, also where the run failed."""
    monkeypatch.setattr(matrix_products, "able", lambda: True)  # a learner sets the precision on such processors alone
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    own = 2, "high"
    config = serial(tmp_path, "faulty")
    config = replace(config, env=replace(config.env, env="apexrl.envs.faulty:Raises-v0", env_kwargs={"at_step": 50}))
    try:
        torch.set_num_threads(own[0])
        torch.set_float32_matmul_precision(own[1])
        with pytest.raises(EnvError, match="the simulator broke at step 50"):
            launch(replace(config, learner=replace(config.learner, learner_threads=1)))
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == own
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])


class Stubborn(Endless):
    """Cannot be closed."""

    def close(self) -> None:
        raise OSError("no display")


def test_an_environment_that_cannot_be_closed_costs_no_checkpoint(tmp_path: Path) -> None:
    config = serial(tmp_path, "stubborn")
    config = replace(config, env=replace(config.env, env=Stubborn, max_episode_steps=20))
    with pytest.warns(RuntimeWarning, match=r"Stubborn: close\(\) of environment 0 raised OSError: no display"):
        _, summary, found = run(config)
    assert summary["stopped_by"] == "env_steps"
    assert found.metadata["updates"] == summary["updates"]
