"""``updates_per_step`` holds for any batch size, any number of learners in an update, and wherever replays lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import WaitTimeout
from apexrl.protocols import Item, Place
from apexrl.replay import Replay
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import BatchesLink, Probe, ReplayLink, topology
from apexrl.topologies.ray_cut import sampling
from apexrl.topologies.replay_links import prioritized

SPEC = EnvSpec({"observation": Field((1,), "float32")}, ActionSpec(n=2))
ITEMS = {"transition": Item(), "sequence": Item("sequence", length=6, stride=3, burn_in=2)}
STEPS = 4000


def config_for(name: str, batch_size: int, **changes: Any) -> Config:
    counts = {"actors": 1, "envs_per_actor": 1, "n_step": 3, "capacity": 10_000, "min_size": 40, "alpha": 0.0}
    ratio = {"updates_per_step": 0.125, "insert_band": 0.1, "batch_size": batch_size}
    return override(Config(), {"topology": name, **counts, **ratio, **changes})


def updates_made(options: dict[str, Any], batch_size: int) -> int:
    """How many batches a replay gives out, while one stream writes ``STEPS`` steps of one episode into it."""
    batches = 0
    fields = options["fields"]
    with Replay(**options) as replay, replay.writer(streams=1) as writer:
        for _ in range(STEPS):
            step = {name: np.zeros((1, *field.shape), field.dtype) for name, field in fields.items()}
            ends = {"terminated": [False], "truncated": [False]}
            writer.append(step | {"reward": np.zeros(1, np.float32), **ends}, timeout=1.0)
            try:
                while True:
                    replay.sample(batch_size, timeout=0.0)
                    batches += 1
            except WaitTimeout:
                pass
    return batches


@pytest.mark.parametrize("kind", ITEMS)
@pytest.mark.parametrize("batch_size", [8, 64])
def test_a_batch_size_or_a_stride_changes_no_updates(kind: str, batch_size: int) -> None:
    probe = Probe(SPEC, {}, 64, item=ITEMS[kind])
    options = prioritized(config_for("apex", batch_size), probe)
    filling = 40 * (3 if kind == "sequence" else 1)
    assert updates_made(options, batch_size) == pytest.approx(0.125 * (STEPS - filling), rel=0.03)


WIRED: list[tuple[str, dict[str, Any], int]] = [  # topology, its settings, batches that one update takes
    ("apex", {}, 1),
    ("apex", {"learners": 3}, 3),
    ("gorila", {"learners": 2}, 1),
    ("gorila", {"learners": 2, "replay": "local", "actors": 2}, 1),
    ("seed", {}, 1),
]


@pytest.mark.parametrize(("name", "settings", "batches"), WIRED)
def test_every_replay_of_a_topology_keeps_to_it(name: str, settings: dict[str, Any], batches: int) -> None:
    offers = ("gradients", "apply", "networks")
    probe = Probe(SPEC, {}, 64, offers=offers, vectors={"q/online": 8}, places={"w": Place("q", 0, (8,))})
    program = topology(name)(config_for(name, 32, **settings), probe)
    ports = [port for node in program.nodes for port in node.ports.values()]
    links = [port.replay if isinstance(port, BatchesLink) else port for port in ports]
    replays = [link.options for link in links if isinstance(link, ReplayLink)]
    if name != "seed":
        replays += sampling(program)  # as shards on Ray
    assert {one["samples_per_insert"] / (32 * batches) for one in replays} == {0.125}
