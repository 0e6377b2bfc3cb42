"""Whole runs whose environments step in threads (``--vector threads``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recording_observer import Watcher, small, with_actors

from apexrl.config import StopConfig
from apexrl.launch import launch
from apexrl.run.status import RunStatus


def test_actors_see_that_environments_wait_and_step_them_in_threads(tmp_path: Path) -> None:
    config = small(tmp_path, env="apexrl.envs.toy:SlowCartPole-v0", seconds=0.003, stop=StopConfig(env_steps=1500))
    summary = launch(with_actors(config, envs_per_actor=8), [watcher := Watcher()])
    (told,) = [text for text in watcher.texts if "each in a thread" in text]  # by two actors and the evaluator
    assert "of which it waits" in told
    assert summary == watcher.summary
    assert summary["stopped_by"] == "env_steps"
    assert summary["updates"] > 100
    assert summary["restarts"] == {"actor": 0, "learner": 0, "evaluator": 0}
    assert summary["final_eval_episodes"] == 4
    assert not [text for text in watcher.texts if "did not stop" in text]


def test_one_that_hangs_among_many_is_killed_with_its_actor_and_the_run_goes_on(tmp_path: Path) -> None:
    def act(status: RunStatus) -> bool:
        return any(worker.restarts and worker.state == "acting" for worker in status.workers)

    config = small(
        tmp_path,
        env="apexrl.envs.faulty:Hangs-v0",
        at_step=300,  # the evaluator's two environments do not come so far
        once=str(tmp_path / "hung"),
        stop=StopConfig(minutes=5.0),
    )
    config = replace(config, evaluator=replace(config.evaluator, eval_period_seconds=1000.0, eval_episodes=1))
    config = with_actors(config, env_timeout=6.0, vector="threads", actors=1, envs_per_actor=4)
    summary = launch(config, [watcher := Watcher(act)])
    assert summary["stopped_by"] == "callback"
    assert summary["dropped"]["hung_env_calls"] == 1
    assert summary["restarts"]["actor"] == 1
    assert any("took longer than 6 s (--env-timeout)" in text for text in watcher.texts)
    assert any(status.env_steps > 300 for status in watcher.statuses)
