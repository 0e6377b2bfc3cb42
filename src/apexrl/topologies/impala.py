"""IMPALA: actors queue unrolls, learners take each once, weights flow back."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.roles import Actor, Evaluator, Learner
from apexrl.topologies.program import Probe, Program, room
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
    actors, learners = config.actor, config.wiring.learners
    program = Program(config)

    queues = [program.replay(**queue(config, probe)) for _ in range(learners)]
    weights = program.weights(probe.weights_nbytes)
    settings: dict[str, Any] = {"config": config, "spec": probe.spec, "weights": weights}
    fragile: dict[str, Any] = {"restarts": actors.actor_restarts, "env_timeout": actors.env_timeout}
    # Unrolls age while they wait, and a learner that waits loses nothing: it has the processor first.
    fragile["nice"] = 5
    acting = {"count": actors.actors, "least": actors.min_actors, "moves": True, **fragile}
    acting["most_waiting"] = most_waiting(config, probe.item)

    restarts = config.learner.learner_restarts
    if learners == 1:
        program.role(Learner, **settings, replay=queues[0], restarts=restarts)
        program.role(Actor, **settings, **acting, replay=queues[0], most=room(config))
    else:
        _check_several(config)
        several = queue_ports(queues)
        together: dict[str, Any] = {"averaging": averaging(program, config, probe)}
        learner, actor = OfQueue(Learner), OfQueue(Actor)
        program.role(learner, count=learners, restarts=restarts, **settings, **several, **together)
        program.role(actor, **settings, **acting, **several)
    program.role(Evaluator, **settings, **fragile)
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
