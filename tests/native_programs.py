"""Programs of ``native/tests``, compiled as a test wants them: warnings are errors.

Each is kept in ``build/native-tests``, for this state of the sources. As a program, this makes those of ``make test``
before anything is installed: it needs no packages.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parents[1] / "native"
KEPT = NATIVE.parent / "build" / "native-tests"
CORE = [str(NATIVE / name) for name in ("power.cc", "compression.cc")]
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
FLAGS = ["-std=c++20", "-g1", "-Wall", "-Wextra", "-Werror", "-pthread"]
if "clang" not in Path(COMPILER).name:
    # GCC 12 warns about its own AVX-512 header (bug 105593), and that its TSan does not see fences.
    FLAGS += ["-Wno-error=maybe-uninitialized", "-Wno-error=tsan"]
FAST_TO_RUN, FAST_TO_COMPILE = "-O1", "-O0"
SANITIZED = ["-fno-sanitize-recover=all", "-DAPEXRL_SANITIZE"]


def sanitized(name: str, sanitizers: str, *flags: str) -> Path:
    """``native/tests/NAME.cc`` under sanitizers: ``address,undefined``, or ``thread``."""
    return _made(name, [*FLAGS, f"-fsanitize={sanitizers}", *SANITIZED, *flags, _source(name), *CORE])


def with_crash_points() -> Path:
    return _made("crash_test", [*FLAGS, FAST_TO_RUN, "-DAPEXRL_CRASH_POINTS", _source("crash_test"), *CORE])


def explored(*flags: str) -> Path:
    """The model checker's program: its scenarios alone are instrumented."""
    plain = ["-std=c++20", "-g1", FAST_TO_RUN]
    scenarios = [*plain, "-w", "-fsanitize=thread", "-DAPEXRL_EXPLORE", *flags, "-c", _source("explore_test")]
    return _made("explore_test", [*plain, "-rdynamic", "-pthread", _source("explore"), *CORE], scenarios)


def short() -> list[Path]:
    """What ``make test`` runs."""
    core = sanitized("core_test", "address,undefined", FAST_TO_COMPILE)
    threads = sanitized("threads_test", "thread", FAST_TO_RUN)
    return [core, threads, with_crash_points(), explored()]


def _source(name: str) -> str:
    return str(NATIVE / "tests" / f"{name}.cc")


def _made(name: str, arguments: list[str], *objects: list[str]) -> Path:
    """The program that the compiler makes with these arguments, and of objects that it makes with their own."""
    sources = [path for path in sorted(NATIVE.rglob("*")) if path.suffix in (".h", ".cc", ".c")]
    read = hashlib.sha256(repr([COMPILER, arguments, objects]).encode())
    for path in sources:
        read.update(path.read_bytes())
    program = KEPT / f"{name}-{read.hexdigest()[:16]}"
    if not program.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as room:
            made = [f"{room}/{number}.o" for number in range(len(objects))]
            for its, target in zip(objects, made, strict=True):
                subprocess.run([COMPILER, *its, "-o", target], check=True)
            subprocess.run([COMPILER, *arguments, *made, "-o", f"{room}/{name}"], check=True)
            os.replace(f"{room}/{name}", program)
    return program


if __name__ == "__main__":
    short()
