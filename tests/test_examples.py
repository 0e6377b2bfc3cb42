"""What README and examples/ show is run as it stands there."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import apexrl

ROOT = Path(__file__).parents[1]
IMPORTS = "import numpy as np\nfrom apexrl.protocols import Acted, Learned\n\n"


def blocks():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_the_readme_agent_learns(tmp_path, monkeypatch):
    (code,) = [block for block in blocks() if "class LinearQ" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    (tmp_path / "readme_agent.py").write_text(IMPORTS + code)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"agent": "readme_agent:LinearQ", "learning_rate": 0.02, "out": str(tmp_path), "serial": True}
    run = apexrl.train("cartpole", env_steps=3000, eval_episodes=4, show=False, **settings)
    assert run.summary["updates"] > 100
    assert run.agent.act(np.zeros(4, np.float32)) in (0, 1)
    agent = importlib.import_module("readme_agent").LinearQ
    example = (ROOT / "examples" / "own_agent.py").read_text(encoding="utf-8")
    assert all(f"def {name}" in example for name in vars(agent) if callable(vars(agent)[name]) and name != "state_dict"
               and name != "load_state_dict")  # fmt: skip


def test_the_readme_replay_runs():
    (code,) = [block for block in blocks() if "from apexrl.replay import" in block]
    names = {"obs": np.zeros((600, 4), np.float32), "act": np.zeros(600, np.int64)}
    exec(code, {**names, "td": np.ones(600), "new_td": np.ones(512)})


def test_the_skeleton_runs():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "replay_skeleton.py")], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ updates/s, \d+ transitions inserted", done.stdout.strip())
    assert done.stderr == ""
