"""Run folders are read as they grow; whatever lies in them, there is an answer."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pytest
from run_folders import age, append, evaluation_row, make_run, rows, status_row, write_workers

from apexrl.dashboard.answers import Answers, UnknownRunError
from apexrl.dashboard.metrics_reader import MOST_ROWS, MetricsReader, newest_status
from apexrl.dashboard.run_index import RunIndex
from apexrl.errors import ConfigError
from apexrl.report.mean_lines import mean_band, mean_interval, mean_line

QUESTIONS = ("runs", "curves", "workers", "diagnosis", "settings", "films", "replay", "watched", "compare")


def plain(answer):
    return json.loads(json.dumps(answer, allow_nan=False))


def test_a_reader_takes_what_was_added_and_leaves_an_unfinished_line(tmp_path):
    run = make_run(tmp_path, "a", [status_row(0)])
    reader = MetricsReader(run / "metrics.jsonl")
    reader.refresh()
    whole = json.dumps(status_row(1)).encode()
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(whole[:30])
    reader.refresh()
    assert [row["updates"] for row in reader.status.rows] == [0]
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(whole[30:] + b"\n")
    reader.refresh()
    assert [row["updates"] for row in reader.status.rows] == [0, 1]
    assert reader.last["updates"] == 1


def test_rows_that_come_during_an_answer_are_in_the_next_one_alone(tmp_path, monkeypatch):
    folder = make_run(tmp_path, "a", [status_row(0), status_row(1)])
    answers = Answers(RunIndex(tmp_path))
    run = answers.run("a")
    overview = run.overview

    def later():
        append(folder, [status_row(2)])
        run.metrics.refresh()  # as another request does
        return overview()

    with monkeypatch.context() as patch:
        patch.setattr(run, "overview", later)
        first = answers.answer("curves", {"run": "a"})
    then = answers.answer("curves", {"run": "a", "cursor": first["cursor"]})
    assert not then["whole"]
    assert first["status"]["updates"] + then["status"]["updates"] == [0, 1, 2]


def test_a_folder_whose_name_is_no_text_is_passed_over(tmp_path):
    make_run(tmp_path, "a", rows(3))
    make_run(tmp_path, os.fsdecode(b"b\xff"), rows(3))
    assert list(RunIndex(tmp_path).runs()) == ["a"]


def test_many_rows_are_thinned_evenly_whether_read_at_once_or_as_they_come(tmp_path):
    count = 5 * MOST_ROWS
    run = make_run(tmp_path, "a")
    growing = MetricsReader(run / "metrics.jsonl")
    for start in range(0, count, 100):
        append(run, [status_row(step) for step in range(start, start + 100)])
        growing.refresh()
    late = MetricsReader(run / "metrics.jsonl")
    late.refresh()
    for reader in (growing, late):
        seen = [row["updates"] for row in reader.status.rows]
        assert MOST_ROWS // 4 <= len(seen) < 2 * MOST_ROWS
        assert set(np.diff(seen)) == {reader.status.stride}
        assert seen[0] == 0
        assert reader.last["updates"] == count - 1


def test_a_file_that_was_cut_or_replaced_is_read_anew(tmp_path):
    run = make_run(tmp_path, "a", rows(20))
    reader = MetricsReader(run / "metrics.jsonl")
    reader.refresh()
    epoch = reader.epoch
    (run / "metrics.jsonl").write_text(json.dumps(status_row(7)) + "\n", "utf-8")
    reader.refresh()
    assert [row["updates"] for row in reader.status.rows] == [7]
    assert reader.epoch > epoch
    (run / "metrics.jsonl").unlink()
    reader.refresh()
    assert reader.status.rows == []


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xfe\x00garbage\n",
        b"{" * 5000 + b"\n",
        b"[1, 2]\nnull\n3\n",
        b'{"kind": "status", "wall_seconds": "x", "env_steps": [1], "policy_lag_histogram": {"a": "b"}}\n',
        b'{"kind": "evaluation", "returns": 5, "mean": NaN}\n',
        b'{"kind": "status", "env_steps": 1e999}\n',
        b'{"kind": "message", "text": {"a": 1}, "level": null}\n',
        b"x" * 3_000_000,
        b"\n" * 1000,
        b'{"kind": "evaluation", "final": true, "weights": ["a"]}\n',
    ],
    ids=range(10),
)
def test_every_question_is_answered_of_damaged_files(tmp_path, junk):
    run = make_run(tmp_path, "a", rows(10))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(junk)
    append(run, [status_row(11)])
    (run / "summary.json").write_bytes(junk)
    (run / "workers.json").write_bytes(junk)
    (run / "hosts.json").write_bytes(junk)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "replay").write_bytes(junk)
    answers = Answers(RunIndex(tmp_path))
    for question in QUESTIONS:
        plain(answers.answer(question, {"run": "a"}))
    (run / "config.toml").write_bytes(junk)
    for question in QUESTIONS:
        plain(answers.answer(question, {"run": "a"}))


def test_pipes_links_and_empty_folders_break_nothing(tmp_path):
    secret = make_run(tmp_path / "elsewhere", "hidden", rows(3))
    root = tmp_path / "runs"
    root.mkdir()
    os.symlink(secret, root / "link")
    (root / "empty").mkdir()
    piped = make_run(root, "piped")
    os.mkfifo(piped / "summary.json")
    (piped / "metrics.jsonl").unlink()
    os.mkfifo(piped / "metrics.jsonl")
    answers = Answers(RunIndex(root))
    assert [run["name"] for run in plain(answers.answer("runs", {}))] == ["piped"]
    assert plain(answers.answer("curves", {"run": "piped"}))["status"] == {}


def test_names_lead_to_no_other_folder(tmp_path):
    make_run(tmp_path, "secret", rows(3))
    make_run(tmp_path / "runs", "a", rows(3))
    answers = Answers(RunIndex(tmp_path / "runs"))
    for name in ("../secret", "/etc", str(tmp_path / "secret"), "a/../../secret", "", ".", "a/"):
        with pytest.raises(UnknownRunError):
            answers.answer("curves", {"run": name})


def test_a_film_is_one_of_the_run_s_own(tmp_path):
    from apexrl.dashboard.run_views import film, films

    run = make_run(tmp_path / "runs", "a", rows(3))
    (run / "films").mkdir()
    (run / "films" / "best.mp4").write_bytes(b"film")
    (tmp_path / "other.mp4").write_bytes(b"secret")
    os.symlink(tmp_path / "other.mp4", run / "films" / "link.mp4")
    (run / "films" / "films.json").write_text('{"films": {"best": {"return": 9.5, "steps": 40}, "worst": 3}}', "utf-8")
    found = RunIndex(tmp_path / "runs").run("a")
    assert (films(found)[0]["return"], films(found)[0]["steps"]) == (9.5, 40)
    assert [one["file"] for one in films(found)] == ["films/best.mp4"]
    assert film(found, "films/best.mp4") == found.path / "films" / "best.mp4"
    for name in ("films/link.mp4", "../../other.mp4", str(tmp_path / "other.mp4"), "config.toml", "", "films/../films"):
        assert film(found, name) is None


def test_runs_of_comparisons_are_found_and_states_are_told(tmp_path):
    make_run(tmp_path, "going", rows(3))
    make_run(tmp_path, "done", rows(3), ended="env_steps")
    make_run(tmp_path, "failed", rows(3), ended="error")
    age(make_run(tmp_path, "silent", rows(3)), 3600)
    age(make_run(tmp_path, "resumed", rows(3), ended="interrupted"), 600)
    append(tmp_path / "resumed", [status_row(9)])
    make_run(tmp_path, "new")
    (tmp_path / "new" / "metrics.jsonl").unlink()
    make_run(tmp_path / "compare" / "runs", "apex-1", rows(3), ended="minutes")
    found = {run.name: run.state for run in RunIndex(tmp_path).runs().values()}
    assert found == {
        "going": "running", "done": "done", "failed": "failed", "silent": "silent", "resumed": "running",
        "new": "empty", "compare/runs/apex-1": "done",
    }  # fmt: skip


def test_runs_over_redis_and_on_ray_are_told_by_their_files(tmp_path):
    for name, file in (("here", ""), ("far", "hosts.json"), ("cluster", "ray.json")):
        run = make_run(tmp_path, name, [status_row(3, **{"hosts/committed": 5.0})])
        if file:
            (run / file).write_text("{}", "utf-8")
    answers = Answers(RunIndex(tmp_path))
    placed = {run["name"]: run["placement"] for run in plain(answers.answer("runs", {}))}
    assert placed == {"here": "", "far": "Redis", "cluster": "Ray"}
    assert plain(answers.answer("curves", {"run": "far"}))["metrics"]["hosts/committed"]["unit"] == "items"


def test_one_run_folder_is_shown_alone_and_a_missing_one_is_refused(tmp_path):
    run = make_run(tmp_path, "a", rows(3))
    make_run(tmp_path, "b", rows(3))
    assert list(RunIndex(run).runs()) == ["a"]
    with pytest.raises(ConfigError, match="no folder"):
        RunIndex(tmp_path / "missing")


def test_curves_send_again_only_what_is_new(tmp_path):
    run = make_run(tmp_path, "a", rows(10))
    answers = Answers(RunIndex(tmp_path))
    first = plain(answers.answer("curves", {"run": "a"}))
    assert first["whole"]
    assert len(first["status"]["agent/loss"]) == 10
    assert first["metrics"]["agent/loss"]["meaning"]
    append(run, [status_row(10), evaluation_row(10, 5.0)])
    then = plain(answers.answer("curves", {"run": "a", "cursor": first["cursor"]}))
    assert not then["whole"]
    assert then["status"]["updates"] == [10]
    assert then["evaluations"]["mean"] == [5.0]
    (run / "metrics.jsonl").write_text(json.dumps(status_row(3)) + "\n", "utf-8")
    anew = plain(answers.answer("curves", {"run": "a", "cursor": then["cursor"]}))
    assert anew["whole"]
    assert anew["status"]["updates"] == [3]


def test_a_run_that_is_removed_while_it_is_read_is_gone(tmp_path, monkeypatch):
    import shutil

    monkeypatch.setattr("apexrl.dashboard.run_index.LOOK_SECONDS", 0.0)
    run = make_run(tmp_path, "a", rows(10))
    answers = Answers(RunIndex(tmp_path))
    ended = threading.Event()
    failures = []

    def read():
        while not ended.is_set():
            try:
                plain(answers.answer("curves", {"run": "a"}))
                plain(answers.answer("runs", {}))
            except UnknownRunError:
                return
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    shutil.rmtree(run)
    for thread in threads:
        thread.join(20)
    ended.set()
    assert failures == []
    assert answers.answer("runs", {}) == []


def test_workers_in_trouble_are_told(tmp_path):
    run = make_run(tmp_path, "a", rows(3))
    write_workers(run, 10)
    answer = plain(Answers(RunIndex(tmp_path)).answer("workers", {"run": "a"}))
    assert {row[0]: row[3] for row in answer["workers"] if row[3]} == {"actor-1": "dead", "actor-2": "slow"}
    assert answer["roles"][0]["workers"] == 10


def test_runs_are_grouped_by_what_they_are_with_an_interval(tmp_path):
    for seed in range(6):
        make_run(tmp_path, f"dqn-{seed}", rows(30, 1.0 + 0.1 * seed), agent="dqn", seed=seed)
        make_run(tmp_path, f"c51-{seed}", rows(30, 3.0), agent="c51", seed=seed)
    answer = plain(Answers(RunIndex(tmp_path)).answer("compare", {"metric": "evaluation"}))
    assert answer["by"] == ["agent"]
    groups = {group["label"]: group for group in answer["groups"]}
    assert set(groups) == {"dqn", "c51"}
    mean = groups["dqn"]["mean"]
    assert mean["low"][-1] < mean["mean"][-1] < mean["high"][-1]
    assert groups["dqn"]["last"]["mean"] == pytest.approx(25 * 1.25)
    assert groups["c51"]["last"]["interval"] == [75.0, 75.0]
    assert "seed" in answer["differs"]
    by_seed = plain(Answers(RunIndex(tmp_path)).answer("compare", {"by": "seed"}))
    assert {group["label"] for group in by_seed["groups"]} == {f"seed {seed}" for seed in range(6)}


def test_the_interval_of_a_mean_holds_it_as_often_as_it_says():
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        low, high = mean_interval(rng.normal(size=20).tolist(), resamples=400, seed=trial)
        held += low <= 0.0 <= high
    assert 170 <= held <= 199


def test_bands_are_drawn_where_all_lines_go():
    x = np.arange(5.0)
    band = mean_band([(x, x), (x + 2, x + 4)])
    assert (band.x[0], band.x[-1]) == (2.0, 4.0)
    assert band.mean == pytest.approx(mean_line([(x, x), (x + 2, x + 4)])[1][0] + (band.x - 2))
    assert mean_band([(x, x)]) is None
    assert mean_band([(x, x), (x + 9, x)]) is None


def test_the_newest_status_is_found_behind_other_lines(tmp_path):
    run = make_run(tmp_path, "a", [status_row(4), evaluation_row(4, 1.0), evaluation_row(4, 2.0)])
    assert newest_status(run / "metrics.jsonl")["updates"] == 4
    assert newest_status(run / "missing") == {}
