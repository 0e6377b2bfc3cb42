"""Shared memory that cannot shrink, is in no core dump, and needs no memfd; and what an attacher may not open."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import subprocess
import sys
import threading
import time

import pytest

from apexrl import _native
from apexrl.shared.segment import attach_segment

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")


def state_of(segment):
    """(pid, descriptor, uuid, path)"""
    return segment.__reduce__()[1][0]


@LINUX
def test_the_memory_cannot_be_made_smaller_or_larger():
    segment = _native.Segment(1 << 16)
    descriptor = state_of(segment)[1]
    size = os.fstat(descriptor).st_size
    for wrong in (4096, 2 * size):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, wrong)
    with pytest.raises(PermissionError):  # nor can a seal be added that stops writing
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert os.fstat(descriptor).st_size == size


def flags_of(address):
    """VmFlags of the mapping that begins at ``address``."""
    found = False
    with open("/proc/self/smaps") as file:
        for line in file:
            head = line.split()[0]
            if "-" in head and not head.endswith(":"):
                begin, end = (int(x, 16) for x in head.split("-"))
                found = begin <= address < end
            elif found and head == "VmFlags:":
                return line.split()[1:]
    raise AssertionError("no such mapping")


@LINUX
@pytest.mark.parametrize("named", [False, True], ids=["anonymous", "directory"])
def test_no_segment_is_in_a_core_dump(tmp_path, named):
    segment = _native.Segment(1 << 16, str(tmp_path) if named else "")
    assert "dd" in flags_of(segment.array().ctypes.data)
    board = _native.Board.create(1 << 16)
    assert board.capacity == 1 << 16
    with open("/proc/self/smaps") as file:
        shared = file.read().split("/memfd:apexrl")[1:]
    assert all(" dd" in one.split("VmFlags:")[1].split("\n")[0] for one in shared)


def test_a_descriptor_of_a_named_segment_does_not_reach_other_programs(tmp_path):
    segment = _native.Segment(1 << 16, str(tmp_path))
    assert not os.get_inheritable(state_of(segment)[1])


def test_attaching_does_not_open_what_is_no_segment(tmp_path):
    pipe = tmp_path / "apexrl-pipe"
    os.mkfifo(pipe)
    opened = threading.Event()

    def read():
        descriptor = os.open(pipe, os.O_RDONLY)  # waits until somebody opens it for writing
        opened.set()
        os.close(descriptor)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        time.sleep(0.2)
        with pytest.raises(RuntimeError, match="is not the one this handle names"):
            _native.Segment.attach((os.getpid(), 0, bytes(16), str(pipe)))
        assert not opened.wait(0.2)
    finally:
        os.close(os.open(pipe, os.O_RDWR))
        thread.join()


def test_only_a_segment_of_the_same_uuid_is_attached(tmp_path):
    segment = _native.Segment(1 << 16, str(tmp_path))
    pid, descriptor, _, path = state_of(segment)
    code = (
        "import sys; from apexrl.shared.segment import attach_segment\n"
        "from apexrl.errors import ClosedError\n"
        "pid, descriptor, uuid, path = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]), sys.argv[4]\n"
        "try: attach_segment((pid, descriptor, uuid, path)); print('attached')\n"
        "except ClosedError as error: print(error)\n"
    )

    def attach(uuid):
        words = [sys.executable, "-c", code, str(pid), str(descriptor), uuid.hex(), path]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout

    assert attach(segment.uuid).strip() == "attached"
    assert "is not the one this handle names" in attach(bytes(16))


REFUSED = """
import ctypes, os, platform, struct, subprocess, sys
number = {"x86_64": 319, "aarch64": 279}[platform.machine()]
# load the system call's number; memfd_create: fail with the errno given; else: allow
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | int(sys.argv[1])), (0x06, 0, 0, 0x7fff0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
filter = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
if libc.prctl(22, 2, filter, 0, 0) != 0:
    print("no seccomp"); sys.exit()
try: os.memfd_create("x")
except OSError as error: assert error.errno == int(sys.argv[1])
else: raise AssertionError("memfd_create was not refused")

import pickle, multiprocessing
import numpy as np
from apexrl import _native
from apexrl.replay import Field, Replay

def left():
    return {name for place in ("/dev/shm", "/tmp") for name in os.listdir(place) if name.startswith("apexrl-")}

before = left()
replay = Replay(100, {"x": Field((), "float32")}, writers=2)
descriptor = replay.core.native.state()[1]
assert not os.get_inheritable(descriptor) and os.fstat(descriptor).st_nlink == 0
def work(replay):
    with replay.writer() as writer:
        writer.extend({"x": np.arange(50, dtype=np.float32)})
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=work, args=(pickle.loads(pickle.dumps(replay)),))
    process.start(); process.join()
    handle = pickle.dumps(replay).hex()
    other = "import pickle, sys; print(len(pickle.loads(bytes.fromhex(sys.argv[1]))))"
    done = subprocess.run([sys.executable, "-c", other, handle], capture_output=True, text=True, check=True)
    print(len(replay), done.stdout.strip(), sorted(left() - before))
"""


@LINUX
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the number of memfd_create is not known")
@pytest.mark.parametrize("refusal", [errno.EPERM, errno.ENOSYS], ids=["eperm", "enosys"])
def test_where_memfd_is_refused_memory_is_a_file_without_a_name(refusal):
    words = [sys.executable, "-c", REFUSED, str(int(refusal))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    if done.stdout.strip() == "no seccomp":
        pytest.skip("seccomp filters are not allowed here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "50 50 []"


def test_whose_lock_it_is():
    segment = _native.Segment(64)
    assert (segment.held(3), segment.holds(3), segment.holder(3)) == (False, False, 0)
    assert segment.try_lock(3)
    assert (segment.held(3), segment.holds(3), segment.holder(3)) == (True, True, os.getpid())
    child = os.fork()
    if child == 0:
        right = segment.held(3) and not segment.holds(3) and segment.holder(3) == os.getppid()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert attach_segment(state_of(segment)).holds(3)


def test_every_process_has_a_token_of_its_own():
    mine = _native.process_token()
    assert mine == _native.process_token() != 0
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(_native.process_token()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(read, 100)) not in (0, mine)
    os.close(read)
    os.close(write)
