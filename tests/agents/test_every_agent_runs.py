"""Every shipped agent in whole runs: in lock-step to the last bit; some in processes, and one through Redis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from signal_envs import STEPS, Matching
from signal_runs import config_of, same

import apexrl
from apexrl.agents import AGENTS
from apexrl.config import Config
from apexrl.launch import launch
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from apexrl.run.metrics import read_rows
from apexrl.run.status import RunStatus

if TYPE_CHECKING:
    from redis_server import RedisServer

EVERY_RULE = [*(name for name in AGENTS if AGENTS[name].item != "unroll"), "impala", "ppo", "pqn"]
KINDS = ("dqn", "r2d2", "discrete_sac", "sac", "td3", "crossq", "simba_v2", "iql", "bc", "vdn", "impala", "pqn")
"""Of those that keep a state of the same kind, one each; what all of them draw is tested in ``test_every_agent``."""

RUN: dict[str, Any] = {
    "serial": True,
    "env_steps": 240,
    "stop_at_return": None,
    "eval_episodes": 2,
    "eval_envs": 2,
    "eval_period_seconds": 0.02,  # a second of serial time is 10 000 steps
    "publish_period_updates": 2,
    "pull_period": 4,
    "learner_threads": 1,
}


class Quiet:
    """An observer that only remembers where the run is."""

    folder = Path()

    def started(self, config: Config, folder: Path) -> None:
        self.folder = folder

    def update(self, status: RunStatus) -> bool | None: ...

    def event(self, kind: str, values: dict[str, Any]) -> None: ...

    def message(self, text: str, level: str = "info") -> None: ...

    def finished(self, summary: dict[str, Any]) -> None: ...


def in_lock_step(config: Config) -> tuple[dict[str, Any], checkpoint.Checkpoint, list[dict[str, Any]]]:
    quiet = Quiet()
    summary = launch(config, [quiet])
    found = checkpoint.load_latest(quiet.folder / "checkpoints")
    assert found is not None
    rows = [row for row in read_rows(RunFolder.open(quiet.folder).metrics_path) if row["kind"] == "evaluation"]
    return summary, found, rows


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in KINDS else [pytest.mark.long]) for name in EVERY_RULE]
)
def test_in_lock_step_a_seed_gives_the_same_run(name: str, tmp_path: Path) -> None:
    steps = 1200 if AGENTS[name].item == "unroll" else RUN["env_steps"]  # an unroll is learned from once
    runs = [in_lock_step(config_of(name, **{**RUN, "env_steps": steps}, out=str(tmp_path / str(n)))) for n in range(2)]
    (summary, found, evaluations), (again_summary, again, again_evaluations) = runs
    assert summary["updates"] > 20
    assert summary["env_steps"] >= 240
    assert len(evaluations) >= 2
    assert found.metadata == again.metadata
    assert same(found.arrays, again.arrays)
    for counted in ("env_steps", "updates", "episodes", "policy_lag", "final_eval_return", "samples_per_insert"):
        assert summary[counted] == again_summary[counted]
    assert [row["returns"] for row in evaluations] == [row["returns"] for row in again_evaluations]


@pytest.mark.long
def test_q_learning_solves_several_choices_at_once(tmp_path: Path) -> None:
    config = config_of("double_dqn", asked="multi", hidden=(64,), learning_rate=3e-3, batch_size=32, out=str(tmp_path))
    settings = {**RUN, "env_steps": 6_000, "updates_per_step": 0.25, "min_size": 200, "eval_episodes": 20}
    run = apexrl.train(config, show=False, **settings)
    assert run.summary["final_eval_return"] == STEPS  # every signal answered by the right one of 2 × 3 actions
    env = Matching("vector", "multi")
    observation, _ = env.reset(seed=5)
    for _ in range(STEPS):
        action = run.agent.act(observation)
        assert action.shape == (2,)
        observation, reward, *_ = env.step(action)
        assert reward == 1.0


def in_processes(name: str, out: Path, **where: Any) -> None:
    settings = {**RUN, "serial": False, "env_steps": 800, "eval_period_seconds": 0.3}
    settings["updates_per_step"] = 0.125  # actors wait for the learner, however slow it is
    run = apexrl.train(config_of(name, **settings, out=str(out)), show=False, **where)
    assert run.summary["stopped_by"] == "env_steps"
    assert run.summary["env_steps"] >= 800
    assert run.summary["updates"] > 10
    assert not any(run.summary["restarts"].values())
    assert np.isfinite(run.summary["final_eval_return"])
    action = run.agent.act(np.eye(3, dtype=np.float32)[0])
    assert Matching(**RunFolder.open(run.path).config().env.env_kwargs).action_space.contains(action)


@pytest.mark.parametrize("name", ["sac", pytest.param("r2d2", marks=pytest.mark.long)])
def test_boxes_and_sequences_in_processes(name: str, tmp_path: Path) -> None:
    in_processes(name, tmp_path)


@pytest.mark.long
def test_sequences_and_states_through_redis(tmp_path: Path, redis_server: RedisServer) -> None:
    in_processes("r2d2", tmp_path, redis=redis_server.url, run="every")
