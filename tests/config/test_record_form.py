"""What a run tells its hosts of its settings can be read by those of the last release."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from apexrl.config import Config, HostsConfig, convert, record_form
from apexrl.config.record_form import NEW_SETTINGS, for_hosts

KNOWN = set((Path(__file__).parent / "last_release_settings.txt").read_text().split())
"""Settings of the last release; written anew with each release."""


def names(text: str) -> set[str]:
    found = set()
    for name, value in tomllib.loads(text).items():
        found |= {f"{name}.{key}" for key in value} if isinstance(value, dict) else {name}
    return found


def test_settings_that_the_last_release_does_not_know_are_not_told_unless_they_are_set() -> None:
    unknown = names(for_hosts(Config())) - KNOWN
    assert not unknown, f"name {unknown} in NEW_SETTINGS of config/record_form.py"


def test_new_settings_are_told_where_they_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_form, "NEW_SETTINGS", {"learner_lease_seconds"})
    usual, changed = Config(), replace(Config(), seed=7, hosts=HostsConfig(learner_lease_seconds=7.0))
    assert names(for_hosts(changed)) - names(for_hosts(usual)) == {"hosts.learner_lease_seconds"}
    for config in (usual, changed):
        assert convert.from_toml(for_hosts(config)) == config


def test_only_settings_that_exist_are_listed() -> None:
    assert {name.rpartition(".")[2] for name in names(convert.to_toml(Config()))} >= NEW_SETTINGS
