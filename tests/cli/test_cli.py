"""The command as people meet it: exit codes, messages, help. No run is started here except where said."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import apexrl
from apexrl.cli import main
from apexrl.config import Config, convert
from apexrl.errors import EnvError, SnapshotError, WorkerError
from apexrl.presets import preset, with_topology


def command(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    environment.pop("APEXRL_TRACEBACK", None)
    return subprocess.run(
        [sys.executable, "-m", "apexrl.cli", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
    )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command's words in this process, in ``tmp_path``: (exit code, what it printed, its complaints)."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("APEXRL_TRACEBACK", raising=False)
    return lambda *words: (main.main(words), *capsys.readouterr())


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Config, Path | None]]:
    """Collects what would be run instead of running it; the run folder is ``tmp_path``."""
    runs: list[tuple[Config, Path | None]] = []

    def run(config: Config, *, observers: Any, resume: Path | None, on_folder: Any, **_: Any) -> Any:
        runs.append((config, resume))
        on_folder(tmp_path)

        stopped_by = {7: "interrupted", 8: "error"}.get(config.seed, "env_steps")
        return SimpleNamespace(summary={"stopped_by": stopped_by, "not_saved": ["a checkpoint"] * (config.seed == 9)})

    monkeypatch.setattr("apexrl.api.run", run)
    return runs


def the_config(*words: str, runs: list[tuple[Config, Path | None]]) -> Config:
    assert main.main(["train", *words]) == 0
    return runs[-1][0]


def test_a_preset_alone(started: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert the_config("cartpole", runs=started) == preset("cartpole").config
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path)


def test_flags_are_flat_and_change_the_preset(started: list[Any]) -> None:
    config = the_config(
        "cartpole", "--actors", "4", "--envs-per-actor", "2", "--env-timeout", "5", "--out", "elsewhere", "--name", "n",
        "--seed", "3", "--serial", "--env-steps", "1e3", "--minutes", "2.5", "--stop-at-return", "100", "--device",
        "cpu", "--hidden", "32", "16", "--agent", "dqn", "--dueling", "--save-replay", runs=started,
    )  # fmt: skip
    assert (config.actor.actors, config.actor.envs_per_actor, config.actor.env_timeout) == (4, 2, 5.0)
    assert (config.out, config.name, config.seed, config.serial) == ("elsewhere", "n", 3, True)
    assert (config.stop.env_steps, config.stop.minutes, config.stop.stop_at_return) == (1000, 2.5, 100.0)
    assert (config.learner.device, config.learner.save_replay) == ("cpu", True)
    assert (config.agent.hidden, config.agent.dueling, config.agent.double) == ((32, 16), True, False)
    assert config.agent.learning_rate == preset("cartpole").config.agent.learning_rate
    assert config.preset == "cartpole"


def test_a_stop_rule_can_be_taken_away(started: list[Any]) -> None:
    config = the_config("cartpole", "--stop-at-return", "none", runs=started)
    assert config.stop.stop_at_return is None


def test_an_environment_of_ones_own(started: list[Any]) -> None:
    config = the_config(
        "--env", "my.sim:Plant-v0", "--env-kwargs", "seconds", "0.5", "name=a b", "on", "true", "sizes", "[1, 2]",
        "--agent", "apexrl.agents.dqn:DQN", runs=started,
    )  # fmt: skip
    assert config.env.env == "my.sim:Plant-v0"
    assert config.env.env_kwargs == {"seconds": 0.5, "name": "a b", "on": True, "sizes": [1, 2]}
    assert config.agent.agent == "apexrl.agents.dqn:DQN"
    assert config.preset == ""


OWN_ENVS = """
import functools

import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class OwnPlant(CartPoleEnv):
    pass

def plant(**kwargs):
    return OwnPlant(**kwargs)

