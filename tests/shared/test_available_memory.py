"""What memory can be had, read from a made-up machine; and replays that ask for more."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from apexrl import _native
from apexrl.errors import ConfigError
from apexrl.replay import Field, Replay
from apexrl.shared import available_memory

GIB = 2**30
MEMINFO = "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nCommitLimit: 4194304 kB\nCommitted_AS: 3145728 kB\n"
V2 = "30 20 0:26 {inside} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 31 0:32 {inside} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"


def machine(root, groups=(), mounts="", files=None):
    """A file system with ``proc`` and ``sys`` of a machine that has 8 GiB left."""
    texts = {
        "proc/meminfo": MEMINFO,
        "proc/sys/vm/overcommit_memory": "0\n",
        "proc/self/cgroup": "\n".join(groups),
        "proc/self/mountinfo": "22 27 0:21 / /proc rw - proc proc rw\n" + mounts,
        **(files or {}),
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def least(root):
    return min(available_memory.memory_limits(root), key=lambda room: room.nbytes)


def test_without_cgroups_the_machine_bounds(tmp_path):
    room = least(machine(tmp_path))
    assert room.nbytes == 8 * GIB
    assert "8.0 GiB are available on this machine" in room.why


def test_under_strict_overcommit_what_is_not_committed_bounds(tmp_path):
    room = least(machine(tmp_path, files={"proc/sys/vm/overcommit_memory": "2\n"}))
    assert room.nbytes == 1 * GIB
    assert "overcommit_memory=2" in room.why


def v2(path, most, current, high="max", cache=0):
    at = f"sys/fs/cgroup/{path}".rstrip("/")
    stat = f"anon 1\nfile 999\ninactive_file {cache - cache // 4}\nactive_file {cache // 4}\n"
    texts = {"memory.max": most, "memory.high": high, "memory.current": current, "memory.stat": stat}
    return {f"{at}/{name}": f"{value}\n" for name, value in texts.items()}


def test_a_cgroup_of_version_2_bounds_but_for_its_page_cache(tmp_path):
    files = v2("a/b", 2 * GIB, GIB, cache=GIB // 2) | v2("a", "max", 3 * GIB)
    room = least(machine(tmp_path, ["0::/a/b"], V2.format(inside="/"), files))
    assert room.nbytes == 2 * GIB - GIB // 2
    assert f"1.5 GiB are left of the 2.0 GiB that the cgroup {tmp_path}/sys/fs/cgroup/a/b may use" in room.why


def test_a_cgroup_above_may_bound_more(tmp_path):
    files = v2("a/b", 4 * GIB, GIB) | v2("a", 5 * GIB, 4 * GIB)
    room = least(machine(tmp_path, ["0::/a/b"], V2.format(inside="/"), files))
    assert room.nbytes == GIB
    assert "cgroup/a may use" in room.why


def test_the_bound_from_which_a_cgroup_is_slowed_counts(tmp_path):
    files = v2("a", 4 * GIB, GIB, high=2 * GIB)
    assert least(machine(tmp_path, ["0::/a"], V2.format(inside="/"), files)).nbytes == GIB


@pytest.mark.parametrize("path", ["/docker/x", "/", "/../../other"])
def test_in_a_container_its_own_directory_is_the_mount(tmp_path, path):
    inside = "/docker/x" if path == "/docker/x" else "/"
    files = v2("", 3 * GIB, GIB)
    assert least(machine(tmp_path, [f"0::{path}"], V2.format(inside=inside), files)).nbytes == 2 * GIB


def test_a_cgroup_of_version_1_bounds(tmp_path):
    def v1(path, limit, usage, cache):
        texts = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage}
        texts["memory.stat"] = f"inactive_file 5\ntotal_inactive_file {cache}\ntotal_active_file 0"
        return {f"sys/fs/cgroup/memory/{path}{name}": f"{value}\n" for name, value in texts.items()}

    files = v1("job/", 2 * GIB, GIB, GIB // 4) | v1("", 9223372036854771712, 5 * GIB, 0)
    groups = ["4:memory:/job", "3:cpuset:/", "0::/elsewhere"]
    room = least(machine(tmp_path, groups, V1.format(inside="/") + V2.format(inside="/"), files))
    assert room.nbytes == GIB + GIB // 4
    assert "cgroup/memory/job may use" in room.why


def test_what_cannot_be_read_bounds_nothing(tmp_path):
    assert available_memory.memory_limits(tmp_path) == []
    assert available_memory.memory_limits(machine(tmp_path, ["0::/gone"], V2.format(inside="/")))[1:] == []


@pytest.fixture
def rooms(monkeypatch):
    """Sets how much memory there is."""
    return lambda nbytes: monkeypatch.setattr(
        available_memory, "memory_limits", lambda: [available_memory.MemoryLimit(nbytes, "so much is left")]
    )


LARGE = {"x": Field((1000,), "uint8")}


def test_a_replay_that_could_not_be_filled_is_refused_with_the_numbers(rooms):
    rooms(4_000_000 + _native.Segment.promised())
    said = r"10,000 items needs 9\.\d MiB of memory when full.* so much is left: .*--capacity.*--no-check-memory"
    with pytest.raises(ConfigError, match=said):
        Replay(10_000, LARGE)
    Replay(3_000, LARGE).close()
    with Replay(10_000, LARGE, check_memory=False) as replay:
        replay.writer().extend({"x": np.zeros((100, 1000), "u1")})


def test_what_was_promised_before_counts_until_it_is_taken(rooms):
    gc.collect()  # replays that other tests have left
    before = _native.Segment.promised()
    board = _native.Board.create(1_000_000)
    with Replay(3_000, LARGE, writers=1) as first:
        rooms(9_000_000 + _native.Segment.promised() - before)
        mine = f"besides {_native.Segment.promised() / 2**20:.1f} MiB that this process allocated before"
        with pytest.raises(ConfigError, match=re.escape(mine)):
            Replay(9_000, LARGE)
        promised = _native.Segment.promised()
        first.writer().extend({"x": np.zeros((2_000, 1000), "u1")})
        assert promised - 3_000_000 < _native.Segment.promised() < promised - 1_500_000
    assert board.capacity == 1_000_000


def test_what_a_full_replay_takes_is_what_was_said():
    with Replay(200_000, {"x": Field((104,), "uint8")}, writers=1) as replay:
        writer = replay.writer()
        for _ in range(11):
            writer.extend({"x": np.zeros((20_000, 104), "u1")})
        replay.sample(1)
        stats = replay.stats()
        taken = os.fstat(replay.core.native.state()[1]).st_blocks * 512
    assert stats["evicted"] > 0
    assert 0.95 * taken < stats["bytes_when_full"] < 1.1 * taken


# --- a file system that is too small

SMALL = textwrap.dedent("""
    import os, sys
    import numpy as np
    from apexrl.errors import ConfigError, WaitTimeout
    from apexrl.replay import Field, Replay
    LARGE = {"x": Field((1000,), "uint8")}
    place = sys.argv[1]
    try: Replay(100_000, LARGE, directory=place)
    except ConfigError as error: print(error)
    assert os.listdir(place) == []
    with open(place + "/other", "wb") as file: file.write(bytes(6 << 20))  # 2 MiB are left of 8
    try: Replay(200_000, {"x": Field((), "uint8")}, directory=place)  # not even what is said of slots
    except ConfigError as error: print(error)
    os.remove(place + "/other")
    replay = Replay(4_000, LARGE, directory=place, writers=1)
    used = os.statvfs(place)
    print("sparse", (used.f_blocks - used.f_bfree) * used.f_frsize < 3 << 20)
    with open(place + "/other", "wb", buffering=0) as file:  # others take all but 2 MiB of what was free
        file.write(bytes(used.f_bavail * used.f_frsize - (2 << 20)))
    writer = replay.writer()
    stored = 0
    try:
        while stored < 10_000:  # with nobody to sample, its maker makes room among the slots that could be had
            writer.extend({"x": np.full((10, 1000), stored // 10 % 256, "u1")}, timeout=5.0)
            stored += 10
    except WaitTimeout as error: print(error)
    batch = replay.sample(64)
    print("stored", stored, 0 < len(replay) < 4_000, replay.stats()["growth_refused"] > 0)
    print("whole", bool((batch.data["x"] == batch.data["x"][:, :1]).all()))
""")


RESTORED = textwrap.dedent("""
    import os, sys
    import numpy as np
    from apexrl.replay import Field, Replay
    place = sys.argv[1]
    replay = Replay(4_000, {"x": Field((1000,), "uint8")}, directory=place, writers=1)
    used = os.statvfs(place)
    with open(place + "/other", "wb", buffering=0) as file:
        file.write(bytes(used.f_bavail * used.f_frsize - (2 << 20)))
    try:
        replay.core.native.finish_restore(1)  # of a snapshot that held nothing
    except RuntimeError as error:
        print(error)
    else:
        replay.writer().extend({"x": np.zeros((4_000, 1000), "u1")})
""")


@pytest.fixture
def small(tmp_path):
    """Runs a program with a file system of 8 MiB at ``tmp_path``."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("mount namespaces are of Linux")
    mount = f"mount -t tmpfs -o size=8m apexrl {tmp_path}"
    inside = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("file systems cannot be mounted here")

    def run(program):
        words = [*inside, sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (done.returncode, done.stderr)  # SIGBUS: 135
        return done.stdout.splitlines()

    return run


def test_a_replay_restored_where_there_is_no_room_for_it_is_refused(small):
    assert small(RESTORED) == ["the memory for its slots is refused"]


def test_a_full_file_system_is_told_and_kills_nobody(small):
    told = small(SMALL)
    assert "this replay of 100,000 items needs 97." in told[0]
    assert "are free in its directory's file system" in told[0]
    assert "bytes of shared memory in" in told[1]
    assert "are free" in told[1]
    assert told[2:] == ["sparse True", "stored 10000 True True", "whole True"]


def test_a_replay_beyond_the_limit_of_its_cgroup_is_refused(tmp_path):
    base = Path("/sys/fs/cgroup/memory")
    version_1 = (base / "memory.limit_in_bytes").exists()
    group = (base if version_1 else base.parent) / f"apexrl-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(200 << 20))
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no cgroup can be made here: {error}")
    code = (
        f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "from apexrl.replay import Field, Replay\n"
        "Replay(10_000, {'x': Field((100_000,), 'uint8')}, writers=4)\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    finally:
        group.rmdir()
    assert "are left of the 200.0 MiB that the cgroup" in done.stderr.splitlines()[-1]


def test_what_the_kernel_killed_for_lack_of_memory_is_counted_where_we_are(tmp_path):
    vmstat = {"proc/vmstat": "nr_free_pages 1\noom_kill 9\n"}
    assert available_memory.oom_kills(machine(tmp_path / "none")) == 0
    assert available_memory.oom_kills(machine(tmp_path / "bare", files=vmstat)) == 9
    two = {"sys/fs/cgroup/a/memory.events": "low 0\noom 5\noom_kill 4\noom_group_kill 0\n"}
    assert available_memory.oom_kills(machine(tmp_path / "two", ["0::/a"], V2.format(inside="/"), two | vmstat)) == 4
    one = {"sys/fs/cgroup/memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"}
    assert (
        available_memory.oom_kills(machine(tmp_path / "one", ["9:memory:/a"], V1.format(inside="/"), one | vmstat)) == 3
    )
