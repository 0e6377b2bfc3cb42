"""Put the latest tables and pictures of ``benchmarks/out`` into ``docs/results.md`` and ``docs/images``.

    python benchmarks/publish.py

Each table stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``; what was not measured anew stays as it is. Pictures
are those that the page shows.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import report

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    page = DOCS / "results.md"
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"<!-- ([\w-]+) -->", text):
        table = report.OUT / f"{name}.md"
        if not table.is_file():
            print(f"{name}: not measured, left as it is")
            continue
        measured = table.read_text(encoding="utf-8").strip()
        block = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
        place = block.search(text)
        if place is None:
            raise SystemExit(f"{page}: <!-- {name} --> has no <!-- /{name} -->")
        text = f"{text[: place.start()]}{place[1]}\n{measured}\n{place[2]}{text[place.end() :]}"
        print(f"{name}: published")
    page.write_text(text, encoding="utf-8")
    (DOCS / "images").mkdir(exist_ok=True)
    for name in re.findall(r"\]\(images/([\w.-]+)\)", text):
        if (report.OUT / name).is_file():
            shutil.copyfile(report.OUT / name, DOCS / "images" / name)


if __name__ == "__main__":
    main()
