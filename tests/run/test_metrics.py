from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from apexrl.config import Config, StopConfig
from apexrl.run.metric_samples import status_scalars
from apexrl.run.metrics import RateMeter, RunLog, progress, read_rows
from apexrl.run.status import PolicyLag, RunStatus


def test_rate_over_a_window() -> None:
    meter = RateMeter(window_seconds=5.0)
    assert meter.rate == 0.0
    assert meter.add(0.0, 0) == 0.0
    assert meter.add(1.0, 100) == pytest.approx(100.0)
    for second in range(2, 30):
        rate = meter.add(float(second), 100 + 10 * (second - 1))
    assert rate == pytest.approx(10.0)  # the fast beginning has left the window


def test_rate_of_a_counter_that_begins_anew() -> None:
    meter = RateMeter()
    meter.add(0.0, 1000)
    meter.add(1.0, 5)
    assert meter.add(2.0, 15) == pytest.approx(10.0)
    assert meter.add(2.0, 15) >= 0.0


def test_progress_follows_the_nearest_rule() -> None:
    def reached(stop, *numbers):
        names = ("env_steps", "env_steps_per_second", "elapsed_seconds")
        return progress(stop, RunStatus(**dict(zip(names, numbers, strict=True))))

    assert reached(StopConfig(), 10, 5.0, 3.0) == (None, None)
    assert reached(StopConfig(stop_at_return=1.0), 10, 5.0, 3.0) == (None, None)
    assert reached(StopConfig(env_steps=100), 25, 5.0, 3.0) == (0.25, 15.0)
    assert reached(StopConfig(env_steps=100), 25, 0.0, 3.0) == (0.25, None)
    assert reached(StopConfig(env_steps=100), 200, 5.0, 3.0) == (1.0, 0.0)
    assert reached(StopConfig(minutes=1.0, env_steps=1000), 25, 5.0, 30.0) == (0.5, 30.0)


def test_rows_and_events(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.started(Config(), tmp_path)
    status = RunStatus(
        phase="training", elapsed_seconds=2.0, env_steps=300, updates=7, train_return=1.5, metrics={"loss": 0.25}
    )
    log.update(status)
    log.update(status)  # too soon for another line
    log.event("evaluation", {"mean": 9.5, "std": 1.0, "episodes": 20, "env_steps": 290, "updates": 6, "final": False})
    log.event("episodes", {"returns": [1.0]})
    log.message("actor-1 was restarted", "warning")
    log.event("evaluation", {"mean": 9.0, "std": float("nan"), "episodes": 20, "final": True})
    log.event("evaluation", {"mean": 8.0, "std": 1.0, "episodes": 20, "final": False, "seconds_ago": 0.5})
    log.finished({})
    log.close()

    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["kind"] for row in rows] == ["status", "evaluation", "message", "evaluation", "evaluation", "status"]
    assert [row["wall_seconds"] for row in rows] == [2.0, 2.0, 2.0, 2.0, 1.5, 2.0]
    assert all({"wall_seconds", "env_steps", "updates"} <= set(row) for row in rows)
    assert (rows[0]["train_return"], rows[0]["agent/loss"], rows[0]["policy_lag_mean"]) == (1.5, 0.25, None)
    assert (rows[1]["env_steps"], rows[1]["mean"]) == (290, 9.5)  # the steps of the measured weights
    assert (rows[2]["level"], rows[2]["text"]) == ("warning", "actor-1 was restarted")
    assert rows[3]["std"] is None

    (events,) = tmp_path.glob("events.out.tfevents.*")
    scalars = read_scalars(events)
    assert scalars["return/train"] == (300, 1.5)
    assert scalars["agent/loss"] == (300, 0.25)
    assert scalars["return/eval"] == (300, 8.0)
    assert "policy_lag/mean" not in scalars
    assert "policy_lag_histogram" not in rows[0]


def test_the_histogram_of_the_policy_lag_is_logged(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.started(Config(), tmp_path)
    log.update(RunStatus(env_steps=300, lag_histogram={0: 5, 2: 3, 48: 1}))
    log.close()
    (row,) = read_rows(tmp_path / "metrics.jsonl")
    assert row["policy_lag_histogram"] == {"0": 5, "2": 3, "48": 1}
    (events,) = tmp_path.glob("events.out.tfevents.*")
    (histogram,) = [value.histo for _, value in read_values(events) if value.tag == "policy_lag/steps"]
    assert (histogram.num, histogram.sum, list(histogram.bucket)) == (9.0, 54.0, [5.0, 3.0, 1.0])
    assert list(histogram.bucket_limit) == [2.0, 48.0, 49.0]


def read_values(path: Path) -> list[tuple[int, Any]]:
    """TensorBoard's record format: length u64, crc u32, data, crc u32."""
    from tensorboard.compat.proto.event_pb2 import Event

    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        at += 12 + length + 4
        found += [(event.step, value) for value in event.summary.value]
    return found


def read_scalars(path: Path) -> dict[str, tuple[int, float]]:
    return {value.tag: (step, value.simple_value) for step, value in read_values(path)}


def test_a_resumed_run_continues_the_file(tmp_path: Path) -> None:
    for steps in (10, 20):
        log = RunLog(tmp_path)
        log.update(RunStatus(env_steps=steps))
        log.close()
    assert [row["env_steps"] for row in read_rows(tmp_path / "metrics.jsonl")] == [10, 20]


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "status"}\n3\n{"kind": "sta')
    assert read_rows(path) == [{"kind": "status"}]


def test_scalars_are_json() -> None:
    status = RunStatus(
        policy_lag=PolicyLag(1.0, 2.0, math.inf),
        train_return=math.nan,
        restarts={"actor": 2, "learner": 1},
        dropped={"messages": 4},
        metrics={"q": math.inf},
        inference={"batch": 7.5, "wait_ms": 0.25},
    )
    values = status_scalars(status)
    json.dumps(values, allow_nan=False)
    assert (values["inference/batch"], values["inference/wait_ms"]) == (7.5, 0.25)
    assert (values["restarts"], values["dropped"]) == (3, 4)
    assert (values["policy_lag_p95"], values["policy_lag_max"], values["train_return"], values["agent/q"]) == (
        2.0,
        None,
        None,
        None,
    )
