"""The native core under AddressSanitizer + UBSan, and under ThreadSanitizer."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from native_programs import FAST_TO_COMPILE, FAST_TO_RUN, sanitized


def said_by(built: Path, *arguments: str) -> str:
    # Address-space randomisation of recent kernels is wider than some TSan runtimes can map.
    command = ["setarch", "-R", str(built)] if shutil.which("setarch") else [str(built)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize(
    ("test", "sanitizers", "step"),
    [
        pytest.param("core_test", "address,undefined", "5", id="core-asan-ubsan"),
        pytest.param("threads_test", "thread", "5", id="threads-tsan"),
        pytest.param("core_test", "address,undefined", "1", id="core-asan-ubsan-all", marks=pytest.mark.long),
        pytest.param("threads_test", "thread", "1", id="threads-tsan-all", marks=pytest.mark.long),
        pytest.param("threads_test", "address,undefined", "1", id="threads-asan-ubsan", marks=pytest.mark.long),
        pytest.param("protocol_test", "address,undefined", "", id="protocol-asan-ubsan", marks=pytest.mark.long),
    ],
)
def test_core_is_clean(test: str, sanitizers: str, step: str) -> None:
    """``step``: one in so many of the program's seeds, or batches."""
    speed = FAST_TO_RUN if test == "threads_test" else FAST_TO_COMPILE
    assert said_by(sanitized(test, sanitizers, speed), *filter(None, [step])).strip() == "ok"


@pytest.mark.long
def test_hostile_chunks_harm_nothing() -> None:
    """The inputs of ``make fuzz`` without its search: mutations from a fixed seed."""
    said = said_by(sanitized("fuzz_chunks", "address,undefined", FAST_TO_COMPILE, "-DAPEXRL_FUZZ_ALONE"), "20000")
    assert said.endswith("ok\n")
    counts = {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", said)}
    assert set(counts) == {"done", "refused", "repeated", "waited", "joined", "sampled"}
    assert counts["done"] > 1000
    assert counts["refused"] > 1000
    assert min(counts["repeated"], counts["joined"], counts["sampled"]) > 100
