"""Whole runs over several hosts, with the real command, real links and a real server, through all that goes wrong."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path

import experience_audit as audit
import network_namespaces
import pytest
from experience_audit import Books
from host_rig import PASSWORD, RUN, Command, Kind, Places, wait_for
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from apexrl.links.printable import host_name
from apexrl.links.redis.run_listing import MemberView
from apexrl.run.metric_catalogue import ACTOR_HOSTS, LEARNER_HOSTS

LEASE_SECONDS = 5
SMALL = ["--env", audit.ENV, "--hidden", "16", "--min-size", "200", "--capacity", "500000", "--batch-size", "16",
         "--eval-episodes", "2", "--eval-envs", "2", "--envs-per-actor", "4", "--lease-seconds", str(LEASE_SECONDS),
         "--stop-at-return", "None", "--save-replay"]  # fmt: skip
UNHURRIED = ["--env-kwargs", "seconds", "0.005", "--updates-per-second", "20"]
"""What happens to links and server takes its time, in which actors and learner need not load the machine."""


class Audited:
    """Actor hosts whose every step is written down."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._folder = places.folder / "steps"
        self._folder.mkdir()

    def actor(self, host: int, who: str, *flags: str) -> Command:
        known = {audit.FOLDER: str(self._folder), audit.WHO: who}
        return self._places.actor(host, "--actors", "1", "--trust", audit.__name__, *flags, **known)

    def books(self) -> Books:
        """After the run."""
        return audit.close_books(self._folder, audit.all_items(self._places.run_folder / "checkpoints" / "replay"))


def alive(places: Places) -> list[MemberView]:
    return places.look().alive


def committed(member: MemberView) -> int:
    digest = member.digest
    return digest.sent_items - digest.uncommitted_items - digest.dropped_items


def all_go_on(places: Places, hosts: int) -> None:
    """Wait until something new of every host is committed."""
    before = {member.member: committed(member) for member in alive(places)}

    def gone_on() -> bool:
        now = alive(places)
        return len(now) == hosts and all(committed(member) > before.get(member.member, 0) + 100 for member in now)

    wait_for(f"{hosts} hosts go on", gone_on)


def exported(command: Command) -> dict[str, Sample]:
    """What a command with ``--prometheus 0`` shows now, by name: of each metric one sample."""
    (url,) = re.findall(r"metrics for Prometheus: (\S+)", command.said)
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample for family in families for sample in family.samples}


@pytest.mark.parametrize(
    ("kind", "persistence"),
    [
        pytest.param("loopback", [], id="loopback, and the server forgets"),
        pytest.param(
            "namespaces",
            ["--appendonly", "yes", "--appendfsync", "always"],
            id="namespaces, and the server remembers",
            marks=pytest.mark.long,
        ),
    ],
)
def test_cut_links_and_a_server_that_was_killed(tmp_path: Path, kind: Kind, persistence: list[str]) -> None:
    if kind == "namespaces" and (why := network_namespaces.available()):
        pytest.skip(why)
    with Places(kind, 2, tmp_path, delay_ms=5, server_options=persistence) as places:
        audited = Audited(places)
        early = audited.actor(0, "early")
        early.says("waiting for run")
        learner = places.learner("cartpole", *SMALL, *UNHURRIED, "--actor-slots", "2")
        learner.says("actors may join")
        late = audited.actor(1, "late")
        all_go_on(places, 2)

        places.links[0].cut()
        places.links[1].blackhole()
        places.server.kill()
        places.server.start()
        places.links[0].restore()
        places.links[1].restore()
        all_go_on(places, 2)

        assert places.apexrl("stop", "--run", RUN).finish() == 0
        assert [one.finish() for one in (learner, early, late)] == [0, 0, 0]
        summary, books = places.summary(), audited.books()
        for one in (learner, early, late):
            assert PASSWORD not in one.said
    assert summary["stopped_by"] == "stopped"
    assert (books.strangers, books.twice) == (0, 0)
    assert books.total().holes == books.total().lead  # an actor tries its first environment before it works
    assert min(books.total(who).committed for who in ("early", "late")) > 200
    after = summary["hosts"]["committed"] - books.total().committed  # while the learner wrote its replay
    assert 0 <= after < 10_000
    assert summary["hosts"]["missing"] == 0


