from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from apexrl.config import Config, StopConfig
from apexrl.report.live_panel import LivePanel, View, panel
from apexrl.report.number_format import clock, count, number, sparkline
from apexrl.report.plain_lines import PlainLines, closing_line, line
from apexrl.roles import Actor, Learner
from apexrl.run.status import PolicyLag, RunStatus, WorkerStatus
from new_folders import new_folder

FOLDER = Path("runs/cartpole-1")


def a_status(actors: int = 2) -> RunStatus:
    workers = [WorkerStatus("learner-0", "learner", 0, 100, "learning", 0, 412.3, 0.1, Learner.traits.work)]
    workers += [
        WorkerStatus(f"actor-{i}", "actor", i, 200 + i, "acting", 0, 4000.0, 0.1, Actor.traits.work)
        for i in range(actors)
    ]
    workers[-1].state, workers[-1].restarts, workers[-1].pid = "restarting", 3, None
    return RunStatus(
        phase="training",
        elapsed_seconds=75.0,
        env_steps=123_456,
        env_steps_per_second=8123.0,
        updates=5123,
        updates_per_second=412.0,
        episodes=9,
        train_return=208.7,
        eval_return=213.4,
        best_eval_return=301.5,
        replay_size=41_234,
        replay_capacity=100_000,
        samples_per_insert=7.98,
        updates_per_step=0.0156,
        policy_lag=PolicyLag(12.1, 31.0, 44.0),
        workers=workers,
        restarts={"actor": 3, "learner": 0},
        dropped={"steps": 12, "messages": 0},
        progress=0.41,
        eta_seconds=31.0,
    )


def drawn(status: RunStatus, width: int = 90) -> str:
    view = View()
    view.began(Config(preset="cartpole", stop=StopConfig(stop_at_return=475.0, minutes=5.0)), FOLDER)
    view.status = status
    view.note_training()
    for mean in (10.0, 200.0):
        view.note("evaluation", {"mean": mean})
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view.render(width))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_panel_shows_everything() -> None:
    text = drawn(a_status())
    for words in (
        "cartpole", "apex dueling_dqn", "seed 1", "208.7", "213.4", "best 301.5", "▁█", "123.5k", "8123/s", "5123",
        "412/s", "41% of 100.0k", "0.0156", "12.1", "p95 31.0", "max 44.0", "learner-0", "learning", "412.3 updates/s",
        "actor-0", "200", "acting", "4000 steps/s", "restarting (3)", "3 restarts of actor", "12 steps dropped",
        "01:15", "until return 475 or 5 min", "41%, 00:31 left", "runs/cartpole-1",
    ):  # fmt: skip
        assert words in text, words
    assert "inference" not in text
    assert "messages dropped" not in text
    assert "restarts of learner" not in text


def test_where_schedules_are_is_shown() -> None:
    status = a_status()
    assert "learning rate" not in drawn(status)
    status.metrics = {"learning_rate": 0.00025}
    assert " ".join(schedules_row(status)) == "learning rate 2.50e-04"
    status.metrics |= {"epsilon_mean": 0.0712, "epsilon_max": 0.4, "beta": 0.45}
    assert " ".join(schedules_row(status)) == "learning rate 2.50e-04 ε 0.071 max 0.400 β 0.45"


def schedules_row(status: RunStatus) -> list[str]:
    (row,) = (line.split()[1:-1] for line in drawn(status).splitlines() if "learning rate" in line)
    return row


def test_an_inference_servers_batches_are_shown() -> None:
    status = a_status()
    status.inference = {"batch": 11.5, "wait_ms": 0.8}
    drawn_lines = [line.split() for line in drawn(status).splitlines() if "inference" in line]
    assert [line[1:8] for line in drawn_lines] == [["inference", "batch", "11.5", "0.80", "ms", "to", "an"]]


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("actors", [1, 8, 9, 64])
def test_the_panel_fits(width: int, actors: int) -> None:
    lines = drawn(a_status(actors), width).splitlines()
    assert all(len(text) <= width for text in lines)
    assert len(lines) < 32


