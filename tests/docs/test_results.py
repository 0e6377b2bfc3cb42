"""Pages of docs/results open with their answer, and every table has one place that ``benchmarks/publish.py`` fills."""

from __future__ import annotations

import importlib.util
import re

import pytest
from doc_pages import DOCS, ROOT, name

PAGES = sorted((DOCS / "results").glob("*.md"))
TOPICS = [page for page in PAGES if page.name != "index.md"]


def text(page):
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", TOPICS, ids=name)
def test_a_page_opens_with_its_answer_in_one_sentence(page):
    opening = re.match(r"# .+\n\n\*\*([^*]+)\*\*\n", text(page))
    assert opening, f"{page.name} does not begin with a bold sentence"
    assert len(re.findall(r"\.(?=\s|$)", opening[1])) == 1


def test_every_marker_is_closed_and_there_is_one_of_each_name():
    opened = [marker for page in PAGES for marker in re.findall(r"<!-- ([\w-]+) -->", text(page))]
    closed = [marker for page in PAGES for marker in re.findall(r"<!-- /([\w-]+) -->", text(page))]
    assert opened == closed
    assert len(set(opened)) == len(opened) > 20


def test_the_index_names_every_page():
    assert [page.name for page in TOPICS if f"({page.name})" not in text(DOCS / "results" / "index.md")] == []


def test_publish_fills_a_marker_on_whatever_page_it_is(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("publish", ROOT / "benchmarks" / "publish.py")
    publish = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(publish)
    (tmp_path / "new.md").write_text("# Title\n\nmeasured ![p](images/p.png)\n")
    before = "a\n<!-- new -->\n\nold\n\n<!-- /new -->\nb <!-- other -->\nkept\n<!-- /other -->\n"
    after = publish.filled(tmp_path / "page.md", before, tmp_path)
    assert after == before.replace("old", "measured ![p](../images/p.png)")
    assert capsys.readouterr().out == "new: published in page.md\nother: not measured, left as it is\n"
