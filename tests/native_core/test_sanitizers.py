"""The native core under AddressSanitizer + UBSan, and under ThreadSanitizer."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from native_programs import compiled

FAST_TO_COMPILE = "-O0"  # where compiling takes longer than running


def run_sanitized(program: str, folder: Path, sanitizers: str, *arguments: str, flags: tuple[str, ...] = ()) -> str:
    """What the program says."""
    checked = (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-DAPEXRL_SANITIZE")
    built = compiled(program, folder, *checked, *flags)
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
def test_core_is_clean(tmp_path: Path, test: str, sanitizers: str, step: str) -> None:
    """``step``: one in so many of the program's seeds, or batches."""
    flags = () if test == "threads_test" and step == "1" else (FAST_TO_COMPILE,)
    assert run_sanitized(test, tmp_path, sanitizers, *filter(None, [step]), flags=flags).strip() == "ok"


@pytest.mark.long
def test_hostile_chunks_harm_nothing(tmp_path: Path) -> None:
    """The inputs of ``make fuzz`` without its search: mutations from a fixed seed."""
    flags = "-DAPEXRL_FUZZ_ALONE", FAST_TO_COMPILE
    said = run_sanitized("fuzz_chunks", tmp_path, "address,undefined", "20000", flags=flags)
    assert said.endswith("ok\n")
    counts = {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", said)}
    assert set(counts) == {"done", "refused", "repeated", "waited", "joined", "sampled"}
    assert counts["done"] > 1000
    assert counts["refused"] > 1000
    assert min(counts["repeated"], counts["joined"], counts["sampled"]) > 100
