"""Teams over hosts: steps of all agents cross through Redis, observations and actions over TCP."""

from __future__ import annotations

import os
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from host_rig import Command, free_port

import apexrl
from apexrl.agents import with_agent
from apexrl.client import connect
from apexrl.config import Config, EnvConfig
from apexrl.config.convert import override
from apexrl.envs import make_env
from apexrl.errors import ClosedError
from apexrl.run.folder import RunFolder

if TYPE_CHECKING:
    from redis_server import RedisServer

GAME = "apexrl.envs.team_games:parallel_env"
CUE: dict[str, Any] = {
    "env_kwargs": {"game": "cue"}, "memory": "gru", "recurrent_units": 16, "hidden": (16,), "sequence_length": 2,
    "sequence_stride": 2, "burn_in": 0, "batch_size": 16, "min_size": 100, "updates_per_step": 0.125,
    "learning_rate": 5e-3, "env_steps": 4_000, "eval_episodes": 20,
}  # fmt: skip


def two_steps(out: Path, **changes: Any) -> Config:
    """QMIX in the two-step game, with random actions throughout, as in its paper."""
    return override(
        with_agent(Config(), "qmix"),
        {
            "env": GAME, "out": str(out), "hidden": (64,), "actors": 1, "envs_per_actor": 8, "epsilon": 1.0,
            "env_steps": 3_000, "min_size": 200, "capacity": 5_000, "batch_size": 32, "updates_per_step": 0.25,
            "learning_rate": 4e-3, "gradient_clip": 10.0, "target_period_updates": 50, "eval_episodes": 2,
            "eval_envs": 2, "eval_period_seconds": 1e6, "learner_threads": 1, "show_state": True, "seed": 1, **changes,
        },
    )  # fmt: skip


def through_redis(config: Config, server: RedisServer) -> dict[str, Any]:
    summary: dict[str, Any] = apexrl.train(config, show=False, redis=server.url, run="team").summary
    assert summary["hosts"]["missing"] == 0
    assert not any(summary["restarts"].values())
    return summary


def test_a_team_runs_through_redis(tmp_path: Path, redis_server: RedisServer) -> None:
    assert through_redis(two_steps(tmp_path, env_steps=500), redis_server)["updates"] > 40


@pytest.mark.long
@pytest.mark.parametrize("changes", [pytest.param({}, id=""), pytest.param(CUE, id="memory")])
def test_a_team_learns_through_redis(changes: dict[str, Any], tmp_path: Path, redis_server: RedisServer) -> None:
    assert through_redis(two_steps(tmp_path, **changes), redis_server)["last_weights_return"] == 8.0


@pytest.mark.long
def test_a_program_of_ones_own_plays_for_a_team(tmp_path: Path, redis_server: RedisServer) -> None:
    words = [
        "learner", "--env", GAME, "--agent", "qmix", "--show-state", "--run", "team", "--actor-slots", "1",
        "--env-steps", "300", "--min-size", "50", "--batch-size", "16", "--eval-episodes", "2", "--hidden", "16",
    ]  # fmt: skip
    env = {**os.environ, "APEXRL_REDIS_URL": redis_server.url}
    command = [sys.executable, "-m", "apexrl.cli", *words, "--out", str(tmp_path)]
    learner = Command(command, tmp_path / "learner.log", env, tmp_path)
    game = EnvConfig(GAME, team=True, show_state=True)
    with closing(learner), closing(make_env(game)) as team, closing(connect(redis_server.url, "team", 300.0)) as actor:
        assert actor.spec.of_team
        with suppress(ClosedError):
            while True:
                observation, over = team.reset(seed=1)[0], False
                while not over:
                    action = actor.act(observation)
                    assert action.shape == (2,)
                    observation, reward, terminated, truncated, _ = team.step(action)
                    actor.observe(float(reward), terminated, truncated, observation)
                    over = terminated or truncated
        assert learner.finish() == 0, learner.said[-3000:]
    (summary,) = (RunFolder.open(folder.parent).summary() for folder in tmp_path.glob("*/summary.json"))
    assert summary["env_steps"] >= 300
    assert summary["updates"] > 0


@pytest.mark.long
def test_a_team_learns_over_tcp(tmp_path: Path) -> None:
    where, token = f"127.0.0.1:{free_port()}", "a-token-that-nobody-may-print"
    env = {**os.environ, "APEXRL_TOKEN": token, "OMP_NUM_THREADS": "1"}

    def command(*words: str) -> Command:
        return Command([sys.executable, "-m", "apexrl.cli", *words], tmp_path / f"{words[0]}.log", env, tmp_path)

    learner = command(
        "train", "--env", GAME, "--agent", "qmix", "--topology", "seed", "--name", "run", "--out", str(tmp_path),
        "--actors", "0", "--actor-slots", "1", "--listen", where, "--show-state", "--hidden", "64", "--epsilon", "1",
        "--env-steps", "4000", "--min-size", "200", "--batch-size", "32", "--updates-per-step", "0.25",
        "--learning-rate", "0.004", "--target-period-updates", "50", "--envs-per-actor", "8", "--eval-episodes", "2",
        "--eval-envs", "2", "--seed", "1",
    )  # fmt: skip
    envs = command("envs", "--connect", where, "--actors", "1", "--out", str(tmp_path / "envs"))
    with closing(learner), closing(envs):
        assert learner.finish() == 0, learner.said[-3000:]
    summary = RunFolder.open(tmp_path / "run").summary()
    assert summary["last_weights_return"] == 8.0
    assert not any(summary["restarts"].values())
