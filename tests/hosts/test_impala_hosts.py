"""IMPALA over hosts: unrolls cross, each is learned from once, and actors wait where the learner is slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_rig import Places

SETTINGS = {
    "topology": "impala",
    "hidden": 16,
    "unroll-length": 5,
    "batch-size": 8,
    "envs-per-actor": 4,
    "actor-slots": 2,
    "eval-episodes": 2,
    "eval-envs": 2,
    "env-steps": 6000,
    "stop-at-return": None,
}
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]


@pytest.mark.long
def test_it_learns_from_other_hosts(tmp_path: Path) -> None:
    with Places("loopback", 2, tmp_path) as places:
        learner = places.learner("cartpole", *FLAGS)
        actors = [places.actor(host, "--actors", "1") for host in (0, 1)]
        assert [one.finish() for one in (learner, *actors)] == [0, 0, 0], learner.said
        summary = places.summary()
    assert (summary["topology"], summary["agent"]) == ("impala", "impala")
    assert summary["updates"] > 50
    assert summary["policy_lag"]["steps"] <= summary["env_steps"]
    assert summary["samples_per_insert"] == pytest.approx(1.0, abs=0.25)
    assert summary["hosts"]["missing"] == summary["hosts"]["refused"] == 0
