from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apexrl.links.local.role_context import InlineContext, InlineRun, WorkerIdentity


class Stage:
    """Contexts for roles under test, and what the roles said."""

    def __init__(self, folder: Path) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.run = InlineRun(lambda name, kind, values: self.said.append((kind, values)), steps_per_second=1000.0)
        self._folder = folder

    def context(self, role: str, index: int = 0, seed: int = 1) -> InlineContext:
        return InlineContext(self.run, WorkerIdentity(f"{role}-{index}", role, index, 0, seed, self._folder))

    def values(self, kind: str) -> list[dict[str, Any]]:
        return [values for name, values in self.said if name == kind]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.fixture
def make_stage(tmp_path: Path) -> Callable[[], Stage]:
    return lambda: Stage(tmp_path)
