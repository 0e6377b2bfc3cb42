"""Which convolutions encoders have, and layer normalisation before every ReLU."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from apexrl.agents import agent_class, with_agent
from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import SpecError
from apexrl.networks import Draw, QNetwork, encoders
from apexrl.networks.convolutions import Architecture
from apexrl.networks.encoders import LayerChoice, Precision, encoder_for
from apexrl.networks.policy_value import PolicyValue
from apexrl.networks.recurrent import RecurrentQ
from apexrl.spec import ActionSpec, EnvSpec, Field

NORMED = LayerChoice(layer_norm=True)


def spec_of(side: int, channels: int = 3) -> EnvSpec:
    return EnvSpec({"observation": Field((side, side, channels), "uint8")}, ActionSpec(n=4))


def kinds(module: nn.Module, *kinds: type[nn.Module]) -> int:
    return sum(isinstance(part, kinds) for part in module.modules())


@pytest.mark.parametrize(
    ("side", "kind"), [(84, "nature"), (36, "nature"), (35, "small"), (16, "small"), (10, "minatar")]
)
def test_auto_is_the_first_that_the_image_is_large_enough_for(side: int, kind: Architecture) -> None:
    auto, chosen = (encoder_for(spec_of(side), (), "", LayerChoice(one)) for one in ("auto", kind))
    assert auto.features == chosen.features
    assert str(auto.module) == str(chosen.module)


@pytest.mark.parametrize("kind", get_args(Architecture))
@pytest.mark.parametrize("layer_norm", [False, True])
def test_every_kind_encodes_and_learns(kind: Architecture, layer_norm: bool) -> None:
    encoder = encoder_for(spec_of(40), (), "", LayerChoice(kind, layer_norm))
    seen = torch.randint(256, (3, 40, 40, 3), dtype=torch.uint8)
    features = encoder.module({"observation": seen})
    assert features.shape == (3, encoder.features)
    features.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in encoder.module.parameters())


def outcome(precision: Precision, side: int = 40) -> tuple[Tensor, Tensor]:
    """Features and the gradient of the first layer."""
    torch.manual_seed(0)
    module = encoder_for(spec_of(side), (), "", LayerChoice(precision=precision)).module
    features = module({"observation": torch.randint(256, (3, side, side, 3), dtype=torch.uint8)})
    features.square().sum().backward()
    gradient = next(module.parameters()).grad
    assert gradient is not None
    return features.detach(), gradient


def test_bfloat16_computes_the_same_in_fewer_digits() -> None:
    exact, coarse = outcome("float32"), outcome("bfloat16")
    for one, two in zip(exact, coarse, strict=True):
        assert two.dtype == torch.float32
        assert not torch.equal(one, two)
        assert float((one - two).norm() / one.norm()) < 0.05


@pytest.mark.parametrize(("able", "means"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_bfloat16_where_the_processor_multiplies_it(
    able: bool, means: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": able})
    encoders._in_bfloat16.cache_clear()
    try:
        assert torch.equal(outcome("auto")[0], outcome(means)[0])
        assert torch.equal(outcome("auto", side=10)[0], outcome("float32", side=10)[0])  # too little to convert
    finally:
        encoders._in_bfloat16.cache_clear()


def test_an_image_too_small_for_what_was_chosen_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"--encoder nature needs images of at least 36 .*: choose auto, minatar, resnet"
    ):
        encoder_for(spec_of(10), (), "", LayerChoice("nature"))


@pytest.mark.parametrize("kind", get_args(Architecture))
def test_a_wider_encoder_has_as_many_times_the_filters(kind: Architecture) -> None:
    plain, wide = (encoder_for(spec_of(40), (), "", LayerChoice(kind, width=width)) for width in (1, 4))
    assert wide.features == 4 * plain.features
    pairs = list(zip(plain.module.parameters(), wide.module.parameters(), strict=True))
    assert all(four.shape[0] == 4 * one.shape[0] for one, four in pairs)
    features = wide.module({"observation": torch.randint(256, (2, 40, 40, 3), dtype=torch.uint8)})
    assert features.shape == (2, wide.features)


def test_bbfs_encoder_has_the_papers_size() -> None:
    """Width 4 of IMPALA's on Atari's 84 pixels: 11·11 places of 128 filters."""
    atari = EnvSpec({"observation": Field((84, 84), "uint8")}, ActionSpec(n=4), stack=4)
    assert encoder_for(atari, (), "", LayerChoice("resnet", width=4)).features == 11 * 11 * 128


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_residual_network_is_impalas(layer_norm: bool) -> None:
    """Espeholt et al. 2018, figure 3, written out; the paper's image of 72×96 gives 9·12·32 features."""
    paper = EnvSpec({"observation": Field((72, 96, 3), "uint8")}, ActionSpec(n=4))
    assert encoder_for(paper, (), "", LayerChoice("resnet")).features == 9 * 12 * 32
    torch.manual_seed(0)
    encoder = encoder_for(spec_of(12), (), "", LayerChoice("resnet", layer_norm)).module
    weights = dict(encoder.named_parameters())
    for name, weight in weights.items():
        if "norm" in name:
            nn.init.uniform_(weight, 0.5, 1.5)
    left = list(weights.values())  # in the order in which they are used, but that norms come behind convolutions
    names = list(weights)
    assert len(left) == 3 * (2 + 8) + layer_norm * (3 * 8 + 2)

    def taken(part: str, place: str) -> tuple[Tensor, Tensor]:
        found = [weights[name] for name in names if name.startswith(f"encoders.0.{part}") and place in name]
        assert len(found) == 2
        return found[0], found[1]

    def normed(x: Tensor, part: str, place: str) -> Tensor:
        if not layer_norm:
            return x
        gain, bias = taken(part, place)
        flat = x.flatten(1)
        scaled = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        return scaled.view(x.shape) * gain[:, None, None] + bias[:, None, None]

    seen = torch.randint(256, (2, 12, 12, 3), dtype=torch.uint8)
    x = seen.permute(0, 3, 1, 2) / 255.0
    for stage in range(3):
        part = f"layers.{stage}."
        x = functional.conv2d(x, *taken(part, ".first."), padding=1)
        x = functional.max_pool2d(x, 3, 2, 1)
        for block in range(2):
            y = x
            for one in range(2):
                place = f"{2 * block + one}."
                y = functional.relu(normed(y, part, f"norms.{place}"))
                y = functional.conv2d(y, *taken(part, f"convolutions.{place}"), padding=1)
            x = x + y
    expected = functional.relu(normed(x, "norms", "norms.0.")).flatten(1)
    torch.testing.assert_close(encoder({"observation": seen}), expected, rtol=1e-4, atol=1e-5)


