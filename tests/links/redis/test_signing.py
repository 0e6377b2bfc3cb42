"""A record that its learner has signed, and what is refused of one that somebody else has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from apexrl import client
from apexrl.config import Config, convert
from apexrl.errors import ConfigError
from apexrl.launch.actor_host import local_config
from apexrl.links.redis.checked_values import GatewayAddress, decode, encode
from apexrl.links.redis.run_record import LearnerLease, RunRecord, find_run
from apexrl.links.redis.signing import sign, trusted_modules
from apexrl.run.spec_json import spec_to_json
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies.host_cut import options_from_json
from redis_server import RedisServer

TOKEN, OTHER = "a token of the run's own", "another token of that length"
ORIGIN = "run r at redis-host:6379"


def record(config: Config | None = None, **changes: Any) -> RunRecord:
    own = convert.override(Config(), {"env": convert.LazyCallable("my_sim:make"), "agent": "my_agents.dqn:Mine"})
    values: dict[str, Any] = {
        "run_id": "12345678-abc", "name": "r", "apexrl": "0.1.0", "config": convert.to_toml(config or own),
        "spec": {"stack": 1, "low": [-1.5, 1e-30, "inf"]}, "step_spec": {}, "schema": "", "weights_nbytes": 16,
        "actor_slots": 4, "host": "h", "began": 1769000000.123456, "local": {"gamma": 0.1 + 0.2, "capacity": 2048},
    }  # fmt: skip
    return RunRecord(**{**values, **changes})


def arrived(sent: RunRecord) -> RunRecord:
    got = decode(encode(sent), RunRecord)
    assert got is not None
    return got


def test_what_its_learner_has_signed_may_name_what_its_user_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apexrl.agents.agent_class", lambda name: object)  # there is no such module
    got = arrived(sign(record(), TOKEN))
    allowed = trusted_modules(got, TOKEN, ("mine",), ORIGIN)
    assert allowed == ("mine", "my_sim", "my_agents.dqn")
    assert local_config(got, 1, "runs", {}, ORIGIN, allowed).agent.agent == "my_agents.dqn:Mine"
    with pytest.raises(ConfigError, match="--trust my_agents"):
        local_config(got, 1, "runs", {}, ORIGIN, trusted_modules(got, "", (), ORIGIN))
    unsigned_here = trusted_modules(arrived(record()), "", "mine", ORIGIN)
    assert unsigned_here == ("mine",)


@pytest.mark.parametrize(
    "changes",
    [
        {"config": convert.to_toml(Config())},
        {"name": "s"},
        {"run_id": "12345678-abd"},
        {"actor_slots": 5},
        {"local": {"gamma": 0.3, "capacity": 2048}},
        {"signature": "0" * 64},
        {"signature": ""},
    ],
)
def test_a_record_that_was_changed_on_the_way_is_refused(changes: dict[str, Any]) -> None:
    changed = msgspec.structs.replace(arrived(sign(record(), TOKEN)), **changes)
    with pytest.raises(ConfigError, match=r"the record of run r at redis-host:6379 is signed (not|with another)"):
        trusted_modules(changed, TOKEN, (), ORIGIN)


def test_of_a_gateway_for_learners_all_is_signed_and_hosts_of_the_last_release_need_not_know_it() -> None:
    gateway = GatewayAddress(host="10.0.0.1", port=7000)
    got = arrived(sign(record(learners_refused="", learners_gateway=gateway), TOKEN))
    assert trusted_modules(got, TOKEN, ("mine",), ORIGIN)[0] == "mine"
    unset = dict.fromkeys(("learners_refused", "learners_gateway", "whole_signature"), msgspec.UNSET)
    trusted_modules(msgspec.structs.replace(got, **unset), TOKEN, (), ORIGIN)  # what such a host has read
    added = msgspec.structs.replace(arrived(sign(record(), TOKEN)), learners_gateway=gateway)
    for forged in (
        added,
        msgspec.structs.replace(got, learners_gateway=msgspec.structs.replace(gateway, port=7001)),
        msgspec.structs.replace(got, whole_signature=msgspec.UNSET),
    ):
        with pytest.raises(ConfigError, match="is signed with another token"):
            trusted_modules(forged, TOKEN, (), ORIGIN)


def test_another_token_and_one_too_short_are_refused() -> None:
    with pytest.raises(ConfigError, match="signed with another token than this host has"):
        trusted_modules(sign(record(), TOKEN), OTHER, (), ORIGIN)
    with pytest.raises(ConfigError, match="signed not: give the learner and its hosts the same token"):
        trusted_modules(record(), TOKEN, (), ORIGIN)
    with pytest.raises(ConfigError, match="has 5 characters"):
        sign(record(), "short")


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("actors", 100_000, "--actors must be between 0 and 4,096"),
        ("actors", 4000, "say how many, --actors"),
        ("envs_per_actor", 10**9, "--envs-per-actor must be between 1 and 65,536"),
        ("hidden", (256, 10**9), "--hidden must be numbers, each between 1 and"),
        ("window_mb", 1e12, "--window-mb must be positive and at most"),
        ("env", "no_package_of_that_name:Id-v0", "belongs to no installed package"),
        ("env", "subprocess:Id-v0", "belongs to no installed package"),
    ],
)
def test_what_a_record_asks_of_a_host_has_bounds(setting: str, value: Any, words: str) -> None:
    config = convert.override(Config(), {setting: value})
    with pytest.raises(ConfigError, match=words):
        local_config(record(config), 0, "runs", {}, ORIGIN)


def test_a_record_names_no_folder(redis_server: RedisServer, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    spec = spec_to_json(EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2)))
    hostile = record(Config(), spec=spec, local={"fields": {}, "directory": str(there)})
    place = LearnerLease.take(redis_server.server(), hostile)
    with pytest.raises(ConfigError, match="is invalid: an option 'directory' of a replay that only passes on"):
        client.connect(redis_server.url, "r", 5.0)
    place.leave()
    assert list(there.iterdir()) == []
    with pytest.raises(ValueError, match="an option 'directory'"):
        options_from_json({"fields": {}, "directory": "/tmp"})


def test_a_client_wants_the_signature_of_its_token(redis_server: RedisServer) -> None:
    place = LearnerLease.take(redis_server.server(), sign(record(Config()), TOKEN))
    assert find_run(redis_server.server(), "r", 5.0).signature
    with pytest.raises(ConfigError, match="signed with another token"):
        client.connect(redis_server.url, "r", 5.0, token=OTHER)
    place.leave()
