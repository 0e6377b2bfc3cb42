"""Metrics that show why an agent does not learn. They are computed with the other metrics, on no other update.

``report.metric_ranges`` says what each means, in which range it is healthy, and what to change when it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from apexrl.spec import ACTION_MASK

RELU = frozenset((torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_, torch.nn.functional.relu))
Metrics = dict[str, float]


class GradientRecord:
    """The gradient steps of one network since the last report: how many were clipped, and how far one moved it."""

    def __init__(self) -> None:
        self._steps = self._clipped = 0
        self._due = False
        self._relative_update: float | None = None

    def note(self, norm: float, most: float) -> None:
        """A gradient of L2 norm ``norm``, which was clipped to ``most``; 0: it was not."""
        self._steps += 1
        self._clipped += 0.0 < most < norm

    def before_step(self, parameters: Tensor) -> Tensor | None:
        """A copy of ``parameters`` for ``after_step``, where this step is to be measured."""
        return parameters.clone() if self._due else None

    def after_step(self, before: Tensor | None, parameters: Tensor) -> None:
        if before is not None:
            self._due = False
            size = float(torch.linalg.vector_norm(before))
            self._relative_update = float(torch.linalg.vector_norm(parameters - before)) / max(size, 1e-12)

    def report(self) -> Metrics:
        """``clipped_gradients`` since the last report, and ``relative_update`` of the step behind it."""
        found = {"clipped_gradients": self._clipped / self._steps} if self._steps else {}
        if self._relative_update is not None and self._steps:
            found["relative_update"] = self._relative_update
        self._steps = self._clipped = 0
        self._due = True
        return found


class Recorded(Protocol):
    """A network whose gradient steps are recorded."""

    record: GradientRecord

    @property
    def learning_rate(self) -> float: ...


def of_networks(networks: Mapping[str, Recorded]) -> Metrics:
    """Of several networks the largest share of clipped gradients, the largest relative update and step size."""
    found: Metrics = {}
    for network in networks.values():
        for name, value in (network.record.report() | {"learning_rate": network.learning_rate}).items():
            found[name] = max(value, found.get(name, 0.0))
    return found


class Weighted(Protocol):
    """A batch of transitions or sequences on the device."""

    @property
    def observation(self) -> Mapping[str, Tensor]: ...
    @property
    def reward(self) -> Tensor: ...
    @property
    def weights(self) -> Tensor: ...


class DeadUnits(TorchFunctionMode):
    """Counts, while it is entered, the ReLU units that are 0 for the whole batch. Of images a unit is a channel.

    Args:
        measured: whether this is an update with metrics; otherwise nothing is counted.
    """

    def __init__(self, measured: bool) -> None:
        super().__init__()
        self._measured = measured
        self._units = 0
        self._dead: list[Tensor] = []

    def __enter__(self) -> DeadUnits:
        if self._measured:
            super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        if self._measured:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in RELU and result.ndim > 1:
            unit = 1 if result.ndim == 4 else result.ndim - 1  # [B, channels, H, W], or [..., units]
            others = [axis for axis in range(result.ndim) if axis != unit]
            self._units += result.shape[unit]
            self._dead.append((result.detach().amax(dim=others) <= 0).sum())
        return result

    def share(self) -> Metrics:
        """``dead_units``, 0 … 1; nothing where no ReLU was computed."""
        return {"dead_units": float(torch.stack(self._dead).sum()) / self._units} if self._units else {}


def of_weighted(batch: Weighted, networks: Mapping[str, Recorded], units: DeadUnits) -> Metrics:
    """The metrics of an update on weighted transitions or sequences."""
    return {
        **of_networks(networks),
        **units.share(),
        **of_inputs(batch.observation, batch.reward),
        "effective_samples": effective_samples(batch.weights),
    }


def of_inputs(observation: Mapping[str, Tensor], reward: Tensor) -> Metrics:
    """``observation_size``, root mean square of the field in which it is largest, images and numbers of categories left
    out; and ``reward_size``, root mean square of the rewards learned from."""
    shown = [value for name, value in observation.items() if name != ACTION_MASK]
    sizes = [_rms(value) for value in shown if value.dtype.is_floating_point and value.numel()]
    found = {"observation_size": max(sizes)} if sizes else {}
    return found | {"reward_size": _rms(reward)}


def effective_samples(weights: Tensor) -> float:
    """(Σw)² / (n·Σw²): the share of n samples that as many equally weighted ones would be worth (Kish 1965)."""
    squares = float(weights.square().sum()) * weights.numel()
    return float(weights.sum()) ** 2 / squares if squares > 0.0 else 0.0


def explained_variance(values: Tensor, target: Tensor) -> Metrics:
    """``explained_variance``: 1 − Var(target − V) / Var(target); nothing where all targets are alike."""
    if target.numel() < 2:
        return {}
    whole = float(target.var(correction=0))
    if not whole > 1e-12 * (1.0 + float(target.mean()) ** 2):
        return {}
    return {"explained_variance": 1.0 - float((target - values).var(correction=0)) / whole}


def of_support(critics: Callable[..., Tensor], observation: Mapping[str, Tensor], action: Tensor) -> Metrics:
    """``support_edges`` of categorical ``critics``, whose logits are [..., N]."""
    with torch.no_grad():
        return support_edges(torch.softmax(critics(observation, action), dim=-1))


def support_edges(probabilities: Tensor) -> Metrics:
    """``support_edges``: probability of the least and of the greatest category, mean of all rows. [..., N]."""
    return {"support_edges": float((probabilities[..., 0] + probabilities[..., -1]).mean())}


def _rms(values: Tensor) -> float:
    return float(values.detach().to(torch.float32).square().mean().sqrt())
