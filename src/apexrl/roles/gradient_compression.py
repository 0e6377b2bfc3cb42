"""What a learner leaves out of its gradient so that it travels in fewer bytes: digits, or small values until later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

    from apexrl.links.averaging.sum_plans import Kind

    Fills: TypeAlias = Sequence[tuple[str, Tensor, Tensor]]

_MEASURED_FILLS = 50  # the error of every fiftieth is measured: it takes about as long as the compression


def compression(kind: Kind, share: float) -> Rounding | Largest | None:
    """As ``config.wiring.gradient_compression`` and ``gradient_share`` say; None: none."""
    return {"none": None, "bf16": Rounding(), "top-k": Largest(share)}[kind]


class Rounding:
    """Rounds gradients to bfloat16: 8 binary digits, half the bytes."""

    def __init__(self) -> None:
        self.error = 0.0
        """‖what was left out‖ / ‖the gradients‖, L2, of the newest that was measured."""
        self._fills = 0

    def count(self, size: int) -> int:
        """Of ``size`` values, how many are sent."""
        return size

    def fill(self, gradients: Fills) -> None:
        """Fill the last of each (name, gradient, place for it): vectors float32 [size], maybe the same memory."""
        import torch

        rounded = [gradient.to("cpu", torch.bfloat16) for _, gradient, _ in gradients]
        if gradients and self._fills % _MEASURED_FILLS == 0:
            whole = [gradient.to("cpu") for _, gradient, _ in gradients]
            lost = [one - short for one, short in zip(whole, rounded, strict=True)]
            self.error = _norm(lost) / max(_norm(whole), 1e-30) or self.error  # 0: they are rounded already
        self._fills += bool(gradients)
        for (_, _, part), short in zip(gradients, rounded, strict=True):
            part.copy_(short)

    def sent(self) -> None:
        """What was filled has come into a sum."""


class Largest:
    """Sends of each gradient the values of the greatest magnitude, and adds the rest to the next one (error feedback:
    Stich et al. 2018, arXiv 1809.07599, Algorithm 1).

    Args:
        share: of the values that are sent.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._left: dict[str, Tensor] = {}  # network -> what was not sent so far
        self._next: dict[str, Tensor] = {}  # the same, once what was filled is sent
        self.error = 0.0
        """‖what was left out‖ / ‖the gradients and what was left out before‖, L2, of the newest that was measured."""
        self._fills = 0

    def count(self, size: int) -> int:
        """Of ``size`` values, how many are sent."""
        return max(1, round(self._share * size))

    def fill(self, gradients: Fills) -> None:
        """See ``Rounding.fill``; the gradients stay as they are."""
        self._next = {}
        measured, norms = bool(gradients) and self._fills % _MEASURED_FILLS == 0, []
        for name, gradient, part in gradients:
            whole = gradient.detach().to("cpu", copy=True)
            if name in self._left:
                whole += self._left[name]
            norms += [_norm([whole])] if measured else []
            places = whole.abs().topk(self.count(len(whole))).indices
            part.zero_()
            part[places] = whole[places]
            whole[places] = 0.0
            self._next[name] = whole
        if measured:
            self.error = _norm(self._next.values()) / max(math.hypot(*norms), 1e-30)
        self._fills += bool(gradients)

    def sent(self) -> None:
        """What was filled has come into a sum."""
        self._left |= self._next
        self._next = {}


def _norm(vectors: Iterable[Tensor]) -> float:
    squares: list[float] = [one.square().sum().item() for one in vectors]
    return math.sqrt(sum(squares))
