"""Processes that a benchmark has started, found again by a mark in their environment, whoever their parent is now."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MARK = "APEXRL_BENCHMARK"


class Failed(RuntimeError):
    """A command did not end as it should; the message holds the end of its output."""


def end_in_order() -> None:
    """From now on SIGTERM ends this process as an exit does, so that what it has started is reaped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def marked(mark: str) -> list[int]:
    """Living processes that inherited the mark; the dead whom nobody has buried do not count."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if wanted in (entry / "environ").read_bytes().split(b"\0") and state not in "ZX":
                    found.append(int(entry.name))
    return found


def reap(mark: str) -> list[int]:
    """Kill whoever is marked; returns who there was."""
    everybody = marked(mark)
    for pid in everybody:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return everybody


def gone(mark: str, seconds: float) -> list[int]:
    """Wait until nobody marked lives, for so long at most; returns who still does."""
    deadline = time.monotonic() + seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def answer(
    command: Sequence[str], timeout: float, environ: Mapping[str, str] | None = None, stdin: str | None = None
) -> dict[str, Any]:
    """Run ``command`` to its end, and all that it left; returns the JSON object in the last line that it printed.

    Args:
        stdin: what it reads there.

    Raises:
        Failed: it failed, took too long, or printed no such line.
    """
    mark = uuid.uuid4().hex
    started = subprocess.Popen(
        command,
        stdin=None if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environ or {}), MARK: mark},
        start_new_session=True,
    )
    try:
        said, _ = started.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        reap(mark)
        said, _ = started.communicate()
        raise Failed(f"{' '.join(command)} took longer than {timeout:g} s\n{said[-3000:]}") from None
    finally:
        reap(mark)
    lines = [line for line in said.splitlines() if line.startswith("{")]
    if started.returncode or not lines:
        raise Failed(f"{' '.join(command)} ended with exit code {started.returncode}\n{said[-3000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def interpreters(parser: argparse.ArgumentParser, words: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """PEER=PATH of ``--python`` as peer -> path; the parser ends the program where a peer or a path is unknown."""
    found = dict(word.split("=", 1) for word in words)
    if unknown := found.keys() - set(known):
        parser.error(f"--python knows {', '.join(known)}, not {', '.join(sorted(unknown))}")
    if missing := [path for path in found.values() if not Path(path).exists()]:
        parser.error(f"there is no {missing[0]}")
    return found
