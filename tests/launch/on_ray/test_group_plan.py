"""How actors are dealt to groups, and what is refused before anything starts; Ray itself is not needed for that."""

from __future__ import annotations

import numpy as np
import pytest

from apexrl.config import ActorConfig, Config, WiringConfig
from apexrl.config.placement import Ray
from apexrl.errors import ConfigError
from apexrl.launch.ray.group_plan import check_room, choosing, plan, resource_bundles, settled
from apexrl.replay import Field, Replay
from apexrl.replay.sharded.shard import Shard


def config(least: int, most: int = 0) -> Config:
    return Config(actor=ActorConfig(actors=least, actor_slots=most))


def test_a_run_of_one_size_has_a_group_for_each_node() -> None:
    dealt = plan(config(5), Ray(), nodes=2)
    assert dealt.slots == ((0, 2, 4), (1, 3))
    assert dealt.base == 2
    assert dealt.least == dealt.most == 5
    assert len(plan(config(5), Ray(replay_shards=4), nodes=2).slots) == 4
    assert len(plan(config(2), Ray(), nodes=9).slots) == 2  # no group is without an actor


@pytest.mark.parametrize("nodes", [1, 2, 3, 50])
@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("shards", [0, 3, 5])
@pytest.mark.parametrize(("least", "most"), [(2, 8), (4, 5), (5, 16), (16, 64)])
def test_a_run_begins_with_its_first_slots_and_every_slot_is_dealt_once(
    least: int, most: int, shards: int, queues: int, nodes: int
) -> None:
    """The ladder of ε is even over the first slots, however many come later."""
    dealt = plan(config(least, most), Ray(replay_shards=shards), nodes, queues)
    first = [slot for slots in dealt.slots[: dealt.base] for slot in slots]
    assert sorted(first) == list(range(least))
    assert sorted(slot for slots in dealt.slots for slot in slots) == list(range(most))
    assert (dealt.least, dealt.most) == (least, most)
    assert all(dealt.slots)
    assert queues <= dealt.base < len(dealt.slots)
    assert not shards or len(dealt.slots) == shards


def test_groups_that_come_later_are_as_large_as_the_first() -> None:
    dealt = plan(config(8, 32), Ray(), nodes=2)
    assert [len(slots) for slots in dealt.slots] == [4] * 8
    assert dealt.base == 2


def test_places_hold_a_shard_and_its_actors() -> None:
    placement = Ray(actor_cpus=0.5, shard_cpus=2.0, learner_cpus=3.0, learner_gpus=1.0)
    assert resource_bundles(config(3), placement, plan(config(3), placement, nodes=2)) == [
        {"CPU": 3.0, "GPU": 1.0},
        {"CPU": 3.0},
        {"CPU": 2.5},
    ]
    several = Config(topology="impala", actor=ActorConfig(actors=4), wiring=WiringConfig(learners=2))
    assert resource_bundles(several, placement, plan(several, placement, 2, queues=2))[0] == {"CPU": 6.0, "GPU": 2.0}


def test_policy_workers_are_dealt_out_with_the_actors_and_may_share_gpus() -> None:
    one = Config(topology="sample_factory", actor=ActorConfig(actors=5), wiring=WiringConfig(policy_workers=3))
    placement = Ray(actor_cpus=0.5, shard_cpus=0.25, inference_cpus=2.0, inference_gpus=0.4, learner_gpus=1.0)
    dealt = plan(one, placement, nodes=2)
    assert choosing(one, dealt) == [2, 1]
    assert resource_bundles(one, placement, dealt) == [
        {"CPU": 1.0, "GPU": 1.0},
        {"CPU": 0.25 + 3 * 0.5 + 2 * 2.0, "GPU": 0.8},
        {"CPU": 0.25 + 2 * 0.5 + 2.0, "GPU": 0.4},
    ]
    several = Ray(inference_gpus=0.6)  # of which none goes with another on one GPU
    assert resource_bundles(one, several, dealt)[1]["GPU"] == 2.0
    grows = Config(topology="sample_factory", actor=ActorConfig(actors=2, actor_slots=8))
    dealt = plan(grows, Ray(), nodes=2)
    assert choosing(grows, dealt) == [1] * len(dealt.slots)  # each has one at least


