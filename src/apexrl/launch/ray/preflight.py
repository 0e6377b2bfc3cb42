"""Checks before a run on Ray: resources, versions, and environment and agent on the node where they will run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, RuntimeEnvSetupError

from apexrl.config import Config
from apexrl.config.placement import Ray
from apexrl.errors import ConfigError, EnvError, WorkerError
from apexrl.launch.interrupts import Interrupts
from apexrl.launch.probe import revive
from apexrl.launch.ray.cluster import Cluster
from apexrl.launch.ray.group_plan import Plan, plan, resource_bundles
from apexrl.launch.ray.ray_actors import Hello, hello, probe_on
from apexrl.run.folder import versions
from apexrl.topologies import Probe
from apexrl.topologies.ray_cut import in_shards, queues

_TICK_SECONDS = 0.1
HELLO_SECONDS = 120.0  # for a process to start, where there is room for it
_COMPARED = ("apexrl", "torch", "numpy", "gymnasium")
_NOT_INSTALLED = ("No module named", "failed to import", "Failed to import")


def receive(config: Config, placement: Ray, cluster: Cluster, interrupts: Interrupts) -> tuple[Probe, Plan]:
    """What the probe saw on the learner's node, and who works in which group.

    Raises:
        ConfigError: the cluster does not have the bundles, or its nodes have other versions than this process.
        EnvError, ApexrlError: what the probe met.
    """
    there = len(cluster.nodes({"CPU": placement.learner_cpus}))
    if there < placement.learner_nodes:
        raise ConfigError(
            f"--learner-nodes {placement.learner_nodes} want a node each, and the cluster has {there} with "
            f"{placement.learner_cpus:g} CPU: take fewer, or add nodes"
        )
    decided = fitting(config, placement, cluster)
    reserve(config, placement, decided, cluster, interrupts)
    greetings = [cluster.task(hello, bundle).remote() for bundle in range(decided.base + 1)]
    for greeting in _await(greetings, HELLO_SECONDS, "the nodes do not start processes", interrupts):
        compare(greeting)
    timeout = config.actor.env_timeout
    late = f"making the environment took longer than {timeout:g} s (--env-timeout)"
    (seen,) = _await([cluster.task(probe_on, 0).remote(config)], timeout + HELLO_SECONDS, late, interrupts)
    if isinstance(seen, dict):
        raise revive(seen["kind"], seen["error"], seen["traceback"])
    assert isinstance(seen, Probe)
    return seen, decided


def fitting(config: Config, placement: Ray, cluster: Cluster) -> Plan:
    """The plan for as many nodes as could take a group of its size each; small ones are not counted."""
    nodes = len(cluster.nodes({"CPU": placement.shard_cpus * in_shards(config) + placement.actor_cpus}))
    first = plan(config, placement, nodes, queues(config, placement.learner_nodes))
    for fewer in range(nodes, 0, -1):
        decided = plan(config, placement, fewer, queues(config, placement.learner_nodes))
        groups = resource_bundles(config, placement, decided)[1 : decided.base + 1]
        largest = {name: max(bundle.get(name, 0.0) for bundle in groups) for name in ("CPU", "GPU")}
        if len(cluster.nodes(largest)) >= decided.base:
            return decided
    return first


def reserve(config: Config, placement: Ray, decided: Plan, cluster: Cluster, interrupts: Interrupts) -> None:
    """Reserve the resources of the learner's node and of the groups that the run begins with.

    Raises:
        ConfigError: the cluster does not have them.
    """
    bundles = resource_bundles(config, placement, decided)[: decided.base + 1]
    cluster.reserve(bundles, lambda: interrupts.count > 0)


def compare(there: Hello) -> None:
    """Refuse a node that has other versions.

    Raises:
        ConfigError: names the node and the versions.
    """
    here = versions()
    other = [name for name in _COMPARED if here.get(name) != there.versions.get(name)]
    if other:
        theirs = ", ".join(f"{name} {there.versions.get(name) or 'not installed'}" for name in other)
        ours = ", ".join(f"{name} {here.get(name) or 'not installed'}" for name in other)
        raise ConfigError(
            f"node {there.host} has {theirs}, and this process has {ours}: install the same versions on every node"
        )


def _await(references: Sequence[Any], timeout: float, late: str, interrupts: Interrupts) -> list[Any]:
    deadline = time.monotonic() + timeout
    while ray.wait(list(references), num_returns=len(references), timeout=_TICK_SECONDS)[1]:
        if interrupts.count:
            raise KeyboardInterrupt
        if time.monotonic() >= deadline:
            raise EnvError(f"{late} (waited {timeout:g} s)")
    try:
        return list(ray.get(list(references)))
    except (RayTaskError, RuntimeEnvSetupError) as error:
        if any(sign in str(error) for sign in _NOT_INSTALLED):
            last = str(error).strip().splitlines()[-1]
            raise ConfigError(
                f"a node of the cluster cannot import what this process can ({last}): install the same packages on "
                "every node, and your environment's module where Python finds it"
            ) from error
        raise WorkerError(str(error)) from error
    except RayError as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise EnvError(f"making the environment ended its process: {first}") from error
