"""Learners on two hosts of a run through Redis: together they learn, whichever of them dies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from host_rig import Command, Places, wait_for

COMMON: dict[str, Any] = {
    "hidden": 16,
    "envs-per-actor": 4,
    "actor-slots": 4,
    "eval-episodes": 2,
    "eval-envs": 2,
    "stop-at-return": None,
    "averaging-timeout": 5,
    "checkpoint-seconds": 1,
}
APEX = {"batch-size": 16, "min-size": 200, "capacity": 4000, "updates-per-step": 0.1}
GORILA = APEX | {"topology": "gorila", "learners": 2, "replay": "global"}
IMPALA = {"topology": "impala", "unroll-length": 5, "batch-size": 8}


def flags(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in (COMMON | settings).items() for word in (f"--{name}", str(value))]


class Two:
    """A first host with a learner and an actor, and one that joined it with a learner."""

    def __init__(self, places: Places, settings: dict[str, Any]) -> None:
        self.places = places
        self.first = places.learner("cartpole", *flags(settings))
        self.other = self.join()
        self.actor = places.actor(1, "--actors", "1")

    def join(self) -> Command:
        return self.places.actor(0, "--learners", "1", "--actors", "1")

    def both_learn(self) -> None:
        """Updates go on, and both have them."""

        def state() -> tuple[int, int, int]:
            view = self.places.look()
            versions = [one.digest.weights_version for one in view.alive]
            return view.digest.updates, max(versions, default=0), min(versions, default=0)

        updates, _, _ = state()
        wait_for("both learn", lambda: state()[0] > updates + 50 and state()[2] > updates + 20)


@pytest.mark.long
@pytest.mark.parametrize("settings", [APEX, IMPALA], ids=["apex", "impala"])
def test_two_hosts_make_every_update_together_whichever_learner_is_killed(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    with Places("loopback", 2, tmp_path) as places:
        two = Two(places, settings)
        two.other.says("joined run test")
        two.both_learn()
        two.other.kill_role("learner")
        two.both_learn()
        two.first.kill_role("learner")
        two.both_learn()
        stopped = places.apexrl("stop", "--run", "test")
        assert [one.finish() for one in (stopped, two.first, two.other, two.actor)] == [0] * 4, two.first.said
        summary = places.summary()
        hosts = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("test@*/summary.json")]
    (beside,) = [one for one in hosts if "learner" in one["restarts"]]
    (actors,) = [one for one in hosts if "uplink" in one["restarts"]]
    assert summary["restarts"]["learner"] == beside["restarts"]["learner"] == 1
    assert beside["policy_lag"]["steps"] > 0  # it learned from its own
    assert beside["env_steps"] < summary["env_steps"] <= beside["env_steps"] + actors["env_steps"]


@pytest.mark.long
def test_a_learner_on_another_host_sends_gradients_to_the_parameter_servers_whatever_is_killed(tmp_path: Path) -> None:
    """No other host brings actors, so that all updates are of its gradients."""
    with Places("loopback", 2, tmp_path) as places:
        learner = places.learner("cartpole", *flags(GORILA))
        host = places.actor(0, "--learners", "1", "--actors", "1")
        host.says("joined run test")
        learner.says("which is this machine alone")

        def learned(updates: int) -> None:
            goal = places.look().digest.updates + updates
            wait_for(f"{updates} more updates", lambda: places.look().digest.updates >= goal)

        learned(20)
        for command, role in (
            (host, "gradient_learner"),
            (host, "relay"),
            (learner, "gateway"),
            (learner, "parameter_server"),
        ):
            command.kill_role(role)
            learned(50)
        learner.kill()
        learner = places.apexrl("resume", str(places.run_folder), "--run", "test")
        host.says("joining run test again")
        learned(50)
        actor = places.actor(1, "--actors", "1")
        wait_for("experience of another host", lambda: places.look().digest.committed_items > 100)
        learned(50)
        stopped = places.apexrl("stop", "--run", "test")
        assert [one.finish() for one in (stopped, learner, host, actor)] == [0] * 4, learner.said
        summary = places.summary()
        hosts = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("test@*/summary.json")]
    assert summary["env_steps"] > summary["hosts"]["env_steps"] > 0  # the others are the actor's, which were committed
    assert summary["hosts"]["missing"] == 0
    assert all(one["policy_lag"]["steps"] > 0 for one in hosts if "relay" in one["restarts"])
