"""Once full, capacity − L < len ≤ capacity, however many writers and streams there are; or the replay is refused."""

from __future__ import annotations

import numpy as np
import pytest

from apexrl.errors import ConfigError
from apexrl.replay import Field, Replay

FIELDS = {"observation": Field((), "float32")}


def step(rng, streams):
    ends = rng.random(streams) < 0.03
    return {
        "observation": np.zeros(streams, "f4"),
        "reward": np.zeros(streams, "f4"),
        "terminated": ends,
        "truncated": np.zeros(streams, bool),
    }


@pytest.mark.parametrize(
    ("capacity", "writers", "streams", "chosen", "options"),
    [
        (1000, 8, 16, False, {"kind": "transition"}),
        (1000, 8, 16, True, {"kind": "transition", "n_step": 3, "stack": 4}),
        (130, 8, 16, False, {"kind": "transition"}),
        (600, 4, 16, False, {"kind": "sequence", "length": 8, "stride": 4, "burn_in": 2}),
        (300, 4, 16, False, {"kind": "unroll", "length": 5}),
        (200, 50, None, False, {}),
        (3, 8, None, False, {}),
    ],
    ids=["default", "chosen", "few", "sequence", "unroll", "rows", "tiny"],
)
def test_every_writer_and_stream_is_counted(capacity, writers, streams, chosen, options):
    rng = np.random.default_rng(0)
    given = {"streams": writers * streams} if chosen else {}
    with Replay(capacity, FIELDS, writers=writers, **given, **options) as replay:
        largest = replay.stats()["chunk_items" if streams else "chunk"]
        all_writers = [replay.writer(streams) if streams else replay.writer() for _ in range(writers)]
        full = False
        for _ in range(1200 if streams else 60):
            for writer in all_writers:
                if streams:
                    writer.append(step(rng, streams))
                else:
                    writer.extend({"observation": np.zeros(int(rng.integers(1, 20)), "f4")})
            if not full and len(replay):
                replay.sample(1)
            full = full or replay.stats()["evicted"] > 0
            assert len(replay) <= capacity
            assert not full or len(replay) > capacity - largest
            if replay.stats()["evicted"] > 3 * capacity:
                break
        assert full


def test_what_cannot_be_kept_is_refused_with_the_numbers():
    with pytest.raises(
        ConfigError, match=r"capacity=100 is too small for streams=128: .* up to 128 items.*at most 100"
    ):
        Replay(100, FIELDS, kind="transition", streams=128)
    with pytest.raises(ConfigError, match="at least 256"):
        Replay(200, FIELDS, kind="sequence", length=4, streams=128)
    Replay(128, FIELDS, kind="transition", streams=128).close()
    Replay(100, FIELDS, kind="transition", streams=128, sampler="fifo").close()  # there writers wait


def test_the_default_streams_are_no_more_than_the_capacity_has_room_for():
    with Replay(100, FIELDS, kind="transition", writers=8) as replay:
        assert replay.core.options["streams"] == 100
        replay.writer(streams=16)
        with pytest.raises(ConfigError, match="101"):
            replay.writer(streams=101)
