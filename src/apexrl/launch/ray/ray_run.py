"""A run on a Ray cluster, from its folder to its summary."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from apexrl.config import Config
from apexrl.config.placement import Ray
from apexrl.errors import ConfigError
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.local_run import record
from apexrl.launch.ray.driver import Driver
from apexrl.launch.ray.group_plan import most_actors, settled
from apexrl.launch.ray.ray_metrics import RayMetrics
from apexrl.launch.ray.resources import remember
from apexrl.launch.run_claim import Claim
from apexrl.launch.run_ledger import Ledger
from apexrl.launch.wiring import Wiring
from apexrl.run.status import Observer
from apexrl.topologies import topology
from apexrl.topologies.program import Program
from apexrl.topologies.spread_learners import check, with_own_replays


def cluster(
    config: Config,
    placement: Ray,
    observers: Sequence[Observer],
    claim: Claim | None,
    interrupts: Interrupts,
    began: float,
) -> dict[str, Any]:
    """Every role an actor of Ray's; returns the summary.

    Raises:
        ConfigError: it cannot be run so, or the cluster does not have what it wants.
        LinkError: there is no such cluster.
    """
    for wrong, what in (
        (config.serial, "--serial runs everything in one process"),
        (config.wiring.autotune, "--autotune tunes one machine"),
        (config.learner.save_replay, "--save-replay keeps one replay, and on Ray it lies in shards"),
    ):
        if wrong:
            raise ConfigError(f"{what}: leave it out, or --ray")
    wire = topology(config.topology)
    config = replace(config, out=str(Path(config.out).resolve()))  # nodes have working directories of their own
    here = settled(config, placement)
    check(here, placement.learner_nodes)
    with closing(Driver(here, placement, interrupts)) as driver:
        seen = driver.probe()
        program = wire(replace(here, actor=replace(here.actor, actors=most_actors(here))), seen)
        if placement.learner_nodes > 1:
            program = with_own_replays(program)
        driver.check(program)  # refused before there is a folder

        def body(ledger: Ledger, nothing: Wiring) -> None:
            ledger.note(
                "placement.json", lambda: remember(placement, ledger.folder.path, ledger.folder.generations.check)
            )
            try:
                with closing(RayMetrics(driver.namespace, ledger.folder)) as figures:
                    ledger.note("ray.json", figures.write)
                    driver.run(program, ledger, figures)
            finally:
                driver.close()

        none = Program(config)  # the links are on the cluster
        return record(config, observers, claim, began, seen, body, partial(Wiring, none, True))
