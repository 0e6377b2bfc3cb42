"""The weights board: latest only, never torn, survives a dead publisher."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest

from apexrl.errors import ConfigError, SpecError
from apexrl.shared.weights_board import InlineWeights, WeightsBoard

FORK = multiprocessing.get_context("fork")


def weights(value):
    return {"w": np.full((300, 200), value, "f4"), "scale": np.array(value, "f8"), "odd": np.full(3, value % 250, "u1")}


@pytest.mark.parametrize("make", [lambda: WeightsBoard(1 << 20), InlineWeights], ids=["shared", "inline"])
def test_contract(make):
    board = make()
    assert board.version == 0
    assert board.latest() is None
    board.publish(weights(1), 1)
    board.publish(weights(2), 5)
    version, got = board.latest(1)
    assert version == board.version == 5
    assert {n: (a.shape, a.dtype) for n, a in got.items()} == {n: (a.shape, a.dtype) for n, a in weights(2).items()}
    for name, value in weights(2).items():
        np.testing.assert_array_equal(got[name], value)
    got["w"][:] = 9  # ours to change
    assert board.latest(1)[1]["w"][0, 0] == 2
    assert board.latest(5) is None
    with pytest.raises(SpecError, match="must be larger than the newest"):
        board.publish(weights(3), 5)
    with pytest.raises(SpecError, match=r"published first: 'w' was float\d+ \[.*\], and is float32 \[3\]"):
        board.publish({**weights(6), "w": np.zeros(3, "f4")}, 6)
    with pytest.raises(SpecError, match="and is not there"):
        board.publish({"w": weights(6)["w"]}, 6)
    assert board.wait(4, 0.01)
    assert not board.wait(5, 0.01)
    assert board.spoilt_reads == 0


def test_too_large():
    with pytest.raises(SpecError, match="do not fit"):
        WeightsBoard(100).publish(weights(1), 1)


def publish_for_ever(board, first):
    version = first
    while True:
        version += 1
        board.publish(weights(version), version)


def test_reads_are_never_torn_and_a_killed_publisher_blocks_nobody():
    board = WeightsBoard(1 << 20)
    reader = pickle.loads(pickle.dumps(board))
    version = 0
    rng = np.random.default_rng(0)
    for _ in range(15):
        process = FORK.Process(target=publish_for_ever, args=(board, board.version), daemon=True)
        process.start()
        end, fresh = time.monotonic() + rng.uniform(0.01, 0.06), 0
        while time.monotonic() < end or not fresh:
            newest = reader.latest(version)
            if newest is None:
                continue
            assert newest[0] > version
            version = newest[0]
            fresh += 1
            for name, value in weights(version).items():
                assert (newest[1][name] == value).all()
        os.kill(process.pid, signal.SIGKILL)
        process.join(5)
    board.publish(weights(version + 10**6), version + 10**6)
    assert reader.latest(version)[0] == version + 10**6


def test_a_board_that_cannot_be_had_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> None:
        raise RuntimeError(f"cannot reserve {nbytes} bytes of shared memory: File too large")

    monkeypatch.setattr("apexrl.shared.segment._native", SimpleNamespace(Board=SimpleNamespace(create=refuse)))
    with pytest.raises(ConfigError, match="cannot reserve 100 bytes"):
        WeightsBoard(100)
