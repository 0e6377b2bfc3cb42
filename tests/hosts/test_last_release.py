"""Hosts of the last release and of this tree work for one run, whichever of them has the learner."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from signal import SIGKILL

import pytest
from host_rig import PATIENCE_SECONDS, RUN, Places, wait_for
from last_release import VERSION, installed

from apexrl import __version__
from apexrl.run.folder import RunFolder
from free_ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def last(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its interpreter."""
    return installed(tmp_path_factory.mktemp("release"))


class Old:
    """A command of the last release."""

    def __init__(self, python: Path, folder: Path, url: str, *words: str) -> None:
        self.log = folder / f"old-{words[0]}.log"
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        env |= {"APEXRL_REDIS_URL": url, "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "apexrl.cli", *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env,
                cwd=folder, process_group=0,
            )  # fmt: skip
        self.pid = self._process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def finish(self) -> int:
        return self._process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, SIGKILL)
        self._process.wait(10)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, python: Path, folder: Path, url: str, *words: str) -> Old:
    old = Old(python, folder, url, *words)
    stack.callback(old.close)
    return old


def test_it_is_another_apexrl(last: Path) -> None:
    asked = "import apexrl; print(apexrl.__file__, apexrl.__version__)"
    where, version = subprocess.run([str(last), "-c", asked], capture_output=True, text=True, check=True,
                                    env={**os.environ, "PYTHONPATH": ""}).stdout.split()  # fmt: skip
    assert where.startswith(str(last.parents[1]))
    assert version == VERSION


@pytest.mark.parametrize("learner", ["new", "old"])
def test_both_bring_actors_to_one_run(learner: str, last: Path, tmp_path: Path, stack: ExitStack) -> None:
    with Places("loopback", 1, tmp_path) as places:
        out = ("--out", str(tmp_path / "runs"))
        if learner == "new":
            learns: object = places.learner("cartpole")
        else:
            learns = start(stack, last, tmp_path, places.url(), "learner", "cartpole", "--run", RUN, *out)
        new = places.actor(0, "--actors", "1")
        old = start(stack, last, tmp_path, places.url(), "actor", "--run", RUN, "--actors", "1", *out)
        wait_for("both send", lambda: {one.pid for one in places.look().alive if one.digest.sent_items > 500}
                 >= {new.pid, old.pid} or not old.said.find("apexrl: ") < 0)  # fmt: skip
        assert "apexrl: " not in old.said, old.said
        assert [learns.finish(), new.finish(), old.finish()] == [0, 0, 0]  # type: ignore[attr-defined]
        summary = places.summary()
    assert summary["stopped_by"] == "stop_at_return"
    assert summary["hosts"]["refused"] == summary["hosts"]["missing"] == 0
    folder = RunFolder.open(places.run_folder)
    assert folder.config().preset == "cartpole"  # written by either


def test_an_upgraded_standby_goes_on_with_the_hosts_of_a_learner_that_was_not(
    last: Path, tmp_path: Path, stack: ExitStack
) -> None:
    with Places("loopback", 1, tmp_path) as places:
        out = ("--out", str(tmp_path / "runs"))
        learner = start(stack, last, tmp_path, places.url(), "learner", "cartpole", "--run", RUN,
                        "--checkpoint-seconds", "1", *out)  # fmt: skip
        old = start(stack, last, tmp_path, places.url(), "actor", "--run", RUN, "--actors", "1", *out)
        heir = places.apexrl("learner", "--standby", "--run", RUN, *out)
        heir.says("standing by")
        wait_for("learning", lambda: places.look().digest.updates > 1000)
        learner.close()
        assert [heir.finish(), old.finish()] == [0, 0], old.said
        summary = places.summary()
    assert "restored generation-" in heir.said
    assert summary["stopped_by"] == "stop_at_return"
    assert summary["hosts"]["refused"] == summary["hosts"]["missing"] == 0


@pytest.mark.parametrize("gateway", ["new", "old"])
def test_environment_workers_ask_the_other_release_for_actions(
    gateway: str, last: Path, tmp_path: Path, stack: ExitStack
) -> None:
    with Places("loopback", 0, tmp_path) as places:
        port = free_port()
        token = tmp_path / "token"
        token.write_text("a-token-of-sixteen-letters")
        words = ["train", "cartpole", "--topology", "seed", "--listen", f":{port}", "--token-file", str(token),
                 "--actors", "0", "--env-steps", "3000", "--out", str(tmp_path / "runs"), "--name", "seed"]  # fmt: skip
        asking = ["envs", "--connect", f"127.0.0.1:{port}", "--token-file", str(token), "--actors", "2",
                  "--out", str(tmp_path / "envs")]  # fmt: skip
        new, old = (words, asking) if gateway == "new" else (asking, words)
        ours, theirs = places.apexrl(*new), start(stack, last, tmp_path, "", *old)
        assert [ours.finish(), theirs.finish()] == [0, 0], theirs.said
    assert RunFolder.open(tmp_path / "runs" / "seed").summary()["env_steps"] >= 3000


def test_a_run_of_the_last_release_is_resumed_by_this_one(last: Path, tmp_path: Path, stack: ExitStack) -> None:
    old = start(stack, last, tmp_path, "", "train", "cartpole", "--env-steps", "2000", "--name", "r",
                "--out", str(tmp_path))  # fmt: skip
    assert old.finish() == 0, old.said
    with Places("loopback", 0, tmp_path) as places:
        new = places.apexrl("resume", str(tmp_path / "r"), "--env-steps", "4000")
        assert new.finish() == 0
    assert "restored generation-" in new.said
    assert RunFolder.open(tmp_path / "r").summary()["versions"]["apexrl"] == __version__
