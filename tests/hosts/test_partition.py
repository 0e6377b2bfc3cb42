"""A partition of the network: packets vanish, nobody is told, and every lease runs out before it ends."""

from __future__ import annotations

import time
from pathlib import Path

import network_namespaces
import pytest
from host_rig import RUN, Places, wait_for

SETTINGS = {
    "topology": "gorila",
    "hidden": 16,
    "envs-per-actor": 4,
    "actor-slots": 4,
    "batch-size": 16,
    "min-size": 100,
    "capacity": 4000,
    "updates-per-step": 0.1,
    "lease-seconds": 3,
    "eval-episodes": 2,
    "eval-envs": 2,
    "stop-at-return": None,
}


@pytest.mark.long
def test_hosts_that_were_cut_off_for_longer_than_their_leases_go_on_and_nothing_is_lost(tmp_path: Path) -> None:
    """One brings actors, whose experience crosses through Redis; one a learner, whose gradients cross by TCP too."""
    if why := network_namespaces.available():
        pytest.skip(why)
    with Places("namespaces", 2, tmp_path) as places:
        flags = [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
        learner = places.learner("cartpole", *flags)
        actors = places.actor(0, "--actors", "1")
        with_learner = places.actor(1, "--actors", "1", "--learners", "1")
        ours = (actors, with_learner)

        def both_work() -> None:
            def work() -> dict[int, tuple[int, int]]:
                view = places.look()
                found = {one.pid: (one.digest.env_steps, one.digest.weights_version) for one in view.alive}
                return found if set(found) == {one.pid for one in ours} else {}

            before = wait_for("both are there", work)
            wait_for("both step environments and have newer weights", lambda: (now := work()) and all(
                now[pid][0] > before[pid][0] + 200 and now[pid][1] > before[pid][1] for pid in before
            ))  # fmt: skip

        both_work()
        for host in places.hosts[1:]:
            assert host is not None
            host.plug(False)
        wait_for("their leases have run out", lambda: not places.look().alive)
        time.sleep(6.0)  # TCP sends again and again, ever less often
        assert [one.running for one in ours] == [True, True]
        for host in places.hosts[1:]:
            assert host is not None
            host.plug(True)
        both_work()
        assert places.apexrl("stop", "--run", RUN).finish() == 0
        assert [one.finish() for one in (learner, *ours)] == [0, 0, 0], learner.said
        summary = places.summary()
    assert summary["hosts"]["committed"] > 0
    assert summary["hosts"]["missing"] == 0
    assert summary["restarts"].get("intake", 0) == summary["restarts"].get("gateway", 0) == 0
