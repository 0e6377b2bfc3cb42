"""Ape-X: many actors explore and prioritise, one learner samples, weights flow back."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.roles import Actor, Evaluator, Learner
from apexrl.topologies.experience import prioritized
from apexrl.topologies.program import Probe, Program, room


def apex(config: Config, probe: Probe) -> Program:
    """Ape-X (Horgan et al. 2018, arXiv 1803.00933).

    Inference runs in the actor. To the learner travel steps with actor-computed priorities, through one prioritized
    replay; back travel whole weights, of which an actor takes the latest only.
    """
    actors = config.actor
    program = Program(config)

    replay = program.replay(**prioritized(config, probe))
    weights = program.weights(probe.weights_nbytes)
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}
    fragile: dict[str, Any] = {"restarts": actors.actor_restarts, "env_timeout": actors.env_timeout}
    # Where processors are short, experience waits for the learner and not the learner for experience.
    fragile["nice"] = 5

    program.role(Learner, **settings, replay=replay, weights=weights, restarts=config.learner.learner_restarts)
    program.role(Actor, **settings, replay=replay, weights=weights, count=actors.actors, most=room(config), **fragile)
    program.role(Evaluator, **settings, weights=weights, **fragile)
    return program
