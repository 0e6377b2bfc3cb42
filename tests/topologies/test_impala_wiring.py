"""IMPALA's wiring, and that its queue of unrolls lets everybody go on, whatever the numbers and whoever dies."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import AgentError, ConfigError, WaitTimeout
from apexrl.protocols import Item, Place
from apexrl.replay import Replay
from apexrl.replay.chunks import schema
from apexrl.roles.lag_throttle import LagThrottle
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import Probe, ReplayLink, WeightsLink, topology
from apexrl.topologies.host_cut import actor_side, learner_side, passing, replay_of, with_slots
from apexrl.topologies.program import Node, Program
from apexrl.topologies.queue_links import OfQueue
from apexrl.topologies.replay_links import experience, most_waiting, queue

T = 5
SPEC = EnvSpec({"observation": Field((), "float32")}, ActionSpec(n=2))


def probe(length: int = T) -> Probe:
    return Probe(SPEC, {"log_prob": Field((), "float32")}, 64, Item("unroll", length), ("gradients",))


def config_for(**settings: Any) -> Config:
    return override(Config(), {"topology": "impala", "agent": "impala", **settings})


def nodes(program: Program) -> dict[str, Node]:
    return {node.name: node for node in program.nodes}


def test_it_names_learner_actors_and_evaluator() -> None:
    config = config_for(actors=5, envs_per_actor=3, env_timeout=9.0)
    found = nodes(topology("impala")(config, probe()))
    assert {name: node.count for name, node in found.items()} == {"learner": 1, "actor": 5, "evaluator": 1}
    assert found["actor"].env_timeout == found["evaluator"].env_timeout == 9.0
    assert (found["learner"].restarts, found["actor"].restarts) == (20, 100)
    assert found["actor"].ports["replay"] is found["learner"].ports["replay"]
    assert isinstance(found["actor"].ports["replay"], ReplayLink)
    assert "replay" not in found["evaluator"].ports
    assert {node.ports["weights"] for node in found.values()} == {WeightsLink(64)}
    assert len({id(node.ports["weights"]) for node in found.values()}) == 1


def test_the_queue_holds_some_batches_of_unrolls() -> None:
    config = config_for(batch_size=32, queue_batches=3, stack=2, gamma=0.9, seed=7)
    options = queue(config, probe())
    assert (options["kind"], options["length"], options["sampler"]) == ("unroll", T, "fifo")
    assert (options["capacity"], options["stack"], options["gamma"], options["seed"]) == (96, 2, 0.9, 7)
    assert set(options["fields"]) == {"observation", "action", "version", "log_prob"}
    assert "samples_per_insert" not in options
    assert "min_size" not in options
    assert experience(config, probe()) == options


def test_what_learns_from_anything_else_gets_a_prioritized_replay() -> None:
    options = experience(config_for(capacity=77), replace(probe(), item=Item("sequence", 8, 4, 2)))
    assert (options["kind"], options["capacity"], options["alpha"]) == ("sequence", 77, 0.6)


VECTORS = {"policy_value/online": 30, "policy_value/optimizer/steps": 1}
PLACES = {"w": Place("policy_value", 0, (30,))}


def test_several_learners_have_a_queue_each_and_one_board() -> None:
    able = replace(probe(), offers=("gradients", "apply", "networks"), vectors=VECTORS, places=PLACES)
    found = nodes(topology("impala")(config_for(actors=5, learners=2), able))
    assert {name: node.count for name, node in found.items()} == {"learner": 2, "actor": 5, "evaluator": 1}
    learner, actor = found["learner"], found["actor"]
    assert learner.traits.writes_checkpoints
    assert not actor.traits.writes_checkpoints
    assert learner.ports["queue_0"] is actor.ports["queue_0"] is not actor.ports["queue_1"]
    assert learner.ports["weights"] is actor.ports["weights"] is found["evaluator"].ports["weights"]
    link = learner.ports["averaging"]
    assert link.options == {"members": 2, "patience": 10.0, "compression": "none", "share": 0.01, "transport": "auto"}


def test_a_slot_serves_one_queue() -> None:
    taken = []

    def role(context: Any, *, replay: str, weights: str) -> Any:
        taken.append((context.index, replay, weights))

    make = OfQueue(role)
    for index in range(5):
        ports = {f"queue_{i}": f"q{i}" for i in range(12)}
        make(SimpleNamespace(index=10 + index), weights="w", **ports)  # type: ignore[arg-type]
    assert [queue for _, queue, _ in taken] == ["q10", "q11", "q0", "q1", "q2"]
    assert {weights for *_, weights in taken} == {"w"}


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        ({"actors": 1}, {}, "--learners 2 want an actor each, and --actors is 1"),
        ({"save_replay": True}, {}, "--save-replay keeps one queue"),
        ({"anneal": True}, {}, "with --anneal each would look for itself how far the run is"),
        ({}, {"offers": ("gradients",)}, "need an agent whose update can be split: impala lacks apply, networks"),
        ({}, {"vectors": {}}, "impala lacks vectors that can be shared"),
        ({}, {"places": {}}, "agent impala is made of more than these"),
    ],
)
def test_what_several_learners_cannot_do_is_refused(
    settings: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    able = replace(probe(), offers=("gradients", "apply", "networks"), vectors=VECTORS, places=PLACES)
    with pytest.raises((ConfigError, AgentError), match=words):
        topology("impala")(config_for(learners=2, **settings), replace(able, **changes))


class Stream:
    """Steps whose observation counts them. Episodes end at random; the row after an end is a final observation."""

    def __init__(self, replay: Replay, streams: int, seed: int) -> None:
        self.rows = 0  # ever written here
        self._streams = streams
        self._writer = replay.writer(streams=streams)
        self._random = np.random.default_rng(seed)

    def write(self) -> bool:
        """One row of every stream; False: there is no room."""
        step = {
            "observation": np.full(self._streams, self.rows, np.float32),
            "action": np.zeros(self._streams, np.int64),
            "version": np.arange(self._streams, dtype=np.int64),
            "log_prob": np.zeros(self._streams, np.float32),
            "reward": np.zeros(self._streams, np.float32),
            "terminated": self._random.random(self._streams) < 0.1,
            "truncated": np.zeros(self._streams, np.bool_),
        }
        try:
            self._writer.append(step, timeout=0.0)
        except WaitTimeout:
            return False
        self.rows += 1
        return True

    def close(self) -> None:
        self._writer.close()


NUMBERS = [
    # actors, streams of each, T, batch, batches in the queue
    (1, 1, 1, 1, 1),
    (1, 1, T, 64, 1),
    (2, 3, T, 7, 1),
    (2, 16, 20, 32, 2),
    (1, 512, T, 2, 1),
    (3, 100, T, 512, 2),
    (4, 1, T, 200, 3),
]


def made(actors: int, streams: int, length: int, batch: int, queued: int) -> Replay:
    config = config_for(actors=actors, envs_per_actor=streams, batch_size=batch, queue_batches=queued)
    return Replay(**queue(config, probe(length)))


@pytest.mark.parametrize("numbers", NUMBERS, ids=str)
def test_when_actors_wait_there_is_a_batch(numbers: tuple[int, int, int, int, int]) -> None:
    actors, streams, length, batch, queued = numbers
    with made(*numbers) as replay:
        writers = [Stream(replay, streams, seed) for seed in range(actors)]
        for _ in range(30):
            for _ in range(40 * length * queued * (1 + batch // streams)):
                if not sum(writer.write() for writer in writers):
                    break
            else:
                pytest.fail("the queue has no end")
            assert batch <= len(replay) <= queued * batch + actors * streams  # one of every stream may come at once
            data = replay.sample(batch, timeout=0.0).data
            assert np.diff(data["observation"], axis=1).min() == 1.0  # one row after the other
        assert replay.stats()["sampled"] == 30 * batch


def test_unrolls_come_once_and_in_the_order_of_their_stream() -> None:
    with made(1, 4, T, 6, 2) as replay:
        writer = Stream(replay, 4, 0)
        seen: dict[int, list[float]] = {stream: [] for stream in range(4)}
        while len(seen[0]) < 50:
            while writer.write():
                pass
            data = replay.sample(6, timeout=0.0).data
            for row in range(6):
                seen[int(data["version"][row, 0])].append(float(data["observation"][row, 0]))
        for starts in seen.values():
            assert starts == [T * k for k in range(len(starts))]


@pytest.mark.parametrize("numbers", [(1, 4, T, 512, 1), (1, 1, T, 256, 1), (1, 16, T, 64, 1)], ids=str)
def test_actors_that_die_again_and_again_do_not_stop_the_rest(numbers: tuple[int, int, int, int, int]) -> None:
    """Each generation leaves one unroll of every stream in a slot of its own."""
    streams, length, batch = numbers[1], numbers[2], numbers[3]
    with made(*numbers) as replay:
        for generation in range(4 * batch // streams):
            writer = Stream(replay, streams, generation)
            for _ in range(length + 1):
                if not writer.write():
                    assert len(replay) >= batch
                    replay.sample(batch, timeout=0.0)
                    break
            writer.close()
        assert replay.stats()["sampled"] >= 2 * batch


def test_it_is_cut_between_actors_and_learner() -> None:
    config = with_slots(config_for(actors=2, envs_per_actor=3, batch_size=32))
    program = topology("impala")(config, probe())
    there = nodes(learner_side(program, {}))["intake"].ports["queue_0"].options
    here = nodes(actor_side(program, [(0, 1), (1, 1)], {}))["uplink"].ports["replay"].options
    assert schema(**there) == schema(**here) == schema(**replay_of(program).options)
    assert (there["sampler"], there["capacity"], there["streams"]) == ("fifo", 64, 3 * 64)
    assert (here["sampler"], here["streams"]) == ("fifo", 6)
    for options in (there, here):
        Replay(**options).close()


@pytest.mark.parametrize("streams", [1, 16, 512])
@pytest.mark.parametrize("length", [5, 20, 128])
def test_an_actor_hosts_queue_has_room_for_every_stream_and_for_no_more_steps_than_others(
    streams: int, length: int
) -> None:
    field = Field((4,), "float32")
    options = {"fields": {"observation": field}, "kind": "unroll", "length": length, "sampler": "fifo", "capacity": 64}
    local = passing(options, 1, streams, 64 * 2**20)
    assert local["capacity"] >= 2 * streams
    assert local["capacity"] * length <= max(2048, 8 * streams * length)
    big = passing({**options, "fields": {"observation": Field((84, 84), "uint8")}}, 1, 1, 2**23)
    assert big["capacity"] * length * 84 * 84 <= max(2**23, 2 * length * 84 * 84)


LAG: dict[str, Any] = {"batch_size": 8, "actors": 2, "envs_per_actor": 4, "publish_period_updates": 1, "prefetch": 0}


def test_a_bound_on_lag_says_how_many_unrolls_may_wait() -> None:
    """By hand: 1 update for the batch at the learner; 24 unrolls of 8 environments; so (4 − 1 + 1) · 8 − 24 = 8."""
    config = config_for(**LAG, wait_at_policy_lag=4, queue_batches=8)
    assert nodes(topology("impala")(config, probe()))["actor"].ports["most_waiting"] == 8
    assert (
        most_waiting(override(config, {"publish_period_updates": 3, "wait_at_policy_lag": 6}), Item("unroll", T)) == 8
    )
    assert most_waiting(override(config, {"wait_at_policy_lag": 0}), Item("unroll", T)) == 0
    assert most_waiting(override(config, {"wait_at_policy_lag": 99}), Item("unroll", T)) == 8 * 8 - 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wait_at_policy_lag": 3}, "--wait-at-policy-lag 3 is less than 4, the lag that cannot be avoided"),
        ({"wait_at_policy_lag": 4, "queue_batches": 1}, "raise --queue-batches to at least 2"),
        (
            {"wait_at_policy_lag": 12, "actor_slots": 16},
            r"24 of unrolls under way in 64 environments \(of --actor-slots 16",
        ),
        (
            {"wait_at_policy_lag": 30, "actor_slots": 16, "queue_batches": 8},
            r"64 environments \(of --actor-slots 16\): rai",
        ),
    ],
)
def test_a_bound_on_lag_that_would_stop_everybody_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        topology("impala")(config_for(**LAG, **changes), probe())


def test_a_bound_on_lag_is_refused_where_the_queue_is_elsewhere_or_none_is() -> None:
    config = config_for(**LAG, wait_at_policy_lag=4)
    with pytest.raises(ConfigError, match="--wait-at-policy-lag 4 cannot hold over several hosts"):
        replay_of(topology("impala")(config, probe()))
    with pytest.raises(ConfigError, match="agent r2d2 learns from a replay"):
        most_waiting(override(config, {"agent": "r2d2"}), Item("sequence", T, 1))


def test_the_throttle_holds_while_too_many_wait_and_gives_everybody_a_turn() -> None:
    counts: list[int] = []
    context: Any = SimpleNamespace(patience=0.01, count=lambda lag_wait_ms: counts.append(lag_wait_ms))
    config = config_for(actors=1, envs_per_actor=2)
    fields = {"observation": Field((), "float32"), "action": Field((), "int64")}
    with Replay(64, fields, kind="unroll", length=T, sampler="fifo", streams=2, writers=1) as replay:
        throttle, writer = LagThrottle(context, config, replay, 4), replay.writer(streams=2)

        def write(steps: int) -> None:
            for _ in range(steps):
                step = {"observation": np.zeros(2, "f4"), "action": np.zeros(2, "i8"), "reward": np.zeros(2, "f4")}
                writer.append({**step, "terminated": [False] * 2, "truncated": [False] * 2})

        write(2 * T + 1)
        assert [throttle.begins(rows) for rows in (0, 1, T, np.array([1, T]))] == [True, False, True, True]
        assert throttle.wait()  # four wait
        assert counts == []
        write(3 * T)
        assert not throttle.wait(7)  # ten wait
        assert sum(counts) >= 9  # ms
        replay.sample(2)
        assert throttle.wait(7)  # eight wait, but it was passed by two, and there are two environments
        throttle.began(7)
        assert not throttle.wait(7)
        replay.sample(4)
        assert throttle.wait(7)
    assert not LagThrottle(context, config, replay, 0).begins(0)
