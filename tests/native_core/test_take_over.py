"""Becoming the owner of a replay costs memory only for what the replay holds."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from apexrl.replay import Field, Replay


def resident(kind):
    """MiB of this process."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(kind)) / 1024


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("options", [{}, {"remover": "proportional"}], ids=["fifo", "proportional"])
def test_a_nearly_empty_replay_costs_little_memory_whatever_its_capacity(options):
    with Replay(8_000_000, {"x": Field((), "uint8")}, writers=2, **options) as replay:
        before = [resident(kind) for kind in ("RssShmem", "RssAnon")]
        replay.writer().extend({"x": np.zeros(100, "u1")})
        replay.sample(4, normalize="buffer")
        assert len(replay) == 100
        grown = [resident(kind) - b for kind, b in zip(("RssShmem", "RssAnon"), before, strict=True)]
    # The leaves alone are 64 MB, and what is known of slots up to 256 MB. Huge pages may round up what is touched.
    assert sum(grown) < 32, grown
