"""The documentation's pages, as the tests of this folder read them."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PEERS = ("cpprb", "torchrl", "reverb", "stable_baselines3", "tianshou", "flashbax", "rllib")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """(line of the first line of code, code) of each fenced block of a language."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def peer_of(code: str) -> str | None:
    """The other library whose code a snippet shows, by its first line."""
    return next((peer for peer in PEERS if code.startswith(f"# {peer}\n")), None)


def without_code(page: Path) -> str:
    """The page's prose: fenced and indented blocks are gone."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """GitHub's names of the page's headings; MkDocs is told to make the same."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    kept = [
        "".join(c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN") for heading in headings
    ]
    return {heading.replace(" ", "-") for heading in kept}
