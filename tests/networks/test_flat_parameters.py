from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from apexrl.errors import SpecError
from apexrl.networks import FlatParameters


def make() -> tuple[nn.Module, FlatParameters]:
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    return module, FlatParameters(module)


def test_parameters_are_views_of_the_vector() -> None:
    torch.manual_seed(0)
    expected = nn.Linear(3, 5).weight.detach().clone()
    torch.manual_seed(0)
    module, flat = make()
    torch.testing.assert_close(module[0].weight.detach(), expected)  # type: ignore[index]
    flat.vector.fill_(2.0)
    assert all(bool((parameter == 2.0).all()) for parameter in module.parameters())


def test_backward_fills_the_attached_gradient() -> None:
    module, flat = make()
    gradient = flat.attach_gradient()
    module(torch.ones(1, 3)).sum().backward()
    views = flat.split(gradient)
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert views[name].data_ptr() == parameter.grad.data_ptr()
    torch.testing.assert_close(views["1.bias"], torch.ones(2))


def test_arrays_are_copies_and_load_brings_them_back() -> None:
    _, flat = make()
    arrays = flat.arrays()
    assert {name: array.shape for name, array in arrays.items()} == {
        "0.weight": (5, 3),
        "0.bias": (5,),
        "1.weight": (2, 5),
        "1.bias": (2,),
    }
    before = flat.vector.clone()
    flat.vector.zero_()
    assert arrays["0.weight"].any()
    flat.load(arrays)
    torch.testing.assert_close(flat.vector, before)


def test_weights_of_another_network_change_nothing() -> None:
    _, flat = make()
    before = flat.vector.clone()
    arrays = flat.arrays()
    with pytest.raises(SpecError, match=r"missing \['0.bias'\], unknown \['other'\]"):
        flat.load({("other" if name == "0.bias" else name): array for name, array in arrays.items()})
    with pytest.raises(SpecError, match=r"1.weight has shape \(2, 4\), not \(2, 5\)"):
        flat.load({**arrays, "1.weight": np.zeros((2, 4), np.float32)})
    torch.testing.assert_close(flat.vector, before)
