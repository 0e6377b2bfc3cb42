"""What is told of a replay's items is what was put in."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from apexrl.cli.main import main
from apexrl.config import Config
from apexrl.config.convert import to_toml
from apexrl.errors import ConfigError
from apexrl.replay import Field, Replay
from apexrl.replay.inspection import histogram, inspect

FIELDS = {"observation": Field((2, 8, 6), "uint8"), "version": Field((), "int64"), "x": Field((3,), "float32")}
COUNT = 400


def filled(**options):
    limits = {} if options.get("sampler") == "fifo" else {"min_size": 900, "samples_per_insert": 1.0}
    replay = Replay(1000, FIELDS, **limits, **options)
    pixels = np.random.default_rng(0).integers(0, 255, (COUNT, 2, 8, 6), np.uint8)
    rows = {"observation": pixels, "version": np.arange(COUNT), "x": np.ones((COUNT, 3), np.float32)}
    replay.writer().extend(rows, priorities=None if options.get("sampler") else np.linspace(0.1, 5.0, COUNT))
    return replay


def test_priorities_ages_and_shares_are_those_of_the_items():
    with filled(alpha=0.6) as replay:
        found = inspect(replay, 1500)
    row = found.data["version"]
    assert len(found.keys) == len(set(found.keys.tolist())) > 300
    assert found.priorities == pytest.approx(np.linspace(0.1, 5.0, COUNT)[row], rel=1e-4)
    assert found.ages.tolist() == (row.max() - row).tolist()
    assert found.share.sum() == pytest.approx(1.0)
    bins = histogram(found.priorities, found.share)
    assert sum(share for _, _, share in bins) == pytest.approx(1.0)
    assert (found.priorities * found.share).sum() == pytest.approx(2.55, rel=0.08)
    assert found.priorities.mean() > 2.6  # without shares, what is drawn often would count too much


def test_shares_are_by_the_draws_that_were_made():
    with filled(alpha=0.6) as replay:
        found = inspect(replay, 10**6)  # of 400 items only 1600 are drawn
    assert found.share[0] > 1.2 * found.share[-1]


@pytest.mark.parametrize("sampler", ["uniform", "fifo"])
def test_a_replay_that_draws_without_priorities_tells_none(sampler):
    with filled(sampler=sampler) as replay:
        found = inspect(replay, 100)
    assert found.priorities is None
    assert len(found.keys) > 80


def test_of_an_empty_replay_there_is_nothing():
    with Replay(100, FIELDS) as replay:
        found = inspect(replay)
    assert len(found.keys) == 0
    assert histogram(found.share, found.share) == []


@pytest.fixture
def run(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.toml").write_text(to_toml(Config()), "utf-8")
    with filled(alpha=0.6) as replay:
        replay.save(tmp_path / "checkpoints" / "replay")
    return tmp_path


def test_the_command_shows_a_run_s_saved_replay(run, tmp_path, capsys):
    out = tmp_path / "pictures"
    assert main(["replay", "inspect", str(run), "--items", "2", "--pictures", str(out)]) == 0
    text = capsys.readouterr().out
    assert "400 of 1000 items" in text
    assert "priority |δ|" in text
    assert "uint8[2, 8, 6]" in text
    from PIL import Image

    with Image.open(out / "item-001-observation.png") as picture:
        assert picture.size == (12, 8)
    assert main(["replay", "inspect", str(run), "--json", "--items", "1"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["stats"]["size"] == COUNT
    assert np.shape(told["items"][0]["observation"]) == (2, 8, 6)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["replay"], "replay inspect RUN"),
        (["replay", "show"], "replay inspect RUN"),
        (["replay", "inspect", "missing"], "no such folder"),
        (["replay", "inspect", "RUN", "--drawn", "0"], "--drawn 1 or more"),
    ],
)
def test_what_cannot_be_shown_is_refused(run, words, says, capsys):
    assert main([str(run) if word == "RUN" else word for word in words]) == 2
    assert says in capsys.readouterr().err


def test_a_run_without_a_saved_replay_and_a_damaged_one_are_told(run, capsys):
    saved = run / "checkpoints" / "replay"
    saved.write_bytes(saved.read_bytes()[:5000])
    assert main(["replay", "inspect", str(run)]) == 1
    assert "truncated or corrupt" in capsys.readouterr().err
    saved.unlink()
    from apexrl.cli import replay_report

    with pytest.raises(ConfigError, match="--save-replay"):
        replay_report.show(str(run), 1, 10, False, "", Console(file=io.StringIO()))
