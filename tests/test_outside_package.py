"""A topology and an agent of another package, found by entry points: installed, listed, trained with, trusted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "outside_package"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, installed in a folder of its own, without a network."""
    folder = tmp_path_factory.mktemp("outside")
    source = shutil.copytree(EXAMPLE, folder / "source")  # where building may leave what it makes
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "installed"), str(source)], check=True, timeout=120)
    return folder / "installed"


def apexrl(package: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(package), *(entry for entry in sys.path if entry)])
    return subprocess.run(
        [sys.executable, "-m", "apexrl.cli", *words],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_it_trains_with_settings_of_its_own(package: Path, tmp_path: Path) -> None:
    names = ["--topology", "apex_explorers", "--agent", "capped_dqn", "--explorers", "2", "--priority-cap", "0.5"]
    short = ["--env-steps", "1000", "--min-size", "200", "--actors", "1", "--eval-episodes", "1", "--name", "run"]
    done = apexrl(package, tmp_path, "train", "cartpole", *names, *short, "--stop-at-return", "None")
    assert done.returncode == 0, done.stderr
    config = (tmp_path / "runs" / "run" / "config.toml").read_text()
    assert "explorers = 2" in config
    assert "priority_cap = 0.5" in config
    logs = {path.name for path in (tmp_path / "runs" / "run" / "logs").iterdir()}
    assert {"actor-0.log", "explorer-0.log", "explorer-1.log"} <= logs


def test_it_is_listed_and_its_flags_are_in_the_help(package: Path, tmp_path: Path) -> None:
    listed = apexrl(package, tmp_path, "list", "apex_explorers")
    assert "Ape-X with extra actors that act at random" in listed.stdout
    assert "--explorers" in listed.stdout
    shown = apexrl(package, tmp_path, "train", "cartpole", "--topology", "apex_explorers", "--help")
    assert "--explorers" in shown.stdout


def test_its_settings_have_ranges(package: Path, tmp_path: Path) -> None:
    wrong = apexrl(package, tmp_path, "train", "cartpole", "--topology", "apex_explorers", "--explorers", "0")
    assert wrong.returncode == 2
    assert "--explorers must be between 1 and 64, not 0" in wrong.stderr


@pytest.mark.long
def test_a_function_of_a_module_is_a_topology_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from apexrl.topologies.apex import apex\n\n"
        "def plain(config, probe):\n"
        '    """Ape-X under another name."""\n'
        "    return apex(config, probe)\n"
    )
    short = ["--env-steps", "500", "--min-size", "200", "--eval-episodes", "1", "--name", "run", "--serial"]
    done = apexrl(tmp_path, tmp_path, "train", "cartpole", "--topology", "mine:plain", *short)
    assert done.returncode == 0, done.stderr
    assert 'topology = "mine:plain"' in (tmp_path / "runs" / "run" / "config.toml").read_text()
    refused = apexrl(tmp_path, tmp_path, "resume", "runs/run", "--env-steps", "600")
    assert refused.returncode == 2
    assert "mine:plain" in refused.stderr
    assert "--trust mine" in refused.stderr
    assert apexrl(tmp_path, tmp_path, "resume", "runs/run", "--env-steps", "600", "--trust", "mine").returncode == 0
