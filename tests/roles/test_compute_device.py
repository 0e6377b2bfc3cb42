"""Where learners and inference servers compute."""

from __future__ import annotations

import inspect
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from apexrl.agents import with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.roles.compute_device import choice_told, device_of, torch_device
from apexrl.spec import ActionSpec, EnvSpec, Field

VECTOR = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=2))
IMAGE = EnvSpec({"observation": Field((84, 84), "uint8")}, ActionSpec(n=2), stack=4)


@pytest.mark.parametrize(
    ("agent", "spec", "settings", "device"),
    [
        ("dqn", VECTOR, {"hidden": (256, 256), "batch_size": 512}, "cuda:0"),
        ("dqn", VECTOR, {"hidden": (64, 64), "batch_size": 128}, "cpu"),
        ("dqn", VECTOR, {"hidden": (8192,), "batch_size": 128}, "cuda:0"),
        ("iqn", VECTOR, {"hidden": (64, 64), "batch_size": 128}, "cuda:0"),  # 64 fractions of each row
        ("r2d2", VECTOR, {"hidden": (64,)}, "cuda:0"),
        ("dqn", VECTOR, {"hidden": (64, 64), "batch_size": 64, "memory": "gru"}, "cuda:0"),
        ("dqn", IMAGE, {"batch_size": 32}, "cuda:0"),
        ("ppo", VECTOR, {"hidden": (64, 64), "batch_size": 16}, "cpu"),  # 512 rows a gradient step, kernel by kernel
        ("ppo", VECTOR, {"hidden": (1024, 1024), "batch_size": 16}, "cuda:0"),
        ("crossq", VECTOR, {}, "cuda:0"),  # 2048 units
        ("redq", VECTOR, {"hidden": (128, 128), "critics": 2}, "cpu"),
        ("redq", VECTOR, {"hidden": (128, 128), "critics": 10}, "cuda:0"),
    ],
)
def test_auto_is_a_gpu_where_networks_are_large_enough(
    monkeypatch: pytest.MonkeyPatch, agent: str, spec: EnvSpec, settings: dict[str, Any], device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda name: None)
    config = override(with_agent(Config(), agent), settings)
    assert device_of(config, spec) == device
    forced = override(config, {"device": "cuda:0"})
    assert device_of(forced, spec) == "cuda:0"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: "a GPU")
    assert choice_told(forced, "cuda:0") == ""
    assert ("--device cuda" if device == "cpu" else "cuda:0, a GPU") in choice_told(config, device)


@pytest.mark.parametrize("name", ["cpux", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--device '{name}'"):
        torch_device(name)


def test_auto_is_some_device() -> None:
    assert torch_device("auto") in ("cpu", "cuda:0")
    assert torch_device("cpu") == "cpu"


def test_auto_spreads_processes_over_the_visible_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    used: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)  # it counts what CUDA_VISIBLE_DEVICES leaves
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    assert [torch_device("auto", place) for place in range(5)] == ["cuda:0", "cuda:1", "cuda:2", "cuda:0", "cuda:1"]
    assert used == [0, 1, 2, 0, 1]
    assert torch_device("cuda:2", 1) == "cuda:2"


@pytest.mark.parametrize(
    ("topology", "role", "places"),
    [
        ("gorila", "gradient_learner", [0, 1]),
        ("apex", "learner", [0, 1]),
        ("seed", "inference_server", [1, 2]),
        ("sample_factory", "policy_worker", [1, 2]),
    ],
)
def test_learners_and_servers_ask_for_the_gpu_of_their_index(
    monkeypatch: pytest.MonkeyPatch, topology: str, role: str, places: list[int]
) -> None:
    from apexrl import roles

    asked: list[int] = []

    class Enough(Exception): ...

    def device_of(config: Config, spec: EnvSpec, place: int) -> str:
        assert config.learner.device == "auto"
        asked.append(place)
        raise Enough

    factory = {
        "gradient_learner": roles.GradientLearner,
        "learner": roles.Learner,
        "inference_server": roles.InferenceServer,
        "policy_worker": roles.PolicyWorker,
    }[role]
    monkeypatch.setattr("apexrl.roles.compute_device.device_of", device_of)
    for index in range(2):
        stand_in: Any = MagicMock(index=index, seed=1)
        ports = {name: stand_in for name in inspect.signature(factory).parameters if name != "context"}
        with pytest.raises(Enough):
            factory(stand_in, **{**ports, "config": Config(topology=topology)})
    assert asked == places
