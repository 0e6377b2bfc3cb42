"""Gorila: several learners send gradients to parameter servers, which own the network in slices."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.roles import Actor, Evaluator, GradientLearner, ParameterServer, ReplayServer
from apexrl.topologies.experience import prioritized
from apexrl.topologies.program import Probe, Program, room
from apexrl.topologies.sharding import sharded


def gorila(config: Config, probe: Probe) -> Program:
    """Gorila (Nair et al. 2015, arXiv 1507.04296), with its global replay.

    Inference runs in the actor. Every learner is given batches by the one replay; from there its gradients travel, cut
    into slices, to the parameter servers, which apply them as they come. Actors, learners and evaluator read the newest
    slices. Two things are Ape-X's: draws by priority (``--alpha 0``: uniform, as there), and the constant ladder of ε,
    where theirs anneals from 1 to 0.1 over 1M updates.

    Raises:
        AgentError: more than gradients makes this agent what it is.
        ConfigError: there are more servers than slices.
    """
    actors, wiring, restarts = config.actor, config.wiring, config.learner.learner_restarts
    program = Program(config)

    replay = program.replay(**prioritized(config, probe))
    given = {"batch_size": config.learner.batch_size, "beta": config.replay.beta}
    batches = program.batches(replay, learners=wiring.learners, **given)
    links = sharded(program, config, probe, senders=wiring.learners)
    weights = links["parameters"]
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}
    sturdy: dict[str, Any] = {"restarts": restarts}
    fragile: dict[str, Any] = {"restarts": actors.actor_restarts, "env_timeout": actors.env_timeout}
    # Where processors are short, experience waits for the learners and not the learners for experience.
    fragile["nice"] = 5

    program.role(ReplayServer, name="replay", config=config, batches=batches, **sturdy)
    learning = {**settings, **links, "batches": batches, "count": wiring.learners}
    program.role(GradientLearner, name="gradient_learner", **learning, **sturdy)
    serving = {**settings, **links, "count": wiring.parameter_servers}
    program.role(ParameterServer, name="parameter_server", **serving, **sturdy)
    program.role(Actor, **settings, replay=replay, weights=weights, count=actors.actors, most=room(config), **fragile)
    program.role(Evaluator, **settings, weights=weights, **fragile)
    return program
