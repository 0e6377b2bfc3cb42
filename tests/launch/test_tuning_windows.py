"""What drives a tuner, alone: windows, and who serves in them. Time is what the test says it is."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from idle_roles import Actor
from scripted_tuner import Script

from apexrl.config import Config, WiringConfig
from apexrl.launch import autotune
from apexrl.launch.resumed_from import Base
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.wiring import Wiring
from apexrl.launch.worker_slots import Slot
from apexrl.links.local.control_board import ControlBoard
from apexrl.topologies import Program
from new_folders import new_folder


class Rig:
    """A tuner at work on slots that do what the test says."""

    def __init__(self, tmp_path: Path, count: int = 2, most: int = 4) -> None:
        config = Config(out=str(tmp_path), name="run", wiring=WiringConfig(autotune=True, autotune_seconds=10.0))
        program = Program(config)
        program.role(Actor, count=count, most=most, deeds={})
        self.board = ControlBoard(most)
        self.board.set_base("updates", 100)
        folder = new_folder(config)
        self.ledger = Ledger(config, folder, [], Base(updates=100), 0.0)
        self.slots = [Slot(program.nodes[0], index, 0, self.board, index, tmp_path) for index in range(most)]
        for slot in self.slots:
            slot.resting = slot.index >= count
        wiring = Wiring(program, False, tmp_path / "none")
        self.tune = autotune.AutoTune(program, self.slots, self.board, wiring, self.ledger)
        self.script = Script.made[0]
        self.now = 1000.0
        self._owed = 0.0  # updates

    def obey(self) -> None:
        """Workers come and go at once, as they were told."""
        for slot in self.slots:
            if slot.resting and slot.alive:
                slot.end(self.now, 0)
            elif not slot.resting and not slot.alive:
                theirs, log = slot.begin(self.now)
                theirs.close()
                os.close(log)
                slot.row.state = "acting"

    def run(self, seconds: float, steps_per_second: int = 100, updates_per_second: float = 25.0) -> None:
        """Tenths of seconds pass."""
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            self.obey()
            self.board.row(0).count("env_steps", steps_per_second // 10)
            self._owed += updates_per_second / 10.0 + 1e-9
            self.board.row(0).count("updates", int(self._owed))
            self._owed %= 1.0
            self.tune.step(self.now)

    def close(self) -> None:
        for slot in self.slots:
            slot.end_channel()


@pytest.fixture
def rig(tmp_path: Path, script: Callable[..., None]) -> Any:
    script(3, 1, 1)
    made = Rig(tmp_path)
    yield made
    made.close()


def test_nothing_is_measured_before_anything_is_learned(rig: Rig) -> None:
    rig.run(60.0, updates_per_second=0.0)
    assert rig.script.rates == []


def test_a_window_is_as_long_as_it_says_and_gives_the_geometric_mean(rig: Rig) -> None:
    rig.run(12.8)
    assert rig.script.rates == []
    rig.run(0.7)  # settling took three seconds
    assert rig.script.rates == [pytest.approx(50.0, rel=0.01)]
    rig.run(12.5)
    assert rig.script.rates == [pytest.approx(50.0, rel=0.01)]
    rig.run(0.7)
    assert len(rig.script.rates) == 2  # another actor had to settle first
    rig.run(13.5)
    assert len(rig.script.rates) == 3
    rig.run(10.3)
    assert len(rig.script.rates) == 4  # the last one needed no settling: nothing was changed


def test_a_slow_learner_gets_longer_windows_all_of_one_length(rig: Rig) -> None:
    rig.run(46.0, updates_per_second=0.5)
    assert rig.script.rates == [pytest.approx(math.sqrt(50.0), rel=0.05)]  # 20 updates took 40 seconds
    rig.run(45.0, updates_per_second=25.0)
    assert len(rig.script.rates) == 1
    rig.run(7.5, updates_per_second=25.0)
    assert len(rig.script.rates) == 2
    assert rig.ledger.tuned["window_seconds"] == pytest.approx(40.0, abs=2.5)


def test_a_window_in_which_a_worker_died_does_not_count(rig: Rig) -> None:
    rig.run(8.0)
    rig.slots[1].end(rig.now, -9)
    rig.run(12.0)
    assert rig.script.rates == []
    rig.run(2.0)
    assert len(rig.script.rates) == 1


def test_a_run_in_which_workers_always_die_is_measured_all_the_same(rig: Rig) -> None:
    for _ in range(12):
        rig.run(4.0)
        rig.slots[1].end(rig.now, -9)
    assert rig.script.rates
    assert rig.script.limits == []


def test_the_lowest_slots_serve(rig: Rig) -> None:
    rig.run(27.5)
    assert [slot.resting for slot in rig.slots] == [False, True, True, True]
    assert [slot.generation for slot in rig.slots] == [0, 0, 0, -1]


def test_a_worker_that_does_not_come_up_is_done_without(tmp_path: Path, script: Callable[..., None]) -> None:
    script(4, 4)
    rig = Rig(tmp_path)
    rig.run(13.5)
    assert rig.script.next() == {"actor": 4}
    rig.obey()
    rig.slots[3].row.state = "starting"
    for _ in range(650):  # for 65 seconds it makes no step
        rig.now += 0.1
        rig.board.row(0).count("updates", 1)
        rig.tune.step(rig.now)
    assert rig.script.limits == [("actor", 3)]
    assert [slot.resting for slot in rig.slots] == [False, False, False, True]
    rig.close()
