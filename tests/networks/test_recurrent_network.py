from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apexrl.networks import FlatParameters
from apexrl.networks.episode_pieces import pieces
from apexrl.networks.memory import LSTMState, MemoryChoice
from apexrl.networks.policy_value import PolicyValue
from apexrl.networks.recurrent import RecurrentQ
from apexrl.networks.recurrent_trunk import FEW_RESETS
from apexrl.spec import ActionSpec, EnvSpec, Field

VECTOR = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec(n=4))
PAST = {"observation/last_action": Field((4,), "int8"), "observation/last_reward": Field((1,), "float32")}
SEEING = EnvSpec({"observation/obs": Field((84, 84), "uint8"), **PAST}, ActionSpec(n=4), stack=2)
UNITS = 6


def network(spec: EnvSpec = VECTOR, dueling: bool = True) -> RecurrentQ:
    torch.manual_seed(0)
    return RecurrentQ(spec, (5,), UNITS, dueling, image_units=7)


def observations(spec: EnvSpec, *batch: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(1)
    stack = (spec.stack,) if spec.stack > 1 else ()
    return {
        name: torch.from_numpy(
            rng.integers(0, 2, (*batch, *stack, *field.shape)).astype(field.dtype)
            if field.dtype != "float32"
            else rng.normal(size=(*batch, *stack, *field.shape)).astype(field.dtype)
        )
        for name, field in spec.observation.items()
    }


def state(rows: int) -> LSTMState:
    generator = torch.Generator().manual_seed(2)
    return LSTMState(*(torch.randn(rows, UNITS, generator=generator) for _ in range(2)))


@pytest.mark.parametrize("spec", [VECTOR, SEEING], ids=["vector", "image, stacked, with its past"])
@pytest.mark.parametrize("dueling", [False, True])
def test_unrolled_it_does_what_it_does_step_by_step(spec: EnvSpec, dueling: bool) -> None:
    net, seen, now = network(spec, dueling), observations(spec, 3, 5), state(3)
    nowhere = torch.zeros(5, 3, dtype=torch.bool)
    outputs, end = net.unroll(seen, now, nowhere, ())
    values = net.head(outputs)
    assert values.shape == (5, 3, 4)
    for step in range(5):
        q, now = net.step({name: value[:, step] for name, value in seen.items()}, now)
        torch.testing.assert_close(values[step], q)
    torch.testing.assert_close(end, now)


def test_states_are_zeroed_where_an_episode_begins() -> None:
    net, seen, now = network(), observations(VECTOR, 4, 7), state(4)
    first = torch.zeros(7, 4, dtype=torch.bool)
    first[0, 0] = first[2, 1] = first[2, 2] = first[5, 0] = True
    outputs, end = net.unroll(seen, now, first, (0, 2, 5))
    for step in range(7):
        keep = ~first[step].unsqueeze(1)
        now = LSTMState(now.h * keep, now.c * keep)
        _, now = net.step({name: value[:, step] for name, value in seen.items()}, now)
        torch.testing.assert_close(outputs[step], now[0])
    torch.testing.assert_close(end, now)


def test_what_was_before_a_reset_has_no_influence_even_where_it_is_padding() -> None:
    net, seen, now = network(), observations(VECTOR, 2, 4), state(2)
    first = torch.zeros(4, 2, dtype=torch.bool)
    first[2] = True
    other = {name: value.clone() for name, value in seen.items()}
    other["observation"][:, :2] = 0.0
    outputs, _ = net.unroll(seen, now, first, (2,))
    again, _ = net.unroll(other, LSTMState(now.h * 9, now.c * 9), first, (2,))
    torch.testing.assert_close(outputs[2:], again[2:], rtol=0, atol=0)


def test_gradients_flow_back_through_time_until_a_reset() -> None:
    net, now = network(), state(1)
    x = observations(VECTOR, 1, 4)["observation"].requires_grad_()
    first = torch.tensor([[False], [True], [False], [False]])
    outputs, _ = net.unroll({"observation": x}, now, first, (1,))
    outputs[-1].sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert [bool(part.any()) for part in x.grad[0]] == [False, True, True, True]


def test_previous_action_and_reward_go_past_the_trunk() -> None:
    net = network(SEEING)
    assert net.body.trunk.encoder.names == ("observation/obs",)
    assert net.body.lstm.input_size == net.body.trunk.features + SEEING.stack * (4 + 1)
    seen = observations(SEEING, 3)
    features = net.body.inputs(seen).detach()
    np.testing.assert_array_equal(features[:, -2:], seen["observation/last_reward"].reshape(3, 2))
    np.testing.assert_array_equal(features[:, -10:-2], seen["observation/last_action"].reshape(3, 8))


def test_a_copy_in_one_vector_is_a_network_of_its_own() -> None:
    net = network()
    flat = FlatParameters(net)
    copy = deepcopy(net)
    other = FlatParameters(copy)
    seen = observations(VECTOR, 2)
    before, _ = net.step(seen, state(2))
    other.vector.zero_()
    after, _ = net.step(seen, state(2))
    zeroed, _ = copy.step(seen, state(2))
    unrolled, _ = copy.unroll({"observation": seen["observation"][:, None]}, state(2), torch.zeros(1, 2) > 0, ())
    torch.testing.assert_close(before, after, rtol=0, atol=0)
    assert not zeroed.any()
    torch.testing.assert_close(unrolled[0], 0.5 * torch.tanh(0.5 * state(2).c))  # the kernel reads the vector as well
    assert flat.vector.any()


# Pieces

ENDS = [
    np.zeros((9, 5), bool),
    np.ones((9, 5), bool),
    np.random.default_rng(0).random((33, 7)) < 0.3,
    np.random.default_rng(1).random((64, 3)) < 0.05,
    np.arange(40)[:, None] % np.array([[1, 3, 40, 17]]) == 0,
    np.zeros((1, 1), bool),
]


@pytest.mark.parametrize("first", ENDS, ids=lambda first: str(first.shape))
def test_every_step_is_in_one_piece_behind_the_one_before_it(first: NDArray[np.bool_]) -> None:
    steps, rows = first.shape
    cut = pieces(first)
    assert len(cut.groups) <= np.log2(steps) + 1
    stand = np.concatenate([group.steps.flatten() for group in cut.groups])
    assert len(stand) < 2 * steps * rows
    np.testing.assert_array_equal(stand[cut.places], np.arange(steps * rows))
    assert len(set(cut.places.tolist())) == steps * rows
    begun = np.zeros(first.shape, bool)
    for group in cut.groups:
        t, b = np.divmod(group.steps, rows)
        np.testing.assert_array_equal(b, np.broadcast_to(group.rows, b.shape))
        begun[t[0], b[0]] = True
        assert set(np.unique(np.diff(t, axis=0)).tolist()) <= {0, 1}
        np.testing.assert_array_equal(group.goes_on, (t[0] == 0) & ~first[0, group.rows])
        assert not first[t[1:], b[1:]][np.diff(t, axis=0) == 1].any()
    starts = first.copy()
    starts[0] = True
    np.testing.assert_array_equal(begun, starts)


def test_in_pieces_it_does_what_it_does_in_columns() -> None:
    net, now = network(), state(6)
    x = observations(VECTOR, 6, 40)["observation"].requires_grad_()
    first = torch.from_numpy(np.random.default_rng(3).random((40, 6)) < 0.15)
    resets = tuple(np.flatnonzero(first.numpy().any(axis=1)).tolist())
    assert len(resets) > FEW_RESETS
    found = []
    for run in (net.body.outputs, lambda *how: net.body.unroll(*how)[0]):
        net.zero_grad()
        outputs = run({"observation": x}, now, first, resets)
        (outputs.square() * torch.arange(40.0)[:, None, None]).sum().backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad.clone() for parameter in net.body.parameters() if parameter.grad is not None]
        found.append([outputs.detach(), x.grad, *gradients])
        x.grad = None
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_what_a_policy_with_a_memory_begins_with_moves_with_small_observations() -> None:
    torch.manual_seed(0)
    net = PolicyValue(VECTOR, (64,), 2, memory=MemoryChoice("lstm", 64))
    assert net.recurrent is not None
    input_gate, forget, *_ = net.recurrent.lstm.weight_ih_l0.detach().chunk(4)
    for weights in (input_gate, forget):
        torch.testing.assert_close(weights @ weights.t(), torch.eye(64), rtol=0, atol=1e-5)
    seen = 0.05 * torch.randn(200, 3)
    zeros = LSTMState(torch.zeros(200, 64), torch.zeros(200, 64))
    h = net.recurrent.step({"observation": seen}, zeros)[0].detach()
    assert float(h.mean(dim=0).norm()) < float(h.std(dim=0).norm())
    nothing = net.recurrent.step({"observation": torch.zeros(200, 3)}, zeros)[0]
    assert not nothing.any()


@pytest.mark.parametrize("separate", [False, True])
def test_a_policy_begins_orthogonal_behind_images_and_vectors(separate: bool) -> None:
    image = EnvSpec({"observation": Field((84, 84), "uint8")}, ActionSpec(n=4), stack=4)
    for spec, layers in ((VECTOR, 2), (image, 4)):
        net = PolicyValue(spec, (64, 32), 4, image_units=64, separate=separate)
        trunks = [trunk for trunk in (net.trunk, net.value_trunk) if trunk is not None]
        assert len(trunks) == 1 + separate
        for trunk in trunks:
            made = [part for part in trunk.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
            assert len(made) == layers
            for layer in made:
                assert layer.bias is not None
                assert not layer.bias.any()
                rows = layer.weight.detach().flatten(1)
                rows = rows if rows.shape[0] <= rows.shape[1] else rows.t()
                torch.testing.assert_close(rows @ rows.t(), 2.0 * torch.eye(len(rows)), rtol=0, atol=1e-4)
