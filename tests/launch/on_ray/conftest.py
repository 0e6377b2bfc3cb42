"""One Ray of several nodes, on this machine, for all tests here."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_environment import QUIET


class Nodes:
    """A head without processors, and nodes with two each, as far as Ray knows: one, until ``grow``."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": 100 * 2**20, "include_dashboard": False}
        self._cluster = Cluster()
        self._start(**head)
        self.address = str(self._cluster.address)
        self.newest = ""
        self.add()

    def grow(self, count: int) -> None:
        """Until there are so many nodes."""
        for _ in range(count - len(self._cluster.worker_nodes)):
            self.add()

    def add(self, **how: Any) -> Any:
        """One more node."""
        node = self._start(**{"num_cpus": 2, "object_store_memory": 80 * 2**20, **how})
        self.newest = node.node_id
        return node

    def _start(self, **how: Any) -> Any:
        """A node. Ray gives it 30 seconds, which a busy machine may not have for it at once."""
        try:
            node = self._cluster.add_node(wait=False, **how)
        except Exception:
            node = self._cluster.add_node(wait=False, **how)
        self._cluster._wait_for_node(node, timeout=120)
        return node

    def lose(self, node_id: str) -> None:
        """Kill every process of a node, as if its machine had gone."""
        self._cluster.remove_node(self._node(node_id), allow_graceful=False)

    def cut_off(self, node_id: str) -> None:
        """The head hears no more of a node, whose workers live on. Lose it at the end."""
        (raylet,) = self._node(node_id).all_processes["raylet"]
        os.kill(raylet.process.pid, signal.SIGSTOP)

    def _node(self, node_id: str) -> Any:
        (node,) = [node for node in self._cluster.worker_nodes if node.node_id == node_id]
        return node

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def begun() -> Iterator[Nodes]:
    os.environ.update(QUIET, PYTHONPATH=str(Path(__file__).parent))  # nodes find our roles there
    made = Nodes()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="session")
def one_node(begun: Nodes) -> str:
    """The address of a Ray that has one node, or more, with two processors: for tests that occupy none."""
    return begun.address


@pytest.fixture(scope="session")
def nodes(begun: Nodes) -> Nodes:
    """Three."""
    begun.grow(3)
    return begun


@pytest.fixture(scope="session")
def cluster(nodes: Nodes) -> str:
    """Its address. Tests leave it as they found it."""
    return nodes.address
