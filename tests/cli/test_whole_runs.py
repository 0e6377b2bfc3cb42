"""From the command and from Python to a run folder and back, with real workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import apexrl
from apexrl.cli import main
from apexrl.run.metrics import read_rows
from apexrl.run.status import RunStatus

PLANT = """
import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Plant(CartPoleEnv):
    def __init__(self, length, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.length = length


gym.register("Plant-v0", entry_point="my_sim:Plant", max_episode_steps=50)
"""

SMALL = ["--hidden", "16", "--min-size", "200", "--capacity", "5000", "--batch-size", "16", "--eval-episodes", "4",
         "--eval-envs", "4"]  # fmt: skip


def command(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As the installed script runs it: the current folder is not on Python's path by itself."""
    code = "import sys; sys.path.remove(''); from apexrl.cli.main import main; sys.exit(main())"
    line = [sys.executable, "-c", code, *words]
    return subprocess.run(line, capture_output=True, text=True, cwd=cwd, check=False, timeout=400)


def test_the_command_from_train_to_eval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_sim.py").write_text(PLANT)
    trained = command(tmp_path, "train", "--env", "my_sim:Plant-v0", "--env-kwargs", "length", "0.7", "--name", "first",
                      "--env-steps", "2000", "--envs-per-actor", "4", "--save-replay",
                      "--updates-per-step", "0.0625", *SMALL)  # fmt: skip
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert trained.stdout.splitlines()[-1] == "runs/first"
    assert "\x1b" not in trained.stdout
    folder = tmp_path / "runs" / "first"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["stopped_by"] == "env_steps"
    assert summary["env_steps"] >= 2000
    assert summary["updates"] > 0
    assert summary["final_eval_episodes"] == 4
    assert 1 <= summary["final_eval_return"] <= 50
    assert summary["env"] == "my_sim:Plant-v0"
    rows = read_rows(folder / "metrics.jsonl")
    assert [row for row in rows if row["kind"] == "evaluation" and row["final"]]
    assert rows[-1]["env_steps"] == summary["env_steps"]
    assert list(folder.glob("events.out.tfevents.*"))
    assert (folder / "learning_curve.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "checkpoints" / "best.safetensors").exists()

    resumed = command(tmp_path, "resume", "runs/first", "--env-steps", "3500", "--trust", "my_sim")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert resumed.stdout.splitlines()[-1] == "runs/first"
    again = json.loads((folder / "summary.json").read_text())
    assert again["env_steps"] >= 3500
    assert again["updates"] > summary["updates"]
    assert again["wall_seconds"] > summary["wall_seconds"]

    # the rest in this process, which has loaded already what each command would load anew
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert main.main(["eval", "runs/first", "--episodes", "3", "--trust", "my_sim"]) == 0
        assert "over 3 episodes (greedy)" in capsys.readouterr().out
        assert [path.name for path in (tmp_path / "runs").iterdir()] == ["first"]

        more = str(again["env_steps"] + 500)
        words = ["resume", "runs/first", "--env-steps", more, "--trust", "my_sim", "--log-format", "json"]
        assert main.main(words) == 0
    finally:
        sys.modules.pop("my_sim", None)
        gym.registry.pop("Plant-v0", None)
    last = json.loads((folder / "summary.json").read_text())
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(one["run"], one["role"], one["generation"]) for one in said} == {
        ("first", "supervisor", last["generation"])
    }
    assert any("best weights on fresh seeds" in one["text"] for one in said)


@pytest.mark.parametrize(
    ("env", "told"), [("CartPol-v1", "CartPole"), ("no_such_module:X-v0", "there is no module 'no_such_module'")]
)
def test_environments_that_are_not_there(
    tmp_path: Path, env: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main.main(["train", "--env", env]) == 2
    complaints = capsys.readouterr().err
    assert told in complaints
    assert "Traceback" not in complaints
    assert not list(tmp_path.iterdir())


def make_cart(short: int = 50) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", max_episode_steps=short)


def test_python_from_a_callable_to_an_agent(tmp_path: Path) -> None:
    seen: list[RunStatus] = []

    def enough(status: RunStatus) -> bool:
        seen.append(status)
        return status.updates >= 50

    run = apexrl.train(
        env=make_cart,
        callbacks=[enough],
        serial=True,
        show=False,
        out=str(tmp_path),
        env_kwargs={"short": 30},
        hidden=(16,),
        min_size=200,
        capacity=5000,
        batch_size=16,
        eval_episodes=4,
    )
    assert run.summary["stopped_by"] == "callback"
    assert seen[-1].updates >= 50
    assert run.summary["env"] == f"{__name__}:make_cart"
    assert run.agent.act(np.zeros(4, np.float32)) in (0, 1)
    assert apexrl.load(run.path).act(np.zeros((3, 4), np.float32)).shape == (3,)
    assert max(apexrl.evaluate(run, episodes=5).returns) <= 30
