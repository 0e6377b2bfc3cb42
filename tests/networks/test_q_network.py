from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest
import torch

from apexrl.errors import SpecError
from apexrl.networks import ByAutograd, ByHand, Draw, FlatParameters, QNetwork, differentiable
from apexrl.networks.encoders import ImageEncoder, LayerChoice, ObservationEncoder, VectorEncoder, encoder_for
from apexrl.networks.q_network import dueling
from apexrl.spec import ActionSpec, EnvSpec, Field

FIELDS = {
    "vector": Field((3,), "float32"),
    "bytes": Field((5,), "uint8"),
    "matrix": Field((2, 3), "float32"),
    "category": Field((), "int64"),
    "grey": Field((84, 84), "uint8"),
    "colour": Field((48, 40, 3), "uint8"),
    "channels_first": Field((4, 10, 10), "bool"),
    "tiny": Field((5, 6), "uint8"),
}


def spec_of(*names: str, stack: int = 1, actions: int = 3) -> EnvSpec:
    prefix = {name: f"observation/{name}" for name in names}
    return EnvSpec(
        {prefix[name]: FIELDS[name] for name in names},
        ActionSpec(n=actions),
        stack,
        {prefix["category"]: 4} if "category" in names else {},
    )


def observe(spec: EnvSpec, rows: int, seed: int = 0) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    frames = (spec.stack,) if spec.stack > 1 else ()
    return {
        name: torch.from_numpy(
            np.asarray(rng.integers(0, spec.categories.get(name, 2), (rows, *frames, *field.shape))).astype(field.dtype)
        )
        for name, field in spec.observation.items()
    }


def test_dueling() -> None:
    q = dueling(torch.tensor([[2.0]]), torch.tensor([[1.0, -1.0, 3.0]]))
    torch.testing.assert_close(q, torch.tensor([[2.0, 0.0, 4.0]]))
    with pytest.raises(SpecError, match="dueling takes"):
        dueling(torch.zeros(2), torch.zeros(2, 3))


def test_dueling_is_per_atom() -> None:
    value, advantage = torch.randn(4, 1, 5), torch.randn(4, 3, 5)
    q = dueling(value, advantage)
    for atom in range(5):
        torch.testing.assert_close(q[..., atom], dueling(value[..., atom], advantage[..., atom]))
    with pytest.raises(SpecError, match="dueling takes"):
        dueling(torch.zeros(4, 5), advantage)


@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("name", FIELDS)
def test_every_kind_of_observation_gives_q_values(name: str, stack: int) -> None:
    spec = spec_of(name, stack=stack)
    q = QNetwork(spec, (16,), dueling=True)(observe(spec, 2))
    assert q.shape == (2, 3)
    assert q.dtype == torch.float32


def test_a_dict_is_encoded_entry_by_entry() -> None:
    spec = spec_of("tiny", "vector", "category")
    network = QNetwork(spec, (16,), dueling=True)
    kinds = [type(encoder) for encoder in network.encoder.encoders]
    assert kinds == [ImageEncoder, VectorEncoder, VectorEncoder]
    first, second = observe(spec, 4), observe(spec, 4)
    second["observation/category"] = (first["observation/category"] + 1) % 4
    assert not torch.equal(network(first), network(second))


def test_nature_layers_for_atari() -> None:
    encoder = encoder_for(spec_of("grey", stack=4), ()).module.encoders[0]
    assert isinstance(encoder, ImageEncoder)
    assert [tuple(p.shape) for p in encoder.parameters() if p.ndim == 4] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
    ]
    assert encoder.features == 64 * 7 * 7


def test_bytes_are_scaled_to_one() -> None:
    encoder = encoder_for(spec_of("bytes"), ()).module
    full = torch.full((1, 5), 255, dtype=torch.uint8)
    torch.testing.assert_close(encoder({"observation/bytes": full}), torch.ones(1, 5))


