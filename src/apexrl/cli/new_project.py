"""``apexrl init``: writes a project to start from."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
import tempfile
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from apexrl.config.paths import expanded
from apexrl.errors import ConfigError

PACKAGE: Final = "my_project"
"""What the template calls the project's package; ``my-project`` is the project."""


def write(name: str, out: str | Path = ".") -> str:
    """Write the project ``name`` into a new folder below ``out``; all of it, or nothing.

    Returns:
        What to do next, for the user.

    Raises:
        ConfigError: ``name`` cannot be a package's name, is another module's, or something is there already; or the
            folder cannot be written.
    """
    package = _package(name)
    parent = expanded(out)
    folder = parent / name
    if folder.exists():
        raise ConfigError(f"{folder} is there already: give another name, or remove it")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}-"))
        try:
            made.chmod(0o755)
            _copy(resources.files("apexrl.cli") / "project_template", made, package, name)
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror or error}") from error
    return (
        f"{folder} holds an environment, an agent, a test and settings. Next:\n"
        f"  cd {folder}\n  python -m pip install -e '.[test]'\n  apexrl train config.toml --name first"
    )


def _package(name: str) -> str:
    package = name.replace("-", "_").lower()
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) or keyword.iskeyword(package):
        raise ConfigError(f"{name!r} cannot be a project's name: take letters, digits, - and _, with a letter first")
    if package in sys.stdlib_module_names or importlib.util.find_spec(package) is not None:
        raise ConfigError(f"Python has a module {package} already, which {name} would hide: take another name")
    return package


def _copy(source: Traversable, target: Path, package: str, project: str) -> None:
    """Copy a folder of the template, with its names replaced in files' names and texts."""
    for entry in source.iterdir():
        name = entry.name.removesuffix(".template").replace(PACKAGE, package)
        if entry.is_dir():
            (target / name).mkdir()
            _copy(entry, target / name, package, project)
        elif entry.name.endswith(".template"):
            text = entry.read_text(encoding="utf-8").replace(PACKAGE, package)
            (target / name).write_text(text.replace(PACKAGE.replace("_", "-"), project), encoding="utf-8")
