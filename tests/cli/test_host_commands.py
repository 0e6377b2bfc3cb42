"""The commands for runs over several hosts: what they start, exit codes, messages, help."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from apexrl.cli import main
from apexrl.config import Config, convert
from apexrl.config.placement import Redis
from apexrl.presets import preset

DONE = SimpleNamespace(summary={"stopped_by": "finished"})


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Collects what runs over several hosts would be started with."""
    calls: list[dict[str, Any]] = []

    def run(config: Config, *, on_folder: Any, **given: Any) -> Any:
        calls.append({"config": config, **given})
        return SimpleNamespace(summary={"stopped_by": "env_steps"})

    def join(url: str, run: str, *, on_folder: Any, **given: Any) -> Any:
        calls.append({"url": url, "run": run, **given})
        return SimpleNamespace(summary={"stopped_by": "finished"})

    monkeypatch.setattr("apexrl.api.run", run)
    monkeypatch.setattr("apexrl.remote_api.join", join)
    monkeypatch.delenv("APEXRL_REDIS_URL", raising=False)
    return calls


@pytest.mark.parametrize(
    ("words", "placement"),
    [
        (["train", "cartpole"], None),
        (["train", "cartpole", "--redis", "redis://h"], Redis("redis://h", "", True)),
        (["train", "cartpole", "--redis", "redis://h", "--run", "cp"], Redis("redis://h", "cp", True)),
        (["learner", "cartpole", "--redis", "redis://h", "--run", "cp"], Redis("redis://h", "cp", False)),
    ],
)
def test_where_hosts_meet(words: list[str], placement: Redis | None, met: list[dict[str, Any]]) -> None:
    assert main.main(words) == 0
    assert met[-1].get("placement") == placement
    assert met[-1]["config"].preset == "cartpole"


def test_the_url_may_stand_in_the_environment_and_is_taken_out_of_it(
    met: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["train", "cartpole", "--run", "cp"], ["learner", "cartpole"]):
        monkeypatch.setenv("APEXRL_REDIS_URL", "redis://secret")
        assert main.main(words) == 0
        assert met[-1]["placement"].url == "redis://secret"
        assert "APEXRL_REDIS_URL" not in os.environ
    monkeypatch.setenv("APEXRL_REDIS_URL", "redis://secret")
    assert main.main(["train", "cartpole"]) == 0
    assert met[-1]["placement"] is None


