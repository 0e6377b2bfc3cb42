"""Flags of ``apexrl`` that the documentation names are flags of the command."""

from __future__ import annotations

import dataclasses
import re

import pytest
from doc_pages import DOCS, PAGES, ROOT, name

from apexrl.cli import browser_flags, folder_flags, host_flags, train_flags
from apexrl.config import Config
from apexrl.config.convert import flat
from apexrl.config.settings import flag

KINDS = (
    train_flags._Train, train_flags.Resume, folder_flags.Eval, train_flags.Compare, folder_flags.Doctor,
    folder_flags.Export,
    browser_flags.Dashboard, browser_flags.Report,
    host_flags.Actor, host_flags.Standby, host_flags.Envs, host_flags.Status, host_flags.Stop,
    host_flags.Drain, host_flags.Scale,
)  # fmt: skip
OWN = {"--priority-cap", "--penalty", "--rehearsals"}  # settings that pages declare
OTHERS = {"--bind", "--appendonly", "--help", "--version", "--standby"}  # redis-server's; every command's
KNOWN = {flag(setting) for setting in flat(Config())} | {
    flag(entry.name) for kind in KINDS for entry in dataclasses.fields(kind)
}
OF_BENCHMARKS = DOCS / "results"


CHECKED = [page for page in PAGES if page.parent != OF_BENCHMARKS]  # results name flags of benchmarks


@pytest.mark.parametrize("page", [*CHECKED, ROOT / "README.md", ROOT / "SECURITY.md"], ids=name)
def test_flags_that_pages_name_exist(page):
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`(--[a-z][a-z0-9-]+)", text))
    named |= {
        word
        for line in re.findall(r"^apexrl .*$", text, re.MULTILINE)
        for word in re.findall(r"--[a-z][a-z0-9-]+", line)
    }
    unknown = {word for word in named if word not in KNOWN | OWN | OTHERS and "--" + word[5:] not in KNOWN}
    assert unknown == set()
