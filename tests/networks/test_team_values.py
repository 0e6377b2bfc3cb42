"""What a team's values make up, against the papers' formulas in NumPy."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from apexrl.errors import SpecError
from apexrl.networks.encoders import encoder_for
from apexrl.networks.team_values import Monotonic, Sum, TeamValues
from apexrl.spec import PRESENT, TEAM, ActionSpec, EnvSpec, Field

K, N = 3, 4


def team(stack: int = 1) -> EnvSpec:
    fields = {TEAM: Field((K, 5), "float32"), PRESENT: Field((K,), "int8"), "observation/state": Field((6,), "float32")}
    return EnvSpec(fields, ActionSpec(shape=(K,), nvec=(N,) * K, starts=(0,) * K), stack)


def seen(rows: int, stack: int = 1) -> dict[str, Any]:
    rng, lead = np.random.default_rng(0), (rows, stack) if stack > 1 else (rows,)
    there = rng.random((*lead, K)) < 0.7
    return {
        TEAM: torch.from_numpy(rng.normal(size=(*lead, K, 5)).astype(np.float32)),
        PRESENT: torch.from_numpy(there.astype(np.int8)),
        "observation/state": torch.from_numpy(rng.normal(size=(*lead, 6)).astype(np.float32)),
    }


def array(tensor: Any) -> Any:
    return tensor.detach().numpy().astype(np.float64)


def test_the_sum_is_vdns() -> None:
    values = torch.randn(7, K)
    np.testing.assert_allclose(array(Sum()(values, values)), array(values).sum(axis=1), rtol=1e-6)


def test_the_mixing_network_is_qmixs() -> None:
    """Rashid et al. 2018, figure 2, row by row."""
    mixer, values, state = Monotonic(K, 6, 8), torch.randn(9, K), torch.randn(9, 6)
    found = array(mixer(values, state))
    weights = {name: array(parameter) for name, parameter in mixer.named_parameters()}

    def linear(name: str, x: Any) -> Any:
        return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]

    for row, (q, s) in enumerate(zip(array(values), array(state), strict=True)):
        before = q @ np.abs(linear("weights_in", s)).reshape(K, 8) + linear("bias_in", s)
        hidden = np.where(before > 0, before, np.exp(before) - 1)
        value = linear("bias_out.2", np.maximum(linear("bias_out.0", s), 0))[0]
        assert found[row] == pytest.approx(hidden @ np.abs(linear("weights_out", s)) + value, rel=1e-5, abs=1e-6)


def test_it_never_falls_as_a_value_grows_and_each_agents_best_is_the_best_of_all() -> None:
    """Equations 4 and 5."""
    torch.manual_seed(1)
    network, observation = TeamValues(team(), (16,), "monotonic", 8), seen(20)
    observation[PRESENT][:] = 1
    with torch.no_grad():
        z = network(observation)
        best = network.together(z.amax(dim=2), observation)
        every = [
            network.together(torch.stack([z[:, i, a] for i, a in enumerate(actions)], dim=1), observation)
            for actions in product(range(N), repeat=K)
        ]
    torch.testing.assert_close(best, torch.stack(every).amax(dim=0))
    values = torch.randn(20, K, requires_grad=True)
    (slope,) = torch.autograd.grad(network.together(values, observation).sum(), values)
    assert (slope >= 0).all()


@pytest.mark.parametrize("stack", [1, 2])
def test_one_network_serves_all_agents_and_who_is_not_there_counts_as_nothing(stack: int) -> None:
    network, observation = TeamValues(team(stack), (16,), "sum", 8), seen(6, stack)
    z = network(observation)
    assert z.shape == (6, K, N)
    axis = 2 if stack > 1 else 1
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(network({**observation, TEAM: observation[TEAM].index_select(axis, order)}), z[:, order])
    there = observation[PRESENT][:, -1] if stack > 1 else observation[PRESENT]
    chosen = z[:, :, 0]
    torch.testing.assert_close(network.together(chosen, observation), (chosen * there).sum(dim=1))


def test_choices_of_one_agent_are_a_team_that_sees_everything() -> None:
    action = ActionSpec(shape=(2,), nvec=(2, 3), starts=(0, 0))
    spec = EnvSpec({"observation": Field((4,), "float32")}, action)
    network = TeamValues(spec, (8,), "monotonic", 8)
    observation = {"observation": torch.randn(5, 4)}
    assert network(observation).shape == (5, 2, 3)
    assert network.together(torch.randn(5, 2), observation).shape == (5,)


def test_a_mixer_over_images_alone_is_refused() -> None:
    action = ActionSpec(shape=(2,), nvec=(3, 3), starts=(0, 0))
    images = EnvSpec({TEAM: Field((2, 12, 12, 3), "uint8"), PRESENT: Field((2,), "int8")}, action)
    with pytest.raises(SpecError, match="--show-state"):
        TeamValues(images, (8,), "monotonic", 8)
    found = TeamValues(images, (8,), "sum", 8)({TEAM: torch.zeros((5, 2, 12, 12, 3), dtype=torch.uint8)})
    assert found.shape == (5, 2, 3)


def test_an_image_is_what_one_agent_sees_as_one() -> None:
    action = ActionSpec(shape=(2,), nvec=(3, 3), starts=(0, 0))
    shapes = {"picture": ((2, 12, 11, 3), "uint8"), "grey": ((2, 12, 12), "uint8")}
    shapes |= {"bytes": ((2, 5), "uint8"), "matrix": ((2, 3, 4), "float32")}
    fields = {f"{TEAM}/{name}": Field(*form) for name, form in shapes.items()}
    spec = EnvSpec({**fields, PRESENT: Field((2,), "int8")}, action)
    assert {name for name in fields if spec.is_image(name)} == {f"{TEAM}/picture", f"{TEAM}/grey"}


@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize("shape", [(12, 11, 3), (12, 12)])
@pytest.mark.parametrize("agents", [1, 2])
def test_an_agent_that_learns_a_team_as_one_sees_its_images_as_frames(
    agents: int, shape: tuple[int, ...], stack: int
) -> None:
    action = ActionSpec(shape=(agents,), nvec=(3,) * agents, starts=(0,) * agents)
    spec = EnvSpec({TEAM: Field((agents, *shape), "uint8"), PRESENT: Field((agents,), "int8")}, action, stack)
    frames = EnvSpec({"observation": Field(shape, "uint8")}, action, agents * stack)
    found, expected = (encoder_for(one, ()).module for one in (spec, frames))
    expected.encoders[0].load_state_dict(found.encoders[0].state_dict())  # type: ignore[index,union-attr]
    images = torch.randint(0, 256, (4, *((stack,) if stack > 1 else ()), agents, *shape), dtype=torch.uint8)
    there = torch.ones((*images.shape[: -len(shape) - 1], agents), dtype=torch.int8)
    features = found({TEAM: images, PRESENT: there})
    frames_seen = images.view(4, *((agents * stack,) if agents * stack > 1 else ()), *shape)
    alone = expected({"observation": frames_seen})
    torch.testing.assert_close(features[:, : alone.shape[1]], alone)


def test_a_key_of_that_name_makes_no_team() -> None:
    action = ActionSpec(shape=(2,), nvec=(2, 3), starts=(0, 0))
    spec = EnvSpec({TEAM: Field((4,), "float32"), "observation/more": Field((2,), "float32")}, action)
    assert not spec.of_team
    network = TeamValues(spec, (8,), "sum", 8)
    assert network({TEAM: torch.randn(5, 4), "observation/more": torch.randn(5, 2)}).shape == (5, 2, 3)
