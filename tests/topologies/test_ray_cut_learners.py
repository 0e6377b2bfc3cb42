"""Several learners on a cluster: whose shards are whose, where weights come from, and what cannot be cut at all."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.links.averaging.gradient_averaging import GradientAveraging
from apexrl.links.local.sharded_parameters import ShardedParameters
from apexrl.protocols import Item, Place
from apexrl.replay import Replay
from apexrl.replay.sharded.shard import Shard
from apexrl.replay.sharded.sharded_replay import ShardedReplay
from apexrl.shared.weights_board import WeightsBoard
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, Program, topology
from apexrl.topologies.program import BatchesLink, Link, Node, ReplayLink, WeightsLink
from apexrl.topologies.ray_cut import LEARNERS, actor_group_side, cut, learner_node_side, learners, queues, sampling
from local_shards import LocalClient

SPEC = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2))
VECTORS = {"q/online": 320, "q/target": 320, "q/optimizer/square_average": 320, "q/optimizer/steps": 1}
PLACES = {"w": Place("q", 0, (10, 30)), "b": Place("q", 300, (20,))}
PROBE = Probe(SPEC, {}, 1280, Item(), ("gradients", "apply", "networks"), VECTORS, PLACES)
UNROLLS = replace(PROBE, item=Item("unroll", length=5))


def program(name: str, **changes: Any) -> Program:
    sizes = {"actors": 8, "envs_per_actor": 3, "capacity": 1000, "min_size": 100, "batch_size": 32}
    config = override(Config(topology=name), {**sizes, "anneal": False, "epochs": 1, "minibatches": 1, **changes})
    return topology(name)(config, UNROLLS if name in ("impala", "a3c", "ga3c", "sample_factory") else PROBE)


def nodes(side: Program) -> dict[str, Node]:
    return {node.name: node for node in side.nodes}


def replays_of(side: Program) -> list[ReplayLink]:
    return [port for node in side.nodes for port in node.ports.values() if isinstance(port, ReplayLink)]


def serving(node: Node, index: int) -> Any:
    """What slot ``index`` of a role that is made by ``OfQueue`` has for its replay."""
    named: Any = node.factory
    ports = {name: port for name, port in node.ports.items() if name.startswith("queue_")}
    return type(named)(lambda context, replay: replay)(SimpleNamespace(index=index), **ports)


def test_every_learner_of_impala_samples_what_its_own_groups_hold() -> None:
    whole = program("impala", learners=2)
    samplers = [object(), object()]
    home = nodes(learner_node_side(whole, samplers))
    assert {name: node.count for name, node in home.items()} == {"learner": 2, "evaluator": 1}
    assert [serving(home["learner"], index) for index in range(2)] == samplers
    assert isinstance(home["learner"].ports["averaging"], Link)
    assert home["learner"].ports["averaging"].make is GradientAveraging
    assert home["learner"].ports["weights"] is home["evaluator"].ports["weights"]
    assert not replays_of(learner_node_side(whole, samplers))

    sides = [actor_group_side(whole, group, 5) for group in range(5)]
    assert [len(replays_of(side)) for side in sides] == [1] * 5
    actors = [nodes(side)["actor"] for side in sides]
    assert [actor.indices for actor in actors] == [(0, 5), (1, 6), (2, 7), (3,), (4,)]
    for side, actor in zip(sides, actors, strict=True):  # its group's, whatever the slot's number
        assert all(serving(actor, slot) is replays_of(side)[0] for slot in actor.indices)
    capacity = whole.nodes[0].ports["queue_0"].options["capacity"]
    assert [replays_of(side)[0].options["capacity"] for side in sides] == [
        -(-capacity // 3), -(-capacity // 2), -(-capacity // 3), -(-capacity // 2), -(-capacity // 3)
    ]  # fmt: skip
    assert len({replays_of(side)[0].options["seed"] for side in sides}) == 5
    for side in sides:
        assert "spec" in side.nodes[0].ports  # all but the others' replays
    names = [[name for name in actor.ports if name.startswith("queue_")] for actor in actors]
    assert names == [["queue_0"], ["queue_1"], ["queue_0"], ["queue_1"], ["queue_0"]]


def test_gorilas_server_and_learners_share_batches_of_all_shards() -> None:
    whole = program("gorila", learners=3, parameter_servers=2)
    sampler = object()
    home = nodes(learner_node_side(whole, [sampler]))
    assert set(home) == {"replay", "gradient_learner", "parameter_server", "evaluator"}
    batches = home["replay"].ports["batches"]
    assert isinstance(batches, BatchesLink)
    assert batches is home["gradient_learner"].ports["batches"]
    assert batches.replay is sampler
    assert batches.options["learners"] == 3
    parameters = home["parameter_server"].ports["parameters"]
    assert parameters is home["evaluator"].ports["weights"] is home["gradient_learner"].ports["parameters"]
    assert not replays_of(learner_node_side(whole, [sampler]))
    assert {name for name, node in home.items() if name in LEARNERS} == {"gradient_learner"}


def test_apexs_learners_are_served_from_all_shards() -> None:
    whole = program("apex", learners=3)
    sampler = object()
    home = nodes(learner_node_side(whole, [sampler]))
    assert {name: node.count for name, node in home.items()} == {"replay": 1, "learner": 3, "evaluator": 1}
    batches = home["replay"].ports["batches"]
    assert batches is home["learner"].ports["replay"]
    assert (batches.replay, batches.options["learners"], batches.options["batch_size"]) == (sampler, 3, 32)
    assert not replays_of(learner_node_side(whole, [sampler]))
    assert [len(replays_of(actor_group_side(whole, group, 2))) for group in range(2)] == [1, 1]


@pytest.mark.parametrize("changes", [{}, {"replay": "local"}], ids=["global", "local"])
def test_actors_of_gorila_read_whole_weights_from_a_board_of_their_group(changes: dict[str, Any]) -> None:
    side = actor_group_side(program("gorila", learners=2, parameter_servers=2, **changes), 1, 2)
    (actor,) = side.nodes
    board = actor.ports["weights"]
    assert isinstance(board, WeightsLink)
    parameters = ShardedParameters(nodes(program("gorila", learners=2))["evaluator"].ports["weights"].options["shards"])
    memory = parameters.memory(0)
    memory.version = 7
    memory.publish()
    found = parameters.latest()
    assert found is not None
    there = WeightsBoard(board.nbytes)
    there.publish(found[1], found[0])  # they fit
    read = there.latest()
    assert read is not None
    assert read[0] == 7
    assert {name: array.shape for name, array in read[1].items()} == {"w": (10, 30), "b": (20,)}


def test_local_replays_of_gorila_are_cut_like_queues() -> None:
    whole = program("gorila", learners=2, replay="local")
    samplers = [object(), object()]
    home = nodes(learner_node_side(whole, samplers))
    assert set(home) == {"gradient_learner", "parameter_server", "evaluator"}
    assert [serving(home["gradient_learner"], index) for index in range(2)] == samplers
    options = [replays_of(actor_group_side(whole, group, 4))[0].options for group in range(4)]
    assert [one["capacity"] for one in options] == [250] * 4  # 500 of each learner, in two shards
    rules = sampling(whole)
    assert [(one["capacity"], one["min_size"], one.get("sampler", "")) for one in rules] == [(500, 50, "")] * 2
    assert rules[0]["seed"] != rules[1]["seed"]


def test_what_is_cut_crosses_to_other_processes() -> None:
    """OfQueue, links and layouts are pickled; placeholders that several roles name stay one."""
    whole = program("gorila", learners=2)
    home = nodes(pickle.loads(pickle.dumps(learner_node_side(whole, ["sampler"]))))
    assert home["replay"].ports["batches"] is home["gradient_learner"].ports["batches"]
    (rule,) = pickle.loads(pickle.dumps(sampling(whole)))
    assert [column.name for column in rule["layout"].columns] == ["observation", "action", "version"]


def test_fewer_groups_than_learners_with_replays_of_their_own_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 groups are fewer than the 2 replays"):
        actor_group_side(program("impala", learners=2), 0, 1)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("apex", {}, (1, 1)),
        ("apex", {"learners": 3}, (3, 1)),
        ("impala", {"learners": 3}, (3, 3)),
        ("gorila", {"learners": 3}, (3, 1)),
        ("gorila", {"learners": 3, "replay": "local"}, (3, 3)),
        ("seed", {"learners": 3}, (1, 1)),  # which reads no such setting
    ],
)
def test_how_many_learners_and_replays_there_are(name: str, changes: dict[str, Any], expected: tuple[int, int]) -> None:
    config = override(Config(topology=name), changes)
    assert (learners(config), queues(config)) == expected
    if name != "seed":
        assert len(cut(program(name, **changes)).replays) == expected[1]


def test_hogwild_is_refused_with_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"a3c cannot run over several hosts .* SharedParameters.* set --no-hogwild"):
        cut(program("a3c"))


def test_roles_that_move_and_read_no_weights_are_refused() -> None:
    whole = Program(Config(topology="impala"))
    replay = whole.replay(fields={})
    whole.role(object, name="learner", replay=replay)  # type: ignore[arg-type]
    whole.role(object, name="actor", replay=replay, moves=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"topology impala cannot run on Ray: its roles that move must write into"):
        cut(whole)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Standard deviations by which χ² lies above its mean."""
    value = float(((counts - expected) ** 2 / expected).sum())
    return (value - (len(counts) - 1)) / np.sqrt(2 * (len(counts) - 1))


