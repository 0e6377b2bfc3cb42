"""What the pages of docs/ show runs as it stands there, and what they name exists."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from apexrl.replay import Field, Replay, Writer

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
LINKING = [*PAGES, *sorted(ROOT.glob("*.md"))]
REPLAY_PAGES = [ROOT / "docs" / "coming-from.md", ROOT / "docs" / "semantics.md"]
PEERS = ("cpprb", "torchrl", "reverb", "stable_baselines3", "tianshou", "flashbax")

# Stands in line 1, where every page has its title: what its snippets take as given.
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


def names(paths):
    return [str(path.relative_to(ROOT)) for path in paths]


def python_blocks(page):
    """(line of the first line of code, code) of each python block."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def peer_of(code):
    return next((peer for peer in PEERS if code.startswith(f"# {peer}\n")), None)


def without_code(page):
    """The page's prose: fenced and indented blocks gone."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def anchors(page):
    """GitHub's names of the page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    kept = [
        "".join(c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LN") for heading in headings
    ]
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=lambda p: p.stem)
def test_snippets_run(page, tmp_path):
    """The page's own snippets, in order, as one program whose line numbers are the page's."""
    lines = [GIVEN] + [""] * page.read_text(encoding="utf-8").count("\n")
    own = 0
    for first, code in python_blocks(page):
        compile(code, f"{page.name}:{first}", "exec")  # a peer's snippet is not run: the peer may not be installed
        if peer_of(code) is None:
            lines[first - 1 : first - 1 + code.count("\n")] = code.splitlines()
            own += 1
    assert own > 0
    program = tmp_path / f"{page.stem.replace('-', '_')}.py"
    program.write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr


def test_every_peer_has_its_snippet_and_ours_beside_it():
    peers = [peer_of(code) for _, code in python_blocks(ROOT / "docs" / "coming-from.md")]
    assert peers == [name for peer in PEERS for name in (peer, None)]


@pytest.mark.parametrize("page", LINKING, ids=names(LINKING))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", without_code(page)):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{page.name} links to {target}, which does not exist"
        if anchor:
            assert anchor in anchors(there), f"{page.name} links to {target}#{anchor}, which is no heading there"


# --- the keywords that the pages name are those of the code


def parameters(*callables):
    return {name for function in callables for name in inspect.signature(function).parameters} - {"self"}


OF_REPLAY = parameters(Replay)
OURS = OF_REPLAY | parameters(
    Field, Replay.writer, Replay.sample, Replay.update_priorities, Replay.set_limiter, Replay.serve, Replay.save
) | parameters(Writer.extend, Writer.append, Writer.flush)  # fmt: skip


def spans(page):
    """Inline code, but that of the first column of coming-from's tables, where the peers' calls stand."""
    text = without_code(page)
    if page.name == "coming-from.md":
        text = re.sub(r"^\|[^|]*(?:\\\|[^|]*)*\|", "|", text, flags=re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def keywords(code):
    return re.findall(r"(?<![\w.\"'])([a-z_]\w*)=(?!=)", code)


@pytest.mark.parametrize("page", REPLAY_PAGES, ids=lambda p: p.stem)
def test_keywords_in_prose_exist(page):
    theirs = {
        "check_for_update", "Nstep", "pin_memory", "sync", "shared", "weight_norm", "replay_buffer_class", "device"
    }  # fmt: skip  # peers' words in the last column of a table
    seen = 0
    for span in spans(page):
        known = OF_REPLAY if span.startswith("Replay(") else OURS | theirs
        for keyword in keywords(span):
            assert keyword in known, f"{page.name} names {keyword}= in `{span}`"
            seen += keyword in OURS
    assert seen > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_keywords_in_snippets_exist(page):
    """Also in snippets that a run might not reach."""
    for first, code in python_blocks(page):
        if peer_of(code) is not None:
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Replay", "Field"):
                known = OF_REPLAY if node.func.id == "Replay" else parameters(Field)
                given = {keyword.arg for keyword in node.keywords} - {None}
                assert given <= known, f"{page.name}:{first + node.lineno - 1}: {sorted(given - known)}"


def test_every_argument_of_a_replay_is_explained():
    text = " ".join(spans(ROOT / "docs" / "semantics.md"))
    assert [name for name in sorted(OF_REPLAY) if not re.search(rf"\b{name}\b", text)] == []


def script(page, language):
    return re.search(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)[1]


SLURM = """
scontrol() { echo "$@"; }
apexrl() { trap 'exit 130' TERM; sleep 1; builtin kill -TERM $$; while :; do sleep 0.05; done; }
kill() { builtin kill "$@"; local code=$?; sleep 1; return $code; }  # long enough for what it ends
"""


def test_a_slurm_job_is_requeued_however_fast_the_run_ends():
    """The run may be gone before the script, which the signal has woken up, looks at it."""
    command = ["bash", "-c", "SLURM_JOB_ID=7" + SLURM + script("unattended.md", "bash")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.returncode) == ("requeue 7\n", 130), ended.stderr


def test_what_systemd_shall_repeat_is_no_success():
    unit = script("unattended.md", "ini")
    assert "Restart=on-failure" in unit
    assert "SuccessExitStatus" not in unit