def test_inference_servers_have_their_part_beside_the_learner_and_groups_have_no_shard() -> None:
    placement = Ray(actor_cpus=0.5, shard_cpus=4.0, learner_cpus=2.0, inference_cpus=3.0, inference_gpus=0.25)
    seed, ga3c = (Config(topology=name, actor=ActorConfig(actors=3)) for name in ("seed", "ga3c"))
    dealt = plan(seed, placement, nodes=2)
    assert resource_bundles(seed, placement, dealt) == [{"CPU": 5.0, "GPU": 0.25}, {"CPU": 1.0}, {"CPU": 0.5}]
    assert resource_bundles(ga3c, placement, dealt)[0] == {"CPU": 2.0, "GPU": 0.25}  # it learns and chooses
    with pytest.raises(ConfigError, match="--actor-cpus 0 leaves groups of environment workers without"):
        resource_bundles(seed, Ray(actor_cpus=0.0), dealt)
    with pytest.raises(ConfigError, match="--inference-gpus means nothing to topology apex"):
        resource_bundles(config(3), placement, dealt)


def test_workers_on_a_cluster_have_two_groups_of_environments() -> None:
    assert settled(Config(topology="seed"), Ray("auto")).wiring.splits == 2
    one = Config(topology="seed", wiring=WiringConfig(splits=1))
    assert settled(one, Ray("auto")).wiring.splits == 1


@pytest.mark.parametrize(
    ("least", "most", "shards", "queues", "what"),
    [
        (2, 0, 3, 1, "--replay-shards 3 want an actor each, and --actors is 2"),
        (2, 4, 5, 1, "--replay-shards 5 want an actor each, and --actors is 4"),
        (4, 0, 2, 3, "--learners 3 .*--replay-shards 2 are fewer"),
        (2, 0, 0, 3, "--learners 3 .*--actors 2 are fewer"),
        (2, 8, 0, 3, "--learners 3 .*--actors 2 are fewer"),
        (2, 8, 1, 1, "--replay-shards 1 leave none for actors that come later .--actors 2:8.: say at least 2"),
    ],
)
def test_what_cannot_be_dealt_is_refused_by_its_setting(
    least: int, most: int, shards: int, queues: int, what: str
) -> None:
    with pytest.raises(ConfigError, match=what):
        plan(config(least, most), Ray(replay_shards=shards), 2, queues)


def test_a_run_must_be_able_to_learn_before_it_has_grown() -> None:
    """And to go on: a full shard lacks up to a chunk less one item, here 2 of 100."""
    dealt = plan(config(2, 8), Ray(), nodes=2)  # two shards of eight
    check_room(dealt, [{"capacity": 800, "min_size": 196}])
    check_room(dealt, [{"capacity": 800, "min_size": 200, "remover": "proportional"}])  # removes items one by one
    check_room(dealt, [{"capacity": 8, "sampler": "fifo"}])
    with pytest.raises(ConfigError, match=r"--capacity 800 lies in 8 shards.* the 2 .* 196 items.*up to 3 .* 197: "):
        check_room(dealt, [{"capacity": 800, "min_size": 197}])
    with pytest.raises(ConfigError, match="190 items"):  # a chunk of sequences holds up to twice as many
        check_room(dealt, [{"capacity": 800, "min_size": 196, "kind": "sequence"}])
    whole = plan(config(2), Ray(), nodes=2)
    check_room(whole, [{"capacity": 800, "min_size": 778}])
    with pytest.raises(ConfigError, match="778 items"):
        check_room(whole, [{"capacity": 800, "min_size": 800}])


def test_a_full_shard_holds_at_least_what_was_counted_on() -> None:
    with Replay(100, {"number": Field((), "int64")}, writers=1) as replay:
        shard, writer, least = Shard(replay), replay.writer(), 100
        for row in range(400):
            writer.extend({"number": np.asarray([row])}, priorities=np.ones(1))
            size = shard.draw(1).status.size
            least = min(least, size) if row >= 100 else least
    dealt = plan(config(1), Ray(), nodes=1)
    check_room(dealt, [{"capacity": 100, "min_size": least}])
    with pytest.raises(ConfigError):
        check_room(dealt, [{"capacity": 100, "min_size": least + 1}])
