"""How many groups a run begins with on nodes of different sizes; and a cluster that does not start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.config.placement import Ray
from apexrl.errors import LinkError
from apexrl.launch.ray import cluster
from apexrl.launch.ray.group_plan import resource_bundles
from apexrl.launch.ray.preflight import fitting


class Nodes:
    """Of a cluster, as the processors of each."""

    def __init__(self, *cpus: float) -> None:
        self._cpus = cpus

    def nodes(self, resources: Mapping[str, float]) -> list[float]:
        return [cpus for cpus in self._cpus if cpus >= resources["CPU"]]


@pytest.mark.parametrize(
    ("cpus", "actors", "groups"),
    [
        ((5, 5, 2), 8, [5, 5]),  # the smallest is the learner's
        ((5, 5, 5), 8, [4, 4, 3]),
        ((64,), 8, [9]),
        ((64, 2), 8, [9]),
        ((2, 2), 8, [5, 5]),  # nowhere is room: said by whoever reserves
        ((0, 4, 4), 4, [3, 3]),
    ],
)
def test_nodes_that_are_too_small_for_a_group_are_not_counted(cpus: Any, actors: int, groups: list[float]) -> None:
    config, placement = override(Config(), {"actors": actors}), Ray("auto")
    decided = fitting(config, placement, Nodes(*cpus))  # type: ignore[arg-type]
    assert [place["CPU"] for place in resource_bundles(config, placement, decided)[1:]] == groups


@pytest.mark.parametrize(
    ("each", "learners", "gpus"), [(0.6, 3, 3), (0.5, 3, 2), (0.25, 2, 0.5), (1, 2, 2), (0, 2, None)]
)
def test_a_learners_part_of_a_gpu_lies_on_one(each: float, learners: int, gpus: float | None) -> None:
    config = override(Config(), {"topology": "impala", "learners": learners, "actors": 4})
    placement = Ray("auto", learner_gpus=each)
    home = resource_bundles(config, placement, fitting(config, placement, Nodes(8, 8)))[0]  # type: ignore[arg-type]
    assert home.get("GPU") == gpus


@pytest.mark.parametrize(
    ("address", "kind", "told", "hint"),
    [
        ("local", Exception, "did not start on this machine", r"\. Try again"),
        ("auto", Exception, "no Ray cluster at", "$"),
        ("auto", ConnectionError, "no Ray cluster at", r"\. Start one with `ray start --head`"),
    ],
)
def test_a_cluster_that_does_not_start_is_an_error_of_ours(
    address: str, kind: type[Exception], told: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**kwargs: Any) -> None:
        raise kind("The current node timed out during startup.\nMore lines.")  # as Ray has it

    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", init)
    with pytest.raises(LinkError, match=f"{told}.*The current node timed out during startup. More lines{hint}"):
        cluster.Cluster(Ray(address), 2.0)
