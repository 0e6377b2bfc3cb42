"""The pages in a real browser: what its scripts make of runs, without an error."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest
from run_folders import append, evaluation_row, make_run, rows, status_row, write_workers

from apexrl.dashboard import server
from apexrl.dashboard.answers import Answers
from apexrl.dashboard.one_file import write_report
from apexrl.dashboard.run_index import RunIndex

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="needs a Chromium (Debian: apt-get install chromium)"),
]


def page_of(url, tmp_path, *flags, seconds=8):
    """The page as the browser has it after some seconds of its own time."""
    words = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        "--enable-logging=stderr", f"--virtual-time-budget={1000 * seconds}", *flags, "--dump-dom", url,
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    wrong = [line for line in done.stderr.splitlines() if re.search(r"CONSOLE.*(Uncaught|Refused|Error)", line)]
    assert wrong == []
    return done.stdout


@contextmanager
def served(folder):
    """The address of a dashboard in a thread, which ends with the tests."""
    import uvicorn

    with server.listen("0") as listening:
        config = uvicorn.Config(server.app(Answers(RunIndex(folder))), log_level="error", lifespan="off", ws="none")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: running.run(sockets=[listening]), daemon=True)
        thread.start()
        try:
            yield server.url_of(listening)
        finally:
            running.should_exit = True
            thread.join(20)


def test_two_hundred_runs_are_rows_of_a_table(tmp_path):
    for number in range(200):
        make_run(tmp_path / "runs", f"run-{number:03d}", rows(5), ended="env_steps", seed=number)
    with served(tmp_path / "runs") as url:
        text = page_of(url, tmp_path)
    assert len(set(re.findall(r"#/run/run-\d{3}", text))) == 200
    assert "200 of 200 runs, 0 running" in text


def test_a_live_run_of_a_thousand_workers_has_its_curves_and_squares_and_grows(tmp_path):
    run = make_run(tmp_path / "runs", "a & <b>", rows(60), agent="dqn")
    write_workers(run, 1000)
    ended = threading.Event()

    def grow():
        step = 60
        while not ended.wait(0.2):
            append(run, [status_row(step), evaluation_row(step, 2.0 * step)])
            step += 1

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        with served(tmp_path / "runs") as url:
            text = page_of(url + "#/run/a%20%26%20%3Cb%3E", tmp_path, "--window-size=500,900", seconds=20)
    finally:
        ended.set()
        growing.join(20)
    assert "a &amp; &lt;b&gt; " in text
    assert text.count("<canvas") >= 6
    assert len(re.findall(r'<i class="worker', text)) >= 1000
    assert "actor-1" in text
    assert "✕ dead" in text
    assert "▼ slow" in text
    assert "running" in text
    assert "Diagnosis" in text
    assert "Nothing looks wrong" in text or "apexrl doctor" in text or "Change:" in text
    steps = re.search(r"environment steps</dt><dd>([\d.k]+)", text)[1]
    assert steps != "5900"  # where it began


def test_groups_are_compared_with_their_intervals(tmp_path):
    for seed in range(4):
        make_run(tmp_path / "runs", f"dqn-{seed}", rows(30, 1 + seed), ended="env_steps", agent="dqn", seed=seed)
        make_run(tmp_path / "runs", f"c51-{seed}", rows(30, 9 - seed), ended="env_steps", agent="c51", seed=seed)
    with served(tmp_path / "runs") as url:
        text = page_of(url + "#/compare", tmp_path)
    assert "8 runs in 2 groups" in text
    assert re.search(r"dqn \(4\)", text)
    assert re.search(r"<td>4 of 4</td><td>[\d.]+ \([\d.]+ … [\d.]+\)</td>", text)
    assert text.count("<canvas") == 1


def test_a_report_needs_no_server(tmp_path):
    make_run(tmp_path / "runs", "a", rows(30), ended="env_steps", agent="dqn")
    make_run(tmp_path / "runs", "b", rows(30), ended="env_steps", agent="c51")
    file = write_report([tmp_path / "runs"], tmp_path / "report.html")
    assert "2 of 2 runs" in page_of(f"file://{file}", tmp_path)
    assert page_of(f"file://{file}#/run/b", tmp_path).count("<canvas") >= 5
    assert "2 runs in 2 groups" in page_of(f"file://{file}#/compare", tmp_path)


def test_missing_runs_and_an_empty_folder_are_told(tmp_path):
    (tmp_path / "runs").mkdir()
    with served(tmp_path / "runs") as url:
        assert "There are no runs here yet" in page_of(url, tmp_path)
        assert "There is no run gone here" in page_of(url + "#/run/gone", tmp_path)


def test_a_screenshot_is_dark_where_the_system_is(tmp_path):
    from PIL import Image

    make_run(tmp_path / "runs", "a", rows(30), ended="env_steps")
    with served(tmp_path / "runs") as url:
        for scheme, light in ((0, False), (1, True)):
            shot = tmp_path / f"{scheme}.png"
            page_of(url, tmp_path, f"--screenshot={shot}", f"--blink-settings=preferredColorScheme={scheme}")
            deadline = time.monotonic() + 10
            while not shot.exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            with Image.open(shot) as picture:
                assert (sum(picture.convert("RGB").getpixel((2, 2))) > 600) is light
