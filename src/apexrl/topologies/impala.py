"""IMPALA: actors queue unrolls, learners take each once, weights flow back."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.roles import Actor, Evaluator, Learner
from apexrl.topologies.program import Probe, Program, acting, stepping
from apexrl.topologies.queue_links import OfQueue, queue_ports
from apexrl.topologies.replay_links import most_waiting, queue
from apexrl.topologies.sync_learners import averaging


def impala(config: Config, probe: Probe) -> Program:
    """IMPALA (Espeholt et al. 2018, arXiv 1802.01561), with one learner or several synchronised ones.

    Inference runs in the actor. To the learner travel unrolls of T steps with the log-probabilities of the policy that
    acted, through a first-in-first-out queue that makes actors wait when it is full; back travel whole weights, of
    which an actor takes the latest only. What the policy learned in between is the agent's to correct (V-trace).
    Several learners have a queue each, make every update together, and the first of them publishes.
    """
    learners = config.wiring.learners
    program = Program(config)

    queues = [program.replay(**queue(config, probe)) for _ in range(learners)]
    weights = program.weights(probe.weights_nbytes)
    settings: dict[str, Any] = {"config": config, "spec": probe.spec, "weights": weights}
    actors = {**acting(config), "most_waiting": most_waiting(config, probe.item)}

    restarts = config.learner.learner_restarts
    if learners == 1:
        program.role(Learner, **settings, replay=queues[0], restarts=restarts)
        program.role(Actor, **settings, **actors, replay=queues[0])
    else:
        _check_several(config)
        several = queue_ports(queues)
        together: dict[str, Any] = {"averaging": averaging(program, config, probe)}
        learner, actor = OfQueue(Learner), OfQueue(Actor)
        program.role(learner, count=learners, restarts=restarts, **settings, **several, **together)
        program.role(actor, **settings, **{**actors, "most": 0}, **several)
    program.role(Evaluator, **settings, **stepping(config))
    return program


def _check_several(config: Config) -> None:
    """Refuse what learners with a queue each cannot do.

    Raises:
        ConfigError: the message names the setting.
    """
    learners = config.wiring.learners
    if config.actor.actors < learners:
        raise ConfigError(
            f"--learners {learners} want an actor each, and --actors is {config.actor.actors}: raise it, or take fewer "
            "learners"
        )
    if config.learner.save_replay:
        raise ConfigError("--save-replay keeps one queue, and several --learners have one each: leave it out")