@pytest.mark.long
def test_a_host_that_is_killed_gives_its_slot_to_another(tmp_path: Path) -> None:
    with Places("loopback", 2, tmp_path) as places:
        audited = Audited(places)
        learner = places.learner("cartpole", *SMALL, "--actor-slots", "2", "--updates-per-second", "100",
                                 "--updates-per-step", "0.015625", "--prometheus", "0")  # fmt: skip
        first, killed = audited.actor(0, "first", "--prometheus", "0"), audited.actor(1, "killed")
        all_go_on(places, 2)
        run, host = exported(learner), exported(first)
        (slot,) = next(member.slots for member in alive(places) if member.pid == killed.pid)
        refused = places.learner("cartpole", *SMALL, "--actor-slots", "2")
        assert refused.finish() == 75
        assert "has a learner" in refused.said
        assert PASSWORD not in refused.said
        killed.kill()
        heir = audited.actor(1, "heir")
        heir.says(f"with the slots {slot}")
        all_go_on(places, 2)
        waiting = max(member.digest.uncommitted_items for member in alive(places))
        assert places.apexrl("stop", "--run", RUN).finish() == 0
        assert [one.finish() for one in (learner, first, heir)] == [0, 0, 0]
        books = audited.books()
    assert run.keys() > {metric._replace(name=f"hosts/{metric.name}").prometheus for metric in LEARNER_HOSTS}
    assert host.keys() > {metric._replace(name=f"hosts/{metric.name}").prometheus for metric in ACTOR_HOSTS}
    assert run["apexrl_hosts_committed_total"].value > 200
    assert [sample.labels["run"] for sample in (run["apexrl_updates_total"], host["apexrl_updates_total"])] == [
        RUN,
        RUN,
    ]
    assert [sample.labels["scope"] for sample in (run["apexrl_phase"], host["apexrl_phase"])] == ["run", "host"]
    assert waiting < 20_000, "100 updates/s of 16 samples take 1600 steps/s: actors must wait rather than run ahead"
    assert (books.strangers, books.twice) == (0, 0)
    assert books.total().holes == books.total().lead  # an actor tries its first environment before it works
    assert books.total("killed").committed > 100
    assert books.total("heir").committed > 100


@pytest.mark.long
def test_a_host_is_told_to_bring_more_actors_and_then_to_leave(tmp_path: Path) -> None:
    here = host_name()
    with Places("loopback", 1, tmp_path) as places:
        audited = Audited(places)
        learner = places.learner("cartpole", *SMALL, "--actor-slots", "3", "--updates-per-second", "100",
                                 "--updates-per-step", "0.015625", "--prometheus", "0")  # fmt: skip
        host = audited.actor(0, "host")
        all_go_on(places, 1)
        assert places.apexrl("scale", here, "--actors", "4", "--run", RUN).finish() == 1  # of 3 slots
        assert places.apexrl("scale", here, "--actors", "2", "--run", RUN).finish() == 0
        host.says("with the slots 0, 1")
        learner.says("was told to bring 2 actors")
        wait_for("two actors", lambda: [len(member.slots) for member in alive(places)] == [2])
        all_go_on(places, 1)

        drain = places.apexrl("drain", here, "--run", RUN)
        assert drain.finish() == 0
        assert "has left, and is refused until" in drain.said
        assert host.finish() == 0
        learner.says("was drained: it hands over what it has and leaves")
        wait_for("it is counted", lambda: exported(learner)["apexrl_hosts_drained_total"].value == 1)
        refused = audited.actor(0, "refused")
        assert refused.finish() == 75
        assert f"apexrl drain {here} --undo" in refused.said
        assert alive(places) == []

        assert places.apexrl("drain", here, "--undo", "--run", RUN).finish() == 0
        back = audited.actor(0, "back")
        back.says("with the slots 0, 1")  # as it was told before
        all_go_on(places, 1)
        assert places.apexrl("stop", "--run", RUN).finish() == 0
        assert [one.finish() for one in (learner, back)] == [0, 0]
        books = audited.books()
    parts = [json.loads(path.read_text()) for path in places.folder.glob(f"runs/{RUN}@*/summary.json")]
    left = {part["stopped_by"]: part["hosts"] for part in parts}
    assert left.keys() == {"scaled", "drained", "stopped"}
    for reason in ("scaled", "drained"):  # everything that they had was committed
        assert left[reason]["committed_items"] == left[reason]["sent_items"] > 100
        assert left[reason]["left_items"] == 0
    total = books.total("host")
    assert (books.strangers, books.twice) == (0, 0)
    assert total.holes == total.lead  # an actor tries its first environment before it works
    assert total.tail <= 3 * 12  # the last steps of 12 streams, which wait for what follows


def test_a_wrong_password_is_refused_in_words(tmp_path: Path) -> None:
    with Places("loopback", 1, tmp_path) as places:
        wrong = "one-that-is-not-it"
        for command in (
            places.learner("cartpole", url=places.url(password=wrong)),
            places.actor(0, url=places.url(0, wrong)),
        ):
            assert command.finish() == 1
            assert "refuses this user or password" in command.said
            assert wrong not in command.said
            assert "Traceback" not in command.said
