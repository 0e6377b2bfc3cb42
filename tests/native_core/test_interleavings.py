"""Lease, publish, wake and reclaim in every order that the C++ memory model allows (native/tests/explore.h)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from native_programs import explored

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="threads are simulated for Linux alone"),
    pytest.mark.timeout(600),
]


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
def test_holds_in_every_order(scenario: str) -> None:
    done = subprocess.run([str(explored()), scenario], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.startswith(f"{scenario}: ")
    assert done.stdout.endswith("ok\n")
    assert "not all" not in done.stdout


@pytest.mark.long
def test_a_wake_up_is_lost_without_the_fence() -> None:
    """The checker finds what it is there to find."""
    unfenced = explored("-DAPEXRL_WITHOUT_WAKE_FENCE")
    done = subprocess.run([str(unfenced), "wake"], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 1
    assert "threads are stuck: nobody wakes them" in done.stdout
