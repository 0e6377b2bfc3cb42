"""A thousand workers at a glance: what is wrong is seen first, and all are counted."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from apexrl.cli import ray_status
from apexrl.config import Config
from apexrl.launch.folder_upkeep import Upkeep
from apexrl.report.worker_overview import overview
from apexrl.run import worker_list
from apexrl.run.actor_order import ActorNumbers
from apexrl.run.status import RunStatus, Work, WorkerStatus
from apexrl.run.worker_health import in_trouble, medians
from new_folders import new_folder


def actor(index: int, **changes: Any) -> WorkerStatus:
    values = {"pid": 1000 + index, "state": "acting", "rate": 800.0, "work": Work("env_steps", "steps/s", "acting")}
    return WorkerStatus(f"actor-{index}", "actor", index, **{**values, **changes})


def thousand() -> list[WorkerStatus]:
    """With some of every trouble, in the order of badness: 2, 3, 2, 20 and 5 of them."""
    workers = [actor(index, rate=760.0 + index % 80) for index in range(1000)]
    for index in (400, 401):
        workers[index] = actor(index, state="failed", pid=None, rate=0.0)
    for index in (5, 300, 301):
        workers[index] = actor(index, heartbeat_age_seconds=44.0)
    workers[7], workers[512] = actor(7, state="hung"), actor(512, rate=0.0)
    for index in range(600, 620):
        workers[index] = actor(index, rate=200.0)
    for index in range(900, 905):
        workers[index] = actor(index, restarts=index - 899)
    return [*workers, WorkerStatus("learner-0", "learner", 0, 1, "learning", 0, 412.0)]


def drawn(workers: list[WorkerStatus], width: int, height: int, **more: Any) -> list[str]:
    hosts = {worker.name: f"node-{worker.index // 8:03d}.cluster.example" for worker in workers}
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(overview(workers, hosts, width, height, **more))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_who_is_in_trouble_is_named_the_worst_first() -> None:
    found = in_trouble(thousand())
    troubles = [one.trouble for one in found]
    assert troubles == ["dead"] * 2 + ["silent"] * 3 + ["stalled"] * 2 + ["slow"] * 20 + ["restarted"] * 5
    assert [one.worker.index for one in found[:7]] == [400, 401, 300, 301, 5, 512, 7]
    assert [one.worker.restarts for one in found[-5:]] == [5, 4, 3, 2, 1]
    assert found[10].share == pytest.approx(200.0 / medians(thousand())["actor"])


def test_few_workers_are_not_compared_and_who_begins_is_not_slow() -> None:
    assert in_trouble([actor(0), actor(1, rate=0.0)]) == []
    assert in_trouble([*map(actor, range(5)), actor(5, state="starting", rate=0.0)]) == []
    assert in_trouble([actor(0), actor(1, state="restarting")])[0].trouble == "dead"
    everybody_waits = [actor(index, state="waiting", rate=0.0) for index in range(5)]
    assert in_trouble(everybody_waits) == []


@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24), (200, 60)])
def test_a_thousand_workers_fit_a_terminal(width: int, height: int) -> None:
    lines = drawn(thousand(), width, height)
    text = "\n".join(lines)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert re.search(r"^actor +1000 +968 ", text, re.MULTILINE)
    assert re.search(r"^learner +1 +1 ", text, re.MULTILINE)
    assert re.search(r"2 dead  3 silent  2 stalled  20 slow", text)
    worst = next(n for n, line in enumerate(lines) if line.startswith("worker "))
    assert lines[worst + 1].startswith("actor-400 +1 ")  # both of one host in one line
    assert "969 more are well" in lines[-1]
    in_lines = sum(1 + int(more or 0) for more in re.findall(r"^actor-\d+(?: \+(\d+))?", text, re.MULTILINE))
    left_out = re.search(r"(\d+) more in trouble", lines[-1])
    assert in_lines + int(left_out[1] if left_out else 0) == 32
    hosts = int(re.search(r"(\d+) hosts are well", text)[1])  # type: ignore[index]
    assert hosts == 126 - 10


def test_all_well_is_said_in_a_line() -> None:
    assert drawn([actor(index) for index in range(1000)], 80, 24)[-1] == "… 1000 are well"


def test_a_trouble_that_no_status_tells_is_shown_too() -> None:
    lines = drawn([actor(index) for index in range(20)], 100, 24, known={"actor-3": "stale"})
    assert any(line.startswith("actor-3 ") and " stale " in line for line in lines)


def shown(folder: Path, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, height=30)
    assert ray_status.show_folder(folder, console=console) == 0
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_run_folder_tells_of_its_workers_until_the_run_ends(tmp_path: Path) -> None:
    folder = new_folder(Config(name="run", out=str(tmp_path)))
    folder.generations.begin()
    upkeep = Upkeep(folder)
    upkeep.update(RunStatus(workers=thousand()[:6]))
    text = shown(folder.path)
    assert "workers as of 00:0" in text
    assert re.search(r"actor-5 +● acting .* 44.0 s ago", text)
    assert "apexrl scale" not in text
    upkeep.actors = ActorNumbers(4, 1, 8)
    upkeep.update(RunStatus(workers=thousand()))
    assert "969 more are well" in (text := shown(folder.path))
    assert "4 actors of at most 8 (apexrl scale)" in text

    path = folder.path / worker_list.NAME
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "at": time.time() - 90}))
    assert "workers as of 01:30 ago: the run's main process is silent" in shown(folder.path)
    upkeep.finished({})
    assert not path.exists()
    assert "workers" not in shown(folder.path)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"at": 1, "host": "h", "workers": [[1]]}', '{"at": "x", "host": "h", "workers": []}',
     '{"at": 1, "host": "h", "workers": [["a", "actor", 0, 1, "no state", 0, 1.0, 0.1, "c", "u", "acting"]]}',
     '{"at": 1, "host": "h", "workers": 7}', "\xff"],
)  # fmt: skip
def test_a_list_of_workers_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    (tmp_path / worker_list.NAME).write_text(text, encoding="latin-1")
    assert worker_list.read(tmp_path) is None


def test_strangers_words_do_not_reach_the_terminal(tmp_path: Path) -> None:
    row = ["\x1b[2J", "actor\n", 0, 1, "acting", 0, 1.0, 0.1, "env_steps", "\x07", "acting"]
    (tmp_path / worker_list.NAME).write_text(json.dumps({"at": 1, "host": "\x1b", "workers": [row]}))
    seen = worker_list.read(tmp_path)
    assert seen is not None
    assert (seen.host, seen.workers[0].name, seen.workers[0].role, seen.workers[0].work.unit) == (
        "?", "?[2J", "actor?", "?",
    )  # fmt: skip
