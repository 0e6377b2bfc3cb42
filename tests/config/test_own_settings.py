"""An agent or a topology of your own declares a setting in one place: flag, help, checks, config.toml come from it."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

import apexrl
from apexrl import agents, topologies
from apexrl.cli.main import main
from apexrl.config import Config, outside
from apexrl.config.convert import from_toml, override
from apexrl.config.settings import Needs
from apexrl.config.trust import entrusted
from apexrl.errors import ConfigError
from apexrl.presets import with_topology
from apexrl.topologies.validation import validate

SOURCE = '''
    from dataclasses import dataclass
    from typing import Annotated

    import numpy as np

    from apexrl.config.settings import Needs, Range
    from apexrl.protocols import Acted, Learned


    @dataclass(frozen=True)
    class MySettings:
        """What this agent has of its own."""

        curiosity: Annotated[float, Range(0, 1)] = 0.25
        """Weight of the bonus for what was rarely seen."""
        sizes: Annotated[tuple[int, ...], Range(1)] = (3, 4)
        """Sizes of nothing in particular."""
        bonus: bool = True
        """Whether there is a bonus."""
        bonus_decay: Annotated[float, Range(above=0), Needs("bonus")] = 0.5
        """How fast it falls."""


    class Curious:
        Settings = MySettings

        def __init__(self, spec, config, device="cpu", seed=0):
            self.own = MySettings(**config.agent_settings)
            self.n = spec.action.n
            assert isinstance(self.own.sizes, tuple)

        def act(self, observations, state, exploration, greedy=False):
            return Acted(np.zeros(len(exploration), np.int64), {}, state)

        def update(self, batch):
            return Learned(np.ones(len(batch.keys)), {"curiosity": self.own.curiosity})

        def priorities(self, items):
            return np.ones(len(items["reward"]))

        def weights(self):
            return {"w": np.full(1, self.own.curiosity, np.float32)}

        def load(self, weights): ...

        def state_dict(self):
            return self.weights()

        def load_state_dict(self, state): ...
'''
AGENT = "curious_agent:Curious"
SMALL = ("--serial", "--env-steps", "300", "--min-size", "50", "--batch-size", "8", "--eval-episodes", "1")


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's module lies in the current folder."""
    (tmp_path / "curious_agent.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "curious_agent", raising=False)
    monkeypatch.setenv("COLUMNS", "100")


def test_a_setting_is_a_flag_and_in_config_toml_and_survives_resume(tmp_path: Path) -> None:
    start = ["train", "--env", "CartPole-v1", "--agent", AGENT, "--name", "first"]
    assert main([*start, *SMALL, "--curiosity", "0.5", "--sizes", "7", "8"]) == 0
    written = (tmp_path / "runs/first/config.toml").read_text()
    assert "[agent.agent_settings]\ncuriosity = 0.5\n" in written
    assert "bonus_decay = 0.5" in written  # a default is written, too
    loaded = apexrl.load(tmp_path / "runs/first", "latest", trust=("curious_agent",))
    assert loaded.agent.own.sizes == (7, 8)  # type: ignore[attr-defined]
    assert main(["resume", "runs/first", "--env-steps", "400", "--trust", "curious_agent"]) == 0
    again = apexrl.resume("runs/first", trust=("curious_agent",), show=False, env_steps=500, curiosity=0.75)
    assert again.summary["env_steps"] >= 500
    assert again.config is not None
    assert again.config.agent.agent_settings == {"curiosity": 0.75, "sizes": (7, 8), "bonus": True, "bonus_decay": 0.5}
    recorded = from_toml((tmp_path / "runs/first/config.toml").read_text())
    assert (recorded.agent.agent_settings["curiosity"], recorded.stop.env_steps) == (0.75, 500)
    # the run's file is a start as good as any
    assert (
        main(["train", "runs/first/config.toml", "--trust", "curious_agent", "--curiosity", "1", "--name", "second"])
        == 0
    )
    second = from_toml((tmp_path / "runs/second/config.toml").read_text()).agent.agent_settings
    assert (second["curiosity"], second["sizes"]) == (1.0, [7, 8])


def test_a_strangers_folder_cannot_leave_their_range(tmp_path: Path) -> None:
    assert main(["train", "--env", "CartPole-v1", "--agent", AGENT, "--name", "first", *SMALL]) == 0
    path = tmp_path / "runs/first/config.toml"
    path.write_text(path.read_text().replace("curiosity = 0.25", "curiosity = 2e9"))
    for use in (apexrl.load, apexrl.resume):
        with pytest.raises(ConfigError, match="--curiosity must be between 0 and 1, not 2000000000"):
            use(tmp_path / "runs/first", trust=("curious_agent",))


def test_help_describes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", "CartPole-v1", "--agent", AGENT, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert (
        "--curiosity FLOAT Weight of the bonus for what was rarely seen. Must be between 0 and 1. (default: 0.25)"
        in text
    )
    assert "Sizes of nothing in particular. Each must be at least 1. (default: 3 4)" in text
    assert "--agent-settings" not in text
    assert "--gamma FLOAT Discount per environment step (Ape-X: 0.99). Must be between 0 and 1." in text