gym.register("OwnPlant", "plants:OwnPlant")
nameless = functools.partial(OwnPlant)
"""


def test_an_environment_of_ones_own_by_its_maker(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plants.py").write_text(OWN_ENVS)
    found = the_config("--env", "plants:plant", "--agent", "dqn", runs=started).env.env
    assert found is sys.modules["plants"].plant
    assert 'callable = "plants:plant"' in convert.to_toml(started[-1][0])
    assert the_config("--env", "plants:OwnPlant", "--agent", "dqn", runs=started).env.env == "plants:OwnPlant"  # an id
    assert main.main(["train", "--env", "plants:nameless"]) == 2


def test_a_config_file_runs_again_under_a_new_name(started: list[Any], tmp_path: Path) -> None:
    first = convert.override(preset("catch").config, {"actors": 9, "name": "first"})
    (tmp_path / "config.toml").write_text(convert.to_toml(first))
    config = the_config(str(tmp_path / "config.toml"), "--seed", "5", runs=started)
    assert config == convert.override(first, {"name": "", "seed": 5})


def test_a_callback_of_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: Any) -> None:
    (tmp_path / "my_callbacks.py").write_text(
        "import apexrl\nclass Watch(apexrl.Callback): pass\ndef look(status): pass\n"
    )
    given: list[Any] = []

    def run(config: Config, *, observers: Any, on_folder: Any, **_: Any) -> Any:
        given.extend(one._callback for one in observers if hasattr(one, "_callback"))
        return SimpleNamespace(summary={"stopped_by": "env_steps"})

    monkeypatch.setattr("apexrl.api.run", run)
    words = ["train", "cartpole", "--callback", "my_callbacks:Watch", "--callback", "my_callbacks:look"]
    assert told(*words)[0] == 0
    assert [getattr(one, "__name__", type(one).__name__) for one in given] == ["Watch", "look"]


def test_resume_takes_new_ends_only(started: list[Any], tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(convert.to_toml(preset("cartpole").config))
    assert main.main(["resume", str(tmp_path), "--minutes", "3"]) == 0
    config, resume = started[-1]
    assert resume == tmp_path
    assert config == convert.override(preset("cartpole").config, {"minutes": 3.0})


@pytest.mark.parametrize(("seed", "code"), [(1, 0), (7, 130), (8, 1), (9, 1)])
def test_exit_codes_of_runs_that_ended(seed: int, code: int, started: list[Any]) -> None:
    assert main.main(["train", "cartpole", "--seed", str(seed)]) == code


@pytest.mark.parametrize(
    ("error", "begun", "code"),
    [
        (EnvError("no such environment"), False, 2),
        (EnvError("the environment broke"), True, 1),
        (WorkerError("actor-0 failed"), True, 1),
        (SnapshotError("corrupt"), False, 1),
    ],
)
def test_exit_codes_of_failures(
    error: Exception,
    begun: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(config: Config, *, observers: Any, resume: Path | None, on_folder: Any, **_: Any) -> Any:
        if begun:
            on_folder(tmp_path)
        raise error

    monkeypatch.setattr("apexrl.api.run", run)
    assert main.main(["train", "cartpole"]) == code
    out, err = capsys.readouterr()
    assert str(error) in err
    assert out == (f"{tmp_path}\n" if begun else "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian' (did you mean 'train'?)"),
        (["--hlep"], "(did you mean '--help'?)"),
        (["learner", "cartpole", "--standbuy"], "has no --standbuy (did you mean --standby?)"),
        (["train", "--env", "cartpole"], "cartpole is a preset, which has its environment: apexrl train cartpole"),
        (["train", "--env", "CartPole-v1", "--recipe", "papr"], "none of none, default, paper (did you mean 'paper'?)"),
        (["compare", "--env", "cartpole", "--topologies", "apx"], "there is no topology 'apx' (did you mean 'apex'?)"),
        (["compare", "--env", "cartpol", "--agents", "dqn"], "cartpol (did you mean 'cartpole'?) has no limit"),
        (["train"], "say what to train: apexrl train PRESET (cartpole, slow-cartpole,"),
        (["train", "cartpol"], "unknown preset 'cartpol' (did you mean 'cartpole'?)"),
        (["train", "--seed", "3", "cartpole"], "the preset comes first: apexrl train cartpole --flags"),
        (["train", "none.toml"], "there is no file none.toml"),
        (["train", "cartpole", "--actorz", "3"], "--actors"),
        (["train", "cartpole", "--n-step", "100000"], "--n-step must be between 1 and 1,000, not 100000"),
        (
            ["train", "position-cartpole", "--sequence-length", "10", "--sequence-stride", "20"],
            "--sequence-stride 20 is more than --sequence-length 10: steps in between would be in no sequence",
        ),
        (["train", "cartpole", "--actors", "three"], "--actors: wants an integer, as 1000 or 1e6, got 'three'"),
        (["train", "cartpole", "--env-steps", "1e-3"], "wants an integer, as 1000 or 1e6, got '1e-3'"),
        (["train", "cartpole", "--actors", "0"], "--actors must be at least 1, not 0"),
        (["train", "cartpole", "--env-kwargs", "a"], "wants KEY VALUE or KEY=VALUE, each; a has no value"),
        (["train", "cartpole", "--optimizer", "lion"], "adam"),
        (["train", "cartpole", "--agent", "dnq"], "there is no agent 'dnq' (did you mean 'dqn'?)"),
        (["train", "cartpole", "--topology", "apx"], "did you mean 'apex'?"),
        (["train", "cartpole", "--topology=impala", "--agent", "dqn"], "topology impala cannot run agent dqn, which"),
        (["train", "cartpole", "--agent", "impala"], "learns from unrolls and not from transitions or sequences: use"),
        (["train", "cartpole", "--queue-batches", "3"], "--queue-batches means nothing to topology apex: leave it out"),
        (["train", "cartpole", "--name", "../x"], "--name '../x' is no plain folder name"),
        (["resume", "no/run"], "no/run is not a run folder"),
        (["resume"], "RUN"),
        (["eval", "no/run"], "no/run is not a run folder"),
        (["eval", "no/run", "--episode", "3"], "--episodes"),
        (["train", "cartpole", "--agent", "c51", "--no-residual"], "--residual means nothing to agent c51"),
        (["train", "pendulum", "--noisy"], "--noisy means nothing to agent sac: leave it out, or choose one of dqn,"),
        (["train", "pendulum", "--agent=td3", "--temperature=0.2"], "--temperature means nothing to agent td3"),
        (["train", "cartpole", "--no-dueling"], "this configuration has --no-dueling: choose double_dqn."),
        (["train", "cartpole", "--agent", "rainbow", "--no-noisy"], "agent rainbow stands for --noisy"),
        (["train", "pendulum", "--agent", "bires_ddpg", "--residual", "0"], "--residual 0: choose ddpg."),
        (
            ["train", "cartpole", "--agent", "dqn", "--atoms", "21"],
            "--atoms means nothing with --distribution expected",
        ),
        (["train", "pendulum", "--target-period-updates", "9"], "means nothing with --polyak 0.005: leave it out"),
        (["train", "pendulum", "--polyak", "2"], "--polyak must be between 0 and 1, not 2.0"),
        (["train", "cartpole", "--callback", "mine"], "--callback 'mine' is no callback: write module:name"),
        (["train", "cartpole", "--callback", ":"], "--callback ':' is no callback: write module:name"),
        (["train", "cartpole", "--callback", ".mine:It"], "--callback '.mine:It' is no callback: write module:name"),
        (["train", "cartpole", "--callback", "no_such:It"], "there is no module 'no_such'"),
        (["train", "cartpole", "--callback", "apexrl.run.callbacks:It"], "module apexrl.run.callbacks has no 'It'"),
        (
            ["train", "cartpole", "--callback", "apexrl.run.callbacks:OpenRun"],
            "OpenRun cannot be made without arguments",
        ),
        (["compare", "cartpole", "--callback", "a:b"], "--callback means nothing to apexrl compare"),
        (["list", "agnts"], "not 'agnts' (did you mean 'agents'?)"),
        (["list", "agents", "presets"], "apexrl list takes one word at most"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(words: list[str], message: str, told: Any, tmp_path: Path) -> None:
    code, _, complaints = told(*words)
    assert code == 2, complaints
    assert message in " ".join(complaints.split())
    assert "Traceback" not in complaints
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [["watch"], ["watch", "--record", "3"], ["status"], ["doctor"], ["scale", "--actors", "2"], ["report"],
     ["dashboard"], ["replay", "inspect"], ["eval"]],
    ids=" ".join,
)  # fmt: skip
def test_commands_about_a_run_name_the_one_that_was_meant(words: list[str], told: Any, tmp_path: Path) -> None:
    (tmp_path / "acrobot").mkdir()
    (tmp_path / "acrobot" / "config.toml").touch()
    place = 2 if words[0] == "replay" else 1
    code, _, complaints = told(*words[:place], str(tmp_path / "acrobto"), *words[place:])
    assert code == 2
    assert "(did you mean 'acrobot'?)" in " ".join(complaints.split())
    assert "Traceback" not in complaints


def test_the_command_itself_explains_a_mistake(tmp_path: Path) -> None:
    result = command("train", "cartpole", "--actors", "0", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("apexrl: --actors must be at least 1, not 0")
    assert not list(tmp_path.iterdir())


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("apexrl.presets.known.find_spec", lambda name: None)
    assert main.main(["train", "lunarlander"]) == 2
    assert "pip install 'apexrl[box2d]'" in capsys.readouterr().err


def test_without_the_train_extra(tmp_path: Path) -> None:
    """As after ``pip install apexrl`` alone: nothing but NumPy can be imported."""
    code = (
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in {'tyro', 'rich', 'torch', 'gymnasium', 'tomli_w'}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "from apexrl.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for words in (["train", "cartpole"], ["train", "--help"], ["list"], ["eval", "x"]):
        result = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert result.returncode == 2, words
        assert "run: pip install 'apexrl[train]'" in result.stderr
        assert "Traceback" not in result.stderr
    helped = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False)
    assert helped.returncode == 0
    assert "pip install 'apexrl[train]'" in helped.stdout


def test_help_shows_the_presets_values(told: Any) -> None:
    code, text, _ = told("train", "pong", "--help")
    assert code == 0
    text = " ".join(text.replace("│", " ").split())
    for words in ("--envs-per-actor INT", "(default: ALE/Pong-v5)", "(default: 6.25e-05)", "(default: rmsprop)",
                  "--env-kwargs [KEY VALUE]…", "--stop-at-return", "Ape-X: 2500 learner updates"):  # fmt: skip
        assert words in text, words
    assert "--preset" not in text
    assert "``" not in text


@pytest.mark.parametrize("words", [["export"], ["train", "cartpole"]], ids=" ".join)
def test_help_says_that_a_default_is_empty(words: list[str], told: Any) -> None:
    code, text, _ = told(*words, "--help")
    assert code == 0
    assert "default: empty" in " ".join(text.replace("│", " ").split())
    assert "''" not in text


def test_help_shows_what_topology_and_agent_read(told: Any) -> None:
    (one, apex, _), (other, impala, _) = (
        told("train", "cartpole", "--help"),
        told("train", "cartpole", "--topology", "impala", "--help"),
    )
    assert (one, other) == (0, 0)
    assert "--queue-batches" not in apex
    assert "--queue-batches" in impala
    assert "--unroll-length" in impala
    assert "topology impala and agent impala read" in " ".join(impala.replace("│", " ").split())


HELP = ("config/schema", "config/agent_settings", "config/topology_settings")


@pytest.mark.parametrize(
    "module", [*HELP, "cli/train_flags", "cli/folder_flags", "cli/placement_flags", "cli/host_flags"]
)
def test_help_breaks_lines_between_sentences_only(module: str) -> None:
    """In a flag's help the parser keeps the line breaks of the source."""
    tree = ast.parse((Path(apexrl.__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
    groups = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    said = [
        (entry.target.id, after.value.value)
        for group in groups
        for entry, after in itertools.pairwise(group.body)
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    ]
    assert len(said) > 3
    for name, text in said:
        assert all(line.endswith((".", "…")) for line in str(text).splitlines()), f"--{name}: {text}"


def test_a_topology_brings_an_agent_that_it_runs(started: list[Any]) -> None:
    config = the_config("cartpole", "--topology", "impala", "--queue-batches", "3", runs=started)
    chosen = with_topology(preset("cartpole").config, "impala")
    assert config == convert.override(chosen, {"queue_batches": 3})
    assert (config.topology, config.agent.agent) == ("impala", "impala")
    again = the_config("cartpole", "--agent", "a2c", "--topology=impala", runs=started)
    assert again == with_topology(preset("cartpole").config, "impala", "a2c")
    assert the_config("cartpole", "--topology", "apex", runs=started) == preset("cartpole").config


def test_help_without_a_preset() -> None:
    result = command("train", "--help")
    assert result.returncode == 0
    assert "apexrl train --env MODULE:Env-v0" in result.stdout


def test_top_help_version_and_list() -> None:
    from apexrl import __version__

    assert command("--version").stdout == f"apexrl {__version__}\n"
    helped = command("--help")
    assert helped.returncode == 0
    assert all(f"apexrl {name}" in helped.stdout for name in ("train", "eval", "resume", "list"))
    assert command().returncode == 2
    listed = command("list")
    assert listed.returncode == 0
    assert all(f" {name} " in listed.stdout for name in ("cartpole", "hopper", "dqn", "sac", "apex"))


def test_every_word_of_eval(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from apexrl.evaluation.episodes import Evaluation

    asked: list[Any] = []

    def evaluate(**words: Any) -> Evaluation:
        asked.append(words)
        return Evaluation([1.0, 3.0], Path("best.safetensors"), [Path("films/episode-001.mp4")])

    monkeypatch.setattr("apexrl.api.evaluate", evaluate)
    assert main.main(["eval", "runs/x", "--episodes", "2", "--video", "films"]) == 0
    same = {"seed": 1_000_000_007, "checkpoint": "best", "trust": ()}
    own = dict.fromkeys(("actions", "epsilon", "sticky", "noops"))  # as the run's evaluations
    assert asked == [{"run": "runs/x", "episodes": 2, "video": "films", **same, **own}]
    other = {"actions": "sampled", "epsilon": 0.05, "sticky": 0.25, "noops": 30}
    assert main.main(["eval", "runs/x", *(word for name in other for word in (f"--{name}", str(other[name])))]) == 0
    assert asked[1] == {"run": "runs/x", "episodes": 20, "video": None, **same, **other}
    assert capsys.readouterr().out.startswith(
        "return 2.00 ± 1.00 (min 1.00, max 3.00) over 2 episodes (greedy)\n"
        "weights: best.safetensors\nvideo: films/episode-001.mp4\n"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "my.toml is empty: it should hold settings"),
        (b"# mine\n\n", "my.toml is empty: it should hold settings"),
        (b"\xff\xfe", "my.toml is not UTF-8, which settings must be saved as: 'utf-8' codec"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(
    content: bytes, message: str, told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_bytes(content)
    code, _, complaints = told("train", "my.toml")
    assert code == 2, complaints
    assert message in " ".join(complaints.split())
