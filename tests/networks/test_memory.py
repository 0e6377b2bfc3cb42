"""Memories run in pieces as in one, forget at episode ends, and no gradient comes through their burn-in."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from apexrl.networks.memory import GatedTransformer, Kind, MemoryChoice, State, kept, memory
from apexrl.networks.recall import MemoryTrunk, Present, Recalled, Window
from apexrl.networks.recurrent_trunk import FEW_RESETS, RecurrentTrunk
from apexrl.spec import ActionSpec, EnvSpec, Field

KINDS = get_args(Kind)
SPEC = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec(n=2))
ROWS, STEPS = 4, 23


def choice(kind: Kind) -> MemoryChoice:
    return MemoryChoice(kind, units=8, layers=2, heads=2, context=5)


def trunk(kind: Kind) -> MemoryTrunk:
    torch.manual_seed(0)
    made = MemoryTrunk(SPEC, (6,), choice(kind), behind=(7,))
    for parameter in made.parameters():  # a transformer's biases by distance begin at 0
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def begun(body: RecurrentTrunk) -> State:
    """A state in the midst of an episode."""
    zeros = body.memory.state(*(torch.zeros(ROWS, *shape) for shape in body.memory.fields.values()))
    return body.memory.run(torch.randn(3, ROWS, body.width), zeros)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_in_pieces_it_is_as_in_one_and_a_cache_as_computed_again(kind: Kind) -> None:
    body = trunk(kind).body
    before, x = begun(body), torch.randn(STEPS, ROWS, body.width)
    whole, end = body.memory.run(x, before)
    for lengths in ([1] * STEPS, [7, 1, 9, 6]):
        state, found = before, []
        for part in x.split(lengths):
            y, state = body.memory.run(part, state)
            found.append(y)
        torch.testing.assert_close(torch.cat(found), whole, rtol=1e-5, atol=1e-5)
        for one, other in zip(state, end, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    state = before
    for step in range(STEPS):
        y, state = body.memory.step(x[step], state)
        torch.testing.assert_close(y, whole[step], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.05, 0.4])
def test_nothing_of_an_episode_is_known_in_the_next(kind: Kind, share: float) -> None:
    body = trunk(kind).body
    before, x = begun(body), torch.randn(STEPS, ROWS, body.width)
    first = torch.from_numpy(np.random.default_rng(0).random((STEPS, ROWS)) < share)
    first[9, 1] = True
    resets = np.flatnonzero(first.numpy().any(axis=1)).tolist()
    assert (len(resets) > FEW_RESETS) == (share > 0.1)
    seen = {"observation": torch.randn(ROWS, STEPS, 3)}
    x = body.sequence_inputs(seen)
    outputs, _ = body.unroll(seen, before, first, resets)
    torch.testing.assert_close(body.outputs(seen, before, first, resets), outputs, rtol=1e-5, atol=1e-5)
    state = before
    for step in range(STEPS):
        y, state = body.memory.step(x[step], body.memory.state(*kept(state, ~first[step])))
        torch.testing.assert_close(y, outputs[step], rtol=1e-5, atol=1e-5)


def test_a_transformer_looks_back_its_context_in_every_layer_and_no_farther() -> None:
    torch.manual_seed(0)
    made = GatedTransformer(2, units=8, layers=1, heads=2, context=5)
    x = torch.randn(12, 1, 2, requires_grad=True)
    zeros = made.state(torch.zeros(1, 1, 5, 8), torch.zeros(1, 1))
    made.run(x, zeros)[0][10].sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.abs().sum(dim=(1, 2)).gt(0).tolist() == [5 <= step <= 10 for step in range(12)]


def test_attention_is_that_of_pytorch() -> None:
    torch.manual_seed(0)
    layer = GatedTransformer(2, units=8, layers=1, heads=2, context=5).layers[0]
    whole, seen = torch.randn(3, 9, 8), torch.rand(3, 4, 9) < 0.5
    seen[:, :, -4:] |= torch.eye(4, dtype=torch.bool)
    caught: list[Tensor] = []
    layer.attended.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    layer(whole, whole[:, -4:], seen, torch.zeros(4, 9, dtype=torch.int64))
    normed = layer.attention_norm(whole)
    query, (key, value) = layer.query(normed[:, -4:]), layer.key_value(normed).chunk(2, dim=2)
    for head, part in enumerate(caught[0].chunk(2, dim=2)):
        at = slice(4 * head, 4 * head + 4)
        wanted = torch.nn.functional.scaled_dot_product_attention(
            query[..., at], key[..., at], value[..., at], attn_mask=seen
        )
        torch.testing.assert_close(part, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_is_what_acting_saw_and_takes_no_gradient_through_its_burn_in(kind: Kind) -> None:
    made, warm, length = trunk(kind), 4, 6
    seen = {"observation": torch.randn(ROWS, warm + length + 1, 3)}
    first = torch.zeros(warm + length + 1, ROWS, dtype=torch.bool)
    first[2, 1] = first[7, 2] = True
    states = dict(zip(made.fields, begun(made.body), strict=True))
    before, wanted = dict(states), []
    for step in range(warm + length + 1):
        present = Present(
            {"observation": seen["observation"][:, step]},
            dict(zip(made.fields, kept(tuple(before.values()), ~first[step]), strict=True)),
        )
        wanted.append(made(present))
        before = present.after
    parts = seen["observation"].split([warm, length + 1], dim=1)
    warming, later = ({"observation": part.clone().requires_grad_()} for part in parts)
    window = Window(warming, later, states, first, (2, 7))
    rows = torch.arange(ROWS * (length + 1))
    found = made(Recalled(window, rows))
    torch.testing.assert_close(found, torch.cat(wanted[warm:]), rtol=1e-5, atol=1e-5)
    some = made(Recalled.joined((Recalled(window, rows[5:7]), Recalled(window, rows[:1]))))
    torch.testing.assert_close(some, found[[5, 6, 0]])
    picked = Recalled(window, rows[5:7])["observation"]
    torch.testing.assert_close(picked, later["observation"][[1, 2], [1, 1]])  # steps 1 of sequences 1 and 2
    with torch.no_grad():
        assert not made(Recalled(window, rows)).requires_grad
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert warming["observation"].grad is None
    assert later["observation"].grad is not None


def test_heads_that_do_not_divide_the_units_are_refused() -> None:
    with pytest.raises(ValueError, match="3 heads must divide its 8 units"):
        memory(2, MemoryChoice("transformer", 8, heads=3))
