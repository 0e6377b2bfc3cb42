"""A Gaussian process that predicts the throughput of settings from measured ones.

    log rate(setting, t) = surface(setting) + level(t) + noise

The surface is a Matérn 5/2 process over the logarithms of the counts, so that doubling is the same step at 2 and at 20.
Old observations of it count less. With several counts it may change faster along their proportion than when all grow
together. The level drifts with time and is the same for all settings: a run that slows down as it goes is not mistaken
for a bad setting. The noise is estimated from the spread of windows, together with everything else (Rasmussen &
Williams 2006, Gaussian Processes for Machine Learning, chapters 2, 4.2 and 5.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_MEMORY = 240  # windows; a prediction costs their number cubed
_FORGETTING = 400.0  # windows after which what was seen of the surface counts 1/e
_LEVEL_LENGTH = 25.0  # windows over which the level changes
_OFFSET_VARIANCE = 1.0  # of the constant that the mean of all windows misses
_OUTLIER = 2.5  # standard deviations beyond which a window counts less
_REFIT_ALWAYS, _REFIT_PERIOD = 16, 5  # windows


class Scales(NamedTuple):
    """Hyperparameters; all but ``length`` and ``stretch`` are standard deviations of a natural logarithm, so 0.1 is
    about 10 %."""

    noise: float = 0.08
    """Of one window."""
    length: float = 1.0
    """Octaves of a count over which the surface changes."""
    stretch: float = 4.0
    """Times that length over which it does when all counts grow in one proportion (ours); one count alone has none."""
    height: float = 0.5
    """Of the surface."""
    drift: float = 0.05
    """Of the level."""


_CHOICES: Mapping[str, tuple[float, ...]] = {
    "noise": (0.01, 0.02, 0.04, 0.08, 0.16, 0.32),
    "length": (1.0, 1.5, 2.5, 4.0),
    "stretch": (1.0, 2.0, 4.0, 8.0),
    "height": (0.125, 0.25, 0.5, 1.0),
    "drift": (0.01, 0.05, 0.2),
}
_PRIOR = Scales()
_PRIOR_OCTAVES = Scales(noise=1.5, length=0.5, stretch=1.0, height=0.5, drift=1.0)  # standard deviations of their log2


class ThroughputModel:
    """Throughput as a function of counts, learned from windows.

    Args:
        dimensions: counts of a setting.
    """

    def __init__(self, dimensions: int) -> None:
        self.scales = _PRIOR
        self.windows = 0  # ever measured
        self._points: Floats = np.empty((0, dimensions))  # log2 of the counts
        self._times: Floats = np.empty(0)
        self._logs: Floats = np.empty(0)
        self._faded: Floats = np.empty((0, 0))  # between windows: how much of the surface they share by their times
        self._together: Floats = np.empty((0, 0))  # and how much of the level
        self._alike: dict[tuple[float, float], Floats] = {}  # length, stretch -> how much of the surface in all
        self._weights: Floats = np.empty(0)  # A⁻¹(y − mean), of the last fit
        self._unroot: Floats = np.empty((0, 0))  # inverse of A's Cholesky factor

    def add(self, counts: Sequence[int], rate: float) -> None:
        """Enter one window's throughput, > 0."""
        point = np.log2(np.asarray(counts, np.float64))[None]
        self._points = np.concatenate([self._points, point])[-_MEMORY:]
        self._times = np.append(self._times, self.windows)[-_MEMORY:]
        self._logs = np.append(self._logs, math.log(rate))[-_MEMORY:]
        between = np.abs(self._times[:, None] - self._times[None])
        self._faded = np.exp(-between / _FORGETTING)
        self._together = np.exp(-0.5 * (between / _LEVEL_LENGTH) ** 2)
        self._alike = {}
        self.windows += 1
        if self.windows <= _REFIT_ALWAYS or self.windows % _REFIT_PERIOD == 0:
            self._choose_scales()
        self._fit()

    def posterior(self, settings: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Mean [C] and covariance [C, C] of the surface at ``settings`` [C, dimensions], now; natural logarithms, up to
        a constant. To be asked when at least one window was entered."""
        points = np.log2(settings.astype(np.float64))
        height, length, stretch = self.scales.height, self.scales.length, self.scales.stretch
        remembered = np.exp((self._times - self.windows) / _FORGETTING)  # of every window's surface at the next one
        seen = height**2 * _matern(_squared(points, self._points, stretch), length) * remembered
        own = height**2 * _matern(_squared(points, points, stretch), length)
        half = self._unroot @ seen.T
        return seen @ self._weights, own - half.T @ half

    def _covariance(self, scales: Scales, noise: Floats) -> Floats:
        """Of the windows' logarithms, [windows, windows]."""
        kind = scales.length, scales.stretch
        if kind not in self._alike:
            apart = _squared(self._points, self._points, scales.stretch)
            self._alike[kind] = _matern(apart, scales.length) * self._faded
        whole: Floats = scales.height**2 * self._alike[kind] + scales.drift**2 * self._together + _OFFSET_VARIANCE
        whole[np.diag_indices_from(whole)] += noise
        return whole

    def _fit(self) -> None:
        """Twice: the second time, windows far from what the others say of them count less."""
        centred = self._logs - self._logs.mean()
        ordinary = np.full(len(centred), self.scales.noise**2)
        weights = np.linalg.solve(self._covariance(self.scales, ordinary), centred)
        missed = ordinary * weights  # y less what is predicted of it, while all count alike
        noise = ordinary * np.maximum(1.0, (missed / (_OUTLIER * self.scales.noise)) ** 2)
        self._unroot = np.linalg.inv(np.linalg.cholesky(self._covariance(self.scales, noise)))
        self._weights = self._unroot.T @ (self._unroot @ centred)

    def _choose_scales(self) -> None:
        """One after the other, the value that makes what was measured most likely."""
        centred = self._logs - self._logs.mean()
        for name, choices in _CHOICES.items():
            if name == "stretch" and self._points.shape[1] == 1:
                continue
            tried = [self.scales._replace(**{name: choice}) for choice in choices]
            self.scales = max(tried, key=lambda scales: self._log_likelihood(scales, centred))

    def _log_likelihood(self, scales: Scales, centred: Floats) -> float:
        """Of the windows and of the scales themselves, up to a constant."""
        root = np.linalg.cholesky(self._covariance(scales, np.full(len(centred), scales.noise**2)))
        whitened = np.linalg.solve(root, centred)
        windows = -0.5 * float(whitened @ whitened) - float(np.log(np.diag(root)).sum())
        octaves = np.log2(np.asarray(scales) / np.asarray(_PRIOR)) / np.asarray(_PRIOR_OCTAVES)
        return windows - 0.5 * float(octaves @ octaves)


def _squared(these: Floats, those: Floats, stretch: float) -> Floats:
    """Squared distances [A, B] of points [A, D] and [B, D]; what all counts grow by alike is shrunk by ``stretch``."""
    if these.shape[1] > 1:
        shrunk = 1.0 - 1.0 / stretch
        these = these - shrunk * these.mean(1, keepdims=True)
        those = those - shrunk * those.mean(1, keepdims=True)
    squared: Floats = (these**2).sum(1)[:, None] + (those**2).sum(1) - 2.0 * these @ those.T
    return np.maximum(squared, 0.0)


def _matern(squared: Floats, length: float) -> Floats:
    """Matérn 5/2 of squared distances (Rasmussen & Williams 2006, equation 4.17)."""
    scaled = np.sqrt(5.0 * squared) / length
    correlation: Floats = (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
    return correlation
