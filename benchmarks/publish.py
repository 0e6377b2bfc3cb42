"""Put the newest tables and pictures of ``benchmarks/out`` into ``docs/results/`` and ``docs/images``.

    python benchmarks/publish.py

A table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` on one of the pages. Tables that were not measured anew
stay as they are. Only pictures that a page shows are copied.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.lib import report

DOCS = Path(__file__).parent.parent / "docs"


def filled(page: Path, text: str, measurements: Path) -> str:
    """``text`` of ``page`` with the tables of ``measurements``, one file a marker."""
    for name in re.findall(r"<!-- ([\w-]+) -->", text):
        table = measurements / f"{name}.md"
        if not table.is_file():
            print(f"{name}: not measured, left as it is")
            continue
        block = re.search(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", text, re.DOTALL)
        if block is None:
            raise SystemExit(f"{page}: <!-- {name} --> has no <!-- /{name} -->")
        measured = re.sub(r"\A# .*\n+", "", table.read_text(encoding="utf-8").strip())  # the page has the title
        measured = measured.replace("](images/", "](../images/")
        text = f"{text[: block.start()]}{block[1]}\n{measured}\n{block[2]}{text[block.end() :]}"
        print(f"{name}: published in {page.name}")
    return text


def main() -> None:
    for page in sorted((DOCS / "results").glob("*.md")):
        text = filled(page, page.read_text(encoding="utf-8"), report.OUT)
        page.write_text(text, encoding="utf-8")
        for name in re.findall(r"\]\(\.\./images/([\w.-]+)\)", text):
            if (report.OUT / name).is_file():
                shutil.copyfile(report.OUT / name, DOCS / "images" / name)


if __name__ == "__main__":
    main()
