"""The driver's connection to a Ray cluster: reserves resources, and explains what cannot be had."""

from __future__ import annotations

import functools
import logging
import math
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from apexrl.config.placement import Ray
from apexrl.errors import ConfigError, LinkError

_LOOK_SECONDS = 0.2
_REACH_SECONDS = 5.0
_NEAR_SECONDS = 2.0  # in which the learner's node should be the driver's, before it may be any
_TOLD_LINES = 4  # of an error of Ray's
_NEAR = 0.001  # of the resource that stands for a node
# How a client of gRPC begins, with settings that say nothing (RFC 9113, section 3.4); type of the frame that answers.
_HELLO, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), 4
_remote: Any = ray.remote  # whose types know nothing of what it is asked for here
_nodes: Any = ray.nodes
_CONCURRENCY = {"data": 1, "weights": 1, "run": 1, "talk": 1}


class Cluster:
    """A connection to a Ray cluster, and the resources that this run has reserved there. Close it in any case."""

    def __init__(self, placement: Ray, local_cpus: float) -> None:
        self._placement = placement
        self._ours = not ray.is_initialized()
        self._group: PlacementGroup | None = None
        self._more: dict[int, PlacementGroup] = {}  # of groups that the run can do without, by their bundle's number
        self.namespace = f"apexrl-{uuid.uuid4().hex[:12]}"
        if self._ours:
            self._connect(local_cpus)

    def _connect(self, local_cpus: float) -> None:
        local = self._placement.address == "local"
        if self._placement.address not in ("auto", "local"):
            _reach(self._placement.address)
        how: dict[str, Any] = {"num_cpus": math.ceil(local_cpus), "include_dashboard": False} if local else {}
        main = threading.current_thread() is threading.main_thread()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            ray.init(
                address=self._placement.address,
                namespace=self.namespace,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **how,
            )
        except Exception as error:  # Ray raises no class of its own where a cluster of this machine does not start
            lines = str(error).strip().splitlines()
            why = (" ".join(line.strip() for line in lines[:_TOLD_LINES]) or repr(error)).rstrip(".")
            if local:
                late = ". Try again, with less beside it" if "timed out" in why else ""
                raise LinkError(f"Ray did not start on this machine: {why}{late}") from error
            hint = ""
            if isinstance(error, (ConnectionError, ValueError, RuntimeError, RayError)):
                hint = (
                    ". Start one with `ray start --head`, name its address, or take --ray local. If it is there and "
                    "wants a token: set RAY_AUTH_MODE=token, with its ~/.ray/auth_token on this machine"
                )
            raise LinkError(f"no Ray cluster at {self._placement.address!r}: {why}{hint}") from error
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def nodes(self, resources: Mapping[str, float] | None = None) -> list[dict[str, Any]]:
        """Those that live, and have (free or not) these resources."""
        wanted = (resources or {}).items()
        alive = [node for node in _nodes() if node["Alive"]]
        return [node for node in alive if all(node["Resources"].get(what, 0.0) >= count for what, count in wanted)]

    def reserve(self, bundles: Sequence[dict[str, float]], stopped: Callable[[], bool]) -> None:
        """Reserve each bundle of resources, on different nodes where possible; the first, which is home's,
        on the driver's node if there is room: the learner writes into the run folder.

        Raises:
            ConfigError: they cannot be had within ``wait_seconds``; the message compares what is wanted and what there
                is.
            KeyboardInterrupt: ``stopped()``.
        """
        deadline = time.monotonic() + self._placement.wait_seconds
        near = self._near(bundles[0])
        if near is not None:
            soon = min(deadline, time.monotonic() + _NEAR_SECONDS)
            if self._try([near, *bundles[1:]], soon, stopped):
                return
            assert self._group is not None
            remove_placement_group(self._group)
        if not self._try(bundles, deadline, stopped):
            raise ConfigError(self._lacks(bundles))

    def want(self, number: int, bundle: dict[str, float]) -> None:
        """Ask for one more bundle, which the cluster gives when it has room, and gives again when its node was lost.
        Until then it is demand, by which a cluster may grow."""
        self._more[number] = placement_group([bundle], strategy="PACK")

    def give_back(self, number: int) -> None:
        """Withdraw one of these requests, or release its resources."""
        group = self._more.pop(number, None)
        if group is not None:
            remove_placement_group(group)

    def room(self) -> set[int]:
        """The numbers of those requests that are granted now."""
        known = placement_group_table() if self._more else {}
        there = {key for key, one in known.items() if one["state"] == "CREATED"}
        return {number for number, group in self._more.items() if group.id.hex() in there}

    def _try(self, bundles: Sequence[dict[str, float]], deadline: float, stopped: Callable[[], bool]) -> bool:
        self._group = placement_group(list(bundles), strategy="SPREAD")
        while not self._group.wait(_LOOK_SECONDS):
            if stopped():
                raise KeyboardInterrupt
            if time.monotonic() >= deadline:
                return False
        return True

    def _near(self, bundle: dict[str, float]) -> dict[str, float] | None:
        """``bundle`` on the driver's node; None: it could never be there."""
        own = ray.get_runtime_context().get_node_id()
        node = next((node for node in self.nodes() if node["NodeID"] == own), None)
        name = f"node:{node['NodeManagerAddress']}" if node else ""
        if node is None or name not in node["Resources"]:
            return None
        fits = all(node["Resources"].get(what, 0.0) >= count for what, count in bundle.items())
        return {**bundle, name: _NEAR} if fits else None

    def actor(self, cls: type, bundle: int, cpus: float, gpus: float = 0.0, name: str | None = None) -> Any:
        """The class as Ray's actor in a bundle, to be called with ``remote``."""
        return _remote_class(cls).options(
            num_cpus=cpus,
            num_gpus=gpus,
            name=name,
            namespace=self.namespace,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=self._strategy(bundle),
        )

    def task(self, function: Any, bundle: int) -> Any:
        """The function as Ray's task in a bundle, run once."""
        return _remote(function).options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=self._strategy(bundle),
        )

    def _strategy(self, bundle: int) -> PlacementGroupSchedulingStrategy:
        if bundle in self._more:
            return PlacementGroupSchedulingStrategy(self._more[bundle], placement_group_bundle_index=0)
        assert self._group is not None, "call reserve first"
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)

    def close(self) -> None:
        """Release the resources, with what still runs there, and the connection."""
        groups = [*self._more.values(), *([] if self._group is None else [self._group])]
        self._group, self._more = None, {}
        try:
            for group in groups if ray.is_initialized() else []:
                with suppress(RayError):  # one that cannot be given back shall not keep the others
                    remove_placement_group(group)
        finally:
            if self._ours and ray.is_initialized():
                ray.shutdown()

    def _lacks(self, bundles: Sequence[dict[str, float]]) -> str:
        names = sorted({name for bundle in bundles for name in bundle})
        wanted = ", ".join(f"{sum(b.get(name, 0.0) for b in bundles):g} {name}" for name in names)
        largest = ", ".join(f"{max(b.get(name, 0.0) for b in bundles):g} {name}" for name in names)
        nodes = [
            f"{node['NodeManagerHostname']} with " + ", ".join(f"{node['Resources'].get(n, 0.0):g} {n}" for n in names)
            for node in self.nodes()
        ]
        return (
            f"this run wants {wanted} in {len(bundles)} bundles of at most {largest}, and within "
            f"{self._placement.wait_seconds:g} s the cluster did not have that free. It is: "
            f"{'; '.join(nodes) or 'empty'}. Take fewer --actors, less --actor-cpus or --learner-gpus"
            + (
                ""
                if self._placement.address == "local"
                else ", or from Python, for a cluster that grows, larger wait_seconds"
            )
        )


