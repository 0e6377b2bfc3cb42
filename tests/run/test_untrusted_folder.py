"""A run folder that somebody else has written is data."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from rich.console import Console

import apexrl
from apexrl.agents import agent_class
from apexrl.cli import main, ray_status
from apexrl.config import AgentConfig, Config, EnvConfig
from apexrl.config.placement import Ray
from apexrl.envs import make_vector
from apexrl.errors import ConfigError, SnapshotError
from apexrl.launch.ray import resources
from apexrl.run import checkpoint
from apexrl.run.folder import RunFolder
from new_folders import new_folder

CALL = 'env = { callable = "subprocess:check_output" }'
ELSEWHERE = "192.0.2.7:6379"  # nobody has that address


def make_env(**kwargs: Any) -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1", **kwargs)


def folder_of(tmp_path: Path, **config: Any) -> RunFolder:
    """What a run leaves behind, with an agent that never learned."""
    made = Config(agent=AgentConfig(hidden=(8,)), name="run", out=str(tmp_path), **config)
    folder = new_folder(made)
    env = make_vector(EnvConfig(), 1, 0)
    folder.write_spec(env.spec)
    env.close()
    agent = agent_class("dqn")(env.spec, made.agent, "cpu", 3)
    checkpoint.save(folder.checkpoints, agent.state_dict(), {"updates": 5})
    return folder


def edit(folder: RunFolder, old: str, new: str) -> None:
    text = folder.config_path.read_text()
    assert old in text
    folder.config_path.write_text(text.replace(old, new))


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[RunFolder, Path]:
    """A run whose environment is a command that makes a file, and that file."""
    folder, called = folder_of(tmp_path), tmp_path / "called"
    edit(folder, 'env = "CartPole-v1"', CALL)
    edit(folder, "[env.env_kwargs]", f"[env.env_kwargs]\nargs = ['touch', '{called}']")
    return folder, called


def test_a_command_in_place_of_an_environment_is_never_run(
    hostile: tuple[RunFolder, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, called = hostile
    refused = pytest.raises(ConfigError, match="'subprocess:check_output' as its environment")
    with refused:
        apexrl.evaluate(folder.path, 1)
    with refused:
        apexrl.resume(folder.path, show=False)
    apexrl.load(folder.path)  # needs no environment
    (folder.path / "env_spec.json").unlink()
    with refused:
        apexrl.load(folder.path)
    with refused:
        apexrl.Run(folder.path, {}).agent  # noqa: B018
    for words in (["eval"], ["resume"], ["train"]):
        path = folder.config_path if words == ["train"] else folder.path
        assert main.main([*words, str(path)]) == main.USAGE
        told = " ".join(capsys.readouterr().err.split())
        assert "'subprocess:check_output' as its environment" in told
        assert "--trust subprocess" in told
    assert f"apexrl resume {folder.path} --trust subprocess" in " ".join(
        (main.main(["resume", str(folder.path)]), capsys.readouterr().err)[1].split()
    )
    assert main.main(["status", str(folder.path)]) == 0
    assert not called.exists()


def test_an_agent_and_a_network_of_ones_own_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    for setting, name in (("agent", "subprocess:Popen"), ("network", "subprocess:Popen")):
        before = folder.config_path.read_text()
        edit(folder, f'\n{setting} = "{"dueling_dqn" if setting == "agent" else ""}"', f'\n{setting} = "{name}"')
        for use in (apexrl.load, apexrl.evaluate, apexrl.resume):
            with pytest.raises(ConfigError, match=f"as its {setting}.*--trust subprocess"):
                use(folder.path)
        folder.config_path.write_text(before)


def test_weights_are_loaded_without_what_only_training_needs(tmp_path: Path) -> None:
    """No topology is imported or need be trusted, and other hosts may have brought all the actors."""
    folder = folder_of(tmp_path)
    edit(folder, 'topology = "apex"', 'topology = "nobody_has_this:wire"')
    edit(folder, "\nactors = ", "\nactors = 0 # ")
    apexrl.load(folder.path)
    assert apexrl.evaluate(folder.path, 1).returns
    assert apexrl.Run(folder.path, {}, folder.config()).agent
    assert main.main(["eval", str(folder.path), "--episodes", "1"]) == 0


def test_what_the_caller_gives_or_names_is_run(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, env=EnvConfig(env=make_env))
    with pytest.raises(ConfigError, match=f"--trust {__name__}"):
        apexrl.evaluate(folder.path, 1)
    given = apexrl.evaluate(folder.path, 2, env=make_env).returns
    assert given == apexrl.evaluate(folder.path, 2, trust=(__name__,)).returns
    assert given == apexrl.evaluate(folder.path, 2, trust=__name__).returns
    own = apexrl.Run(folder.path, {}, Config(env=EnvConfig(env=make_env), agent=AgentConfig(hidden=(8,))))
    assert given == apexrl.evaluate(own, 2).returns
    assert own.agent.act(own.agent.spec.observation["observation"].shape[0] * [0.0]) in (0, 1)


def test_a_run_of_this_program_is_its_own(tmp_path: Path) -> None:
    run = apexrl.train(env=lambda: make_env(), serial=True, env_steps=300, min_size=64, batch_size=8, eval_episodes=1,
                       hidden=(8,), out=str(tmp_path), show=False)  # fmt: skip
    assert run.agent.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert len(apexrl.evaluate(run, 1).returns) == 1
    with pytest.raises(ConfigError, match="as its environment"):
        apexrl.evaluate(run.path, 1)


def test_a_file_trains_what_flags_name_and_nothing_else_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    met: list[Config] = []
    monkeypatch.setattr("apexrl.cli.main._run", lambda config, *_: met.append(config) or 0)
    (tmp_path / "my_agents.py").write_text("from apexrl.agents.dqn import DQN as Mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "some.toml"
    file.write_text("[env]\nenv = 'my_sim:Plant-v0'\n[agent]\nagent = 'my_agents:Mine'\n")
    assert main.main(["train", str(file)]) == main.USAGE
    assert main.main(["train", str(file), "--trust", "my_sim"]) == main.USAGE
    assert "--trust my_agents" in capsys.readouterr().err
    assert main.main(["train", str(file), "--trust", "my_sim", "--trust", "my_agents"]) == 0
    assert main.main(["train", str(file), "--env", "my_sim:Plant-v0", "--trust", "my_agents"]) == 0
    assert [config.env.env for config in met] == ["my_sim:Plant-v0"] * 2
    assert main.main(["train", "cartpole", "--trust", "my_sim"]) == main.USAGE
    file.write_text(f"out = '{tmp_path}'\n")
    assert main.main(["train", str(file)]) == main.USAGE
    assert f"add --out {tmp_path}" in " ".join(capsys.readouterr().err.split())
    assert main.main(["train", str(file), "--out", str(tmp_path)]) == 0


def test_nothing_is_imported_from_a_folder_in_which_a_run_is_only_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path)
    monkeypatch.chdir(folder.path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    for words in (["status", "."], ["eval", ".", "--episodes", "1"], ["list"]):
        assert main.main(words) == 0
        assert str(folder.path) not in sys.path
    assert main.main(["eval", ".", "--episodes", "1", "--trust", "my_sim"]) == 0
    assert sys.path[0] == str(folder.path)


@pytest.mark.parametrize("flag", ["--env", "--agent", "--network", "--topology"])
def test_a_flag_beside_a_file_finds_a_module_of_the_current_folder(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    main.main(["train", "missing.toml", flag, "nobody_has_this:It"])
    assert sys.path[0] == str(tmp_path)


def test_a_link_that_leads_out_of_the_folder_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder, mine = folder_of(tmp_path), tmp_path / "mine"
    mine.write_text("precious")
    for link in (folder.metrics_path, folder.path / "checkpoints" / "replay", folder.path / "logs"):
        link.symlink_to(mine if link.name != "logs" else tmp_path)
        with pytest.raises(ConfigError, match=f"{link} leads out of the run folder"):
            apexrl.resume(folder.path, env_steps=10, show=False)
        link.unlink()
    assert mine.read_text() == "precious"
    within = folder.path / "latest.toml"
    within.symlink_to("config.toml")
    folder.check_links()
    (tmp_path / "link").symlink_to(folder.path)  # what the message advises
    RunFolder.open(tmp_path / "link").check_links()


def test_a_cluster_on_another_machine_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, asked = folder_of(tmp_path), []
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setattr(ray_status, "_look", lambda address, *_: asked.append(address) or 0)
    for address in (ELSEWHERE, "some.name:6379", "auto", "\x1b[2J:1", ":6379", "ray://127.0.0.1:10001"):
        folder.ray_path.write_text(json.dumps({"address": address, "namespace": "n", "auth": "token"}))
        text = io.StringIO()
        assert ray_status.show_folder(folder.path, console=Console(file=text, width=300)) == 0
        assert "on another machine, which was not asked" in text.getvalue()
        assert "\x1b" not in text.getvalue()
    assert asked == []
    assert "RAY_AUTH_MODE" not in os.environ
    folder.ray_path.write_text(json.dumps({"address": ELSEWHERE, "namespace": "n"}))
    assert main.main(["status", str(folder.path), "--ray", ELSEWHERE]) == 0
    folder.ray_path.write_text(json.dumps({"address": "127.0.0.1:6379", "namespace": "n"}))
    assert main.main(["status", str(folder.path)]) == 0
    assert asked == [ELSEWHERE, "127.0.0.1:6379"]


def test_a_run_goes_on_on_another_machines_cluster_only_where_that_is_said(tmp_path: Path) -> None:
    resources.remember(Ray(ELSEWHERE, actor_cpus=2.0), tmp_path)
    with pytest.raises(ConfigError, match=f"on another machine: say --ray {ELSEWHERE}"):
        resources.resumed(tmp_path, "")
    assert resources.resumed(tmp_path, ELSEWHERE) == Ray(ELSEWHERE, actor_cpus=2.0)
    assert resources.resumed(tmp_path, "none") is None
    for address in ("auto", "local", "127.0.0.1:6379", "[::1]:6379"):
        if address != "[::1]:6379" or resources.here(address):
            resources.remember(Ray(address), tmp_path)
            assert resources.resumed(tmp_path, "") == Ray(address)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("stack",), 10**12),
        (("stack",), -1),
        (("observation", "observation", "shape"), [10**9]),
        (("observation", "observation", "shape"), [10**30]),
        (("observation", "observation", "shape"), [10**4] * 9),
        (("action", "n"), 10**15),
        (("action", "n"), 2.5),
        (("action", "nvec"), [10**9, 10**9]),
        (("categories",), {"observation": 10**12}),
        (("observation",), {}),
        (("observation",), []),
    ],
)
def test_sizes_that_nobody_can_mean_take_no_memory(tmp_path: Path, where: tuple[str, ...], value: Any) -> None:
    folder = folder_of(tmp_path)
    path = folder.path / "env_spec.json"
    told = json.loads(path.read_text())
    inner = told
    for name in where[:-1]:
        inner = inner[name]
    inner[where[-1]] = value
    path.write_text(json.dumps(told))
    with pytest.raises(SnapshotError, match="does not describe an environment"):
        apexrl.load(folder.path)


def test_a_network_far_larger_than_its_weights_is_not_made(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    text = folder.config_path.read_text()
    for old, new in (("    8,\n", "    1000000,\n    1000000,\n"), ("quantiles = 200", "quantiles = 900000")):
        edit(folder, old, new)
        with pytest.raises(SnapshotError, match="one of them is not this run's"):
            apexrl.load(folder.path)
        folder.config_path.write_text(text)
    apexrl.load(folder.path)


def test_files_too_long_to_be_true_are_not_read(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    spec, log = folder.path / "env_spec.json", folder.metrics_path
    log.write_bytes(b'{"kind": "status", "env_steps": 1}\n')
    folder.summary_path.touch()
    for path in (spec, folder.summary_path, log):
        os.truncate(path, 1 << 40)  # sparse
    with pytest.raises(SnapshotError, match="longer than"):
        apexrl.load(folder.path)
    with pytest.raises(SnapshotError, match="longer than"):
        ray_status.show_folder(folder.path)
    folder.summary_path.unlink()
    assert ray_status.show_folder(folder.path, console=Console(file=io.StringIO())) == 0
    spec.unlink()
    os.truncate(folder.config_path, 1 << 40)
    with pytest.raises(ConfigError, match="longer than"):
        apexrl.load(folder.path)


@pytest.mark.parametrize("name", ["generations.json", "metrics.jsonl", "config.toml"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    (folder.path / name).unlink(missing_ok=True)
    os.mkfifo(folder.path / name)
    words = [sys.executable, "-m", "apexrl.cli", "resume", str(folder.path), "--env-steps", "10"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode in (1, 2)
    assert name in ended.stderr
    assert "Traceback" not in ended.stderr
