"""Products by the quicker library: float32 as before, and only where it pays."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from apexrl.agents import agent_class, matrix_products
from apexrl.agents.matrix_products import LEAST_WORK, choose_products
from apexrl.config import AgentConfig, Config
from apexrl.protocols import Item
from apexrl.roles import learner as learner_module
from apexrl.spec import ActionSpec, EnvSpec, Field

ONE = np.ones(6, np.float32)
BOX = EnvSpec({"observation": Field((17,), "float32")}, ActionSpec((6,), "float32", low=-ONE, high=ONE))
ROWS = 256
SHAPES = [(256, 400, 300), (256, 23, 400), (256, 300, 6), (300, 256, 400), (512, 1024, 512)]


@pytest.fixture(autouse=True)
def _precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that oneDNN would be quicker on."""
    monkeypatch.setattr(matrix_products, "able", lambda: True)


def layers(*shapes: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    """Weights of an agent, as it publishes them."""
    return {str(shape): np.zeros(shape, np.float32) for shape in shapes}


def relative_error(rows: int, inner: int, columns: int) -> float:
    """Of a product and of two at once, the larger one; in units of the sum of absolute products."""
    rng = torch.Generator().manual_seed(rows + inner + columns)
    x = torch.randn(2, rows, inner, generator=rng)
    y = torch.randn(2, inner, columns, generator=rng)
    exact, size = x.double() @ y.double(), x.abs() @ y.abs()
    both = (torch.bmm(x, y) - exact).abs() / size
    one = (torch.mm(x[0], y[0]) - exact[0]).abs() / size[0]
    return float(torch.maximum(both.max(), one.max()))


@pytest.mark.parametrize("shape", SHAPES)
def test_products_stay_float32(able: None, shape: tuple[int, int, int]) -> None:
    """Whatever this processor is: where its products would be of fewer digits, nothing is chosen."""
    choose_products(layers((512, 512)), ROWS)
    assert relative_error(*shape) < 1e-6  # one rounding to bfloat16 is 4e-3, to TF32 5e-4


def test_products_of_fewer_digits_are_not_taken(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_products, "exact", lambda product: False)
    assert not choose_products(layers((512, 512)), ROWS)
    assert torch.get_float32_matmul_precision() == "highest"


def test_small_products_are_as_they_were(able: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_products, "exact", lambda product: True)
    small, large = (64, 64), (LEAST_WORK // ROWS // 64, 64)
    assert choose_products(layers((64,), small, large), ROWS)
    assert torch.get_float32_matmul_precision() == "medium"
    assert not choose_products(layers(small), ROWS)  # a later learner of the same process
    assert torch.get_float32_matmul_precision() == "highest"
    assert not choose_products({}, ROWS)
    assert not choose_products(layers((100, *small)), ROWS)  # an ensemble's members are multiplied each by itself


def test_other_processors_keep_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_products, "able", lambda: False)
    torch.set_float32_matmul_precision("high")
    assert not choose_products(layers((512, 512)), ROWS)
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("name", ["td3", "sac", "crossq", "ddpg"])
@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_are_the_same_to_rounding(able: None, name: str, seed: int) -> None:
    config = AgentConfig(agent=name, hidden=(400, 300), n_step=1, policy_period_updates=1)
    rng = np.random.default_rng(seed)
    data = {
        "observation": rng.normal(size=(ROWS, 17)).astype(np.float32),
        "next_observation": rng.normal(size=(ROWS, 17)).astype(np.float32),
        "action": rng.uniform(-1, 1, (ROWS, 6)).astype(np.float32),
        "reward": rng.normal(size=ROWS).astype(np.float32),
        "discount": np.full(ROWS, 0.99, np.float32),
    }
    batch = SimpleNamespace(data=data, keys=np.arange(ROWS, dtype=np.uint64), weights=np.ones(ROWS, np.float32))

    def found(quick: bool) -> dict[str, torch.Tensor]:
        torch.set_float32_matmul_precision("highest")
        agent: Any = agent_class(name)(BOX, config, "cpu", seed)
        if quick:
            choose_products(agent.weights(), ROWS)
        return {group: one.clone() for group, one in agent.gradients(agent.prepare(batch)).groups.items()}

    plain = found(False)
    for group, gradient in found(True).items():
        assert torch.linalg.vector_norm(gradient - plain[group]) <= 1e-5 * torch.linalg.vector_norm(plain[group])


@pytest.mark.parametrize(
    ("item", "minibatches", "rows"),
    [
        (Item(), 1, 32),
        (Item("sequence", 40, 20, 20), 1, 32),  # products of recurrent layers are of one step each
        (Item("unroll", 20, 20), 1, 640),
        (Item("unroll", 20, 20), 4, 160),
    ],
)
def test_learners_say_how_many_rows_there_are(
    monkeypatch: pytest.MonkeyPatch, item: Item, minibatches: int, rows: int
) -> None:
    asked: list[tuple[dict[str, Any], int]] = []
    monkeypatch.setattr(matrix_products, "choose_products", lambda *given: asked.append(given))
    weights = layers((4, 4))
    agent: Any = SimpleNamespace(weights=lambda: weights, item=item)
    settings = Config(agent=AgentConfig(minibatches=minibatches))
    learner_module.quicken_products(agent, settings, "cuda:0", 32)
    assert not asked
    learner_module.quicken_products(agent, settings, "cpu", 32)
    assert asked == [(weights, rows)]
