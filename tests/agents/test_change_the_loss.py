"""The guide docs/how-to/change-the-loss.md does what it says; and without a change, the written-out gradient of DQN's
family is autograd's of ``loss``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from signal_runs import Game, same

import apexrl
from apexrl.agents import AGENTS, agent_class
from apexrl.agents.accelerated import is_accelerated
from apexrl.agents.dqn import DQN
from apexrl.config import AgentConfig
from apexrl.errors import AgentError
from apexrl.spec import ActionSpec, EnvSpec, Field

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "change-the-loss.md"
NAMES = ("ConservativeDQN", "LogCoshDQN")
FAMILY = [
    name
    for name, info in AGENTS.items()
    if info.where == "apexrl.agents.dqn:DQN" and name != "discrete_cql"  # test_offline_agents.py
]
SPEC = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=3))


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The guide's code as the module that it says it is."""
    folder = tmp_path_factory.mktemp("guide")
    code = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (folder / "my_losses.py").write_text("\n".join(code), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("my_losses")


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Notes the agents whose accelerator ran."""
    ran: list[Any] = []
    shipped = DQN._loss_by_hand

    def noted(self: DQN, *args: Any) -> Any:
        ran.append(self)
        return shipped(self, *args)

    monkeypatch.setattr(DQN, "_loss_by_hand", noted)
    return ran


def make(kind: type[DQN], **changes: Any) -> Any:
    settings: dict[str, Any] = {"hidden": (16,), "gradient_clip": 0.0, "agent_settings": {"penalty": 0.5}}
    return kind(SPEC, AgentConfig(**settings | changes), "cpu", 1)


def batch_for(agent: Any, action: Any = None) -> Any:
    rng = np.random.default_rng(0)
    data = {
        "observation": rng.standard_normal((12, 4), np.float32),
        "next_observation": rng.standard_normal((12, 4), np.float32),
        "action": rng.integers(3, size=12) if action is None else action,
        "reward": rng.random(12, np.float32),
        "discount": np.full(12, 0.97, np.float32),
    }
    sampled: Any = type("Batch", (), {"data": data, "weights": rng.random(12, np.float32)})
    return agent.prepare(sampled)


def autograd(agent: Any, batch: Any) -> dict[str, torch.Tensor]:
    """∂ ``loss`` by parameter, whatever the agent itself would do."""
    network = agent.networks["q"].network
    names, parameters = zip(*network.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(agent.loss(batch).loss, parameters), strict=True))


def trained_by(agent: Any, batch: Any) -> dict[str, torch.Tensor]:
    """The gradient that the agent's update applies."""
    found = agent.networks["q"].parameters.split(agent.gradients(batch).groups["q"])
    return {name: found[name].clone() for name, _ in agent.networks["q"].network.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_the_changed_loss_is_what_trains_and_the_accelerator_has_vanished(
    guide: Any, name: str, by_hand: list[Any]
) -> None:
    shipped, changed = make(DQN), make(getattr(guide, name))
    assert not is_accelerated(changed.loss)
    batch = batch_for(changed)
    found, before = trained_by(changed, batch), trained_by(shipped, batch)
    assert by_hand == [shipped]
    for key, gradient in autograd(changed, batch).items():
        torch.testing.assert_close(found[key], gradient)
    assert any(not torch.allclose(found[key], before[key], rtol=1e-2, atol=1e-4) for key in found)
    for agent in (shipped, changed):
        agent.update(batch)
    assert not same(shipped.weights(), changed.weights())


@pytest.mark.parametrize("name", [pytest.param(NAMES[0], marks=pytest.mark.long), *NAMES[1:]])
def test_the_guides_agents_learn(guide: Any, name: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"agent": f"my_losses:{name}", "out": str(tmp_path), "serial": True, "seed": 1}
    settings |= {"env_steps": 10_000, "eval_episodes": 5, "min_size": 500, "stop_at_return": 60.0}
    settings |= {"eval_period_seconds": 0.05, "updates_per_step": 0.5}  # a second of serial time is 10 000 steps
    if name == "ConservativeDQN":
        settings["penalty"] = 0.1
    run = apexrl.train("cartpole", show=False, **settings)
    assert run.summary["updates"] > 100
    assert type(run.agent.agent) is getattr(guide, name)
    assert run.summary["final_eval_return"] >= 40  # greedily; 9 untrained


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda found: found.loss, r"an agent's loss must return Loss\(loss, priorities, q\) of .*, not a tensor of"),
        (lambda found: None, r"must return Loss\(loss, priorities, q\) .*, not None"),
        (lambda found: found._replace(loss=found.q), r"loss must be a scalar tensor, and it is a tensor of shape"),
    ],
)  # fmt: skip
def test_a_loss_that_is_none_is_named(wrong: Any, message: str) -> None:
    class Mine(DQN):
        def loss(self, batch: Any) -> Any:
            return wrong(super().loss(batch))

    agent = make(Mine)
    with pytest.raises(AgentError, match=message):
        agent.update(batch_for(agent))


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_critics_loss_that_is_none_is_named(name: str) -> None:
    class Mine(agent_class(name)):  # type: ignore[misc]
        def critic_loss(self, *given: Any) -> Any:
            return super().critic_loss(*given).loss

    one = np.ones(1, np.float32)
    spec = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec((1,), "float32", low=-one, high=one))
    agent = Mine(spec, AgentConfig(agent=name, hidden=(16,), critic_hidden=(16,)), "cpu", 1)
    batch = batch_for(agent, np.zeros((12, 1), np.float32))
    with pytest.raises(AgentError, match=r"critic_loss must return \w+\(loss, priorities, q.*, not a tensor"):
        agent.update(batch)


