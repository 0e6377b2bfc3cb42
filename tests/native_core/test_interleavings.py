"""Lease, publish, wake and reclaim in every order that the C++ memory model allows (native/tests/explore.h)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="threads are simulated for Linux alone"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explore")
    flags = ["-std=c++20", "-O1", "-g1"]

    def compiled(source: Path, name: str, *more: str) -> str:
        done = folder / f"{name}.o"
        if not done.exists():
            subprocess.run([COMPILER, *flags, *more, "-c", str(source), "-o", str(done)], check=True)
        return str(done)

    def program(name: str, *more: str) -> str:
        objects = [
            compiled(NATIVE / "tests" / "explore_test.cc", name, "-fsanitize=thread", "-w", "-DAPEXRL_EXPLORE", *more),
            compiled(NATIVE / "tests" / "explore.cc", "explore"),
            *(compiled(NATIVE / f"{name}.cc", name) for name in ("power", "compression")),
        ]
        done = folder / name
        subprocess.run([COMPILER, "-rdynamic", *objects, "-o", str(done), "-pthread"], check=True)
        return str(done)

    return program


@pytest.fixture(scope="module")
def program(build):
    return build("explore_test")


@pytest.mark.parametrize(
    "scenario",
    [
        "wake",
        pytest.param("wake with thread", marks=pytest.mark.long),
        "lease",
        pytest.param("reclaim", marks=pytest.mark.long),
        "receipt",
    ],
)
def test_holds_in_every_order(program, scenario):
    done = subprocess.run([program, scenario], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.startswith(f"{scenario}: ")
    assert done.stdout.endswith("ok\n")
    assert "not all" not in done.stdout


@pytest.mark.long
def test_a_wake_up_is_lost_without_the_fence(build):
    """The checker finds what it is there to find."""
    unfenced = build("unfenced", "-DAPEXRL_WITHOUT_WAKE_FENCE")
    done = subprocess.run([unfenced, "wake"], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 1
    assert "threads are stuck: nobody wakes them" in done.stdout
