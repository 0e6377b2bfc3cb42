"""The start files of ``examples/``, and the ``apexrl`` commands in them."""

from __future__ import annotations

import configparser
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[1] / "examples"
SLURM = EXAMPLES / "slurm.sh"
UNITS = sorted((EXAMPLES / "systemd").glob("*.service"))
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
KUBERAY = EXAMPLES / "kuberay.yaml"


def unit(path: Path) -> configparser.ConfigParser:
    """A systemd unit without repeated keys."""
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(path.read_text(encoding="utf-8"))
    return parsed


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def pods(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a workload."""
    return [document["spec"]["template"]] if "template" in document.get("spec", {}) else []


def commands() -> Iterator[tuple[str, list[str]]]:
    """(where it stands, words after ``apexrl``) of every command in units and manifests."""
    for path in UNITS:
        program, *words = shlex.split(unit(path)["Service"]["ExecStart"])
        assert program.endswith("/apexrl")
        yield path.stem, words
    for path in MANIFESTS:
        for pod in (pod for document in documents(path) for pod in pods(document)):
            for container in pod["spec"]["containers"]:
                program, *words = container.get("command", ["redis"])
                if program == "apexrl":
                    yield f"kubernetes {container['name']}", words
    program, *words = shlex.split(documents(KUBERAY)[0]["spec"]["entrypoint"])
    assert program == "apexrl"
    yield "kuberay", words
