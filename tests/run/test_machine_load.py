"""Processors and memory of the machine, from the kernel's files."""

from __future__ import annotations

import sys

import pytest

from apexrl.run.machine_load import MachineLoad


def write(proc, user, idle, available):
    (proc / "stat").write_text(f"cpu  {user} 0 0 {idle} 0 0 0 0 99 99\ncpu0 1 2 3\n", "ascii")
    (proc / "meminfo").write_text(f"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {available} kB\n", "ascii")


def test_the_share_is_of_the_time_since_the_last_sample(tmp_path):
    load = MachineLoad(tmp_path)
    write(tmp_path, 100, 900, 400)
    assert load.sample() == {"machine/memory_used": 600 * 1024.0, "machine/memory_bytes": 1000 * 1024.0}
    write(tmp_path, 175, 925, 500)
    assert load.sample()["machine/cpu"] == 0.75


def test_what_cannot_be_read_is_left_out(tmp_path):
    load = MachineLoad(tmp_path / "missing")
    assert load.sample() == {}
    (tmp_path / "stat").write_text("cpu x\n", "ascii")
    (tmp_path / "meminfo").write_text("MemTotal:\n", "ascii")
    assert MachineLoad(tmp_path).sample() == {}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_this_machine_has_both():
    load = MachineLoad()
    load.sample()
    found = load.sample()
    assert 0 < found["machine/memory_used"] <= found["machine/memory_bytes"]
