"""Log lines as JSON, and what a run and its parts are called in them."""

from __future__ import annotations

import io
import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apexrl.run.identity import host_part, run_of
from apexrl.run.log_lines import MOST_CHARACTERS, JsonStream

LABELS = {"run": "cp", "host": "here", "role": "actor", "index": 3, "generation": 1}


def lines(file: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_whole_lines_become_objects_with_time_and_labels() -> None:
    stream = JsonStream(file := io.StringIO(), "info", LABELS)
    print("one", "two", file=stream)
    print("half, ", end="", file=stream)
    assert len(lines(file)) == 1
    print('whole: \u2713 "quoted" \x1b[31m', file=stream)
    first, second = lines(file)
    assert list(first) == ["time", "level", *LABELS, "text"]
    assert first.items() >= {**LABELS, "level": "info", "text": "one two"}.items()
    assert abs((datetime.fromisoformat(first["time"]) - datetime.now(UTC)).total_seconds()) < 60
    assert second["text"] == 'half, whole: \u2713 "quoted" \x1b[31m'


def test_a_traceback_is_one_line_and_an_error() -> None:
    stream = JsonStream(file := io.StringIO(), "warning", LABELS)
    print("Traceback (most recent call last):\n  File ...\nEnvError: broken\n", file=stream)
    print("", file=stream)
    print("file.py:3: UserWarning: slow", file=stream)
    error, warned = lines(file)
    assert (error["level"], error["text"].count("\n")) == ("error", 2)
    assert (warned["level"], warned["text"]) == ("warning", "file.py:3: UserWarning: slow")


def test_what_has_no_end_of_line_is_written_when_flushed_or_when_it_grows_long() -> None:
    stream = JsonStream(file := io.StringIO(), "info", LABELS)
    stream.write("last words")
    stream.flush()
    stream.write("x" * (MOST_CHARACTERS + 1))
    stream.flush()
    assert [len(one["text"]) for one in lines(file)] == [10, MOST_CHARACTERS + 1]


def test_threads_do_not_mix_their_lines() -> None:
    stream = JsonStream(file := io.StringIO(), "info", LABELS)
    threads = [threading.Thread(target=lambda n=n: [stream.write(f"{n}\n") for _ in range(500)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one["text"] for one in lines(file)) == [str(n) for n in range(4) for _ in range(500)]


@pytest.mark.parametrize(
    ("name", "folder", "run"),
    [
        ("cp@here", "cp@here", "cp"),
        ("cp@here", "cp@here-2", "cp"),
        ("a@b@here", "a@b@here", "a@b"),
        ("", "cartpole-20260101-120000", "cartpole-20260101-120000"),
        ("cp", "cp-2", "cp-2"),
        ("cp@there", "cp@there", "cp@there"),
        ("@here", "@here", "@here"),
    ],
)
def test_every_part_of_a_run_knows_what_the_run_is_called(name: str, folder: str, run: str) -> None:
    assert run_of(name, Path("runs") / folder, "here") == run
    assert run_of(host_part(run, "a host"), Path("elsewhere"), "a host") == run
