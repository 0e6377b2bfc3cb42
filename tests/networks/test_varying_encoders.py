"""Encoders of texts, sequences, graphs and maps of categories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from apexrl.config import EnvConfig
from apexrl.envs import env_spec, make_vector
from apexrl.networks.encoders import MapEncoder, ObservationEncoder, VectorEncoder
from apexrl.spec import LENGTH, EnvSpec
from space_envs import Bag, Glyphs, Linked, Shows, Told

Observation = dict[str, torch.Tensor]


def seen_of(env: type[Shows], rows: int = 6) -> tuple[EnvSpec, Observation]:
    vector = make_vector(EnvConfig(env=env, max_sequence_length=8), rows, seed=1)
    seen = vector.reset()
    vector.close()
    return vector.spec, {name: torch.from_numpy(array) for name, array in seen.items()}


def encoder_of(spec: EnvSpec) -> ObservationEncoder:
    torch.manual_seed(0)
    return ObservationEncoder(spec, (16,))


@pytest.mark.parametrize("env", [Told, Bag, Linked, Glyphs], ids=lambda env: env.__name__)
def test_what_is_padded_has_no_influence(env: type[Shows]) -> None:
    spec, seen = seen_of(env)
    encoder = encoder_of(spec)
    features = encoder(seen)
    assert features.shape == (6, encoder.features)
    assert features.dtype == torch.float32
    other = {name: value.clone() for name, value in seen.items()}
    changed = False
    for name, padded in spec.padded.items():
        if spec.observation[name].dtype == "uint8" and padded.kind == "sequence":
            continue  # texts in a sequence end at their first zero
        length = seen[name + LENGTH]
        for row in range(6):
            other[name][row, int(length[row]) :] = 1
            changed |= int(length[row]) < len(other[name][row])
    assert changed
    torch.testing.assert_close(encoder(other), features)


@pytest.mark.parametrize("env", [Told, Bag, Linked, Glyphs], ids=lambda env: env.__name__)
def test_rows_are_encoded_by_themselves_and_gradients_are_finite(env: type[Shows]) -> None:
    spec, seen = seen_of(env)
    encoder = encoder_of(spec)
    together = encoder(seen)
    apart = torch.cat([encoder({name: value[i : i + 1] for name, value in seen.items()}) for i in range(6)])
    torch.testing.assert_close(together, apart)
    together.square().sum().backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in encoder.parameters()]
    assert all(g is not None and torch.isfinite(g).all() for g in gradients)


def test_a_graph_is_the_same_whatever_its_nodes_are_called() -> None:
    spec, seen = seen_of(Linked)
    encoder = encoder_of(spec)
    row = next(i for i in range(6) if int(seen["observation/nodes" + LENGTH][i]) >= 3)
    one = {name: value[row : row + 1].clone() for name, value in seen.items()}
    count = int(one["observation/nodes" + LENGTH])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3))
    other = {name: value.clone() for name, value in one.items()}
    other["observation/nodes"][0, order] = one["observation/nodes"][0, :count]
    other["observation/edge_links"][0, 0] = order[one["observation/edge_links"][0, 0].long()]
    assert not torch.equal(other["observation/nodes"], one["observation/nodes"])
    torch.testing.assert_close(encoder(other), encoder(one))
    other["observation/edge_links"][0, 0] = other["observation/edge_links"][0, 0].flip(0)
    assert not torch.allclose(encoder(other), encoder(one))  # but edges have a direction


def test_an_empty_text_sequence_and_graph_are_encoded() -> None:
    for env in (Told, Bag, Linked):
        spec, seen = seen_of(env)
        nothing = {name: torch.zeros_like(value) for name, value in seen.items()}
        assert torch.isfinite(encoder_of(spec)(nothing)).all()


def test_stacked_frames_are_encoded_side_by_side() -> None:
    spec, seen = seen_of(Told)
    stacked = replace(spec, stack=2)
    encoder = ObservationEncoder(stacked, ())
    features = encoder({name: torch.stack((value, value.flip(0)), dim=1) for name, value in seen.items()})
    assert features.shape == (6, encoder.features)
    assert encoder.features == 2 * ObservationEncoder(spec, ()).features


def test_vectors_together_go_through_one_mlp() -> None:
    """With an MLP each, and a linear head behind, no value could depend on two entries at once."""
    spec = env_spec(Tuple([Discrete(3), Box(-1.0, 1.0, (2,)), MultiDiscrete([2, 3])]), Discrete(2))
    encoder = encoder_of(spec)
    assert isinstance(encoder.joint, VectorEncoder)
    assert encoder.joint.inputs == 3 + 2 + 2 * 3
    seen: Any = {
        "observation/0": torch.tensor([2]),
        "observation/1": torch.tensor([[0.5, -0.5]]),
        "observation/2": torch.tensor([[1, 2]]),
    }
    expected = torch.tensor([[0.0, 0, 1, 0.5, -0.5, 0, 1, 0, 0, 0, 1]])
    torch.testing.assert_close(encoder(seen), encoder.joint(expected))


def test_maps_of_categories_are_embedded_and_convolved() -> None:
    space = Dict(glyphs=Box(0, 5976, (21, 79), np.int16), small=MultiDiscrete([[2, 2]] * 2))
    encoder = encoder_of(env_spec(space, Discrete(2)))
    assert encoder.sees_image
    assert [type(one) for one in encoder.encoders] == [MapEncoder, VectorEncoder]
    glyphs = torch.zeros((2, 21, 79), dtype=torch.int16)
    glyphs[1, 3, 4] = 5976
    both = encoder({"observation/glyphs": glyphs, "observation/small": torch.zeros((2, 2, 2), dtype=torch.int64)})
    assert not torch.equal(both[0], both[1])
