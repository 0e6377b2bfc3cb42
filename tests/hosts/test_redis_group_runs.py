"""Whole runs through servers under Sentinel, and through a cluster, that lose their master meanwhile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import experience_audit as audit
import pytest
from host_rig import RUN, Places, wait_for

from apexrl.errors import LinkError
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.run_listing import look
from apexrl.links.redis.server import Server
from redis_groups import Cluster, Watched
from redis_server import binaries

pytestmark = pytest.mark.long
SMALL = ["--env", audit.ENV, "--hidden", "16", "--min-size", "200", "--capacity", "500000", "--batch-size", "16",
         "--eval-episodes", "2", "--eval-envs", "2", "--envs-per-actor", "4", "--stop-at-return", "None",
         "--save-replay"]  # fmt: skip


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_a_run_goes_on_when_its_master_dies(kind: str, tmp_path: Path) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    group: Any = Watched if kind == "sentinel" else Cluster
    options = {} if kind == "sentinel" else {"replicas": True}
    with group(tmp_path / "redis", binaries()[-1], **options) as servers, Places("loopback", 1, tmp_path) as places:
        learner = places.learner("cartpole", *SMALL, url=servers.url)
        known = {audit.FOLDER: str(steps), audit.WHO: "actor"}
        actor = places.actor(0, "--actors", "1", "--trust", audit.__name__, url=servers.url, **known)
        connection = Connection(Server(servers.url))
        committed = [0]

        def more() -> bool:
            with suppress(LinkError):
                now = look(connection, RUN).digest.committed_items
                if now > committed[0] + 1000:
                    committed[0] = now
                    return True
            return False

        wait_for("experience is committed", more)
        if kind == "sentinel":
            servers.kill_master()
        else:
            servers.owner(f"apexrl:{{{RUN}}}:record").kill()
        wait_for("it goes on", more)
        wait_for("it goes on", more)
        assert look(connection, RUN).learner_pid == str(learner.pid)
        stopped = places._command(None, servers.url, ["stop", "--run", RUN])
        assert [one.finish() for one in (stopped, learner, actor)] == [0, 0, 0]
        connection.close()
        summary = places.summary()
        books = audit.close_books(steps, audit.all_items(places.run_folder / "checkpoints" / "replay"))
    assert (books.strangers, books.twice) == (0, 0)
    assert books.total().holes == books.total().lead  # an actor tries its first environment before it works
    assert summary["hosts"]["missing"] == 0
    assert summary["restarts"] == dict.fromkeys(summary["restarts"], 0)
