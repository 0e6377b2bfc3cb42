"""An encoder of the user's own: what is asked of it, and what is said where it is something else."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from apexrl.errors import ConfigError, SpecError
from apexrl.networks.encoders import encoder_for
from apexrl.spec import ActionSpec, EnvSpec, Field

CODE = """
import torch
from torch import nn

class Good(nn.Module):
    features = 7
    def __init__(self, spec):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.layer = nn.Linear(3, 7)
        self.seen = []
    def forward(self, observation):
        self.seen.append({name: (tuple(value.shape), value.dtype) for name, value in observation.items()})
        return self.layer(self.norm(observation["observation/numbers"]))

class Untold(Good):
    features = None

class Narrow(Good):
    features = 8

class Flat(Good):
    def forward(self, observation):
        return super().forward(observation).flatten()

class Double(Good):
    def forward(self, observation):
        return super().forward(observation).double()

class Several(Good):
    def forward(self, observation):
        return (super().forward(observation),)

class Elsewhere(Good):
    def forward(self, observation):
        return self.layer(observation["observation"])

class Unasked(Good):
    def __init__(self):
        super().__init__(None)

class Picky(Good):
    def __init__(self, spec):
        raise KeyError("observation/lidar")

class NoModule:
    features = 7
    def __init__(self, spec): ...

def make(spec):
    return Good(spec)
"""

SPEC = EnvSpec(
    {"observation/image": Field((4, 5), "uint8"), "observation/numbers": Field((3,), "float32")}, ActionSpec(n=2)
)


@pytest.fixture(autouse=True)
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("own_nets")
    exec(CODE, vars(module))
    monkeypatch.setitem(sys.modules, "own_nets", module)


def test_it_sees_the_observations_as_they_are_stored() -> None:
    encoder, features, sees_image = encoder_for(SPEC, (64,), "own_nets:Good")
    assert (features, sees_image) == (7, False)
    (seen,) = encoder.seen
    assert seen == {"observation/image": ((2, 4, 5), torch.uint8), "observation/numbers": ((2, 3), torch.float32)}
    spec = EnvSpec({"observation/numbers": Field((3,), "float32")}, ActionSpec(n=2))
    stacked = encoder_for(spec, (), "own_nets:Good").module
    assert list(stacked.seen[0]) == ["observation/numbers"]


def test_frames_are_an_axis_of_their_own() -> None:
    spec = EnvSpec({"observation": Field((3,), "float32")}, ActionSpec(n=2), stack=4)
    with pytest.raises(SpecError, match=r"observation \[2, 4, 3\]"):
        encoder_for(spec, (), "own_nets:Good")


def test_to_try_it_changes_nothing_in_it() -> None:
    encoder = encoder_for(SPEC, (), "own_nets:Good").module
    assert int(encoder.norm.num_batches_tracked) == 0
    torch.testing.assert_close(encoder.norm.running_mean, torch.zeros(3))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Good", "must be package.module:Class"),
        ("own_nets:", "must be package.module:Class"),
        ("no_such_nets:Good", "there is no module 'no_such_nets'"),
        ("own_nets:Goood", "module own_nets has no class 'Goood' of torch.nn.Module"),
        ("own_nets:NoModule", "has no class 'NoModule' of torch.nn.Module"),
        ("own_nets:make", "has no class 'make' of torch.nn.Module"),
        ("own_nets:Unasked", r"is made as Unasked\(spec\), .* but takes something else: too many"),
        ("own_nets:Untold", "has no attribute features"),
    ],
)
def test_what_is_no_such_class_is_said(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        encoder_for(SPEC, (), name)
    assert str(caught.value).startswith("--network")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Picky", r"cannot be made for this environment: Picky\(spec\) raised KeyError: 'observation/lidar'"),
        ("Narrow", r"returned torch.float32 \[2, 7\] for 2 observations; it must be torch.float32 \[2, 8\]"),
        ("Flat", r"returned torch.float32 \[14\]"),
        ("Double", r"returned torch.float64 \[2, 7\]"),
        ("Several", r"returned a tuple, not a tensor \[B, 7\]"),
        ("Elsewhere", r"\(observation/image \[2, 4, 5\], observation/numbers \[2, 3\]\): KeyError: 'observation'"),
    ],
)
def test_what_does_not_fit_is_said(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        encoder_for(SPEC, (), f"own_nets:{name}")
