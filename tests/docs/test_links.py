"""What the documentation names exists: links, headings, files and modules."""

from __future__ import annotations

import importlib.util
import re

import pytest
from doc_pages import DOCS, PAGES, ROOT, anchors, name, without_code

LINKING = [*PAGES, *sorted(ROOT.glob("*.md")), ROOT / "benchmarks" / "README.md"]
HISTORY = {ROOT / "CHANGELOG.md"}  # names what was once there
ROOMS = sorted(path.name for path in (ROOT / "src" / "apexrl").iterdir() if path.is_dir())


@pytest.mark.parametrize("page", LINKING, ids=name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", without_code(page)):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{name(page)} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(there), f"{name(page)} links to {target}#{anchor}, which is no heading there"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_page_is_reached_from_another(page):
    if page == DOCS / "index.md":
        return
    linked = rf"\]\((?:[^)]*/)?{re.escape(page.name)}[)#]"
    assert any(re.search(linked, other.read_text(encoding="utf-8")) for other in LINKING if other != page)


def exists(path, page):
    """Whether a path in the documentation's notation is there: of the repository, the package, or the page's folder."""
    return any(list(base.glob(path)) for base in (ROOT, ROOT / "src" / "apexrl", page.parent))


@pytest.mark.parametrize("page", [page for page in LINKING if page not in HISTORY], ids=name)
def test_files_that_pages_name_exist(page):
    text = page.read_text(encoding="utf-8")
    folders = "|".join(["src", "docs", "tests", "native", "examples", "benchmarks", "tools", *ROOMS])
    named = re.findall(rf"(?<![\w/.])((?:{folders})/[a-z0-9_/*-]+\.(?:py|md|h|cc|toml|yaml))\b", text)
    assert [path for path in named if not exists(path, page)] == []


@pytest.mark.parametrize("page", [page for page in LINKING if page not in HISTORY], ids=name)
def test_modules_that_pages_name_exist(page):
    """Of ``apexrl.launch.wiring.Name`` the module must be there, and the name in it."""
    for dotted in sorted(set(re.findall(r"\bapexrl(?:\.\w+)+", page.read_text(encoding="utf-8")))):
        parts = dotted.split(".")
        depth = next(d for d in range(len(parts), 0, -1) if is_module(".".join(parts[:d])))
        rest = parts[depth:]
        if rest:
            module = importlib.import_module(".".join(parts[:depth]))
            assert hasattr(module, rest[0]), f"{name(page)} names {dotted}"


def is_module(dotted):
    try:
        return importlib.util.find_spec(dotted) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "explanation" / "architecture.md"], ids=name)
def test_what_is_read_first_is_short(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 150