def test_list_describes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", AGENT]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--curiosity Weight of the bonus for what was rarely seen. float; between 0 and 1; default: 0.25" in text
    assert "--bonus-decay How fast it falls. float; positive; default: 0.5 has an effect only with --bonus" in text
    assert main(["list", "curious_agent:Nobody"]) == 2
    assert "module curious_agent has no class 'Nobody'" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--curiosity", "2"], "--curiosity must be between 0 and 1, not 2.0"),
        (["--sizes", "0"], "--sizes must be numbers, each at least 1, not (0,)"),
        (["--curiositee", "2"], "--curiosity"),
        (["--no-bonus", "--bonus-decay", "2"], "--bonus-decay means nothing with --no-bonus"),
        (["--curiositee"], f"For full helptext, run apexrl train --agent {AGENT} --help"),
    ],
)
def test_the_command_refuses_what_it_cannot_be(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["train", "--env", "CartPole-v1", "--agent", AGENT, *words])
    assert code == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"curiosity": -1.0}, "^--curiosity must be between 0 and 1"),
        ({"curiosity": "much"}, "curiosity = 'much' is not of type float"),
        ({"curiositee": 0.5}, r"unknown setting 'curiositee' \(did you mean 'curiosity'\?\)"),
    ],
)
def test_python_refuses_the_same(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apexrl.train(env="CartPole-v1", agent=AGENT, show=False, **values)


def test_another_agent_has_none_of_it() -> None:
    own = agents.with_agent(Config(), AGENT)
    changed = override(own, {"curiosity": 0.5})
    assert agents.with_agent(changed, AGENT).agent.agent_settings == {"curiosity": 0.5}
    assert agents.with_agent(changed, "dqn").agent.agent_settings == {}
    with pytest.raises(ConfigError, match="unknown setting 'curiosity'"):
        override(Config(), {"curiosity": 0.5})


def test_a_name_of_apexrls_is_not_taken_twice(tmp_path: Path) -> None:
    (tmp_path / "curious_agent.py").write_text(
        textwrap.dedent(SOURCE).replace("curiosity: Annotated", "gamma: Annotated")
    )
    with pytest.raises(ConfigError, match=f"^agent {AGENT}: apexrl has a setting 'gamma' already"):
        validate(agents.with_agent(Config(), AGENT))


@dataclass(frozen=True)
class Switched:
    on: bool
    strength: Annotated[float, Needs("on")] = 0.5


@dataclass(frozen=True)
class Deadlocked:
    strength: Annotated[float, Needs("on")]
    on: bool = False


def test_a_switch_may_have_no_default_but_what_needs_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(topology="outer")
    monkeypatch.setattr("apexrl.config.convert.is_outside", lambda kind, name: name == "outer")
    apex = topologies.TOPOLOGIES["apex"]
    monkeypatch.setitem(topologies.TOPOLOGIES, "outer", apex._replace(settings=Switched))
    with pytest.raises(ConfigError, match=r"^say --on: it has no default"):
        validate(override(config, {"strength": 0.25}), ["strength"])
    both = {"on": True, "strength": 0.25}
    assert validate(override(config, both), both).wiring.topology_settings == both
    monkeypatch.setitem(topologies.TOPOLOGIES, "outer", apex._replace(settings=Deadlocked))
    with pytest.raises(ConfigError, match=r"its setting 'strength' needs --on, so give it a default"):
        validate(config)


@pytest.mark.parametrize("named", [f'[agent]\nagent = "{AGENT}"\n', f'topology = "{AGENT}"\n'])
def test_a_file_that_nobody_trusts_imports_nothing(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs.toml").write_text(named)
    assert main(["train", "theirs.toml", "--curiosity", "0.5"]) == 2
    assert "--trust curious_agent" in " ".join(capsys.readouterr().err.split())
    assert "curious_agent" not in sys.modules


def test_an_installed_package_offers_agents_and_topologies_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    outside.installed.cache_clear()
    package = SimpleNamespace(entry_points=[EntryPoint("curious", AGENT, "apexrl.agents")])
    monkeypatch.setattr(outside, "distributions", lambda path: [package])
    try:
        config = override(agents.with_agent(Config(), "curious"), {"curiosity": 0.5})
        assert validate(config).agent.agent_settings["curiosity"] == 0.5
        assert agents.agent_class("curious").__name__ == "Curious"
        with pytest.raises(ConfigError, match=r"no agent 'curius' \(did you mean 'curious'\?\)"):
            agents.check_name("curius")
    finally:
        outside.installed.cache_clear()


def test_an_installed_package_takes_no_shipped_name(monkeypatch: pytest.MonkeyPatch) -> None:
    outside.installed.cache_clear()
    points = [EntryPoint(name, AGENT, f"apexrl.{kind}") for kind, name in (("agents", "dqn"), ("topologies", "apex"))]
    monkeypatch.setattr(outside, "distributions", lambda path: [SimpleNamespace(entry_points=points)])
    try:
        for kind, name in (("agents", "dqn"), ("topologies", "apex")):
            with pytest.warns(UserWarning, match=f"^apexrl ships '{name}', so {AGENT}, which .* is left out"):
                assert not outside.is_outside(kind, name)  # type: ignore[arg-type]
        config = agents.with_agent(Config(topology="apex"), "dqn")
        assert entrusted(config, (), "theirs.toml") == config
        with pytest.raises(ConfigError, match="unknown setting 'curiosity'"):
            override(config, {"curiosity": 0.5})
    finally:
        outside.installed.cache_clear()


def test_a_setting_may_need_the_default_of_another() -> None:
    config = override(agents.with_agent(Config(), AGENT), {"bonus_decay": 0.25})
    assert validate(config, ["bonus_decay"]).agent.agent_settings["bonus_decay"] == 0.25


def test_an_agent_and_a_topology_cannot_declare_one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    import curious_agent  # type: ignore[import-not-found]

    apex = topologies.TOPOLOGIES["apex"]
    monkeypatch.setitem(topologies.TOPOLOGIES, "outer", apex._replace(settings=curious_agent.MySettings))
    with pytest.raises(ConfigError, match=f"agent {AGENT} and topology outer both declare 'bonus': rename one"):
        validate(agents.with_agent(Config(topology="outer"), AGENT))


def test_a_topology_declares_settings_likewise(monkeypatch: pytest.MonkeyPatch) -> None:
    import curious_agent  # type: ignore[import-not-found]

    entry = topologies.TOPOLOGIES["apex"]._replace(settings=curious_agent.MySettings)
    monkeypatch.setitem(topologies.TOPOLOGIES, "outer", entry)
    monkeypatch.setattr("apexrl.config.convert.is_outside", lambda kind, name: name == "outer")
    config = validate(override(Config(topology="outer"), {"curiosity": 0.5}), ["curiosity"])
    assert config.wiring.topology_settings["curiosity"] == 0.5
    assert config.agent.agent_settings == {}
    assert with_topology(config, "apex").wiring.topology_settings == {}