def test_shards_of_one_learner_are_sampled_as_one_replay_and_those_of_others_never(stack: ExitStack) -> None:
    """Five groups of two learners, as home samples them: steps say whose they are, priorities say how often."""
    whole = program("gorila", learners=2, replay="local", updates_per_step=0.0, min_size=2, alpha=1.0)
    rng = np.random.default_rng(4)
    shards, priorities = [], []
    for group in range(5):
        (link,) = replays_of(actor_group_side(whole, group, 5))
        replay = stack.enter_context(Replay(**{**link.options, "n_step": 1, "eps": 0.0}))
        own = rng.exponential(size=40 + 20 * group) ** 2 + 1e-3
        writer = replay.writer(
            streams=1, priority_fn=lambda items, own=own: own[items["action"].astype(np.int64) % 1000]
        )
        for step in range(len(own) + 1):
            writer.append(
                {
                    "observation": np.zeros((1, 4), np.float32),
                    "action": np.asarray([1000 * group + step]),
                    "version": np.ones(1, np.int64),
                    "reward": np.zeros(1, np.float32),
                    "terminated": np.zeros(1, bool),
                    "truncated": np.zeros(1, bool),
                }
            )
        writer.flush()
        shards.append(Shard(replay))
        priorities.append(own)
    for learner, rule in enumerate(sampling(whole)):
        mine = range(learner, 5, 2)
        sampler = ShardedReplay([LocalClient(shards[group]) for group in mine], **rule)
        names = np.concatenate([1000 * group + np.arange(len(priorities[group])) for group in mine])
        masses = np.concatenate([priorities[group] for group in mine])
        assert len(sampler) == 0
        batches, size = 500, 64
        drawn = np.concatenate([sampler.sample(size, timeout=5.0).data["action"] for _ in range(batches)])
        found, counts = np.unique(drawn, return_counts=True)
        assert set(found.tolist()) <= set(names.tolist())  # nobody else's
        whole_counts = np.zeros(5000)
        whole_counts[found] = counts
        assert len(sampler) == len(names)
        assert chi_square(whole_counts[names], batches * size * masses / masses.sum()) < 4.0