def test_a_convolution_is_normalised_over_all_that_it_puts_out() -> None:
    torch.manual_seed(0)
    encoder = encoder_for(spec_of(10), (), "", NORMED).module
    (image,) = encoder.encoders
    seen = torch.randint(256, (3, 10, 10, 3), dtype=torch.uint8)
    x = functional.conv2d(seen.permute(0, 3, 1, 2) / 255.0, image.layers[0].weight, image.layers[0].bias)
    flat = x.flatten(1)
    expected = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(encoder({"observation": seen}), expected.relu(), rtol=1e-4, atol=1e-5)


def test_heads_are_normalised_too_each_stream_by_itself() -> None:
    spec = spec_of(10)
    seen = {"observation": torch.randint(256, (3, 10, 10, 3), dtype=torch.uint8)}
    network = QNetwork(spec, (), True, image_units=6, choice=NORMED)
    x = network.streams(network.encoder(seen))
    parts = [functional.layer_norm(part, (6,)) for part in x.chunk(2, dim=1)]
    torch.testing.assert_close(network.norm(x), torch.cat(parts, dim=1))
    vector = EnvSpec({"observation": Field((4,), "float32")}, ActionSpec(n=4))
    implicit = QNetwork(vector, (5, 7), True, outputs=2, cosines=3, choice=NORMED)
    assert kinds(implicit, nn.LayerNorm) == 3  # two of the encoder, one behind the fractions
    assert implicit({"observation": torch.randn(3, 4)}, Draw(None, torch.rand(3, 2))).shape == (3, 4, 2)
    images = QNetwork(spec, (), True, outputs=2, cosines=3, image_units=6, choice=NORMED)
    assert images(seen, Draw(None, torch.rand(3, 2))).shape == (3, 4, 2)
    actor = PolicyValue(spec, (), 4, image_units=6, separate=True, choice=NORMED)
    assert (kinds(actor, nn.LayerNorm), kinds(actor, nn.GroupNorm)) == (2, 2)
    recurrent = RecurrentQ(spec, (), 5, True, image_units=6, choice=NORMED)
    assert (kinds(recurrent, nn.LayerNorm), kinds(recurrent, nn.GroupNorm)) == (1, 1)
    assert recurrent.head(torch.randn(2, 3, 5)).shape == (2, 3, 4)


@pytest.mark.parametrize("name", ["dqn", "r2d2", "ppo", "pqn"])
def test_agents_have_the_layers_that_their_settings_name(name: str) -> None:
    def parameters(**changes: Any) -> set[str]:
        config = override(with_agent(Config(), name), {"image_units": 8, "recurrent_units": 8, **changes})
        agent: Any = agent_class(name)(spec_of(40), config.agent, "cpu", 0)
        return set(agent.weights())

    plain = parameters(layer_norm=False)
    assert not any("norm" in key for key in plain)
    assert any("norms" in key for key in parameters(layer_norm=True) - plain)
    assert any("convolutions" in key for key in parameters(encoder="resnet") - plain)
    assert np.all([parameters(layer_norm=False, encoder="nature") == plain])
