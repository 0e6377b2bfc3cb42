"""Workers and owners killed before each single change of shared memory; native/tests/crash_test.cc has the rest."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from native_programs import NATIVE, with_crash_points

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
# `).store(`: on an atomic_ref, of plain memory, before which an APEXRL_POINT() stands.
CHANGE = re.compile(r"(?<!\))\.(store|exchange|fetch_add|fetch_sub|compare_exchange_\w+)\(|APEXRL_POINT\(\)")


SHORT, WHOLE = 8, 1
"""One death in so many."""


@pytest.fixture(scope="module")
def program() -> Path:
    return with_crash_points()


def said_by(program: Path, word: str) -> str:
    done = subprocess.run([str(program), word], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("ok\n")
    return done.stdout


@pytest.fixture(scope="module", params=[SHORT, pytest.param(WHOLE, marks=pytest.mark.long)])
def places(program: Path, request: pytest.FixtureRequest) -> tuple[set[tuple[str, int]], int]:
    """``(file, line)`` of every place at which a process was killed, and one in how many; all went well after each."""
    found = re.findall(r"^place (\S+):(\d+) \d+$", said_by(program, str(request.param)), re.MULTILINE)
    return {(file, int(line)) for file, line in found}, request.param


# Least share of a file's changes at which some process died, if no death was left out; else, a fifth. The
# limiter's settings are changed by no script, nor does any wait for items.
FILES = {
    "blocks.h": 0.5,
    "book.h": 0.7,
    "layout.h": 0.7,
    "lease.h": 0.7,
    "limiter.h": 0.3,
    "owner.h": 0.5,
    "queue.h": 0.7,
    "receipts.h": 0.7,
    "store.h": 0.7,
    "stored_items.h": 0.7,
    "writer.h": 0.7,
}


@pytest.mark.parametrize("file", FILES)
def test_a_death_at_any_place_harms_nobody(places, file):
    """The scripts reach most of the places; what they leave out needs a race of two processes."""
    lines = (NATIVE / file).read_text(encoding="utf-8").splitlines()
    could = {n for n, line in enumerate(lines, 1) if CHANGE.search(line)}
    reached = {n for name, n in places[0] if name == file}
    missed = [f"{n}: {lines[n - 1].strip()}" for n in sorted(could - reached)]
    least = FILES[file] if places[1] == WHOLE else 0.2
    assert len(could & reached) >= least * len(could), missed


def test_other_threads_go_on_while_one_becomes_the_owner(program: Path) -> None:
    """A crash point in the middle of that is where they are looked at (native/tests/take_over.h)."""
    assert said_by(program, "takeover") == "ok\n"
