"""Which topology runs which agent, with which settings: by name before anything runs, by the probe for one's own."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apexrl
from apexrl import agents, presets, topologies
from apexrl.config import Config, WiringConfig
from apexrl.config.convert import flat, from_toml, override, to_toml
from apexrl.config.settings import names_of
from apexrl.config.topology_settings import LearnersSettings, QueueSettings
from apexrl.errors import AgentError, ConfigError
from apexrl.launch.probe import probe
from apexrl.presets import preset, with_topology
from apexrl.protocols import Item
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies import TOPOLOGIES, Probe, Topology, topology
from apexrl.topologies.program import OPTIONAL, Program

ONE = np.ones(1, np.float32)
SPEC = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2))
WIRING = {entry.name for entry in dataclasses.fields(WiringConfig)}


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two topologies of which each runs what the other does not."""
    entries = {
        "apex": Topology("a", "b", kinds=("transition", "sequence"), ignores=("stack",)),
        "impala": Topology(
            "c", "d", "impala", ("unroll",), needs=("gradients",), reads=(QueueSettings, LearnersSettings)
        ),
    }
    monkeypatch.setattr(topologies, "TOPOLOGIES", entries)


@pytest.mark.parametrize("name", list(TOPOLOGIES))
def test_an_entry_names_what_there_is(name: str) -> None:
    about = TOPOLOGIES[name]
    assert set(about.kinds) <= {"transition", "sequence", "unroll"}
    assert set(about.needs) <= set(OPTIONAL)
    assert names_of(about.reads) <= WIRING
    assert set(about.ignores) <= flat(Config()).keys() - WIRING
    assert topologies.runs(name, about.agent)
    assert about.agent in agents.AGENTS


@pytest.mark.parametrize("agent", list(agents.AGENTS))
def test_pages_wire_the_agents_that_the_names_say_and_no_other(agent: str) -> None:
    info = agents.AGENTS[agent]
    changes = {"env": "CartPole-v1" if "Discrete" in info.needs else "Pendulum-v1", "hidden": (4,)}
    config = override(agents.with_agent(Config(), agent), {**changes, "critic_hidden": (4,), "recurrent_units": 4})
    seen = probe(config)
    assert seen.item.kind == info.item
    assert info.by_gradients == (bool(seen.places) and not config.agent.reset_period_updates)
    for name, about in TOPOLOGIES.items():
        fitting = override(config, {"topology": name, **about.fixed})
        if topologies.runs(name, agent):
            assert isinstance(topology(name)(fitting, seen), Program)
        else:
            with pytest.raises(ConfigError, match=f"topology {name} cannot run agent {agent}, which "):
                topology(name)(fitting, seen)


def test_every_agent_is_run_by_some_topology() -> None:
    for agent in agents.AGENTS:
        assert any(topologies.runs(name, agent) for name in TOPOLOGIES), agent


def test_an_agent_of_the_wrong_kind_is_refused_with_topologies_that_run_it(two: None) -> None:
    with pytest.raises(ConfigError, match=r"topology apex cannot run agent impala, which learns from unrolls and not "
                                          r"from transitions or sequences: use --topology impala"):  # fmt: skip
        topologies.check_agent("apex", "impala")
    with pytest.raises(ConfigError, match="topology impala cannot run agent r2d2, which learns from sequences"):
        topologies.check_agent("impala", "r2d2")
    topologies.check_agent("impala", "impala")
    topologies.check_agent("impala", "my.module:Agent")  # only the probe can tell


def test_an_agent_with_running_statistics_is_not_changed_by_gradients_alone() -> None:
    words = (
        r"topology gorila cannot run agent crossq, which is made of more than gradients .*: use --topology apex, seed, "
        "offline, or another --agent"
    )
    with pytest.raises(ConfigError, match=words):
        topologies.check_agent("gorila", "crossq")


def test_settings_of_another_value_than_a_topology_runs_are_refused() -> None:
    config = override(agents.with_agent(Config(), "ppo"), {"topology": "a3c", "minibatches": 1})
    words = r"topology a3c runs agents with --epochs 1 alone, and not with --epochs 4: set them so, or use --to"
    with pytest.raises(ConfigError, match=words):
        topologies.check_fixed(config)
    assert topologies.obstacle(config) == "has --epochs 4, and not --epochs 1"
    able = override(config, {"epochs": 1})
    topologies.check_fixed(able)
    assert topologies.obstacle(able) == ""
    assert with_topology(override(config, {"topology": "impala"}), "a3c").agent.agent == "a2c"
    assert with_topology(override(able, {"topology": "impala"}), "a3c") == able


