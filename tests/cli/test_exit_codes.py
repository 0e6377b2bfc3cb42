"""Every exit code of ``cli.exit_codes`` comes about, and no other; pages name no others."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apexrl.cli.exit_codes import EXIT_CODES
from apexrl.cli.main import main
from apexrl.cli.run_display import shown
from apexrl.errors import EnvError
from apexrl.run.ownership import RunLock

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "report" / "recorded"
Way = Callable[[Path, pytest.MonkeyPatch], int]


def _run_without_weights(folder: Path, patch: pytest.MonkeyPatch) -> int:
    shutil.copytree(RECORDED / "healthy-dqn", folder / "run")
    return main(["eval", str(folder / "run")])


def _held_run(folder: Path, patch: pytest.MonkeyPatch) -> int:
    shutil.copytree(RECORDED / "healthy-dqn", folder / "run")
    lock = RunLock(folder / "run")
    try:
        return main(["resume", str(folder / "run"), "--env-steps", "30000"])
    finally:
        lock.close()


def _interrupted(folder: Path, patch: pytest.MonkeyPatch) -> int:
    def press(*words: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    patch.setattr("apexrl.api.evaluate", press)
    return main(["eval", "runs/x"])


WAYS: dict[int, list[Way]] = {
    0: [lambda folder, patch: main(["--version"]), lambda folder, patch: main(["train", "cartpole", "--help"])],
    1: [_run_without_weights],
    2: [lambda folder, patch: main(["trian"]), lambda folder, patch: main(["eval", str(folder)])],
    3: [lambda folder, patch: main(["doctor", str(RECORDED / "gamma-0.1")])],
    75: [_held_run],
    130: [_interrupted],
}


def test_there_is_a_way_to_each() -> None:
    assert WAYS.keys() == EXIT_CODES.keys()


def test_an_interrupt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert _interrupted(tmp_path, monkeypatch) == 130
    assert capsys.readouterr().err == "apexrl: interrupted\n"


@pytest.mark.parametrize(("code", "way"), [(code, way) for code, ways in WAYS.items() for way in ways])
def test_it_comes_about(code: int, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert way(tmp_path, monkeypatch) == code


def test_pages_name_no_other() -> None:
    said = {
        int(number)
        for page in (ROOT / "docs").rglob("*.md")
        for number in re.findall(r"(?:[Ee]xit code|exits with)s? (\d+)", page.read_text(encoding="utf-8"))
    }
    assert said
    assert said <= EXIT_CODES.keys()


def test_errors_are_lines_of_json_where_all_else_is(capsys: pytest.CaptureFixture[str]) -> None:
    def start(**of_the_display: Any) -> Any:
        raise EnvError("it broke\nin two lines")

    assert shown(start, [], [], "json") == 2
    said = capsys.readouterr()
    line = json.loads(said.out)
    assert (line["level"], line["text"]) == ("error", "it broke\nin two lines")
    assert not said.err
