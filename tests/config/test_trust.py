"""What a record may have called on another host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from apexrl.config import Config, convert
from apexrl.config.trust import entrusted, installed, modules
from apexrl.errors import ConfigError

ORIGIN = "run r at redis-host:6379"


def read(text: str) -> Config:
    return convert.from_toml(text, ORIGIN)


def calling(name: str, **kwargs: Any) -> Config:
    pairs = "\n".join(f"{key} = {value!r}".replace("True", "true") for key, value in kwargs.items())
    return read(f"[env]\nenv = {{callable = '{name}'}}\n[env.env_kwargs]\n{pairs}\n")


def an_agent(name: str) -> Config:
    return convert.override(Config(), {"agent": name})


def a_network(name: str) -> Config:
    return convert.override(Config(), {"network": name})


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, which has imported something dangerous."""
    code = (
        "from subprocess import check_output\nimport subprocess\ndef make(**kwargs): return kwargs\nclass Mine: ...\n"
    )
    for name in ("own", "own.envs"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        exec(code, vars(sys.modules[name]))
    return sys.modules["own"]


def test_what_nobody_has_named_is_refused_in_words(tmp_path: Path) -> None:
    called = tmp_path / "called"
    hostile = calling("subprocess:check_output", args=f"touch {called}", shell=True)
    with pytest.raises(ConfigError, match="'subprocess:check_output' as its environment") as caught:
        entrusted(hostile, (), ORIGIN)
    assert str(caught.value).startswith(ORIGIN)
    assert "--trust subprocess (in Python: trust=('subprocess',))" in str(caught.value)
    with pytest.raises(ConfigError, match="'subprocess:Popen' as its agent"):
        entrusted(an_agent("subprocess:Popen"), ("own",), ORIGIN)
    with pytest.raises(ConfigError, match="'subprocess:Popen' as its network"):
        entrusted(a_network("subprocess:Popen"), ("own",), ORIGIN)
    with pytest.raises(ConfigError, match="the environment subprocess:check_output is not trusted here"):
        hostile.env.env(**hostile.env.env_kwargs)  # also where somebody forgot to ask
    assert not called.exists()
    assert subprocess.check_output(**hostile.env.env_kwargs) == b""  # as it would have been
    assert called.exists()


def test_ids_and_shipped_agents_need_no_trust() -> None:
    for text in ("", "[env]\nenv = 'apexrl.envs.toy:SlowCartPole-v0'\n[agent]\nagent = 'dqn'\n"):
        assert entrusted(read(text), (), ORIGIN) == read(text)


@pytest.mark.parametrize("module", ["subprocess", "my_sim", "tests.somewhere", "my sim", "a:b", ""])
def test_an_id_of_no_installed_package_is_refused_unless_its_module_is_named(module: str) -> None:
    config = read(f"[env]\nenv = '{module}:Plant-v0'\n")
    with pytest.raises(ConfigError, match="belongs to no installed package"):
        entrusted(config, ("other",), ORIGIN)
    if module.replace(".", "").isidentifier():
        assert entrusted(config, (module,), ORIGIN) == config


@pytest.mark.parametrize("value", ["os:system", ["my.module:Class"], {"deep": {"in": "subprocess:check_output"}}])
def test_a_name_to_import_among_the_arguments_of_an_environment_is_refused(value: Any) -> None:
    config = convert.override(Config(), {"env_kwargs": {"render_mode": "rgb_array", "what": value}})
    with pytest.raises(ConfigError, match="as its environment's argument"):
        entrusted(config, (), ORIGIN)
    assert entrusted(config, ("os", "my", "subprocess"), ORIGIN) == config
    plain = convert.override(Config(), {"env_kwargs": {"host": "sim:7000", "path": "C:\\maps\\a b", "ratio": "4:3"}})
    assert entrusted(plain, (), ORIGIN) == plain


def test_what_lies_in_the_current_folder_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_sim.py").write_text("raise SystemExit('imported')")
    about = tmp_path / "my_sim-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-sim\nVersion: 1.0\n")
    (about / "RECORD").write_text("my_sim.py,,\n")
    (tmp_path / "google").mkdir()  # a namespace that installed packages share
    (tmp_path / "google" / "stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not installed("my_sim")
    assert not installed("google.stranger")
    assert installed("apexrl.envs.toy")
    assert installed("gymnasium.envs.classic_control.cartpole")
    programs = ("pygments.__main__", "pytest.__main__", "__main__")
    for name in (*programs, "subprocess", "os.path", "sys", "nothing_of_that_name", "numpy.nothing"):
        assert not installed(name)


def test_a_package_shadowed_by_the_current_folder_is_not_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed("trustme")
    (tmp_path / "trustme.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trustme", raising=False)
    assert not installed("trustme")


@pytest.mark.parametrize("trust", [("own",), ("else", "own.envs"), "own"])
def test_what_is_of_a_named_module_is_called(own: ModuleType, trust: Any) -> None:
    config = entrusted(calling("own.envs:make", width=3), trust, ORIGIN)
    assert config.env.env(**config.env.env_kwargs) == {"width": 3}
    assert convert.to_toml(config) == convert.to_toml(calling("own.envs:make", width=3))
    assert entrusted(an_agent("own.envs:Mine"), trust, ORIGIN).agent.agent == "own.envs:Mine"
    assert entrusted(a_network("own.envs:Mine"), trust, ORIGIN).agent.network == "own.envs:Mine"


@pytest.mark.parametrize("name", ["ownership:make", "own_too.envs:make", "own", ":make", "\x1b[2J:make"])
def test_a_name_that_only_looks_alike_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="that code is not trusted here") as caught:
        entrusted(calling(name) if name.isprintable() else an_agent(name), ("own.envs", "own.agents"), ORIGIN)
    assert str(caught.value).isprintable()
    with pytest.raises(ConfigError, match="that code is not trusted here"):
        entrusted(a_network(name), ("own.envs", "own.agents"), ORIGIN)


