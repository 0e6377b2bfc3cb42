"""A program of idle roles, run by a supervisor of its own."""

from __future__ import annotations

from recording_observer import Watcher, all_gone

from apexrl.config import Config
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.supervisor import Supervisor
from apexrl.launch.wiring import Wiring
from apexrl.links.local.control_board import ControlBoard
from apexrl.topologies import Program


def supervised(program: Program, config: Config, ledger: Ledger, watcher: Watcher) -> Watcher:
    """Run it to its end; no process is left then."""
    with Interrupts() as interrupts:
        boss = Supervisor(config, interrupts, preload=["idle_roles"])
        try:
            board = ControlBoard(sum(len(node.leases) for node in program.nodes))
            boss.run(program, ledger, board, Wiring(program, True, ledger.folder.replay_path))
        finally:
            boss.close()
    ledger.close()
    assert all_gone(int(text.split()[2]) for text in watcher.texts if text.startswith("born"))
    return watcher
