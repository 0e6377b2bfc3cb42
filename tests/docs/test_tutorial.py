"""Every page of the tutorial works as it stands there: files are written, commands and programs run, in order."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from doc_pages import DOCS

from redis_server import RedisServer

pytestmark = pytest.mark.slow

TUTORIAL = DOCS / "tutorial"
PYTHON = shlex.quote(sys.executable)
COMMANDS = {"apexrl": f'exec {PYTHON} -m apexrl.cli "$@"', "python": f'exec {PYTHON} "$@"'}


def steps(page: str) -> list[tuple[str, str]]:
    """(language, code) of the page's blocks that are meant to be run, in order."""
    text = (TUTORIAL / page).read_text(encoding="utf-8")
    return re.findall(r"^```(sh|python)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder to work in, with the commands of this checkout."""
    (tmp_path / "bin").mkdir()
    for name, line in COMMANDS.items():
        command = tmp_path / "bin" / name
        command.write_text(f"#!/bin/sh\n{line}\n")
        command.chmod(0o755)
    return tmp_path


def environment(machine: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{machine / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(machine), **more}


def do(machine: Path, language: str, code: str, check: bool = True, **more: str) -> str:
    """Run one block there and return what it prints; a Python block whose first line names a file is written to it."""
    named = re.match(r"# (\w+\.py)\n", code)
    if language == "python" and named:
        (machine / named[1]).write_text(code)
        return ""
    if language == "python":
        (machine / "block.py").write_text(code)
        command = [sys.executable, "block.py"]
    else:
        command = ["bash", "-euc", code]
    done = subprocess.run(
        command, cwd=machine, env=environment(machine, **more), capture_output=True, text=True, timeout=300
    )
    assert not check or done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("page", ["first-run.md", "own-environment.md", "own-agent.md"])
def test_the_page_works_as_it_stands(page, machine):
    for language, code in steps(page):
        do(machine, language, code)
    assert (machine / "runs").is_dir()


@contextmanager
def started(machine: Path, code: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(["bash", "-euc", code], cwd=machine, env=environment(machine, **more), **pipes) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_two_machines_train_one_run(machine):
    """The second machine is a second process; the server is a real one."""
    learner, actor, status, stop = (code for _, code in steps("second-machine.md"))
    assert [code.splitlines()[0] for code in (learner, actor)] == ["# first machine", "# second machine"]
    with RedisServer(machine / "redis") as server:
        at = {"APEXRL_REDIS_URL": server.url}
        with started(machine, learner, **at) as first, started(machine, actor, **at) as second:
            until = time.monotonic() + 120.0
            while "acting" not in (shown := do(machine, "sh", status, check=False, **at)):
                assert first.poll() is None, first.communicate()[0]
                assert time.monotonic() < until, shown
            do(machine, "sh", stop, **at)
            assert first.wait(timeout=60.0) == 0, first.communicate()[0]
            assert second.wait(timeout=60.0) == 0, second.communicate()[0]
    assert (machine / "runs" / "demo" / "summary.json").is_file()
