"""IMPALA: actors queue unrolls of the policy that they have, learners take each once, weights flow back."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.errors import AgentError, ConfigError
from apexrl.links.averaging import Averaging
from apexrl.roles import Actor, Evaluator, Learner
from apexrl.topologies.experience import queue
from apexrl.topologies.program import Probe, Program, room
from apexrl.topologies.queues import OfQueue, queue_ports


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

    restarts = config.learner.learner_restarts
    if learners == 1:
        program.role(Learner, **settings, replay=queues[0], restarts=restarts)
        program.role(Actor, **settings, replay=queues[0], count=actors.actors, most=room(config), **fragile)
    else:
        _check_several(config, probe)
        several = queue_ports(queues)
        gradient = sum(size for name, size in probe.vectors.items() if name.endswith("/online"))
        together: dict[str, Any] = {
            "averaging": program.link(Averaging, members=learners, gradient=gradient, state=sum(probe.vectors.values()))
        }
        learner, actor = OfQueue(Learner), OfQueue(Actor)
        program.role(learner, name="learner", count=learners, restarts=restarts, **settings, **several, **together)
        program.role(actor, name="actor", count=actors.actors, **settings, **several, **fragile)
    program.role(Evaluator, **settings, **fragile)
    return program


def _check_several(config: Config, probe: Probe) -> None:
    """Refuse what several learners cannot do together.

    Raises:
        ConfigError, AgentError: the message names the setting, or what the agent lacks.
    """
    learners, agent = config.wiring.learners, config.agent
    if config.actor.actors < learners:
        raise ConfigError(
            f"--learners {learners} want an actor each, and --actors is {config.actor.actors}: raise it, or take fewer "
            "learners"
        )
    if config.learner.save_replay:
        raise ConfigError("--save-replay keeps one queue, and several --learners have one each: leave it out")
    if agent.anneal:
        raise ConfigError(
            "several --learners make steps of one size, and with --anneal each would look for itself how far the run "
            "is: set --no-anneal, or --learners 1"
        )
    if agent.epochs * agent.minibatches > 1:
        raise ConfigError(
            f"several --learners make one gradient step together, and agent {agent.agent} makes {agent.epochs} epochs "
            f"of {agent.minibatches} minibatches: set --epochs 1 --minibatches 1, or --learners 1"
        )
    missing = [name for name in ("gradients", "apply", "networks") if name not in probe.offers]
    if missing or not probe.vectors:
        lacks = ", ".join(missing) or "vectors that can be shared"
        raise AgentError(f"several --learners need an agent whose update can be split: {agent.agent} lacks {lacks}")