def test_the_probe_tells_of_ones_own_agents(two: None) -> None:
    config = override(Config(), {"agent": "my.module:Agent"})
    unrolls = Probe(SPEC, {}, 64, Item("unroll", 5))
    with pytest.raises(ConfigError, match=r"topology apex cannot run agent my.module:Agent, which learns from unrolls"):
        topology("apex")(config, unrolls)
    with pytest.raises(AgentError, match=r"topology impala cannot run agent my.module:Agent, which lacks gradients"):
        topology("impala")(config, unrolls)
    able = dataclasses.replace(unrolls, offers=("gradients", "apply"))
    assert isinstance(topology("impala")(config, able), Program)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def wire(config): ...", r"it takes \(config\): too many positional arguments"),
        (
            "def wire(config, probe, more): ...",
            r"it takes \(config, probe, more\): missing a required argument",
        ),
        ("def wire(config, probe):\n    Program(config)", "it returned None: end it with the Program that it has made"),
    ],
)
def test_a_function_that_wires_nothing_is_named(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_wire.py").write_text(f"from apexrl.topologies import Program\n\n{source}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_wire", raising=False)
    words = rf"topology my_wire:wire must be a function \(config, probe\) -> Program; {message}"
    with pytest.raises(ConfigError, match=words):
        apexrl.train("cartpole", topology="my_wire:wire", serial=True, out=str(tmp_path), show=False)


def test_settings_that_a_topology_does_not_read_are_refused(two: None) -> None:
    topologies.check_read("impala", ["queue_batches", "actors", "autotune", ""])
    with pytest.raises(ConfigError, match=r"--queue-batches means nothing to topology apex: leave it out, or choose "
                                          r"one of impala"):  # fmt: skip
        topologies.check_read("apex", ["queue_batches"])
    with pytest.raises(ConfigError, match="--stack means nothing to topology apex: leave it out, or choose one of imp"):
        topologies.check_read("apex", ["stack"])
    with pytest.raises(ConfigError, match=r"--predictors means nothing to topology impala: leave it out$"):
        topologies.check_read("impala", ["predictors"])
    assert "queue_batches" in topologies.unread("apex")
    assert not {"queue_batches", "learners", "autotune", "autotune_seconds"} & topologies.unread("impala")


def test_a_topology_keeps_the_agent_that_it_runs() -> None:
    config = override(preset("cartpole").config, {"learning_rate": 0.5, "topology": "impala"})
    assert with_topology(config, "apex") == override(config, {"topology": "apex"})
    own = override(preset("cartpole").config, {"agent": "my.module:Agent"})
    assert with_topology(own, "impala") == override(own, {"topology": "impala"})


def test_else_it_takes_its_own_with_the_settings_of_its_name() -> None:
    config = with_topology(Config(), "impala")
    assert (config.topology, config.agent.agent) == ("impala", "impala")
    assert config == agents.with_agent(override(Config(), {"topology": "impala"}), "impala")


def test_settings_that_the_preset_has_for_it_come_along(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dataclasses.replace(preset("pendulum"), agents={"sac": {}, "ppo": {"gamma": 0.9}})
    monkeypatch.setitem(presets.PRESETS, "pendulum", known)
    config = with_topology(known.config, "impala")
    assert (config.agent.agent, config.agent.gamma) == ("ppo", 0.9)  # the topology's has no settings there
    both = dataclasses.replace(known, agents={"ppo": {"gamma": 0.9}, "impala": {"gamma": 0.8}})
    monkeypatch.setitem(presets.PRESETS, "pendulum", both)
    config = with_topology(known.config, "impala")
    assert (config.agent.agent, config.agent.gamma) == ("impala", 0.8)
    back = with_topology(config, "apex")
    assert back == override(preset("pendulum").config, {"topology": "apex"})  # the preset's own, as it was


def test_an_agent_that_is_asked_for_must_fit() -> None:
    config = with_topology(preset("cartpole").config, "impala", "a2c")
    assert (config.topology, config.agent.agent) == ("impala", "a2c")
    with pytest.raises(ConfigError, match="topology impala cannot run agent dqn"):
        with_topology(preset("cartpole").config, "impala", "dqn")
    with pytest.raises(ConfigError, match="there is no agent 'impla'"):
        with_topology(preset("cartpole").config, "impala", "impla")
    with pytest.raises(ConfigError, match=r"there is no topology 'impla' \(did you mean 'impala'\?\)"):
        with_topology(preset("cartpole").config, "impla")


def test_the_outcome_needs_no_names_to_be_read_again() -> None:
    config = with_topology(preset("cartpole").config, "impala")
    assert from_toml(to_toml(config)) == config


def run_nothing(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    import apexrl.api

    seen: list[Config] = []
    monkeypatch.setattr(apexrl.api, "_run", lambda config, **how: seen.append(config))
    return seen


def test_train_from_python_chooses_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    import apexrl

    seen = run_nothing(monkeypatch)
    apexrl.train("cartpole", topology="impala", show=False)
    assert seen == [with_topology(preset("cartpole").config, "impala")]
    apexrl.train("cartpole", topology="impala", agent="a2c", queue_batches=3, show=False)
    assert seen[-1] == override(with_topology(preset("cartpole").config, "impala", "a2c"), {"queue_batches": 3})


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"topology": "impala", "agent": "dqn"}, "topology impala cannot run agent dqn"),
        (
            {"topology": "impala", "agent": "a2c", "minibatches": 2},
            "--surrogate log_prob with --epochs 1 and --minibatches 2",
        ),
        ({"topology": "a3c", "agent": "a2c", "epochs": 2}, "topology a3c runs agents with --epochs 1 alone"),
        ({"agent": "impala"}, "topology apex cannot run agent impala"),
        ({"queue_batches": 2}, "--queue-batches means nothing to topology apex"),
        ({"topology": 3}, "topology= is a name, not 3"),
        ({"topology": "impla"}, "there is no topology 'impla'"),
        ({"topology": ".x:y"}, "there is no topology '.x:y'"),
    ],
)
def test_train_from_python_refuses_alike(
    overrides: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import apexrl

    seen = run_nothing(monkeypatch)
    with pytest.raises((ConfigError, AgentError), match=words):
        apexrl.train("cartpole", show=False, **overrides)
    assert not seen


def test_a_config_whose_agent_the_topology_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import apexrl

    run_nothing(monkeypatch)
    with pytest.raises(ConfigError, match="topology impala cannot run agent dueling_dqn"):
        apexrl.train(override(Config(), {"topology": "impala"}), show=False)
