"""Offline: nobody acts. A learner samples a replay that was filled with a dataset, and an evaluator measures it."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.roles import Evaluator, Learner
from apexrl.topologies.dataset_links import recorded
from apexrl.topologies.program import Probe, Program, stepping


def offline(config: Config, probe: Probe) -> Program:
    """Learning from a fixed dataset (Levine et al. 2020, arXiv 2005.01643).

    The launcher fills the replay; a learner that is started again samples it as it is. Only the evaluator steps
    environments, and nobody learns from what it sees.
    """
    program = Program(config)

    replay = recorded(program, config, probe)
    weights = program.weights(probe.weights_nbytes)
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}

    program.role(Learner, **settings, replay=replay, weights=weights, restarts=config.learner.learner_restarts)
    program.role(Evaluator, **settings, weights=weights, **stepping(config))
    return program
