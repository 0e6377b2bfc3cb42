"""What README, docs/how-to/add-a-network.md and examples/ show is run as it stands there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import apexrl

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
IMPORTS = "import numpy as np\nfrom apexrl.protocols import Acted, Learned\n\n"


def blocks(page="README.md"):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_readme_agent_learns(tmp_path, monkeypatch):
    (code,) = [block for block in blocks() if "class LinearQ" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 23
    (tmp_path / "readme_agent.py").write_text(IMPORTS + code)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {
        "agent": "readme_agent:LinearQ",
        "learning_rate": 0.1,
        "n_step": 5,
        "batch_size": 32,
        "min_size": 200,
        "updates_per_step": 2.0,
        "stop_at_return": 60.0,
        "eval_period_seconds": 0.05,  # a second of serial time is 10 000 steps
        "eval_episodes": 10,
        "out": str(tmp_path),
        "serial": True,
        "seed": 1,
    }
    run = apexrl.train("cartpole", env_steps=8000, show=False, **settings)
    assert run.summary["updates"] > 100
    assert run.agent.agent.weights()["w"].any(axis=1).all()  # all began at 0
    assert run.summary["final_eval_return"] >= 40  # greedily; about 22 by chance, 9 untrained
    assert run.agent.act(np.zeros(4, np.float32)) in (0, 1)
    agent = importlib.import_module("readme_agent").LinearQ
    example = (ROOT / "examples" / "own_agent.py").read_text(encoding="utf-8")
    assert all(f"def {name}" in example for name in vars(agent) if callable(vars(agent)[name]) and name != "state_dict"
               and name != "load_state_dict")  # fmt: skip


@pytest.mark.parametrize(("preset", "agent"), [("cartpole", "dueling_dqn"), ("cartpole", "c51"), ("pendulum", "sac")])
def test_the_network_of_the_guide_learns(preset, agent, tmp_path, monkeypatch):
    (code,) = [block for block in blocks("docs/how-to/add-a-network.md") if "class Normed" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    assert code[code.index("class Normed") :] in (ROOT / "examples" / "own_network.py").read_text(encoding="utf-8")
    monkeypatch.delitem(sys.modules, "guide_network", raising=False)
    (tmp_path / "guide_network.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {
        "agent": agent,
        "min_size": 100,
        "batch_size": 16,
        "updates_per_step": 0.125,
        "out": str(tmp_path),
        "serial": True,
    }
    run = apexrl.train(preset, network="guide_network:Normed", env_steps=600, eval_episodes=1, show=False, **settings)
    assert run.summary["updates"] > 10
    weights = apexrl.load(run, "latest").agent.weights()  # the best may be the first
    for part, start in (("weight", 1.0), ("bias", 0.0)):  # where LayerNorm begins
        norms = [value for name, value in weights.items() if name.endswith(f"encoder.layers.2.{part}")]
        assert norms
        assert all((norm != start).any() for norm in norms)


def test_the_readme_replay_runs():
    (code,) = [block for block in blocks() if "from apexrl.replay import" in block]
    names = {"obs": np.zeros((600, 4), np.float32), "act": np.zeros(600, np.int64)}
    exec(code, {**names, "td": np.ones(600), "new_td": np.ones(512)})


def run(*arguments, **environment):
    """Runs Python there. It returns when everything that was started has ended: they all hold its pipes."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=EXAMPLES,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=400,
    )


def figures(pattern, done):
    """What the one printed line says, as numbers."""
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = re.fullmatch(pattern, done.stdout.strip())
    assert said, done.stdout
    return [float(figure) for figure in said.groups()]


SKELETON = r"(\d+) updates/s, (\d+) steps/s, return (-?\d\.\d\d)"


def test_the_skeleton_learns_with_numpy_alone(tmp_path):
    for name in ("torch", "gymnasium"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} was imported')")

    def reached():
        updates, steps, score = figures(SKELETON, run("replay_skeleton.py", PYTHONPATH=str(tmp_path)))
        assert updates > 0
        assert steps > 0
        return score

    assert any(reached() >= 0.9 for _ in range(3))  # how much its explorers do meanwhile is the machine's