def test_a_token_signs_what_hosts_are_told(
    met: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, there = tmp_path / "token", ["--redis", "redis://h", "--run", "cp"]
    (tmp_path / "config.toml").write_text(convert.to_toml(preset("cartpole").config))
    for words in (["learner", "cartpole"], ["train", "cartpole"], ["resume", str(tmp_path)]):
        assert main.main([*words, *there, "--token-file", str(file)]) == 0
        token = file.read_text().strip()
        assert met[-1]["placement"].token == token
        assert token not in repr(met[-1]["placement"])
    assert main.main(["actor", *there, "--token-file", str(file)]) == 0
    assert met[-1]["token"] == token
    assert main.main(["actor", *there]) == 0
    assert met[-1]["token"] == ""
    monkeypatch.setenv("APEXRL_TOKEN", "said by the environment")
    assert main.main(["actor", *there]) == 0
    assert met[-1]["token"] == "said by the environment"
    assert "APEXRL_TOKEN" not in os.environ
    assert main.main(["train", "cartpole", "--token-file", str(file)]) == main.USAGE
    assert "--token-file means nothing without" in capsys.readouterr().err


def test_an_actor_host_is_told_what_is_different_there(met: list[dict[str, Any]]) -> None:
    words = ["--redis", "redis://h", "--run", "cp", "--actors", "3", "--out", "o", "--env-kwargs", "port", "8000"]
    assert main.main(["actor", *words, "--trust", "my_sim", "--trust", "my_agents.dqn"]) == 0
    call = met[-1]
    assert (call["url"], call["run"], call["actors"], call["out"]) == ("redis://h", "cp", 3, "o")
    assert call["env_kwargs"] == {"port": 8000}
    assert call["trust"] == ("my_sim", "my_agents.dqn")
    assert main.main(["actor", "--redis", "redis://h", "--run", "cp"]) == 0
    assert met[-1]["trust"] == ()


@pytest.mark.parametrize(
    ("words", "scope"),
    [
        (["train", "cartpole"], "run"),
        (["learner", "cartpole", "--redis", "redis://h", "--run", "cp"], "run"),
        (["learner", "--standby", "--redis", "redis://h", "--run", "cp"], "run"),
        (["resume", "FOLDER"], "run"),
        (["actor", "--redis", "redis://h", "--run", "cp"], "host"),
        (["envs", "--connect", "h:7000", "--token-file", "FOLDER/token"], "host"),
    ],
)
def test_every_command_that_works_at_a_run_exports_its_metrics(
    words: list[str],
    scope: str,
    met: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("join_envs", "stand_by"):
        monkeypatch.setattr(f"apexrl.remote_api.{name}", lambda *_, on_folder, **given: met.append(given) or DONE)
    (tmp_path / "config.toml").write_text(convert.to_toml(preset("cartpole").config))
    (tmp_path / "token").write_text("a token of this test")
    flags = ["--prometheus", "0", "--otel", "http://127.0.0.1:4318"]
    assert main.main([word.replace("FOLDER", str(tmp_path)) for word in (*words, *flags)]) == 0
    _, otel, endpoint = met[-1]["observers"]
    endpoint.close()
    assert endpoint.url in capsys.readouterr().out
    assert "OpenTelemetry collector at 127.0.0.1" in otel.writes
    for exporter in (otel, endpoint):
        exporter.started(Config(name="cp@here"), Path("cp"))
    labels = {**otel._labels}
    assert labels == {**labels, "scope": scope, "run": "cp"}


def test_an_exporter_that_is_not_installed_is_named(
    met: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "apexrl.report.prometheus_endpoint", None)
    monkeypatch.delitem(sys.modules, "apexrl.report.prometheus_endpoint")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert main.main(["train", "cartpole", "--prometheus", "0"]) == main.USAGE
    assert "pip install 'apexrl[train,prometheus]'" in capsys.readouterr().err
    assert met == []


def test_a_resumed_run_meets_as_before(met: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(convert.to_toml(preset("cartpole").config))
    assert main.main(["resume", str(tmp_path), "--redis", "redis://h"]) == 0
    assert met[-1]["placement"] == Redis("redis://h", "", None)
    assert met[-1]["resume"] == tmp_path
    assert main.main(["resume", str(tmp_path)]) == 0
    assert met[-1]["placement"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["learner", "cartpole", "--run", "cp"], "say which Redis server: --redis"),
        (["actor", "--run", "cp"], "say which Redis server: --redis"),
        (["actor", "--redis", "redis://h"], "say which run: apexrl actor --redis URL --run NAME"),
        (["stop", "--redis", "redis://h"], "say which run: apexrl stop --redis URL --run NAME"),
        (["stop"], "say which run: apexrl stop RUN (a run folder), or --redis URL --run NAME"),
        (["stop", "runs/mine"], "runs/mine is not a run folder"),
        (["stop", "runs/mine", "--run", "cp"], "give a run folder, or --redis and --run, and not both"),
        (["status"], "say which runs: apexrl status RUN (a run folder), --redis URL, or --ray"),
        (["learner", "cartpole", "--actors", "3"], "apexrl learner starts no actors"),
        (["learner", "cartpole", "--actors=3"], "apexrl learner starts no actors"),
        (["learner"], "say what to train: apexrl learner PRESET"),
        (["actor", "--redis", "redis://h", "--run", "cp", "--actors", "-1"], "--actors must be 0 or more"),
        (["actor", "--redis", "http://:pw@h", "--run", "cp"], "must begin with redis://"),
        (["actor", "--redis", "redis://h", "--run", "a/b"], "cannot name a run"),
        (["learner", "cartpole", "--redis", "redis://h", "--run", "a b"], "cannot name a run"),
    ],
)
def test_mistakes_with_hosts(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APEXRL_REDIS_URL", raising=False)
    assert main.main(words) == 2
    err = capsys.readouterr().err.replace("\n", " ")
    assert told in err
    assert "pw" not in err


@pytest.mark.parametrize("name", ["learner", "actor", "status", "stop"])
def test_help_of_commands_for_several_hosts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([name, "--help"]) == 0
    assert "--redis" in capsys.readouterr().out


def test_the_command_needs_no_redis_package_until_it_is_asked_for_one() -> None:
    code = "import sys; sys.modules['redis'] = None; import apexrl.api, apexrl.cli.main as m; m.main(sys.argv[1:])"
    told = {
        "--help": "apexrl",
        "learner cartpole --redis redis://h --run r": "pip install 'apexrl[train,redis]'",
    }
    for words, answer in told.items():
        ended = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True)
        assert answer in ended.stdout + ended.stderr
