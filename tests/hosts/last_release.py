"""The last release, built from its commit and installed beside this tree, with the dependencies of this interpreter."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = "0.2.0"
COMMIT = "391afd9c37d1b88a92865d5a9d746f5677900661"
"""Of the last release, the newest in the changelog with a date: its tag, once there is one."""


def installed(folder: Path) -> Path:
    """A Python interpreter that imports the last release. Its wheel is built once for each clone of the repository."""
    python = folder / "last-release" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])], check=True)
        packages = python.parents[1] / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        with zipfile.ZipFile(_wheel()) as wheel:
            wheel.extractall(packages)
        borrowed = [sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))]
        (packages / "borrowed.pth").write_text("\n".join(dict.fromkeys(borrowed)) + "\n")
    return python


def _wheel() -> Path:
    built = ROOT / "build" / "last-release" / COMMIT
    found = sorted(built.glob(f"apexrl-*-cp{sys.version_info[0]}{sys.version_info[1]}-*.whl"))
    if not found:
        source = built / "source"
        _git("worktree", "prune")
        _git("worktree", "add", "--force", "--detach", str(source), COMMIT)
        try:
            words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(built), str(source)]
            subprocess.run(words, check=True)
        finally:
            _git("worktree", "remove", "--force", str(source))
        found = sorted(built.glob("apexrl-*.whl"))
    return found[-1]


def _git(*words: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *words], check=True)