def test_many_actors_are_dots() -> None:
    text = drawn(a_status(actors=32))
    assert text.count("●") == 32 + 2  # and the learner's and the restarting actor's rows
    assert "31 acting" in text
    assert "1 restarting" in text
    assert "actor-31" in text
    assert "actor-5" not in text


def test_an_empty_status_can_be_drawn() -> None:
    assert "starting" in drawn(RunStatus())


def test_live_draws_on_a_terminal_and_plain_lines_elsewhere() -> None:
    assert isinstance(panel(Console(file=io.StringIO(), force_terminal=True)), LivePanel)
    assert isinstance(panel(Console(file=io.StringIO(), force_terminal=False)), PlainLines)
    assert isinstance(panel(Console(file=io.StringIO(), force_terminal=True), "json"), PlainLines)


def test_a_live_run(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=90)
    live = LivePanel(console)
    live.started(Config(preset="cartpole"), FOLDER)
    live.update(a_status())
    live.event("evaluation", {"mean": 3.0})
    live.message("actor-1 was killed; restarted", "warning")
    live.finished({"stopped_by": "minutes", "wall_seconds": 300.0, "env_steps": 5, "updates": 2})
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "actor-1 was killed; restarted" in text
    assert "the time was up" in text
    assert capsys.readouterr().out == ""


def test_json_lines_have_levels_and_say_whose_they_are(tmp_path: Path) -> None:
    folder = new_folder(config := Config(preset="cartpole", name="cp", out=str(tmp_path)))
    folder.generations.begin()
    folder.generations.begin()
    console = Console(file=io.StringIO(), force_terminal=True, width=40)
    plain = PlainLines(console, "json")
    plain.message("before there is a folder")
    plain.started(config, folder.path)
    plain.update(a_status())
    plain.message("actor-1 was killed;\nstarting it again", "warning")
    plain.message("WorkerError: it failed\nTraceback …", "error")
    plain.finished({"stopped_by": "error", "wall_seconds": 3.0})
    said = [json.loads(line) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert [one["level"] for one in said] == ["info", "info", "info", "warning", "error", "error"]
    assert {(one["run"], one["generation"]) for one in said[1:]} == {("cp", 2)}
    assert {(one["role"], bool(one["host"])) for one in said} == {("supervisor", True)}
    assert said[3]["text"] == "actor-1 was killed;\nstarting it again"
    assert said[4]["text"].endswith("Traceback …")
    assert "steps 123.5k" in said[2]["text"]


def test_plain_lines_have_no_escape_codes() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    plain = PlainLines(console)
    plain.started(Config(preset="cartpole"), FOLDER)
    plain.update(a_status())
    plain.update(a_status())  # too soon
    plain.event("evaluation", {"mean": 300.0, "std": 2.0, "episodes": 20, "final": False})  # 301.5 was before a resume
    plain.event("evaluation", {"mean": 400.0, "std": 2.0, "episodes": 20, "final": False})
    plain.event("evaluation", {"mean": 399.0, "std": 2.0, "episodes": 20, "final": False})  # no better
    plain.event("evaluation", {"mean": 321.5, "std": 2.0, "episodes": 20, "final": True, "weights": "best"})
    plain.event("evaluation", {"mean": 300.5, "std": 2.0, "episodes": 20, "final": True, "weights": "last"})
    plain.event("episodes", {"returns": []})
    plain.message("the learner was restarted", "warning")
    plain.finished({"stopped_by": "error"})
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 7
    assert "runs/cartpole-1" in lines[0]
    assert lines[1] == line(a_status())
    assert "best evaluation so far: return 400.00 ± 2.00 over 20 episodes" in lines[2]
    assert "best weights on fresh seeds: return 321.50 ± 2.00 over 20 episodes" in lines[3]
    assert "last weights on fresh seeds: return 300.50 ± 2.00 over 20 episodes" in lines[4]
    assert "warning: the learner was restarted" in lines[5]
    assert lines[6].startswith("Failed after 00:00")
    assert "\x1b" not in "".join(lines)


def test_an_error_is_one_line_as_it_is_raised_too() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    PlainLines(console).message("WorkerError: actor-0 failed. Last: Traceback (most recent call last):\n  x", "error")
    PlainLines(console).message("actor-0 raised\nTraceback (most recent call last):\n  x", "warning")
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "00:00  error: WorkerError: actor-0 failed. Last:",
        "00:00  warning: actor-0 raised",
        "Traceback (most recent call last):",
        "  x",
    ]


