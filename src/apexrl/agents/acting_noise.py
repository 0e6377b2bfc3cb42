"""Noise that explores: white, or pink, which goes on in one direction for a while."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from apexrl.protocols import State
from apexrl.spec import Field

Floats = NDArray[np.float32]

LEVELS = "noise"
TIMES = (1, 4, 16, 64, 256)
"""Steps after which the parts of pink noise are forgotten."""
_BELOW_ONE = math.nextafter(1.0, 0.0)
_KEPT = np.exp(-1.0 / np.array(TIMES, np.float32))[:, None]  # [K, 1]


class ActingNoise:
    """Random numbers for every action of every environment: standard normal, or uniform.

    Pink noise is the sum of K processes a_t = κ·a_{t−1} + √(1 − κ²)·ε with κ = exp(−1 / steps), of equal variance and
    with steps that grow geometrically: its spectrum is close to 1/f between them. Each number for itself is standard
    normal as before, so a policy's density stays what it was (Eberhard et al. 2023, Pink Noise Is All You Need, ICLR).
    The K parts are the agent's state of an environment, and begin anew with every episode.

    Args:
        size: numbers per environment, d.
        pink: else every step's noise is independent.
        white: share of the variance that stays independent all the same.
        kind: what ``numbers`` gives.
    """

    def __init__(
        self, size: int, pink: bool, white: float = 0.0, kind: Literal["normal", "uniform"] = "normal"
    ) -> None:
        self.size, self.kind = size, kind
        self._pink = pink
        self._parts = np.float32(math.sqrt(white)), np.float32(math.sqrt((1.0 - white) / len(TIMES)))

    @property
    def state_spec(self) -> dict[str, Field]:
        """What its state is of one environment; nothing of white noise."""
        return {LEVELS: Field((len(TIMES), self.size), "float32", per_item=True)} if self._pink else {}

    def numbers(self, rows: int, state: State, rng: np.random.Generator) -> tuple[NDArray[Any], State]:
        """``normal`` or ``uniform``, as ``kind`` says."""
        return self.normal(rows, state, rng) if self.kind == "normal" else self.uniform(rows, state, rng)

    def normal(self, rows: int, state: State, rng: np.random.Generator) -> tuple[Floats, State]:
        """Standard normal noise float32 [rows, d], and the state behind it."""
        if not self._pink:
            return rng.standard_normal((rows, self.size), np.float32), state
        fresh = rng.standard_normal((rows, len(TIMES), self.size), np.float32)
        if state is not None and LEVELS in state:  # a memory's state alone, of a greedy step, has no noise before it
            before = state[LEVELS]
            kept = np.where(before.any(axis=(1, 2), keepdims=True), _KEPT, np.float32(0))  # all zero: an episode begins
            fresh = kept * before + np.sqrt(1.0 - kept * kept) * fresh
        white, pink = self._parts
        noise: Floats = pink * fresh.sum(axis=1)
        if white:
            noise += white * rng.standard_normal(noise.shape, np.float32)
        return noise, {LEVELS: fresh}

    def uniform(self, rows: int, state: State, rng: np.random.Generator) -> tuple[NDArray[np.float64], State]:
        """Uniform noise float64 [rows, d] in 0 … 1, 1 left out, and the state behind it: of pink noise, where the
        normal numbers stand among all."""
        if not self._pink:
            return rng.random((self.size, rows)).T, state
        normal, state = self.normal(rows, state, rng)
        return torch.special.ndtr(torch.from_numpy(normal).double()).clamp_(max=_BELOW_ONE).numpy(), state

    def explored(
        self, unit: Floats, exploration: Floats, state: State, rng: np.random.Generator
    ) -> tuple[Floats, State]:
        """Unit actions [B, d] with noise of σ = ``exploration`` [B], within −1 … 1, and the state behind them; where σ
        is infinite ``random`` (Fujimoto et al. 2018, section 6.1; Horgan et al. 2018, appendix D)."""
        noise, state = self.normal(len(unit), state, rng)
        free = np.isinf(exploration)
        sigma = np.where(free, np.float32(0), exploration)[:, None]
        noisy: Floats = np.clip(unit + sigma * noise, -1.0, 1.0)
        if free.any():
            noisy[free] = self.random(noise[free], rng)
        return noisy, state

    def random(self, normal: Floats, rng: np.random.Generator) -> Floats:
        """Uniformly random unit actions [N, d]; of pink noise those that stand where ``normal`` stands among all."""
        if not self._pink:
            return rng.uniform(-1.0, 1.0, normal.shape).astype(np.float32)
        return torch.erf(torch.from_numpy(normal) * math.sqrt(0.5)).numpy()
