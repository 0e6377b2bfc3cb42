"""The page: served in parts, or as one file that holds its data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

SCRIPTS: Final = (
    "vendor/uPlot.iife.min.js",
    "words.js",
    "source.js",
    "charts.js",
    "runs_page.js",
    "run_page.js",
    "workers.js",
    "compare_page.js",
    "app.js",
)
STYLES: Final = ("vendor/uPlot.min.css", "style.css")
FILES: Final = frozenset((*SCRIPTS, *STYLES))
"""What the server sends; nothing else of the folder."""

_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>apexrl</title>
"""
_BODY: Final = """</head>
<body>
<a class="skip" href="#main">To the content</a>
<header id="top"></header>
<main id="main" tabindex="-1"><p class="quiet">Reading runs …</p></main>
<noscript><p>This page needs JavaScript, which it brings itself.</p></noscript>
"""


def text_of(name: str) -> str:
    """A file of the page, by its name in ``FILES``."""
    return resources.files(__package__).joinpath("static", *name.split("/")).read_text(encoding="utf-8")


def served() -> str:
    """The page that asks the server for everything."""
    styles = "".join(f'<link rel="stylesheet" href="static/{name}">\n' for name in STYLES)
    scripts = "".join(f'<script src="static/{name}"></script>\n' for name in SCRIPTS)
    return f'{_HEAD}<link rel="icon" href="data:,">\n{styles}{_BODY}{scripts}</body>\n</html>\n'


def in_one_file(answers: Mapping[str, Any], title: str) -> str:
    """The page with everything inside.

    Args:
        answers: by question and parameters, as the page spells them: ``curves?run=NAME``.
        title: beside the date, at the top.
    """
    styles = "".join(f"<style>\n{text_of(name)}\n</style>\n" for name in STYLES)
    data = _script_safe(json.dumps({"title": title, "answers": answers}, allow_nan=False, separators=(",", ":")))
    scripts = "".join(f"<script>\n{text_of(name)}\n</script>\n" for name in SCRIPTS)
    return f"{_HEAD}{styles}{_BODY}<script>window.APEXRL_HELD = {data};</script>\n{scripts}</body>\n</html>\n"


def _script_safe(text: str) -> str:
    """JSON that ends no script element, whatever runs are called."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
