from __future__ import annotations

from apexrl import topologies
from apexrl.agents import AGENTS
from benchmarks.scores import run as scores
from benchmarks.scores.rows import ROWS


def test_rows_have_names_of_their_own_and_agents_that_run_there():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.agent in AGENTS
        assert topologies.runs(row.topology, row.agent)


def record(**changes):
    base = {
        "row": "halfcheetah-v5-sac-apex", "seed": 1, "failure": "", "shared": False, "steps": 300_000, "updates": 1,
        "seconds": 1800.0, "best": 8000.0, "last": 7000.0,
        "curve": [(150_000, 900.0, 5000.0), (300_000, 1800.0, 8000.0)],
        "machine": "2 cores", "versions": {"apexrl": "0.1.0", "torch": None},
    }  # fmt: skip
    return base | changes


def test_the_table_shows_best_and_last_weights_and_failures(tmp_path):
    records = [record(), record(seed=2, best=9000.0, last=9000.0, shared=True), record(seed=3, failure="killed")]
    (line,) = scores.as_table(records).splitlines()[2:]
    cells = line.strip("| ").split(" | ")
    assert cells[3] == "2 and 1 failed"
    assert cells[4].startswith("**8500** (8000–9000)")
    assert cells[5].startswith("**8000** (7000–9000)")
    assert cells[6] == "8000, 9000"
    assert "8593 at 300k" in cells[7]
    assert cells[8] == "**0.50** (0.50–0.50), beside other work"
    scores.write(records, tmp_path)
    assert (tmp_path / "scores.png").stat().st_size > 10_000
    text = (tmp_path / "scores.md").read_text(encoding="utf-8")
    assert text.startswith("2 cores; apexrl 0.1.0.\n")
    assert text.endswith("(images/scores.png)\n")


def test_a_row_is_one_command():
    row = next(row for row in ROWS if row.env == "ALE/Pong-v5" and row.agent == "pqn")
    assert scores.words(row, 3)[:4] == ["--env", "ALE/Pong-v5", "--agent", "pqn"]
    assert "--atari" in scores.words(row, 3)
