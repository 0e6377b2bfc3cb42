"""Ape-X with extra actors that act at random."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from apexrl.config import Config
from apexrl.config.settings import Range
from apexrl.roles import Actor, Evaluator, Learner
from apexrl.topologies import Probe, Program, Topology, declare
from apexrl.topologies.replay_links import prioritized


@dataclass(frozen=True)
class Settings:
    """Settings of apex_explorers."""

    explorers: Annotated[int, Range(1, 64)] = 1
    """Actors that act at random."""


@declare(
    Topology(
        "Ape-X with extra actors that act at random",
        source="this package",
        kinds=("transition",),
        settings=Settings,
    )
)
def apex_explorers(config: Config, probe: Probe) -> Program:
    """One learner, the usual actors, and ``explorers`` more whose ε is 1."""
    actor, explorers = config.actor, config.wiring.topology_settings["explorers"]
    random = replace(config, actor=replace(actor, actors=explorers, epsilon=1.0, epsilon_alpha=0.0))
    writers = actor.actors + explorers
    program = Program(config)

    room = {"writers": writers, "streams": writers * actor.envs_per_actor}
    replay = program.replay(**prioritized(config, probe) | room)
    weights = program.weights(probe.weights_nbytes)
    common: dict[str, Any] = {"spec": probe.spec, "weights": weights}
    acting: dict[str, Any] = {**common, "restarts": actor.actor_restarts, "env_timeout": actor.env_timeout, "nice": 5}

    program.role(Learner, config=config, **common, replay=replay, restarts=config.learner.learner_restarts)
    program.role(Actor, config=config, **acting, replay=replay, count=actor.actors)
    program.role(Actor, name="explorer", config=random, **acting, replay=replay, count=explorers)
    program.role(Evaluator, config=config, **acting)
    return program
