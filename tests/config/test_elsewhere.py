"""Names of other libraries are answered by ours."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import apexrl
from apexrl.cli.main import main
from apexrl.cli.train_flags import Train
from apexrl.config.convert import from_toml, known_settings
from apexrl.config.elsewhere import ELSEWHERE
from apexrl.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "migrate" / "hyperparameters.md"


def test_they_lead_to_settings_and_are_none() -> None:
    assert set(ELSEWHERE.values()) <= known_settings().keys()
    assert not ELSEWHERE.keys() & (known_settings().keys() | {entry.name for entry in fields(Train)})


def test_the_page_explains_each() -> None:
    rows = re.findall(r"^\| (`.*?) \| `--([a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    told = {name: ours.replace("-", "_") for names, ours in rows for name in re.findall(r"`(\w+)`", names)}
    assert told == dict(ELSEWHERE)


def test_a_flag_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--buffer-size", "1000"]) == 2
    assert "there is no --buffer-size: here it is --capacity" in capsys.readouterr().err


def test_so_is_a_keyword() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'total_timesteps' \(here it is 'env_steps'\)"):
        apexrl.train("cartpole", total_timesteps=1000)


@pytest.mark.parametrize(
    ("text", "name", "ours"),
    [
        ("total_timesteps = 5", "total_timesteps", "env_steps"),
        ("[agent]\nbuffer_size = 5", "buffer_size", "capacity"),
        ("[agent]\nlr = 0.1", "lr", "learning_rate"),
    ],
)
def test_so_is_a_line_of_a_file(text: str, name: str, ours: str) -> None:
    told = f"unknown setting '{name}': here it is '{ours}', which belongs in the section"
    with pytest.raises(ConfigError, match=told):
        from_toml(text, "mine.toml")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--total-timesteps", "1000"], "there is no --total-timesteps: here it is --env-steps"),
        (["--no-double"], "a resumed run keeps its --double: leave --no-double out. For another value"),
        (["--lr=0.1"], "a resumed run keeps its --learning-rate: leave --lr out. For another value"),
    ],
)
def test_what_resume_does_not_change(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", "runs/none", *words]) == 2
    assert told in capsys.readouterr().err
