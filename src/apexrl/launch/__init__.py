"""The launcher: turns a configuration into a run. Only this package starts processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apexrl.config.placement import Listen, Placement, Ray

if TYPE_CHECKING:
    from apexrl.config import Config
    from apexrl.launch.run_claim import Claim
    from apexrl.run.status import Observer

__all__ = ["check", "join", "join_envs", "launch", "stand_by"]


def launch(
    config: Config,
    observers: Sequence[Observer] = (),
    resume: Path | None = None,
    placement: Placement | None = None,
    claim: Claim | None = None,
) -> dict[str, Any]:
    """Run ``config`` to its end and return the summary, which is also in the run folder.

    Args:
        config: what to run; ``config.serial`` decides whether in this process or in many.
        observers: told of everything, from this thread.
        resume: the folder of a run to go on with: counters, weights, optimizer, RNG, and the replay when it was saved.
        placement: where the run lives; None: on this machine alone.
        claim: a run folder that is locked already, in place of ``resume``; who made it closes it.

    Raises:
        ConfigError: a setting makes no sense.
        EnvError: the environment cannot be made.
        WorkerError: a role failed more often than it may.
        NonFiniteError: a loss, a gradient or weights became NaN or infinite.
        LinkError: the server cannot be reached, or is not fit for a run.
        HeldError: another process trains the run already.
        OwnershipError: another process has taken the run over.

        In all cases no process is left behind; once the run folder exists, so does its summary.
    """
    from apexrl.launch.interrupts import Interrupts
    from apexrl.topologies import placements

    began = time.monotonic()
    if resume is not None:  # before anything else is taken, or asked for
        from apexrl.launch import run_claim
        from apexrl.launch.resumed_from import check_ahead

        with closing(run_claim.resume(resume, config)) as own:
            check_ahead(config.stop, own.folder)
            return launch(config, observers, None, placement, own)
    with Interrupts() as interrupts:
        if placement is not None:
            placements.check(config, type(placement).__name__.lower())
        if isinstance(placement, Ray):
            from apexrl.launch.ray import ray_run as on_ray

            return on_ray.cluster(config, placement, observers, claim, interrupts, began)
        if isinstance(placement, Listen):
            from apexrl.launch import gateway_run

            return gateway_run.learn(config, placement, observers, claim, interrupts, began)
        if placement is not None:
            from apexrl.launch import redis_run

            return redis_run.learn(config, placement, observers, claim, interrupts, began)
        from apexrl.launch import local_run

        launcher = local_run.serial if config.serial else local_run.processes
        return launcher(config, observers, claim, interrupts, began)


def check(config: Config) -> None:
    """Refuse what can be known to be wrong with ``config`` without running it: no folder is made, no worker started.

    Raises:
        ConfigError: a setting makes no sense, or the topology cannot run the agent.
        EnvError: the environment cannot be made.
        ApexrlError: whatever else the agent refuses of the environment, under its own class.
    """
    from apexrl.launch import local_run
    from apexrl.launch.interrupts import Interrupts

    with Interrupts() as interrupts:
        local_run.check(config, interrupts)


def join(url: str, run: str, observers: Sequence[Observer] = (), **options: Any) -> dict[str, Any]:
    """Bring actors to a run that a learner on another host works at, until it is over; see ``actor_host.join``."""
    from apexrl.launch import actor_host

    return _interruptible(actor_host.join, url, run, observers=observers, **options)


def join_envs(
    address: tuple[str, int], token: str, observers: Sequence[Observer] = (), **options: Any
) -> dict[str, Any]:
    """Bring workers to a run that listens on another host, until it is over; see ``gateway_host.join``."""
    from apexrl.launch import gateway_host

    return _interruptible(gateway_host.join, address, token, observers=observers, **options)


def stand_by(url: str, run: str, observers: Sequence[Observer] = (), **options: Any) -> dict[str, Any]:
    """Wait until a run's learner on another host is gone, and go on in its place; see ``standby.stand_by``."""
    from apexrl.launch import standby
    from apexrl.launch.interrupts import Interrupts

    with Interrupts() as interrupts:
        return standby.stand_by(url, run, observers=observers, interrupts=interrupts, **options)


def _interruptible(join_run: Callable[..., dict[str, Any]], *where: Any, **options: Any) -> dict[str, Any]:
    from apexrl.launch.interrupts import Interrupts

    began = time.monotonic()
    with Interrupts() as interrupts:
        return join_run(*where, interrupts=interrupts, began=began, **options)
