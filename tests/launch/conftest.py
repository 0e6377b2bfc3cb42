from __future__ import annotations

from collections.abc import Callable

import pytest
from scripted_tuner import Script

from apexrl.launch import autotune, supervisor


@pytest.fixture(autouse=True)
def _statuses_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """At every tick: a test that kills and waits by what it is shown lets real processes work meanwhile."""
    monkeypatch.setattr(supervisor, "_SHOW_SECONDS", 0.0)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says which numbers of actors are to be run, one window each."""
    Script.made = []
    monkeypatch.setattr(autotune, "Tuner", Script)

    def follow(*counts: int) -> None:
        monkeypatch.setattr(Script, "settings", [{"actor": count} for count in counts])

    return follow