@functools.cache
def _remote_class(cls: type) -> Any:
    """Cached: the cluster's head keeps every class that is made."""
    return _remote(concurrency_groups=_CONCURRENCY)(cls)


def kill(handle: Any) -> None:
    """End an actor, if there is one."""
    if handle is not None and ray.is_initialized():  # Ray would start a cluster to kill somebody in
        with suppress(RayError, ValueError):
            ray.kill(handle, no_restart=True)


def _reach(address: str) -> None:
    """Check that a cluster's head answers: Ray itself would try for minutes.

    Raises:
        ConfigError: ``address`` is not HOST:PORT.
        LinkError: no head of a cluster listens there.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdigit():
        raise ConfigError(f"--ray {address}: say auto, local, or HOST:PORT of a cluster's head (such as 10.0.0.1:6379)")
    answer = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS) as line, suppress(OSError):
            line.sendall(_HELLO)
            answer = line.recv(9)
    except (OSError, OverflowError) as error:
        raise LinkError(
            f"no Ray cluster at {address}: {error}. Start one with `ray start --head`, or take --ray local"
        ) from error
    if (len(answer) < 4 or answer[3] != _SETTINGS) and os.environ.get("RAY_USE_TLS", "0") == "0":
        raise LinkError(
            f"no Ray cluster at {address}: what listens there is not its head. Start one with `ray start --head` "
            "(port 6379 by default), or take --ray local"
        )
