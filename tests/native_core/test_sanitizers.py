"""The native core under AddressSanitizer + UBSan, and under ThreadSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"


@pytest.mark.parametrize(
    ("test", "sanitizers", "arguments"),
    [
        ("core_test", "address,undefined", []),
        ("protocol_test", "address,undefined", []),
        ("core_test", "thread", ["threads"]),
    ],
    ids=["core-asan-ubsan", "protocol-asan-ubsan", "core-tsan"],
)
def test_core_is_clean(tmp_path, test, sanitizers, arguments):
    program = tmp_path / test
    flags = ["-std=c++20", "-O1", "-g1", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-DAPEXRL_SANITIZE"]
    sources = [str(NATIVE / "tests" / f"{test}.cc"), str(NATIVE / "power.cc")]
    subprocess.run([COMPILER, *flags, *sources, "-o", str(program), "-pthread"], check=True)
    # Address-space randomisation of recent kernels is wider than some TSan runtimes can map.
    command = ["setarch", "-R", str(program)] if shutil.which("setarch") else [str(program)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == "ok"
