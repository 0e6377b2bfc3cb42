"""Flags of ``apexrl`` that the documentation names are flags of the command."""

from __future__ import annotations

import dataclasses
import re

import pytest
from doc_pages import DOCS, PAGES, ROOT, name

from apexrl.cli.command_flags import FLAGS
from apexrl.config import Config
from apexrl.config.convert import flat
from apexrl.config.settings import flag

OWN = {"--priority-cap", "--penalty", "--rehearsals"}  # settings that pages declare
OTHERS = {"--bind", "--appendonly", "--help", "--version", "--standby"}  # redis-server's; every command's
KNOWN = {flag(setting) for setting in flat(Config())} | {
    flag(entry.name) for kind in FLAGS.values() for entry in dataclasses.fields(kind)
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