def test_a_new_phase_is_told_at_once() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    plain = PlainLines(console)
    for phase in ("starting", "filling", "filling", "training"):
        plain.update(RunStatus(phase=phase))  # type: ignore[arg-type]
    assert len(console.file.getvalue().splitlines()) == 3  # type: ignore[attr-defined]


def test_sparkline() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([math.nan], 10) == ""
    assert sparkline([5.0, 5.0], 10) == "▄▄"
    assert sparkline([0.0, 1.0, 2.0, 7.0], 10) == "▁▂▃█"
    assert sparkline([0.0] * 50 + [1.0] * 50, 4) == "▁▁██"
    assert len(sparkline([float(i) for i in range(241)], 40)) == 40


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (9_999, "9999"), (12_345, "12.3k"), (1_254_000, "1.25M"), (2.5e10, "25.0G")],
)
def test_counts(value: float, text: str) -> None:
    assert count(value) == text


def test_numbers_and_clock() -> None:
    assert [number(value) for value in (None, math.nan, 0.5, 21.04, -1234.5)] == ["–", "–", "0.50", "21.0", "-1234"]
    assert [clock(seconds) for seconds in (0, 59.9, 61, 3700, math.nan)] == [
        "00:00",
        "00:59",
        "01:01",
        "1:01:40",
        "00:00",
    ]


def test_closing_lines() -> None:
    good = {"stopped_by": "stop_at_return", "wall_seconds": 31.2, "env_steps": 123456, "updates": 5123,
            "final_eval_return": 498.2, "final_eval_episodes": 20,
            "last_weights_return": 473.6}  # fmt: skip
    assert closing_line(good).plain == (
        "Stopped after 00:31, because the return was reached; 123,456 steps, 5,123 updates; "
        "return over 20 fresh episodes: best weights 498.2, last weights 473.6"
    )
    assert closing_line({"stopped_by": "interrupted", "final_eval_return": None}).plain.startswith(
        "Stopped after 00:00"
    )
    assert closing_line({"stopped_by": "minutes", "final_eval_return": None, "train_return": -20.31}).plain.endswith(
        "; no final evaluation; the last training episodes returned -20.3"
    )
    assert "nothing was learned" not in closing_line(good).plain
    restarted = good | {"updates": 0, "restarts": {"learner": 3}}
    assert "--min-size items), and workers failed meanwhile, as the warnings say;" in closing_line(restarted).plain
    assert "nothing was learned" not in closing_line(good | {"updates": 0, "stopped_by": "error"}).plain
    assert "0 updates; nothing was learned: there was no batch yet (--batch-size; a prioritized replay first holds" in (
        closing_line(good | {"updates": 0}).plain
    )


def test_a_long_error_is_not_printed_whole() -> None:
    console = Console(file=io.StringIO(), width=200)
    PlainLines(console).message("NonFiniteError: " + "update 3 " * 30, "error")
    (said,) = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert said.startswith("00:00  error: NonFiniteError: update 3 update 3")
    assert said.endswith("update 3 …")
    assert len(said) < 110


def test_the_line_of_an_actor_host_leaves_out_what_the_learners_host_knows() -> None:
    workers = [WorkerStatus("uplink-0", "uplink", 0), WorkerStatus("actor-0", "actor", 0)]
    said = line(RunStatus(phase="training", env_steps=1200, train_return=9.5, workers=workers))
    assert "steps 1200" in said
    assert "return 9.50" in said
    assert not {"updates", "eval", "lag"} & set(said.split())
    assert {"updates", "eval", "lag"} <= set(line(RunStatus(workers=workers[1:])).split())
