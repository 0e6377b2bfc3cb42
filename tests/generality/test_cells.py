"""Cells of the suite: which there are, how one is run and kept, and what the tables say of them."""

from __future__ import annotations

from argparse import Namespace

import pytest

from apexrl.agents.catalogue import AGENTS
from benchmarks.generality import cells, run, tables
from benchmarks.generality.cells import Cell
from benchmarks.generality.tasks import TASKS
from benchmarks.lib import runs

OPTIONS = {
    "tasks": [], "agents": ["dqn"], "topologies": [], "recipe": "default", "seeds": [1], "env_steps": 0,
    "share": 1.0, "peer": "", "flags": [],
}  # fmt: skip


def wanted(**options):
    return run.wanted(Namespace(**OPTIONS | options))


def record(system="apexrl", task="CartPole-v1", agent="dqn", seed=1, final=500.0, **more):
    made = vars(Cell(system, task, agent, "apex" if system == "apexrl" else "", "default", seed, 200_000))
    ended = {
        "steps": 200_000,
        "seconds": 60.0,
        "best": final,
        "final": final,
        "last": final,
        "curve": [[100, 1.0, final]],
    }
    return {**made, "failure": "", "machine": "m", "versions": {}, "shared": False, **ended, **more}


def test_agents_are_the_shipped_ones_with_the_actions_and_items_that_they_have():
    assert {name for name, agent in AGENTS.items() if agent.item == "unroll"} == set(cells.UNROLLS)
    assert {name for name, agent in AGENTS.items() if agent.needs.startswith("bounded Box actions")} == {
        *cells.BOX,
        "cql",
        "iql",
        "td3_bc",  # which learn from datasets
    }


def test_a_cell_is_a_plain_command():
    (cell,) = wanted(tasks=["AcrobotGoal-v0"], agents=["ppo"], seeds=[4])
    assert cells.command(cell) == [
        "--env", "benchmarks.generality.envs:AcrobotGoal-v0", "--agent", "ppo", "--topology", "impala",
        "--env-steps", "500000", "--seed", "4",
    ]  # fmt: skip
    (paper,) = wanted(tasks=["CartPole-v1"], recipe="paper", topologies=["gorila"], flags=["--gamma", "0.9"])
    assert cells.command(paper)[4:6] == ["--topology", "gorila"]
    assert cells.command(paper)[-4:] == ["--recipe", "paper", "--gamma", "0.9"]


def test_every_agent_meets_only_tasks_whose_actions_it_takes():
    actions = {cell.agent: set() for cell in wanted(agents=["dqn", "sac", "ppo"])}
    for cell in wanted(agents=["dqn", "sac", "ppo"]):
        actions[cell.agent].add(TASKS[cell.task].actions)
    assert actions == {"dqn": {"discrete", "switches"}, "sac": {"box"}, "ppo": {"discrete", "switches", "box"}}
    assert {TASKS[cell.task].actions for cell in wanted(peer="sb3")} == {"discrete"}


def test_what_has_ended_is_not_run_again_but_failures_are(tmp_path):
    path = tmp_path / "apexrl.jsonl"
    asked = wanted(tasks=["CartPole-v1"], seeds=[1, 2, 3])
    cells.keep(path, record(seed=1))
    cells.keep(path, record(seed=2, failure="out of memory"))
    assert [cell.seed for cell in cells.missing(asked, cells.kept(path))] == [2, 3]
    with path.open("a") as file:
        file.write('{"system": "apex')  # a crash while writing
    cells.keep(path, record(seed=2))
    assert [cell.seed for cell in cells.missing(asked, cells.kept(path))] == [3]
    assert [of["failure"] for of in cells.kept(path)] == ["", ""]


@pytest.mark.long
def test_a_tiny_cell_runs_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "RUNS", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(cells.ROOT))
    (cell,) = wanted(tasks=["FrozenLakeFirm-v0"], env_steps=300)
    ended = cells.run(cell, minutes=2.0, python="")
    assert ended["failure"] == ""
    assert cell.of(ended)
    assert ended["steps"] >= 300
    assert ended["ran"] == {"agent": "dqn", "topology": "apex"}
    assert "dqn" in run.in_words(ended)


def test_a_cell_that_fails_says_how(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "RUNS", tmp_path)
    (cell,) = wanted(tasks=["CartPole-v1"], flags=["--gamma", "2"])
    ended = cells.run(cell, minutes=2.0, python="")
    assert "gamma" in ended["failure"]
    assert "FAILED" in run.in_words(ended)


def test_a_run_that_stops_short_of_its_steps_has_failed(monkeypatch):
    monkeypatch.setattr(cells, "_ours", lambda cell, minutes: {"steps": 100_000, "final": 500.0})
    (cell,) = wanted(tasks=["CartPole-v1"])
    assert cells.run(cell, minutes=1.0, python="")["failure"] == "ended after 100,000 of 200,000 steps"


def test_tables_show_both_sides_and_failures_but_no_trials():
    slower = [[100, 30.0, 23.68], [200_000, 600.0, 500.0]]
    shown = [
        record(),
        record("sb3", final=261.84, last=142.76, seconds=600.0, curve=slower),
        record(agent="c51", failure="Traceback\nout of memory"),
        record(task="MinAtar/Asterix-v1", env_steps=500_000, final=15.0),
        record(env_steps=20_000, final=23.68),
    ]
    text = tables.agents(shown)
    row = next(line for line in text.splitlines() if "tuned on | `dqn`" in line)
    assert row.split(" | ")[4:] == [
        "**1.00** (1.00–1.00)",
        "**0.50** (0.50–0.50)",
        "**1.00** (1.00–1.00)",
        "**0.25** (0.25–0.25)",
        "**1.00** (1.00–1.00)",
        "**0.00** (0.00–0.00) |",
    ]
    assert "`c51` on `CartPole-v1`, seed 1: out of memory" in text
    assert "| reported on | `dqn`, `apex` | 1 tasks, 1 runs: **1.00** (1.00–1.00) | – | – | – | – | – | – | – |" in text
    assert "| tuned on, 10% of the steps | `dqn`, `apex` | 1 tasks, 1 runs: **0.00** (0.00–0.00) | – | – |" in text
    assert "| `CartPole-v1` | tuned on | `dqn` | SB3 | 1 | 0.50 | 261.8 | 142.8 | 600 |" in tables.tasks(shown)


@pytest.mark.parametrize("trial", [{"flags": "--gamma 0.9"}, {"env_steps": 1_000}])
def test_trials_are_in_no_table(trial, tmp_path):
    tables.write([record(**trial)], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["generality-suite.json", "generality-suite.md"]


def test_seconds_beside_other_work_are_not_compared():
    text = tables.agents([record(shared=True), record("sb3")])
    row = next(line for line in text.splitlines() if "`dqn`" in line)
    assert row.split(" | ")[6:] == ["**1.00** (1.00–1.00)", "**1.00** (1.00–1.00)", "–", "– |"]
