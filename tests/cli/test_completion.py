"""Shells complete the command line by the scripts that ``apexrl completion`` prints."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from apexrl.cli import completion
from apexrl.cli.command_flags import FLAGS
from apexrl.cli.main import COMMANDS, main

LINES = {
    "apexrl tr": {"train"},
    "apexrl --v": {"--version"},
    "apexrl train cartp": {"cartpole"},
    "apexrl train cartpole --agent dueling_d": {"dueling_dqn"},
    "apexrl train cartpole --topology sample_": {"sample_factory"},
    "apexrl train cartpole --replay-sh": {"--replay-shards"},
    "apexrl train cartpole --no-dou": {"--no-double"},
    "apexrl learner --stand": {"--standby"},
    "apexrl eval runs/demo --checkpoint lat": {"latest"},
    "apexrl eval runs/de": {"runs/demo"},
    "apexrl status runs/de": {"runs/demo"},
    "apexrl export runs/demo --onnx mod": {"model.onnx"},
    "apexrl resume runs/demo --log-format j": {"json"},
    "apexrl list rainb": {"rainbow"},
    "apexrl completion f": {"fish"},
    "apexrl init --o": {"--out"},
}
"""What stands on the line -> what may stand in place of its last word."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a file, and each shell's script."""
    tmp_path = tmp_path_factory.mktemp("place")
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    (tmp_path / "model.onnx").touch()
    for shell in ("bash", "zsh", "fish"):
        (tmp_path / f"script.{shell}").write_text(completion.script(shell, COMMANDS))
    return tmp_path


def test_bash_completes(place: Path) -> None:
    try_each = "source script.bash; while read -r line; do COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); "
    try_each += '_apexrl; echo "${COMPREPLY[*]}"; done'
    done = subprocess.run(
        ["bash", "-uc", try_each], input="\n".join(LINES) + "\n", cwd=place, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert dict(zip(LINES, (set(line.split()) for line in done.stdout.splitlines()), strict=True)) == LINES


def test_bash_offers_all_that_may_follow(place: Path) -> None:
    line = 'source script.bash; COMP_WORDS=(apexrl "$1" ""); COMP_CWORD=2; _apexrl; echo "${COMPREPLY[*]}"'
    said = [
        subprocess.run(["bash", "-uc", line, "", name], cwd=place, capture_output=True, text=True, timeout=60).stdout
        for name in ("completion", "drain")
    ]
    assert said[0].split() == ["bash", "zsh", "fish"]
    assert {"--redis", "--run", "--undo", "--help"} <= set(said[1].split())


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish here")
def test_fish_completes(place: Path) -> None:
    asked = "".join(f"echo (complete -C '{line}' | string split -f 1 \\t);" for line in LINES)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source script.fish; {asked}"],
        cwd=place, capture_output=True, text=True, timeout=60, env={**os.environ, "HOME": str(place)},
    )  # fmt: skip
    assert done.stderr == ""
    found = [{word.rstrip("/") for word in line.split()} for line in done.stdout.splitlines()]
    assert dict(zip(LINES, found, strict=True)) == LINES


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_zsh_completes(place: Path) -> None:
    """On a terminal of its own: zsh completes nowhere else."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(place)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "HOME": str(place), "TERM": "dumb"})
    try:
        os.write(terminal, b"source script.zsh; echo rea''dy\n")
        _until(terminal, b"ready")
        for line in ("apexrl trai", "apexrl train cartp", "apexrl train cartpole --agent dueling_d"):
            os.write(terminal, line.encode() + b"\t")
            _until(terminal, next(iter(LINES.get(line, {"train"}))).encode())
            os.write(terminal, b"\x15")
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)


def _until(terminal: int, wanted: bytes) -> None:
    seen, ends = b"", time.monotonic() + 30.0
    while wanted not in seen.replace(b"\x08", b""):
        assert time.monotonic() < ends, seen
        if select.select([terminal], [], [], 0.2)[0]:
            with suppress(OSError):
                seen += os.read(terminal, 65536)


def test_every_command_declares_its_flags() -> None:
    """Else neither the reference nor completion knows them."""
    assert {name.partition(" ")[0] for name in FLAGS} == COMMANDS.keys() - {"list"}


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "'bash', 'zsh'" in capsys.readouterr().err
