"""The Python code of docs/ runs as it stands there."""

from __future__ import annotations

import subprocess
import sys

import pytest
from doc_pages import DOCS, PAGES, PEERS, blocks, name, peer_of

# What snippets take as given. It stands in line 1, where every page has its title.
GIVEN = "; ".join(
    [
        "import numpy as np",
        "obs = next_obs = np.zeros((50, 4), np.float32)",
        "act, rew, done = np.zeros(50, np.int64), np.ones(50, np.float32), np.zeros(50, bool)",
        "td = np.arange(1.0, 51.0)",
        "new_td = lambda batch: np.ones(len(batch))",
        "value = lambda observation: observation.sum(-1)",
        "ends = lambda n: {'reward': np.ones(n), 'terminated': np.zeros(n, bool), 'truncated': np.zeros(n, bool)}",
        "steps = [{'observation': obs[:1], 'action': act[:1], **ends(1)} for _ in range(60)]",
        "frames = np.zeros((8, 84, 84), np.uint8)",
        "frame_steps = [{'observation': frames, 'action': act[:8], **ends(8)} for _ in range(10)]",
    ]
)
RUN_ELSEWHERE = {"tutorial"}  # test_tutorial.py follows these pages, shell commands and all
WITH_SNIPPETS = [page for page in PAGES if blocks(page, "python") and page.parent.name not in RUN_ELSEWHERE]


@pytest.mark.parametrize("page", WITH_SNIPPETS, ids=name)
def test_snippets_run(page, tmp_path):
    """The page's own snippets, in order, as one program whose line numbers are the page's."""
    lines = [GIVEN] + [""] * page.read_text(encoding="utf-8").count("\n")
    own = 0
    for first, code in blocks(page, "python"):
        compile(code, f"{page.name}:{first}", "exec")  # a peer's snippet is not run: the peer may not be installed
        if peer_of(code) is None:
            lines[first - 1 : first - 1 + code.count("\n")] = code.splitlines()
            own += 1
    assert own > 0
    program = tmp_path / f"{page.stem.replace('-', '_')}.py"
    program.write_text("\n".join(lines), encoding="utf-8")
    # There, as some leave a run folder.
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("peer", PEERS)
def test_every_peer_has_its_snippet_and_ours_beside_it(peer):
    page = DOCS / "how-to" / "migrate" / f"{peer.replace('_', '-')}.md"
    assert [peer_of(code) for _, code in blocks(page, "python")] == [peer, None]
