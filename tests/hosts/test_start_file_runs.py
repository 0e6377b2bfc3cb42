"""The commands of the start files in ``examples/`` together are a run that ends, also without its first learner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from host_rig import Places, wait_for

from apexrl.run.folder import RunFolder
from free_ports import free_port
from redis_server import binaries
from start_files import SLURM, commands

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("learner", "standby", "actors"),
    [
        ("apexrl-learner", "apexrl-standby", "apexrl-actors"),
        ("kubernetes learner", "kubernetes standby", "kubernetes actors"),
    ],
    ids=["systemd", "kubernetes"],
)
def test_units_and_manifests_make_a_run_that_survives_its_learner(
    learner: str, standby: str, actors: str, tmp_path: Path
) -> None:
    known = dict(commands())

    def words(place: str) -> list[str]:
        """With one actor, and folders of this test."""
        there = {"/shared/runs": str(tmp_path / "shared"), "/tmp/runs": str(tmp_path / "own"), "8": "1"}
        there["/var/lib/apexrl"] = there["/tmp/runs"]
        return [there.get(word, word) for word in known[place]]

    run = known[learner][known[learner].index("--run") + 1]
    with Places("loopback", 0, tmp_path) as places:
        first = places.apexrl(*words(learner))
        waits, joined = places.apexrl(*words(standby)), places.apexrl(*words(actors))
        waits.says("standing by")
        wait_for("it learns", lambda: places.look(run).digest.updates > 500)
        first.kill()
        assert [one.finish() for one in (waits, joined)] == [0, 0]
        after = places.apexrl(*words(learner))
        assert after.finish() == 0  # done: nothing is begun anew
        assert "is done" in after.said
    summary = RunFolder.open(tmp_path / "shared" / run).summary()
    assert summary["stopped_by"] == "stop_at_return"
    assert summary["final_eval_return"] >= 475


TOOLS = """#!/bin/bash
# srun: the words after the options, as on one other node
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


def test_a_slurm_job_trains_on_several_nodes(tmp_path: Path) -> None:
    """Slurm itself is played: the other node is this machine."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text(TOOLS)
    (tools / "apexrl").write_text(f'#!/bin/bash\nexec {sys.executable} -m apexrl.cli "$@"\n')
    (tools / "redis-server").symlink_to(binaries()[0])
    for tool in tools.iterdir():
        tool.chmod(0o755)
    job = {"SLURM_JOB_ID": str(free_port() % 20000), "SLURM_JOB_NAME": "cartpole", "SLURM_JOB_NUM_NODES": "2",
           "SLURM_CPUS_PER_TASK": "1", "SLURMD_NODENAME": "127.0.0.1", "SHARED": str(tmp_path / "shared"),
           "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1",
           "PATH": f"{tools}:{os.environ['PATH']}"}  # fmt: skip
    env = {name: value for name, value in os.environ.items() if name != "APEXRL_REDIS_URL"} | job
    process = subprocess.Popen(
        ["bash", str(SLURM), "cartpole"], env=env, process_group=0, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=300)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    run = f"cartpole-{job['SLURM_JOB_ID']}"
    summary = RunFolder.open(tmp_path / "shared" / run).summary()
    assert summary["stopped_by"] == "stop_at_return"
    assert summary["hosts"]["committed"] > 1000
    assert summary["hosts"]["missing"] == 0
    password = said.count("requirepass") + said.count("redis://:")
    assert password == 0
