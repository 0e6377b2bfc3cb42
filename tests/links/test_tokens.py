"""Where the token of a run over hosts comes from, and that a command line is no such place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import apexrl
from apexrl.cli import resume_flags, train_flags
from apexrl.config.placement import Listen, Redis
from apexrl.errors import ConfigError
from apexrl.links.tokens import TOKEN, read_token
from apexrl.presets import preset, with_topology


def test_the_environment_says_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, " a token of this test \n")
    assert read_token("") == "a token of this test"
    assert TOKEN not in os.environ
    with pytest.raises(
        ConfigError, match="set APEXRL_TOKEN, or give --token-file FILE, copied from the learner's host"
    ):
        read_token("")


def test_the_environment_is_cleared_where_a_file_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "not for simulators")
    assert read_token(str(tmp_path / "token"), make=True) != "not for simulators"
    assert TOKEN not in os.environ


def test_a_file_is_made_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    made = read_token(str(file), make=True)
    assert len(made) >= 32
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_token(str(file)) == read_token(str(file), make=True) == made


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b" \n", "is empty"), (b"\xff\xfe", "cannot be")])
def test_a_file_that_holds_none_is_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=why):
        read_token(str(file))


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("here:7000", ("here", 7000)),
        (":7000", ("127.0.0.1", 7000)),
        ("0.0.0.0:7000", ("0.0.0.0", 7000)),
        ("[::1]:0", ("::1", 0)),
    ],
)
def test_an_address_is_a_host_and_a_port(listen: str, address: tuple[str, int]) -> None:
    assert Listen(listen, "t").address == address


@pytest.mark.parametrize("listen", ["here", "7000", "here:", "here:70000", "::1:7000", "[here]:7000", "here:x"])
def test_what_is_no_address_is_refused(listen: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        _ = Listen(listen, "t").address


def test_the_token_is_in_no_repr() -> None:
    assert "secret" not in repr(Listen("here:1", "secret"))


def parsed(*words: str) -> Any:
    return train_flags.parse_train(list(words), with_topology(preset("cartpole").config, "seed"), "cartpole")


def test_train_may_listen_for_environment_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "a token of this test")
    config, where, _ = parsed("--listen", ":7000", "--actors", "0")
    assert config.actor.actors == 0
    assert where == Listen(":7000", "a token of this test")
    assert parsed()[1] is None
    assert isinstance(parsed("--redis", "redis://here")[1], Redis)
    assert isinstance(parsed("--listen", ":7000", "--redis", "redis://here")[1], Redis)
    with pytest.raises(ConfigError, match="--token-file means nothing without --listen"):
        parsed("--token-file", "token")


def test_a_resumed_run_makes_no_token(tmp_path: Path) -> None:
    mistyped = tmp_path / "tokn"
    with pytest.raises(ConfigError, match="No such file"):
        resume_flags.resume_placement(resume_flags.Resume("run", listen=":7000", token_file=str(mistyped)), tmp_path)
    assert not mistyped.exists()
    with pytest.raises(ConfigError, match="--token-file means nothing without --listen"):
        resume_flags.resume_placement(resume_flags.Resume("run", token_file=str(mistyped)), tmp_path)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"token": "x" * 20}, "token= .* needs listen="),
        ({"listen": ":0", "token": "x" * 20, "run": "r"}, "run='r' names a run on a Redis server"),
    ],
)
def test_what_python_says_of_hosts_is_not_ignored(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        apexrl.train("cartpole", topology="seed", **given)