@pytest.mark.parametrize("replaced", ["on the object", "on the class", "of what is learned of the return"])
def test_the_accelerator_vanishes_however_the_loss_is_replaced(
    replaced: str, by_hand: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, shipped = make(DQN), DQN.loss

    def tripled(self: Any, batch: Any) -> Any:
        found = shipped(self, batch)
        return found._replace(loss=3.0 * found.loss)

    batch = batch_for(agent)
    expected = autograd(agent, batch)
    if replaced == "on the object":
        agent.loss = MethodType(tripled, agent)
    elif replaced == "on the class":
        monkeypatch.setattr(DQN, "loss", tripled)
    else:
        losses = agent._returns.losses
        agent._returns.losses = lambda *args: 3.0 * losses(*args)
    for key, gradient in trained_by(agent, batch).items():
        torch.testing.assert_close(gradient, 3.0 * expected[key])
    assert by_hand == []


LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "vector": ("vector", {}),
    "image": ("image", {}),
    "own network": ("vector", {"network": "signal_runs:Marked"}),
    "layer norm": ("vector", {"layer_norm": True}),
}


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("layers", LAYERS)
def test_unchanged_the_update_is_autograd_of_the_loss(name: str, layers: str, by_hand: list[Any]) -> None:
    shown, changes = LAYERS[layers]
    network = changes.get("network", "")
    game = Game(name, shown, "discrete", gradient_clip=0.0, **changes)
    try:
        agent: Any = game.agent()
        plain: Any = game.agent()  # of the same seed: it draws the same
        (given,) = game.batches(1)
        expected = autograd(plain, plain.prepare(given))
        for key, gradient in trained_by(agent, agent.prepare(given)).items():
            torch.testing.assert_close(gradient, expected[key], rtol=1e-4, atol=1e-6)
        assert by_hand == ([] if network else [agent])
    finally:
        game.close()


def test_an_optimizer_of_ones_own_is_given_the_gradient_of_the_loss() -> None:
    class Plain:
        def __init__(self) -> None:
            self.state: dict[str, torch.Tensor] = {}
            self.steps, self.learning_rate = torch.zeros(()), 0.1

        def step(self, vector: torch.Tensor, gradient: torch.Tensor) -> None:
            vector.sub_(self.learning_rate * gradient)

    agent = make(DQN)
    batch = batch_for(agent)
    before, gradients = agent.weights(), autograd(agent, batch)
    agent.networks["q"].optimizer = Plain()
    agent.update(batch)
    for key, after in agent.weights().items():
        np.testing.assert_allclose(after, before[key] - 0.1 * gradients[key].numpy(), rtol=1e-4, atol=1e-6)
