"""Who made, owns or writes a replay is told by random tokens and by the kernel's locks: pids may be equal."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from apexrl.replay import Field, Replay

MAKER = """
import os, pickle, sys, time
import numpy as np
from apexrl.replay import Field, Replay
print("pid", os.getpid(), flush=True)
replay = Replay(2000, {"x": Field((), "float32")}, writers=2, directory=".")
replay.writer().extend({"x": np.zeros(10, "f4")})
replay.sample(4)
with open("handle.tmp", "wb") as file:
    pickle.dump(replay, file)
os.rename("handle.tmp", "handle")
sys.stdin.read()  # as while a learner is at an update: the native thread alone serves
replay.sample(4)
print("sampled", len(replay) > 1900, replay.core.native.closed, flush=True)
"""
USER = """
import os, pickle
import numpy as np
from apexrl.errors import OwnershipError
print("pid", os.getpid())
with open("handle", "rb") as file:
    replay = pickle.load(file)
print("owned", replay.owner_pid != 0)
try:
    replay.sample(1, timeout=0.5)
except OwnershipError:
    print("refused")
writer = replay.writer()
for _ in range(400):
    writer.extend({"x": np.zeros(64, "f4")}, timeout=20.0)
writer.close()
replay.close()
print("wrote")
"""


@pytest.fixture
def pretend(tmp_path):
    """A library that gives every process the pid 7."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or "c++"
    source, library = tmp_path / "pretend.c", tmp_path / "pretend.so"
    source.write_text('extern "C" int getpid() { return 7; }\n')
    words = [compiler, "-x", "c++", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(words, check=True)
    return library


NAMESPACE = ["unshare", "--fork", "--pid", "--mount-proc"]


def namespaces_allowed():
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("how", ["pretended", "namespaces"])
def test_two_processes_of_one_pid_share_a_replay(tmp_path, how, request):
    prefix, env = [], dict(os.environ)
    if how == "pretended":
        env["LD_PRELOAD"] = str(request.getfixturevalue("pretend"))
    elif namespaces_allowed():
        prefix = NAMESPACE
    else:
        pytest.skip("PID namespaces are not allowed here")
    options = {"cwd": tmp_path, "env": env, "text": True}
    words = [*prefix, sys.executable, "-c", MAKER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as maker:
        try:
            patience = time.monotonic() + 60
            while not (tmp_path / "handle").exists():
                assert (maker.poll(), time.monotonic() < patience) == (None, True)
                time.sleep(0.02)
            words = [*prefix, sys.executable, "-c", USER]
            user = subprocess.run(words, capture_output=True, timeout=120, check=False, **options)
            assert user.returncode == 0, user.stderr
            told, _ = maker.communicate("", timeout=60)
        finally:
            maker.kill()
    mine, its = user.stdout.split("\n"), told.split("\n")
    assert mine[0] == its[0]  # the same pid
    assert mine[1:] == ["owned True", "refused", "wrote", ""]
    assert its[1:] == ["sampled True False", ""]


STEP = {"reward": np.ones(1, "f4"), "terminated": np.zeros(1, bool), "truncated": np.zeros(1, bool)}


def append(writer, count):
    for t in range(count):
        writer.append({"observation": np.full(1, t, "f4"), **STEP})


def test_a_child_that_has_the_makers_pid_neither_ends_the_replay_nor_keeps_its_steps(monkeypatch):
    maker = os.getpid()
    with Replay(1000, {"observation": Field((), "float32")}, kind="transition", writers=2) as replay:
        with replay.writer() as writer:
            append(writer, 5)
        replay.sample(2)
        child = os.fork()
        if child == 0:
            monkeypatch.setattr(os, "getpid", lambda: maker)
            writer = replay.writer()
            append(writer, 10)
            time.sleep(0.03)
            append(writer, 1)  # 20 ms after the first complete item: published
            published = writer.published
            replay.close()
            os._exit(0 if published >= 9 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not replay.core.native.closed
        assert len(replay) == 4 + 10


def test_what_is_appended_through_another_handle_of_this_process_can_be_sampled_at_once():
    with Replay(1000, {"observation": Field((), "float32")}, kind="transition", writers=2) as replay:
        other = pickle.loads(pickle.dumps(replay))
        append(other.writer(), 21)
        assert len(replay) == 20
        append(writer := other.writer(), 11)
        assert np.isin(replay.sample(64).data["observation"], np.arange(20)).all()
        assert replay.stats()["inserted"] == 30
        writer.close()