def test_an_untrained_skeleton_misses(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    skeleton = importlib.import_module("replay_skeleton")
    seeds = [np.random.default_rng(seed) for seed in range(100)]
    rewards = [row[2] for rng in seeds for row in skeleton.episode(skeleton.Model(), 0.0, rng)]
    assert sum(rewards) / 100 < 0


def test_the_skeleton_is_the_articles_and_short():
    text = (EXAMPLES / "replay_skeleton.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert all(f"def {name}(" in text for name in ("get_action", "abs_TD_error", "train", "explorer"))
    assert "self.weights" in text


# The skeleton, with something done in its learner at some updates.
DISTURBED = """
import multiprocessing, os, signal
import replay_skeleton as skeleton

class Board(skeleton.WeightsBoard):
    def publish(self, weights, version):
        super().publish(weights, version)
        disturb(version)

def disturb(update):
    {}

skeleton.WeightsBoard = Board
skeleton.UPDATES = 6_000
skeleton.main()
"""


def test_the_skeleton_goes_on_without_killed_explorers():
    kill = """if update in (500, 1000):
        explorers = multiprocessing.active_children()
        assert len(explorers) == (3 if update == 500 else 2)
        explorers[0].kill()
        explorers[0].join()
    assert update < skeleton.UPDATES or len(multiprocessing.active_children()) == 1"""
    runs = (figures(SKELETON, run("-c", DISTURBED.format(kill))) for _ in range(3))
    assert any(score > 0 for *_, score in runs)  # below 0 by chance; how much explorers do is the machine's


def test_the_skeletons_explorers_end_with_their_learner():
    done = run("-c", DISTURBED.format("if update == 1000: os.kill(os.getpid(), signal.SIGKILL)"))
    assert done.returncode == -signal.SIGKILL  # and run() came back: no explorer is left
    assert done.stdout == ""


@pytest.mark.long
def test_the_pytorch_dqn_learns():
    pattern = r"(\d+) steps/s, (\d+) episodes, mean return of the last 20: (\d+\.\d)"
    rate, episodes, reached = figures(pattern, run("dqn_pytorch.py", "--steps", "4000"))
    assert rate > 0
    assert episodes > 20
    assert reached >= 40  # about 22 by chance


def test_the_pytorch_dqn_takes_only_the_replay_and_marks_what_changed():
    text = (EXAMPLES / "dqn_pytorch.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    (imported,) = [line.partition("  #")[0] for line in lines if re.match(r"(from|import) apexrl", line)]
    assert imported == "from apexrl.replay import Field, Replay"
    for call in ("Replay(", "writer.append(", "replay.sample(", "replay.update_priorities("):
        (at,) = [i for i, line in enumerate(lines) if call in line]
        assert any("# was:" in line for line in lines[at - 2 : at + 1]), lines[at]


def test_the_jax_loop_says_what_it_needs(tmp_path):
    (tmp_path / "jax.py").write_text("raise ImportError")
    done = run("jax_loop.py", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "this example needs JAX, which apexrl itself does not: pip install jax\n"


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="no jax here; apexrl needs none")
def test_the_jax_loop_learns():
    pattern = r"(\d+) steps/s, (\d+) updates/s, (\d+) episodes, mean return of the last 20: (\d+\.\d)"
    rate, updates, episodes, reached = figures(pattern, run("jax_loop.py", "--steps", "40000"))
    assert min(rate, updates) > 0
    assert episodes > 20
    assert reached >= 60  # about 22 by chance


@pytest.mark.long
def test_self_play_says_what_is_lost(tmp_path):
    command = [sys.executable, EXAMPLES / "self_play.py", "tic_tac_toe", "1500"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"(first|second): (\d+) of (\d+) lines of play are lost", done.stdout)
    assert [seat for seat, _, _ in said] == ["first", "second"]
    assert all(0 <= int(lost) <= int(played) for _, lost, played in said)


@pytest.mark.long
def test_connect_four_by_self_play_is_measured(tmp_path):
    command = [sys.executable, EXAMPLES / "self_play.py", "connect_four", "1500"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"against one who looks a move ahead: [01]\.\d\d of the games\n", done.stdout)


@pytest.mark.long
def test_the_two_step_game_is_played(tmp_path):
    command = [sys.executable, EXAMPLES / "several_agents.py", "two_steps", "1500"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"mean return of an agent: [0-8]\.\d\d\n", done.stdout)


def test_several_agents_say_what_is_missing(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\nfound = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'mpe2' else found(name, *more)\n"
    )
    done = run("several_agents.py", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "this example needs mpe2: pip install 'apexrl[pettingzoo]' mpe2\n"
