"""``apexrl init`` writes a project that trains as it stands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

import apexrl
from apexrl.cli.main import main
from apexrl.config import convert

PYTHON = shlex.quote(sys.executable)
PURELIB = "import sysconfig; print(sysconfig.get_path('purelib'))"


def do(folder: Path, line: str, python: str = PYTHON) -> str:
    """Run a line of a shell there; its output."""
    program, _, words = line.partition(" ")
    line = f"{ {'apexrl': f'{python} -m apexrl.cli', 'python': python}[program] } {words}"
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Path]:
    """A new project ``My-Sim2``, which this process forgets afterwards."""
    monkeypatch.chdir(tmp_path)
    assert main(["init", "My-Sim2"]) == 0
    assert "cd My-Sim2" in capsys.readouterr().out
    yield tmp_path / "My-Sim2"
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_sim2"]:
        del sys.modules[name]


def test_it_trains_and_holds_no_word_of_the_template(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {str(path.relative_to(project)): path.read_text(encoding="utf-8")
             for path in project.rglob("*") if path.is_file()}  # fmt: skip
    assert files.keys() == {
        "README.md", "pyproject.toml", "config.toml", ".gitignore",
        "my_sim2/__init__.py", "my_sim2/environment.py", "my_sim2/agent.py", "tests/test_my_sim2.py",
    }  # fmt: skip
    assert not [name for name, text in files.items() if "my_project" in text or "my-project" in text]
    assert 'name = "My-Sim2"' in files["pyproject.toml"]
    do(project, "python -m ruff check .")
    monkeypatch.syspath_prepend(project)
    config = convert.from_toml(files["config.toml"])
    short = {"serial": True, "env_steps": 800, "eval_episodes": 1, "out": str(project / "runs")}
    run = apexrl.train(config, agent="my_sim2.agent:MyAgent", show=False, **short)  # it is not installed
    assert run.summary["updates"] > 50
    assert run.config is not None
    assert run.config.agent.agent_settings == {"penalty": 0.05}


@pytest.mark.long
def test_its_readme_is_right(project: Path, tmp_path: Path) -> None:
    """In an environment of its own, which finds what it does not hold in this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    where = subprocess.run([python, "-c", PURELIB], check=True, capture_output=True, text=True).stdout.strip()
    (Path(where) / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    lines = (project / "README.md").read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0].splitlines()
    assert lines[0] == "python -m pip install -e '.[test]'"
    lines[0] += " --no-deps --no-build-isolation --disable-pip-version-check"
    for line in lines:
        do(project, line, python)
    assert (project / "runs" / "first" / "summary.json").is_file()
    said = do(project, "apexrl eval runs/first", python)
    assert float(said.split()[1]) > 40
    do(project, "apexrl train config.toml --agent my_sim2.agent:MyAgent --trust my_sim2 --env-steps 600")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2nd", "cannot be a project's name"),
        ("a/b", "cannot be a project's name"),
        ("class", "cannot be a project's name"),
        ("torch", "Python has a module torch already"),
        ("json", "Python has a module json already"),
        ("there", "is there already"),
    ],
)
def test_a_name_that_cannot_be_changes_nothing(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert main(["init", name]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["init", "sim", "--out", str(tmp_path / "file")]) == 2
    assert f"cannot write {tmp_path / 'file' / 'sim'}" in capsys.readouterr().err
