"""Standby learners: one takes over from a learner's host that died, and nothing is committed twice."""

from __future__ import annotations

import time
from pathlib import Path

import experience_audit as audit
import pytest
from host_rig import RUN, Command, Places, descendants, wait_for

from apexrl.run.folder import RunFolder

SMALL = ["--env", audit.ENV, "--hidden", "16", "--min-size", "200", "--capacity", "500000", "--batch-size", "16",
         "--eval-episodes", "2", "--eval-envs", "2", "--envs-per-actor", "4", "--checkpoint-seconds", "0.5",
         "--stop-at-return", "None", "--save-replay"]  # fmt: skip


def standby(places: Places, *flags: str) -> Command:
    out = str(places.folder / "runs")
    return places.apexrl("learner", "--standby", "--run", RUN, "--out", out, *flags)


def committed_items(places: Places, of: int) -> int:
    """By the learner with this process id; 0: another one has the lease."""
    view = places.look()
    return view.digest.committed_items if view.learner_alive and view.learner_pid == str(of) else 0


@pytest.mark.long
def test_of_two_standbys_one_takes_over_and_no_step_is_committed_twice(tmp_path: Path) -> None:
    """The whole host of the learner dies at once."""
    steps = tmp_path / "steps"
    steps.mkdir()
    with Places("loopback", 1, tmp_path) as places:
        trusted = ("--trust", audit.__name__)
        standbys = [standby(places, *trusted) for _ in range(2)]
        learner = places.learner("cartpole", *SMALL)
        actor = places.actor(0, "--actors", "1", *trusted, **{audit.FOLDER: str(steps), audit.WHO: "actor"})
        for one in standbys:
            one.says("standing by")
        wait_for("experience is committed", lambda: committed_items(places, learner.pid) > 1000)
        wait_for("a checkpoint", lambda: list((places.run_folder / "checkpoints").glob("generation-*.safetensors")))
        dead = places.look().digest.committed_items
        learner.kill()

        def successor() -> Command | None:
            return next((one for one in standbys if committed_items(places, one.pid) > 1000), None)

        heir = wait_for("one standby goes on", successor)
        (other,) = [one for one in standbys if one is not heir]
        other.says(f"is process {heir.pid}")
        assert places.apexrl("stop", "--run", RUN).finish() == 0
        assert [one.finish() for one in (heir, other, actor)] == [0, 0, 0]
        summary = places.summary()
        books = audit.close_books(steps, audit.all_items(places.run_folder / "checkpoints" / "replay"))
    assert "goes on with it" not in other.said
    assert "restored generation-" in heir.said
    assert summary["stopped_by"] == "stopped"
    assert (books.strangers, books.twice) == (0, 0)
    assert all(stream.holes == stream.lead for stream in books.streams), "steps are missing amid those committed"
    assert books.total().lead >= dead > 1000, "what the dead learner had committed came again"
    assert summary["hosts"]["missing"] == summary["hosts"]["repeated"] == 0


@pytest.mark.long
def test_a_standby_without_a_shared_folder_goes_on_from_copies_in_an_object_store(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with Places("loopback", 1, tmp_path) as places:
        learner = places.learner("cartpole", "--checkpoint-seconds", "1", "--checkpoint-url", url)
        actor = places.actor(0, "--actors", "1")
        own = str(tmp_path / "elsewhere")
        heir = places.apexrl("learner", "--standby", "--run", RUN, "--out", own, "--checkpoint-url", url)
        heir.says("standing by")
        wait_for("learning", lambda: places.look().digest.updates > 1000)
        learner.kill()
        assert [one.finish() for one in (heir, actor)] == [0, 0]
        summary = RunFolder.open(Path(own) / RUN).summary()
    assert "restored generation-" in heir.said
    assert summary["stopped_by"] == "stop_at_return"
    assert summary["final_eval_return"] >= 475
    assert summary["generation"] > 1
    assert RunFolder.open(places.run_folder).summary() == {}  # the dead one's


@pytest.mark.long
def test_a_standby_learns_on_until_the_task_is_solved_and_one_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with Places("loopback", 1, tmp_path) as places:
        learner = places.learner("cartpole", "--checkpoint-seconds", "2")
        actor = places.actor(0, "--actors", "1")
        killed, heir = standby(places), standby(places)
        for one in (killed, heir):
            one.says("standing by")
        family = descendants(killed.pid)
        assert family, "it has looked at the environment, and its fork server is ready"
        killed.kill()
        wait_for("its processes end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in family), 20.0)
        wait_for("learning", lambda: places.look().digest.updates > 1000)
        learner.kill()
        assert [one.finish() for one in (heir, actor)] == [0, 0]
        summary = places.summary()
    assert summary["stopped_by"] == "stop_at_return"
    assert summary["final_eval_return"] >= 475


@pytest.mark.long
def test_a_standby_of_a_run_that_has_ended_says_so(tmp_path: Path) -> None:
    """It never was the learner, so it exits with 0 whatever ended the run."""
    with Places("loopback", 0, tmp_path) as places:
        learner = places.learner("cartpole", "--env-steps", "1")
        waits = standby(places)
        learner.says("actors may join")
        learner.interrupt()
        assert learner.finish() == 130
        assert waits.finish() == 0
        assert "was ended or stopped from elsewhere" in waits.said
        wrong = standby(places, "--name", RUN, "--run", "other")
        assert wrong.finish() == 2
        assert f"is the folder of run {RUN}, not of run other" in " ".join(wrong.said.split())


def test_a_standby_waits_for_a_run_and_ends_with_its_user(tmp_path: Path) -> None:
    with Places("loopback", 0, tmp_path) as places:
        waits = standby(places)
        waits.says("waiting for a run in")
        time.sleep(0.2)
        waits.interrupt()
        assert waits.finish() == 130
