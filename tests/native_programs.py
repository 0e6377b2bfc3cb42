"""Programs of ``native/tests``, compiled as a test wants them: warnings are errors."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NATIVE = Path(__file__).parents[1] / "native"
CORE = [str(NATIVE / name) for name in ("power.cc", "compression.cc")]
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
FLAGS = ["-std=c++20", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread"]
if "clang" not in Path(COMPILER).name:
    # GCC 12 warns about its own AVX-512 header (bug 105593), and that its TSan does not see fences.
    FLAGS += ["-Wno-error=maybe-uninitialized", "-Wno-error=tsan"]


def compiled(name: str, folder: Path, *flags: str) -> Path:
    """Compile ``native/tests/NAME.cc`` into ``folder``."""
    program = folder / name
    sources = [str(NATIVE / "tests" / f"{name}.cc"), *CORE]
    subprocess.run([COMPILER, *FLAGS, *flags, *sources, "-o", str(program)], check=True)
    return program
