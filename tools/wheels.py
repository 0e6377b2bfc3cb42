"""Builds a wheel for each Python of this machine that apexrl supports, checks it, and tries it without a compiler.

python tools/wheels.py              every Python on PATH, and those of pyenv
python tools/wheels.py PYTHON …     these

On Linux auditwheel gives each wheel the oldest manylinux tag that this machine's C library allows; wheels for older
systems are built in manylinux containers (.github/workflows/release.yml). They lie in dist/.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "dist"
SAYS_VERSION = "import sys; print('%d.%d' % sys.version_info[:2], sys.implementation.name)"


def supported() -> list[str]:
    """The versions of Python for which a release has wheels."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return [f"3.{minor}" for minor in re.findall(r"\bcp3(\d+)-\*", text)]


def pythons() -> dict[str, str]:
    """Version of Python -> a program that is one."""
    kept = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin/python"))
    found: dict[str, str] = {}
    for program in [sys.executable, *(shutil.which(f"python{one}") or "" for one in supported()), *map(str, kept)]:
        if (version := version_of(program)) in supported():
            found.setdefault(version, program)
    return dict(sorted(found.items()))


def version_of(program: str) -> str:
    """Its version; empty where it is no CPython that runs."""
    try:
        said = subprocess.run([program, "-c", SAYS_VERSION], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    version, _, kind = said.stdout.strip().partition(" ")
    return version if kind == "cpython" else ""


def do(*command: str | Path, **more: str) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, cwd=ROOT, env={**os.environ, **more})


def build(program: str) -> Path:
    """One wheel in dist/, and tried in a new environment with nothing else on PATH."""
    with tempfile.TemporaryDirectory() as folder:
        raw, env = Path(folder) / "raw", Path(folder) / "env"
        do(program, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", raw, ".")
        (wheel,) = raw.glob("*.whl")
        if sys.platform == "linux":
            do(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", Path(folder) / "repaired", wheel)
            (wheel,) = (Path(folder) / "repaired").glob("*.whl")
        OUT.mkdir(exist_ok=True)
        wheel = Path(shutil.copy(wheel, OUT))
        do(program, "-m", "venv", env)
        inside = env / "bin" / "python"
        do(inside, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wheel, PATH=str(env / "bin"))
        do(inside, "-I", ROOT / "tools" / "try_wheel.py", PATH=str(env / "bin"))
        return wheel


def main(words: Sequence[str]) -> int:
    chosen = {version_of(word): word for word in words} or pythons()
    if "" in chosen:
        print(f"{chosen['']} is no CPython that runs", file=sys.stderr)
        return 2
    print(f"Python {', '.join(chosen)}; not here: {', '.join(set(supported()) - chosen.keys()) or 'none'}", flush=True)
    wheels = [build(program) for program in chosen.values()]
    do(sys.executable, "-m", "twine", "check", "--strict", *wheels)
    do(sys.executable, "-m", "check_wheel_contents", *wheels)
    print(*wheels, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
