"""The keywords of the replay that the documentation names are those of the code, and all of them are explained."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
from doc_pages import DOCS, PAGES, blocks, name, peer_of, without_code

from apexrl.replay import Field, Replay, Writer

REFERENCE = DOCS / "reference" / "replay.md"
MIGRATION = [
    DOCS / "how-to" / "migrate" / f"{peer}.md"
    for peer in ("cpprb", "torchrl", "reverb", "stable-baselines3", "tianshou", "flashbax")
]


def parameters(*callables):
    return {name for function in callables for name in inspect.signature(function).parameters} - {"self"}


OF_REPLAY = parameters(Replay)
OURS = OF_REPLAY | parameters(
    Field, Replay.writer, Replay.sample, Replay.update_priorities, Replay.set_limiter, Replay.serve, Replay.save
) | parameters(Writer.extend, Writer.append, Writer.flush)  # fmt: skip


def spans(page):
    """Inline code, except that of the first column of a migration table, where the peer's calls stand."""
    text = without_code(page)
    if page in MIGRATION:
        text = re.sub(r"^\|[^|]*(?:\\\|[^|]*)*\|", "|", text, flags=re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def keywords(code):
    return re.findall(r"(?<![\w.\"'])([a-z_]\w*)=(?!=)", code)


def known_keywords(page):
    """How many keywords of ours the page names; a keyword that nobody has fails."""
    theirs = {
        "check_for_update", "Nstep", "pin_memory", "sync", "shared", "weight_norm", "replay_buffer_class", "device",
        "action_masks", "action_mask", "deletes"
    }  # fmt: skip  # peers' words in the last column of a table
    seen = 0
    for span in spans(page):
        known = OF_REPLAY if span.startswith("Replay(") else OURS | theirs
        for keyword in keywords(span):
            assert keyword in known, f"{page.name} names {keyword}= in `{span}`"
            seen += keyword in OURS
    return seen


def test_keywords_in_the_migration_pages_exist():
    assert all(known_keywords(page) > 2 for page in MIGRATION)
    assert sum(known_keywords(page) for page in MIGRATION) > 20


def test_keywords_in_the_reference_exist():
    assert known_keywords(REFERENCE) > 20


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_keywords_in_snippets_exist(page):
    """Also in snippets that a run might not reach."""
    for first, code in blocks(page, "python"):
        if peer_of(code) is not None:
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Replay", "Field"):
                known = OF_REPLAY if node.func.id == "Replay" else parameters(Field)
                given = {keyword.arg for keyword in node.keywords} - {None}
                assert given <= known, f"{page.name}:{first + node.lineno - 1}: {sorted(given - known)}"


def test_every_argument_of_a_replay_is_explained():
    text = " ".join(spans(REFERENCE))
    assert [name for name in sorted(OF_REPLAY) if not re.search(rf"\b{name}\b", text)] == []
