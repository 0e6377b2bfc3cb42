from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording_observer import Watcher, small

from apexrl import errors
from apexrl.agents.dqn import DQN
from apexrl.config import AgentConfig, LearnerConfig
from apexrl.errors import AgentError, ConfigError, EnvError, WorkerError
from apexrl.launch import launch, local_run
from apexrl.launch.probe import large_network, probe, probe_answer, probe_work, revive
from apexrl.links.local import worker_messages
from apexrl.protocols import Item
from apexrl.spec import ActionSpec, EnvSpec, Field
from apexrl.topologies.program import Probe


def crossed(config: object) -> worker_messages.Message:
    """The probe's answer after crossing a socket."""
    ours, theirs = worker_messages.channel()
    with ours, theirs:
        probe_work(theirs, config)  # type: ignore[arg-type]
        (message,) = worker_messages.receive(ours)
    return message


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "apexrl.envs.toy:Catch-v0", "apexrl.envs.toy:Corridor-v0", "apexrl.envs.toy:Signals-v0"]
)
def test_a_probe_crosses_processes_unchanged(tmp_path: Path, env: str) -> None:
    config = small(tmp_path, env=env)
    here = probe(config)
    there = probe_answer(crossed(config))
    assert there == here
    assert here.weights_nbytes > 100


def test_bounds_of_a_box_of_actions_survive() -> None:
    from apexrl.run.spec_json import spec_from_json, spec_to_json

    low, high = np.array([-1.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32)
    spec = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec((2,), "float32", low=low, high=high), 2)
    again = spec_from_json(spec_to_json(spec))
    assert again.action.low is not None
    assert again.action.high is not None
    np.testing.assert_array_equal(again.action.low, low)
    np.testing.assert_array_equal(again.action.high, high)
    assert again.stack == 2


def test_a_large_network_of_large_observations_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"observation/v": Field((3,), "float32"), "observation/camera": Field((480, 640, 3), "uint8")}
    seen = Probe(EnvSpec(fields, ActionSpec(n=2)), {}, 557_000_000)
    assert large_network(seen).startswith("images of 480 × 640 × 3 make a network of 139 million weights (531.2 MiB)")
    assert not large_network(replace(seen, weights_nbytes=40_000_000))
    fields["observation/camera"] = Field((84, 84, 4), "uint8")
    assert not large_network(seen)  # then it is --hidden
    states = EnvSpec({"observation": Field((), "int64")}, ActionSpec(n=2), categories={"observation": 10**7})
    text = "10,000,000 possible values of an observation, each with weights of its own, make a network of 139 million"
    assert large_network(replace(seen, spec=states)).startswith(text)
    monkeypatch.setattr(local_run, "large_network", lambda seen: "they are large")
    launch(replace(small(tmp_path), serial=True), [watcher := Watcher()])
    assert "they are large" in watcher.texts


@pytest.mark.parametrize(
    ("learner", "agent", "text"),
    [
        (LearnerConfig(device="cuda:77"), AgentConfig(), "--device 'cuda:77': this PyTorch finds"),
        (LearnerConfig(), AgentConfig(hidden=(1 << 20, 1 << 20)), "weights alone need 4,096.0 GiB of memory, but"),
    ],
)
def test_what_this_machine_lacks_is_refused_before_there_is_a_folder(
    tmp_path: Path, learner: LearnerConfig, agent: AgentConfig, text: str
) -> None:
    config = replace(small(tmp_path), learner=learner, agent=agent)
    for serial in (False, True):
        with pytest.raises(ConfigError, match=text):
            launch(replace(config, serial=serial))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("env", "agent", "kind", "text"),
    [
        ("NoSuch-v0", "dqn", EnvError, "NoSuch-v0"),
        ("apexrl.envs.faulty:RaisesOnMake-v0", "dqn", EnvError, "no licence"),
        ("Pendulum-v1", "dqn", AgentError, "discrete"),
        ("CartPole-v1", "nothing", ConfigError, "nothing"),
    ],
)
def test_errors_keep_their_class_and_text(tmp_path: Path, env: str, agent: str, kind: type, text: str) -> None:
    config = small(tmp_path, env=env)
    config = replace(config, agent=replace(config.agent, agent=agent))
    with pytest.raises(kind, match=text):
        probe_answer(crossed(config))


def test_an_error_that_is_not_ours_becomes_a_worker_error_with_its_traceback() -> None:
    error = revive("KeyError", "'x'", "Traceback …\nKeyError: 'x'\n")
    assert isinstance(error, WorkerError)
    assert str(error) == "Traceback …\nKeyError: 'x'"
    assert isinstance(revive("annotations", "", "t"), WorkerError)
    assert type(revive("EnvError", "text", "")) is errors.EnvError


class Mute(DQN):
    """It says of no transition how surprising it is."""

    priorities = None  # type: ignore[assignment]


class InOrder(Mute):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.item = Item("unroll", 4)


def test_only_agents_of_unrolls_may_lack_priorities(tmp_path: Path) -> None:
    config = small(tmp_path, env="CartPole-v1")
    mute, in_order = (
        replace(config, agent=replace(config.agent, agent=f"test_probe:{kind}")) for kind in ("Mute", "InOrder")
    )
    with pytest.raises(AgentError, match=r"'test_probe:Mute' learns from transitions, .* lacks priorities"):
        probe(mute)
    assert probe(in_order).item == Item("unroll", 4)


class NestedState(DQN):
    def state_dict(self) -> dict[str, Any]:
        return {"w": np.zeros(2), "optimizer": {"step": 3}}


class WideState(DQN):
    def state_dict(self) -> dict[str, Any]:
        return {"w": np.zeros(2, np.longdouble), "names": np.array(["a"])}


class NoState(DQN):
    def state_dict(self) -> dict[str, Any]:
        return None  # type: ignore[return-value]


class FailingState(DQN):
    def state_dict(self) -> dict[str, Any]:
        raise KeyError("w")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("NestedState", r"one entry for each array .*; it returned {'step': 3} as 'optimizer'"),
        ("WideState", "array 'w' of the agent has dtype float128: a checkpoint holds numbers and booleans only"),
        ("NoState", "it returned None"),
        ("FailingState", r"it raised KeyError: 'w' \(.*test_probe.py:\d+\)"),
    ],
)
def test_a_state_that_no_checkpoint_can_hold_is_refused_before_a_run(tmp_path: Path, kind: str, text: str) -> None:
    config = small(tmp_path, env="CartPole-v1")
    with pytest.raises(AgentError, match=rf"agent test_probe:{kind}: state_dict\(\) must return a flat dict.*{text}"):
        probe(replace(config, agent=replace(config.agent, agent=f"test_probe:{kind}")))