def test_stacked_channels_last_frames_become_channels_in_order() -> None:
    one = encoder_for(spec_of("colour"), ()).module.encoders[0]
    two = encoder_for(spec_of("colour", stack=2), ()).module.encoders[0]
    assert isinstance(one, ImageEncoder)
    assert isinstance(two, ImageEncoder)
    with torch.no_grad():  # the older frame is ignored, the newer is seen as the single one is
        for small, large in zip(one.parameters(), two.parameters(), strict=True):
            large.copy_(small if small.shape == large.shape else torch.cat((torch.zeros_like(small), small), dim=1))
    frames = torch.randint(0, 256, (2, 2, 48, 40, 3), dtype=torch.uint8)
    torch.testing.assert_close(two(frames), one(frames[:, 1]))


def test_one_hot_of_stacked_categories() -> None:
    encoder = encoder_for(spec_of("category", stack=2), ()).module
    encoded = encoder({"observation/category": torch.tensor([[1, 3]])})
    torch.testing.assert_close(encoded, torch.tensor([[0.0, 1, 0, 0, 0, 0, 0, 1]]))


@pytest.mark.parametrize(
    ("shape", "stack", "categories"), [((), 1, 100_000), ((), 2, 20_000), ((300,), 1, 20), ((40, 3), 2, 40)]
)
def test_many_categories_are_embedded_before_the_hidden_layers(
    shape: tuple[int, ...], stack: int, categories: int
) -> None:
    spec = EnvSpec({"observation": Field(shape, "int64")}, ActionSpec(n=2), stack, {"observation": categories})
    network = QNetwork(spec, (32,), True)
    (encoder,) = cast("ObservationEncoder", network.encoder).encoders
    assert encoder.table.weight.shape == (categories, 16)
    seen = observe(spec, 5)
    q = network(seen)
    assert q.shape == (5, 2)
    q.square().sum().backward()
    assert all(weights.grad is not None and weights.grad.any() for weights in encoder.parameters())
    frames = seen["observation"].reshape(5, -1)
    embedded = encoder.table.weight[frames].reshape(5, -1)
    torch.testing.assert_close(encoder(seen["observation"]), torch.relu(encoder.vector.layers[0](embedded)))


def test_fewer_categories_are_one_hot_as_they_were() -> None:
    spec = EnvSpec({"observation": Field((), "int64")}, ActionSpec(n=2), 1, {"observation": 1 << 14})
    assert isinstance(encoder_for(spec, (8,)).module.encoders[0], VectorEncoder)


@pytest.mark.parametrize("field", [Field((4, 4), "uint8"), Field((3, 3, 2), "int8"), Field((2, 4, 7), "float32")])
def test_what_is_too_small_for_convolutions_is_a_vector(field: Field) -> None:
    """Tic-tac-toe's board in PettingZoo is [3, 3, 2]."""
    encoder = encoder_for(EnvSpec({"observation": field}, ActionSpec(n=2)), ())
    assert not encoder.sees_image
    assert encoder.features == math.prod(field.shape)


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(SpecError, match="discrete"):
        QNetwork(EnvSpec({"observation": FIELDS["vector"]}, ActionSpec((1,), "float32")), (8,), dueling=False)


def test_only_a_plain_mlp_is_differentiated_by_hand() -> None:
    assert isinstance(differentiable(QNetwork(spec_of("vector"), (8,), True)), ByHand)
    assert isinstance(differentiable(QNetwork(spec_of("vector"), (8,), True, noisy_sigma=0.5)), ByAutograd)
    assert isinstance(differentiable(QNetwork(spec_of("grey"), (8,), True)), ByAutograd)
    normed = QNetwork(spec_of("vector"), (8,), True, choice=LayerChoice(layer_norm=True))
    assert isinstance(differentiable(normed), ByAutograd)
    assert isinstance(differentiable(QNetwork(spec_of("vector", "bytes"), (8,), True)), ByAutograd)


