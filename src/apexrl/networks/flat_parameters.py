"""All parameters of a module in one vector, so that copying, clipping and optimising are one operation each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from apexrl.errors import SpecError
from apexrl.spec import Array

ALIGNMENT = 16  # float32 values; every parameter begins on a cache line


class FlatParameters:
    """Moves a module's parameters into ``vector`` (float32 [size]) and leaves views of it in the module.

    Floating-point buffers (running statistics) lie there too: they travel and are copied with the parameters. They
    have no gradient, so that an optimizer leaves them as they are.

    Args:
        module: on its final device; all parameters and floating-point buffers float32.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters: dict[str, Tensor] = dict(module.named_parameters())
        parameters |= {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
        self.slices: dict[str, slice] = {}  # name -> where in the vector, in this order
        self._shapes: dict[str, torch.Size] = {}
        end = 0
        for name, parameter in parameters.items():
            self.slices[name] = slice(end, end + parameter.numel())
            self._shapes[name] = parameter.shape
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        device = next(iter(parameters.values())).device
        self._parameters = parameters
        self.vector = torch.zeros(end, device=device)
        for name, view in self.split(self.vector).items():
            view.copy_(parameters[name].detach())
            parameters[name].data = view

    def bind(self, vector: Tensor) -> None:
        """``vector`` (float32 [size], on the same device) holds the parameters from now on, with the values it has."""
        self.vector = vector
        for name, view in self.split(vector).items():
            self._parameters[name].data = view

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Name -> the view of ``vector`` that lies where the parameter lies in ``self.vector``."""
        return {name: vector[where].view(self._shapes[name]) for name, where in self.slices.items()}

    def attach_gradient(self, gradient: Tensor | None = None) -> Tensor:
        """``gradient`` like ``vector``, or zeros, whose views are from now on the parameters' ``.grad``."""
        gradient = torch.zeros_like(self.vector) if gradient is None else gradient
        for name, view in self.split(gradient).items():
            if isinstance(self._parameters[name], nn.Parameter):
                self._parameters[name].grad = view
        return gradient

    def arrays(self, vector: Tensor | None = None) -> dict[str, Array]:
        """Named NumPy copies of ``vector``, or of the parameters themselves; one transfer from a GPU."""
        host = (self.vector if vector is None else vector).detach().to("cpu", copy=True)
        return {name: view.numpy() for name, view in self.split(host).items()}

    def load(self, arrays: Mapping[str, Array], vector: Tensor | None = None) -> None:
        """Fill ``vector``, or the parameters themselves, from named arrays; nothing is changed when one does not fit.

        Raises:
            SpecError: a name is missing or unknown, or a shape differs.
        """
        if arrays.keys() != self.slices.keys():
            missing, unknown = sorted(self.slices.keys() - arrays.keys()), sorted(arrays.keys() - self.slices.keys())
            raise SpecError(f"weights are of another network: missing {missing}, unknown {unknown}")
        for name, shape in self._shapes.items():
            if np.shape(arrays[name]) != tuple(shape):
                raise SpecError(
                    f"weights are of another network: {name} has shape {np.shape(arrays[name])}, not {tuple(shape)}"
                )
        ready = {name: torch.from_numpy(np.ascontiguousarray(arrays[name], np.float32)) for name in self._shapes}
        whole = self.vector if vector is None else vector
        host = whole.detach() if whole.device.type == "cpu" else torch.zeros(whole.shape)
        for name, view in self.split(host).items():
            view.copy_(ready[name].view(view.shape))
        if host.device != whole.device:
            with torch.no_grad():
                whole.copy_(host)
