"""Adds environment workers on other hosts to a program with an inference server.

The learner's side keeps every role and gains a gateway; its links get room for the workers of all hosts. Another host
has environment workers alone. Workers and server see no difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.roles import EnvWorker, WorkerGateway
from apexrl.spec import EnvSpec
from apexrl.topologies.program import Link, Node, Program, ReplayLink

ENV_WORKER = "env_worker"


def gateway_side(program: Program, remote: Mapping[str, Any]) -> Program:
    """What runs on the learner's host.

    Args:
        program: of a configuration whose actor slots are settled.
        remote: the gateway's ports that say where it listens, and what it tells other hosts.

    Raises:
        ConfigError: the topology has no environment workers that ask a server, or there is no slot for other hosts'.
    """
    config = program.config
    link = inference_of(program)
    slots, actors = config.actor.actor_slots, config.actor.actors
    if slots <= actors:
        raise ConfigError(
            f"--actor-slots {slots} leaves none for other hosts beside --actors {actors}: give more, or leave out "
            "--listen"
        )
    roomy: dict[int, Any] = {}

    def port(value: Any) -> Any:
        if id(value) not in roomy:
            roomy[id(value)] = _roomy(value, slots, slots * config.actor.envs_per_actor)
        return roomy[id(value)]

    nodes = [replace(node, ports={name: port(value) for name, value in node.ports.items()}) for node in program.nodes]
    side = Program(config, nodes)
    inference = port(link)
    restarts = config.learner.learner_restarts
    side.role(WorkerGateway, config=config, inference=inference, first=actors, restarts=restarts, **remote)
    return side


def inference_of(program: Program) -> Link:
    """The link through which environment workers ask.

    Raises:
        ConfigError: the topology has none.
    """
    for node in program.nodes:
        if node.name == ENV_WORKER:
            link: Link = node.ports["inference"]
            return link
    raise ConfigError(
        f"topology {program.config.topology} has no environment workers that could ask from other hosts: use "
        "--topology seed or ga3c, or leave out --listen"
    )


def envs_side(config: Config, spec: EnvSpec, leases: Sequence[tuple[int, int]], inference: Any) -> Program:
    """What runs on a host that brings environment workers.

    Args:
        leases: (slot of the run, generation of its lease) of every worker.
        inference: stands for the link, whose server is elsewhere.
    """
    actor = config.actor
    workers = Node(
        ENV_WORKER,
        EnvWorker,
        len(leases),
        {"config": config, "spec": spec, "inference": inference},
        restarts=actor.actor_restarts,
        env_timeout=actor.env_timeout,
        indices=tuple(slot for slot, _ in leases),
        generations=tuple(lease for _, lease in leases),
        least=actor.min_actors,
    )
    return Program(config, [workers])


def _roomy(port: Any, workers: int, streams: int) -> Any:
    """A link with room for that many workers and their environments; whatever is none, as it is."""
    if isinstance(port, ReplayLink):
        more = {"writers": workers, "streams": max(streams, port.options["streams"])}
        return ReplayLink({**port.options, **more})
    if isinstance(port, Link) and "splits" in port.options:
        return replace(port, options={**port.options, "workers": workers})
    return port
