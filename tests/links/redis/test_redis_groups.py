"""Servers under Sentinel and clusters: found, changed while a run goes on, and refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from link_pairs import KEYS, Ends, Intake, body_of, books_close, offer, until
from run_records import a_record, again

from apexrl.errors import ConfigError, LinkError
from apexrl.links.redis import address
from apexrl.links.redis.checked_values import HostDigest, LearnerDigest
from apexrl.links.redis.connection import Connection
from apexrl.links.redis.members import HostLease
from apexrl.links.redis.run_listing import look, runs
from apexrl.links.redis.run_record import LearnerLease, find_run, stop_run
from apexrl.links.redis.server import Server
from redis_groups import MASTER, Cluster, Watched
from redis_server import RedisServer, binaries

NEWEST = binaries()[-1]
SECRET = "correct/horse#battery@"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), NEWEST) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+sentinel://a:1,b:2", "names no master"),
        ("redis+sentinel://a:1/my master", "names no master"),
        ("redis+sentinel://a:1/m/games", "database number"),
        ("redis+sentinel:///m", "names no host"),
        (f"redis+sentinel://:{SECRET}@a/m", "cannot be read.*percent-encoded"),
        ("redis+sentinel://a:1,b:x/m", "cannot be read"),
        ("redis+cluster://a:1,:2", "names no host"),
        ("redis+cluster://a:1/3", "database 0 alone"),
        ("redis+cluster://a:1?db=3", "database 0 alone"),
        ("redis+cluster://a?sentinel_password=x", "'sentinel_password'"),
        ("redis+ring://a:1", "must begin with"),
        ("redis://a:1,b:2", "names several hosts"),
    ],
)
def test_addresses_that_cannot_be_are_refused_without_being_shown(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Server(url)
    assert "battery" not in str(caught.value)


def test_addresses_of_several_hosts() -> None:
    parsed = address.parse("rediss+sentinel://u:p%40@a,[::1]:7/main/2?ssl_ca_certs=/f&sentinel_password=q%2F")
    assert (parsed.kind, parsed.shown, parsed.master) == ("sentinel", "a:26379,[::1]:7/main", "main")
    assert parsed.url(address.Node("h", 1)) == "rediss://u:p%40@h:1/2?ssl_ca_certs=%2Ff"
    assert parsed.sentinel_url(parsed.nodes[1]) == "rediss://:q%2F@[::1]:7?ssl_ca_certs=%2Ff"
    assert "p%40" not in repr(parsed) + repr(Server("redis+cluster://u:p%40@a"))
    assert address.parse("redis+cluster://a,b:7").nodes == (address.Node("a", 6379), address.Node("b", 7))


def test_a_run_in_a_cluster_lives_on_one_node_and_all_runs_are_found(cluster: Cluster) -> None:
    server = cluster.server()
    assert server.check().version
    names = [f"run-{number}" for number in range(9)]
    with ExitStack() as stack:
        for name in names:
            record = a_record(name=name)
            lease = LearnerLease.take(server, record)
            stack.callback(lease.leave)
            host = HostLease.join(server, record, 2)
            stack.callback(host.leave)
            lease.renew(LearnerDigest(updates=3))
            assert host.renew(HostDigest(env_steps=1)).learner_alive
            assert find_run(server, name, 5.0) == record
        with closing(Connection(server)) as connection:  # for one after another
            assert [look(connection, name).digest.updates for name in names] == [3] * 9
        assert set(names) <= set(runs(server))
        assert len({cluster.owner(f"apexrl:{{{name}}}:record").port for name in names}) == 3
        assert stop_run(server, names[0]) == "asked"


def test_a_user_with_few_rights_finds_the_node(cluster: Cluster) -> None:
    rules = ["~apexrl:*", "&apexrl:*", "+@all", "-@dangerous", "+info", "+cluster|slots"]  # docs/how-to
    for node in cluster.nodes:
        with node.client() as client:
            client.execute_command("ACL", "SETUSER", "few", "on", ">word", *rules)
    server = Server(cluster.url.replace("://", "://few:word@"))
    assert server.check().version
    LearnerLease.take(server, a_record(name="of-few-rights")).leave()


def test_experience_and_weights_in_a_cluster_whose_slot_moves(cluster: Cluster) -> None:
    with ExitStack() as stack:
        ends = Ends(cluster, stack)  # type: ignore[arg-type]
        sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
        uploader, downloader = ends.uploader(), ends.downloader()
        for round_number in range(2):
            offer(sender, range(20 * round_number, 20 * round_number + 20))
            sender.step(0.05)
            intake.take(receiver, 0.05, most=5)
            if round_number:
                cluster.move(KEYS.record)
            until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
            weights = {"w": np.full(5, round_number, np.float32)}
            until(lambda weights=weights, version=round_number + 1: again(lambda: uploader.publish(weights, version)))
            got: list[Any] = []
            until(lambda got=got, after=round_number: got.extend(downloader.wait(after, 0.2) or ()) or bool(got))
            assert got[0] == round_number + 1
            np.testing.assert_array_equal(got[1]["w"], weights["w"])
        assert intake.bodies["m"] == [body_of(number) for number in range(40)]
        assert intake.missing == 0
        books_close(sender, intake)


def test_what_is_no_cluster_and_no_sentinel_is_said(cluster: Cluster, redis_server: RedisServer) -> None:
    plain = f"127.0.0.1:{redis_server.port}"
    with pytest.raises(LinkError, match=r"no node of a cluster: use redis://"):
        Server(f"redis+cluster://{plain}").check()
    with pytest.raises(LinkError, match=r"is no Sentinel: use redis://"):
        Server(f"redis+sentinel://{plain}/{MASTER}").check()
    with pytest.raises(LinkError, match=r"none of the nodes of the cluster 127\.0\.0\.1:1 helps.*nothing listens"):
        Server("redis+cluster://127.0.0.1:1").check()
    other = next(node for node in cluster.nodes if node is not cluster.owner(KEYS.record))
    with pytest.raises(LinkError, match=r"another has this run's keys .*redis\+cluster://"):
        LearnerLease.take(other.server(), a_record(name=KEYS.name))


@pytest.mark.parametrize("binary", binaries())
def test_a_master_that_dies_under_sentinel_loses_nothing_and_doubles_nothing(binary: str, tmp_path: Path) -> None:
    with Watched(tmp_path / "redis", binary, requirepass="secret") as watched, ExitStack() as stack:
        server = watched.server()
        assert server.check().version
        with pytest.raises(LinkError, match="knows no master 'other'"):
            Server(watched.url.replace(MASTER, "other")).check()
        with pytest.raises(LinkError, match=r"is a Sentinel, not a server: use redis\+sentinel://.*/MASTER"):
            Server(f"redis://127.0.0.1:{watched.sentinel_port}").check()
        record = a_record(name=KEYS.name)
        lease, host = LearnerLease.take(server, record, 60.0), HostLease.join(server, record, 2, ttl=60.0)
        ends = Ends(watched, stack)  # type: ignore[arg-type]
        sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
        offer(sender, range(30))
        until(lambda: not sender._queued, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02, most=3))
        before = watched.master()
        watched.kill_master()
        offer(sender, range(30, 40))
        again(lambda: lease.renew(LearnerDigest(updates=5)))
        assert watched.master() is not before
        assert again(lambda: host.renew(HostDigest())).learner_alive
        until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
        assert intake.bodies["m"] == [body_of(number) for number in range(40)]
        assert intake.missing == 0
        assert [slot.index for slot in host.slots] == [0, 1]
        books_close(sender, intake)
        before.start()  # it comes back as a replica, and is not taken for the master
        lease.renew(LearnerDigest())
        lease.leave()


@pytest.mark.long
@pytest.mark.parametrize("binary", binaries())
def test_a_node_of_a_cluster_that_dies_is_replaced_by_its_replica(binary: str, tmp_path: Path) -> None:
    with Cluster(tmp_path / "redis", binary, replicas=True) as cluster, ExitStack() as stack:
        server = cluster.server()
        record = a_record(name=KEYS.name)
        lease = LearnerLease.take(server, record, 60.0)
        ends = Ends(cluster, stack)  # type: ignore[arg-type]
        sender, receiver, intake = ends.sender(), ends.receiver(), Intake()
        offer(sender, range(30))
        until(lambda: not sender._queued, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02, most=3))
        dead = cluster.owner(KEYS.record)
        dead.kill()
        again(lambda: lease.renew(LearnerDigest(updates=5)))
        until(lambda: sender.uncommitted_items == 0, lambda: sender.step(0.02), lambda: intake.take(receiver, 0.02))
        assert cluster.owner(KEYS.record) in cluster.nodes[3:]
        assert intake.bodies["m"] == [body_of(number) for number in range(30)]
        assert intake.missing == 0
        assert KEYS.name in runs(server)  # the nodes that the URL names need not live
        lease.leave()
