"""One Ray of several nodes, on this machine, for all tests here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

QUIET = {
    "RAY_worker_niceness": "0",  # Ray's own is 15, behind everything else on the machine
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a cluster: three nodes with two processors each, as far as Ray knows."""
    pytest.importorskip("ray.cluster_utils", reason="needs the extra ray", exc_type=ImportError)
    os.environ.update(QUIET, PYTHONPATH=str(Path(__file__).parent))  # nodes find our roles there
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "object_store_memory": 100 * 2**20, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=2, object_store_memory=80 * 2**20)
        yield nodes.address
    finally:
        nodes.shutdown()