@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("hidden", [(), (16,), (16, 8, 12)])
@pytest.mark.parametrize("duel", [True, False])
@pytest.mark.parametrize("name", ["vector", "category", "bytes"])
def test_by_hand_equals_autograd(name: str, duel: bool, hidden: tuple[int, ...], outputs: int) -> None:
    torch.manual_seed(0)
    spec = spec_of(name, stack=2)
    network = QNetwork(spec, hidden, duel, outputs=outputs)
    gradient = FlatParameters(network).attach_gradient()
    by_hand, by_autograd = differentiable(network), ByAutograd(network)
    assert isinstance(by_hand, ByHand)
    now, later = observe(spec, 7, seed=1), observe(spec, 7, seed=2)
    towards = torch.randn(7, 3, 5) if outputs > 1 else torch.randn(7, 3)

    q, later_q = by_hand.forward(now, later)
    gradient.fill_(float("nan"))  # must be overwritten, not added to
    for parameter in network.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(1.0)
    by_hand.backward(towards)
    found = {
        name: parameter.grad.clone() for name, parameter in network.named_parameters() if parameter.grad is not None
    }

    expected_q, expected_later = by_autograd.forward(now, later)
    by_autograd.backward(towards)
    torch.testing.assert_close(q, expected_q)
    assert later_q is not None
    assert expected_later is not None
    torch.testing.assert_close(later_q, expected_later)
    torch.testing.assert_close(by_hand.values(now), expected_q)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("duel", [True, False])
@pytest.mark.parametrize("name", ["vector", "channels_first"])
def test_several_outputs_per_action(name: str, duel: bool) -> None:
    spec = spec_of(name)
    network = QNetwork(spec, (16,), duel, outputs=7, image_units=24)
    z = network(observe(spec, 2))
    assert z.shape == (2, 3, 7)
    if name == "channels_first":
        width = 48 if duel else 24
        assert [tuple(p.shape) for p in network.streams.parameters()] == [(width, 16 * 8 * 8), (width,)]


@pytest.mark.parametrize("name", ["vector", "channels_first"])
def test_an_implicit_network_answers_for_each_fraction_by_itself(name: str) -> None:
    torch.manual_seed(0)
    spec = spec_of(name)
    network = QNetwork(spec, (16,), True, outputs=4, cosines=8, image_units=24)
    seen, fractions = observe(spec, 2), torch.rand(2, 4)
    z = network(seen, Draw(fractions=fractions))
    assert z.shape == (2, 3, 4)
    assert isinstance(differentiable(network), ByAutograd)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(network(seen, Draw(fractions=fractions[:, order])), z[:, :, order])
    more = torch.cat((fractions, torch.rand(2, 5)), dim=1)
    torch.testing.assert_close(network(seen, Draw(fractions=more))[:, :, :4], z)
    assert not torch.allclose(z[:, :, 0], z[:, :, 1])


def test_the_embedding_is_its_formula() -> None:
    network = QNetwork(spec_of("vector"), (16, 8), False, outputs=2, cosines=3)
    seen, tau = observe(spec_of("vector"), 1), 0.3
    cosines = torch.tensor([1.0, np.cos(np.pi * tau), np.cos(2 * np.pi * tau)], dtype=torch.float32)
    assert network.embedding is not None
    features = network.encoder(seen) * torch.relu(network.embedding(cosines))
    joint = cast("torch.nn.Linear", network.joint)
    assert (joint.in_features, joint.out_features) == (8, 8)
    expected = network.head(torch.relu(features @ joint.weight.T + joint.bias))
    torch.testing.assert_close(network(seen, Draw(fractions=torch.full((1, 1), tau)))[:, :, 0], expected)


def test_small_images_are_encoded_as_minatars() -> None:
    encoder = encoder_for(spec_of("channels_first"), ()).module.encoders[0]
    assert isinstance(encoder, ImageEncoder)
    assert [tuple(p.shape) for p in encoder.parameters() if p.ndim == 4] == [(16, 4, 3, 3)]
    assert encoder.features == 16 * 8 * 8


def test_by_hand_sees_changed_parameters_after_refresh() -> None:
    spec = spec_of("vector")
    network = QNetwork(spec, (8,), True)
    parameters = FlatParameters(network)
    fast = differentiable(network)
    before = fast.values(observe(spec, 3)).clone()
    parameters.vector.mul_(2.0)
    fast.refresh()
    after = fast.values(observe(spec, 3))
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, network(observe(spec, 3)).detach())