@pytest.mark.parametrize("name", ["own:check_output", "own:subprocess.check_output", "own:make.__globals__.get",
                                  "own:Mine.__subclasses__", "own:make.__class__"])  # fmt: skip
def test_what_a_named_module_has_from_elsewhere_is_not_called(own: ModuleType, name: str, tmp_path: Path) -> None:
    called = tmp_path / "called"
    config = entrusted(calling(name, args=f"touch {called}", shell=True), ("own",), ORIGIN)
    with pytest.raises(ConfigError, match=r"\(of module '\w*'\) as its environment, and"):
        config.env.env(**config.env.env_kwargs)
    assert not called.exists()


def test_who_makes_no_environment_need_not_trust_it() -> None:
    entrusted(calling("subprocess:check_output"), (), ORIGIN, env=False)
    with pytest.raises(ConfigError, match="as its agent"):
        entrusted(an_agent("own:Mine"), (), ORIGIN, env=False)
    with pytest.raises(ConfigError, match="as its network"):
        entrusted(a_network("own:Mine"), (), ORIGIN, env=False)


@pytest.mark.parametrize("wrong", ["own:make", "", "own.", "own/envs", "--run"])
def test_what_is_no_module_is_said(wrong: str) -> None:
    with pytest.raises(ConfigError, match="is no module"):
        entrusted(Config(), ("own", wrong) if wrong else (wrong,), ORIGIN)


def test_a_learner_trusts_what_its_own_user_has_named(own: ModuleType) -> None:
    assert modules(Config()) == ()
    assert modules(an_agent("own:Mine")) == ("own",)
    assert modules(convert.override(an_agent("own:Mine"), {"network": "nets:Mine"})) == ("own", "nets")
    assert modules(convert.override(an_agent("agents:Mine"), {"env": own.make})) == ("own", "agents")
    config = calling("own:check_output")
    assert modules(config) == ("own", "subprocess")
    assert entrusted(config, modules(config), ORIGIN).env.env(args=["echo", "yes"]) == b"yes\n"
    assert own.check_output is subprocess.check_output


def test_an_entry_point_in_the_current_folder_is_no_installed_packages(tmp_path: Path) -> None:
    """A stranger's folder holds a config.toml, a module, and a distribution that offers it as an agent."""
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('imported').touch()\nclass Agent: ...\n")
    about = tmp_path / "evil.egg-info"
    about.mkdir()
    (about / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[apexrl.agents]\nevil = evil:Agent\n[apexrl.topologies]\nevil = evil:Agent\n"
    )
    text = convert.to_toml(Config())
    for name, setting in (("agent", 'agent = "dueling_dqn"'), ("topology", 'topology = "apex"')):
        assert setting in text
        (tmp_path / "config.toml").write_text(text.replace(setting, f'{name} = "evil"'))
        for words in (["--help"], ["--seed", "2"]):
            done = subprocess.run(
                [sys.executable, "-m", "apexrl.cli", "train", "config.toml", *words],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120.0,
                check=False,
            )
            assert words == ["--help"] or (done.returncode == 2 and "evil" in done.stderr), done.stderr
            assert not (tmp_path / "imported").exists()
