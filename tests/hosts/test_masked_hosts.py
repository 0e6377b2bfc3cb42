"""Action masks over Redis and over TCP: environments that raise an error at the first impossible action."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from host_rig import Command, free_port

import apexrl
from apexrl.agents import with_agent
from apexrl.config import Config, EnvConfig
from apexrl.config.convert import override
from apexrl.run.folder import RunFolder

if TYPE_CHECKING:
    from redis_server import RedisServer

SMALL: dict[str, Any] = {"hidden": (16,), "min_size": 100, "batch_size": 16, "eval_episodes": 2, "eval_envs": 2}


@pytest.mark.long
def test_masks_travel_through_redis(tmp_path: Path, redis_server: RedisServer) -> None:
    made = with_agent(Config(env=EnvConfig("apexrl.envs.toy:Doors-v0", {"strict": True, "rows": 2})), "double_dqn")
    config = override(made, {**SMALL, "out": str(tmp_path), "env_steps": 2_000, "updates_per_step": 0.125, "n_step": 1})
    run = apexrl.train(config, show=False, redis=redis_server.url, run="masked")
    assert run.summary["env_steps"] >= 2_000
    assert run.summary["updates"] > 50
    assert not any(run.summary["restarts"].values())


@pytest.mark.long
@pytest.mark.parametrize(("topology", "agent"), [("seed", "discrete_sac"), ("ga3c", "a2c"), ("a3c", "a2c")])
def test_masks_travel_over_tcp(topology: str, agent: str, tmp_path: Path) -> None:
    port = free_port()
    settings = [
        "--hidden",
        "16",
        "--eval-episodes",
        "2",
        "--eval-envs",
        "2",
        "--env-steps",
        "2000",
        "--out",
        str(tmp_path),
    ]
    own = {"seed": ["--min-size", "100", "--updates-per-step", "0.1"], "a3c": ["--no-hogwild"]}.get(topology, [])
    doors = ["--env", "apexrl.envs.toy:Doors-v0", "--env-kwargs", "strict", "True", "told", "info", "--mask-in-info"]
    with ExitStack() as stack:

        def command(*words: str) -> Command:
            env = {**os.environ, "APEXRL_TOKEN": "a-token-that-nobody-may-print", "OMP_NUM_THREADS": "1"}
            made = Command([sys.executable, "-m", "apexrl.cli", *words], tmp_path / f"{words[0]}.log", env, tmp_path)
            stack.callback(made.close)
            return made

        where = f"127.0.0.1:{port}"
        learner = command(
            "train", *doors, "--topology", topology, "--agent", agent, "--name", "run", "--actors", "0",
            "--actor-slots", "2", "--listen", where, *settings, *own,
        )  # fmt: skip
        command(
            "envs", "--connect", where, "--actors", "2", "--trust", "apexrl.envs.toy", "--out", str(tmp_path / "envs")
        )
        assert learner.finish() == 0, learner.said[-3000:]
    summary = RunFolder.open(tmp_path / "run").summary()
    assert summary["env_steps"] >= 2_000
    assert summary["updates"] > 0
    assert not any(summary["restarts"].values())
