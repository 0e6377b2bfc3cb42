"""A run on this machine, in processes or serial: from its folder to its summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.launch import run_claim
from apexrl.launch.first_steps import try_first_steps
from apexrl.launch.fork_client import preloaded
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.probe import large_network, probe_beginning, probe_learner
from apexrl.launch.resumed_from import Base, base_of
from apexrl.launch.run_claim import Claim
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.serial import run_serial
from apexrl.launch.supervisor import Supervisor
from apexrl.launch.wiring import Wiring
from apexrl.links.local.control_board import ControlBoard
from apexrl.roles import checkpointing
from apexrl.roles.env_worker import with_own_groups
from apexrl.run import checkpoint
from apexrl.run.metrics import RunLog
from apexrl.run.status import Observer
from apexrl.topologies import Probe, Program, topology
from apexrl.topologies.program import with_room


def processes(
    config: Config, observers: Sequence[Observer], claim: Claim | None, interrupts: Interrupts, began: float
) -> dict[str, Any]:
    """Every worker a process."""
    wire = topology(config.topology)
    config = with_room(config) if config.wiring.autotune else config
    supervisor = Supervisor(config, interrupts, preloaded(config))
    try:
        begins = claim is None or claim.begins
        seen = supervisor.probe(probe_beginning if begins else probe_learner)
        if begins:
            try_first_steps(supervisor, config, observers)
        program = wire(with_own_groups(config, config.actor.actors), seen)
        if config.wiring.autotune and not program.tunable:
            raise ConfigError(f"topology {config.topology} has no numbers that could be tuned: leave out --autotune")
        return supervise(supervisor, program, config, observers, claim, began, seen)
    finally:
        supervisor.close()


def check(config: Config, interrupts: Interrupts) -> None:
    """Look at environment and agent in a process of their own, and wire them; nothing else is started."""
    wire = topology(config.topology)
    with closing(Supervisor(config, interrupts, preloaded(config))) as supervisor:
        wire(config, supervisor.probe(probe_beginning))
        try_first_steps(supervisor, config, ())


def supervise(
    supervisor: Supervisor,
    program: Program,
    config: Config,
    observers: Sequence[Observer],
    claim: Claim | None,
    began: float,
    seen: Probe,
    first: Callable[[Ledger, ControlBoard], None] = lambda ledger, board: None,
    last: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Run ``program`` in processes, with its run folder; returns the summary.

    Args:
        first: called once there is a folder, before any worker starts.
        last: called when all workers have ended; what it raises is how the run failed.
    """
    board = ControlBoard(sum(len(node.leases) for node in program.nodes))

    def body(ledger: Ledger, wiring: Wiring) -> None:
        for name in ("env_steps", "updates", "episodes"):
            board.set_base(name, getattr(ledger.base, name))
        ledger.carry_changes(board.set_env_change)
        first(ledger, board)
        try:
            supervisor.run(program, ledger, board, wiring)
        finally:
            supervisor.close()
        last()

    return record(config, observers, claim, began, seen, body, partial(Wiring, program, True))


def serial(
    config: Config, observers: Sequence[Observer], claim: Claim | None, interrupts: Interrupts, began: float
) -> dict[str, Any]:
    """Every role in this process, in turn. The second interrupt ends it wherever it is, also in a hung environment."""
    interrupts.alone = True
    wire = topology(config.topology)
    seen = probe_learner(config, begins=claim is None or claim.begins)
    program = wire(config, seen)

    def body(ledger: Ledger, wiring: Wiring) -> None:
        with _pytorch_as_it_was():
            try:
                run_serial(program, ledger, wiring, interrupts)
            except KeyboardInterrupt:
                ledger.stop("interrupted")
                ledger.tell("interrupted again: what was learned since the last checkpoint is lost", "warning")

    return record(config, observers, claim, began, seen, body, partial(Wiring, program, False))


@contextmanager
def _pytorch_as_it_was() -> Iterator[None]:
    """Give the process back its threads and its precision of products, which a learner sets: it may be a notebook's."""
    import torch

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def record(
    config: Config,
    observers: Sequence[Observer],
    claim: Claim | None,
    began: float,
    seen: Probe,
    body: Callable[[Ledger, Wiring], None],
    wire: Callable[[Path, int], Wiring],
) -> dict[str, Any]:
    """Run ``body`` between the run folder's making and its summary, which is written whatever happens.

    Args:
        claim: the run folder, locked; None: a new one is made, and locked here.
        wire: makes the links, of the replay's snapshot and the updates made so far.

    Raises:
        ConfigError: the run folder cannot be written.
        HeldError: another process trains this run.
        FencedError: another process has taken it over meanwhile.
    """
    if claim is None:
        with closing(run_claim.begin(config)) as own:
            return record(config, observers, own, began, seen, body, wire)
    folder = claim.folder
    base = Base() if claim.begins else base_of(folder)
    checkpointing.check_left(folder, base.updates)
    with closing(wire(folder.replay_path, base.updates)) as wiring:  # what it refuses leaves no run folder
        try:
            if claim.begins:
                folder.write_config(config)
            folder.generations.begin(checkpoint.newest_generation(folder.checkpoints))
        except OSError as error:  # no run begins on a full disk
            raise ConfigError(f"cannot write in the run folder {folder.path}: {error.strerror or error}") from error
        ledger = Ledger(config, folder, [RunLog(folder.path, folder.generations.check), *observers], base, began)
        try:
            ledger.open()
            ledger.check()
            if claim.lock.trouble:
                ledger.tell(claim.lock.trouble, "warning")
            if claim.begins and (text := large_network(seen)):
                ledger.tell(text, "warning")
            if not claim.begins:
                ledger.note("config.toml", lambda: folder.record_config(config))
            ledger.note("env_spec.json", lambda: folder.write_spec(seen.spec))
            body(ledger, wiring)
            ledger.check()
        except BaseException as error:
            ledger.tell(f"{type(error).__name__}: {error}", "error")
            ledger.close(error=f"{type(error).__name__}: {error}")
            raise
    summary = ledger.close()
    ledger.check()  # what is raised at the end
    return summary
