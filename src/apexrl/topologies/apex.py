"""Ape-X: many actors explore and prioritise, one learner samples, weights flow back."""

from __future__ import annotations

from typing import Any

from apexrl.config import AgentConfig, Config
from apexrl.protocols import Item
from apexrl.roles import Actor, Evaluator, Learner
from apexrl.roles.actor import step_fields
from apexrl.topologies.program import Probe, Program


def window(item: Item, agent: AgentConfig) -> dict[str, Any]:
    """What the replay cuts from the streams; an agent that learns from sequences sums their rewards itself."""
    if item.kind == "transition":
        return {"kind": "transition", "n_step": agent.n_step}
    return {"kind": "sequence", "length": item.length, "stride": item.stride, "burn_in": item.burn_in}


def apex(config: Config, probe: Probe) -> Program:
    """Ape-X (Horgan et al. 2018, arXiv 1803.00933).

    Inference runs in the actor. To the learner travel steps with actor-computed priorities, through one prioritized
    replay; back travel whole weights, of which an actor takes the latest only.
    """
    actors, agent = config.actor, config.agent
    program = Program(config)

    replay = program.replay(
        **window(probe.item, agent),
        fields=step_fields(probe.spec, probe.step_spec),
        capacity=config.replay.capacity,
        stack=config.env.stack,
        gamma=agent.gamma,
        alpha=config.replay.alpha,
        eps=config.replay.priority_eps,
        remover=config.replay.remover,
        remover_alpha=config.replay.remover_alpha,
        trim_every=config.replay.trim_every,
        seed=config.seed,
        writers=actors.actors,
        streams=actors.actors * actors.envs_per_actor,
        min_size=config.replay.min_size,
        samples_per_insert=config.replay.samples_per_insert,
        insert_band=config.replay.insert_band,
    )
    weights = program.weights(probe.weights_nbytes)
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}
    fragile: dict[str, Any] = {"restarts": actors.actor_restarts, "env_timeout": actors.env_timeout}
    # Where processors are short, experience waits for the learner and not the learner for experience.
    fragile["nice"] = 5

    program.role(Learner, **settings, replay=replay, weights=weights, restarts=config.learner.learner_restarts)
    program.role(Actor, **settings, replay=replay, weights=weights, count=actors.actors, **fragile)
    program.role(Evaluator, **settings, weights=weights, **fragile)
    return program
