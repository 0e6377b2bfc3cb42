"""Ape-X: many actors explore and prioritise, a learner samples, weights flow back."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.roles import Actor, Evaluator, Learner, ReplayServer
from apexrl.topologies.dataset_links import with_dataset
from apexrl.topologies.program import Probe, Program, acting, stepping
from apexrl.topologies.replay_links import prioritized, served
from apexrl.topologies.sync_learners import averaging


def apex(config: Config, probe: Probe) -> Program:
    """Ape-X (Horgan et al. 2018, arXiv 1803.00933), with one learner or several synchronised ones.

    Inference runs in the actor. To the learner travel steps with actor-computed priorities, through one prioritized
    replay; back travel whole weights, of which an actor takes the latest only. Several learners are each given batches
    by the replay's own role, make every update together, and the first of them publishes.
    """
    learners, restarts = config.wiring.learners, config.learner.learner_restarts
    program = Program(config)

    replay = program.replay(**prioritized(config, probe, together=learners))
    source = with_dataset(program, config, probe, replay)
    weights = program.weights(probe.weights_nbytes)
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}

    learning: dict[str, Any] = {**settings, "weights": weights, "restarts": restarts}
    if learners == 1:
        program.role(Learner, **learning, replay=source)
    else:
        batches = program.batches(source, learners=learners, **served(config))
        together = averaging(program, config, probe)
        program.role(ReplayServer, config=config, batches=batches, restarts=restarts)
        program.role(Learner, **learning, replay=batches, averaging=together, count=learners)
    program.role(Actor, **settings, replay=replay, weights=weights, **acting(config))
    program.role(Evaluator, **settings, weights=weights, **stepping(config))
    return program
