"""Programs of which experience and weights cross, over two hosts at a real server; roles are killed on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host_rig import RUN, Places, wait_for

SMALL: dict[str, Any] = {
    "hidden": 16,
    "envs-per-actor": 4,
    "actor-slots": 2,
    "eval-episodes": 2,
    "eval-envs": 2,
    "stop-at-return": None,
    "publish-period-updates": 1,
}
UNROLLS = {"unroll-length": 5, "batch-size": 8}
REPLAYED = {"min-size": 100, "batch-size": 16, "updates-per-step": 0.2}

CELLS: dict[str, tuple[dict[str, Any], str]] = {  # settings; which of the roles that move is killed
    "impala-learners": ({"topology": "impala", "learners": 2, **UNROLLS}, "actor"),
    "gorila": ({"topology": "gorila", "learners": 2, **REPLAYED}, "actor"),
    "gorila-local": ({"topology": "gorila", "learners": 2, "replay": "local", **REPLAYED}, "actor"),
    "sample_factory": ({"topology": "sample_factory", **UNROLLS}, "policy_worker"),
}


@pytest.mark.long
@pytest.mark.parametrize("cell", CELLS)
def test_it_learns_from_other_hosts_whatever_is_killed(cell: str, tmp_path: Path) -> None:
    settings, role = CELLS[cell]
    flags = [word for name, value in {**SMALL, **settings}.items() for word in (f"--{name}", str(value))]
    with Places("loopback", 2, tmp_path) as places:
        learner = places.learner("cartpole", *flags)
        learner.says("actors may join")
        actors = [places.actor(host, "--actors", "1") for host in (0, 1)]

        def learned(updates: int) -> None:
            goal = places.look().digest.updates + updates
            wait_for(f"{updates} more updates", lambda: places.look().digest.updates >= goal)

        wait_for("both hosts", lambda: len(places.look().alive) == 2)
        learned(50)
        actors[0].kill_role(role)
        learned(50)
        learner.kill_role("intake")
        learned(50)
        wait_for("a restart", lambda: sum(member.digest.restarts for member in places.look().alive))
        assert places.apexrl("stop", "--run", RUN).finish() == 0
        assert [one.finish() for one in (learner, *actors)] == [0, 0, 0], learner.said
        summary = places.summary()
    assert summary["restarts"]["intake"] == 1
    assert summary["hosts"]["missing"] == summary["hosts"]["refused"] == 0
    assert summary["hosts"]["committed"] > 0
    if "learners" not in settings or settings["topology"] == "impala":  # a queue: every unroll once
        assert summary["samples_per_insert"] == pytest.approx(1.0, abs=0.25)
