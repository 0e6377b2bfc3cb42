"""Action distributions made of a policy's outputs: categorical, Gaussian, or both at once.

Acting draws from the actor's generator, choices in native code: behind a network's pass a dozen NumPy calls on a few
numbers find cold caches. Learning is PyTorch and differentiable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from apexrl import _native
from apexrl.spec import Array

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LONG = 16
"""Alternatives with which PyTorch's softmax of rows is quick on a CPU, as it takes so many numbers at once: with 10 it
takes 20 times as long as that of columns."""
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0  # ours: beyond them a density says more of rounding than of the policy
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def log_std_bounds(least_std: float = 0.0) -> tuple[float, float]:
    """Between which log σ is held, where σ is not to be below ``least_std``."""
    return max(LOG_STD_MIN, math.log(least_std)) if least_std else LOG_STD_MIN, LOG_STD_MAX


def held(x: Tensor, least: float, greatest: float) -> Tensor:
    """``clamp`` whose gradient is 0 only where it leads further out. That of ``clamp`` is 0 wherever a number is out of
    bounds, and of a parameter the step that carries it there would be the last."""
    if not torch.is_grad_enabled():  # while acting
        return x.clamp(least, greatest)
    return cast("Tensor", _Held.apply(x, least, greatest))  # type: ignore[no-untyped-call]


class _Held(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, least: float, greatest: float) -> Tensor:
        return x.clamp(least, greatest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        x, *ctx.bounds = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (x,), (least, greatest), (gradient,) = ctx.saved_tensors, ctx.bounds, gradients
        outwards = ((x < least) & (gradient > 0)) | ((x > greatest) & (gradient < 0))
        return gradient.masked_fill(outwards, 0.0), None, None


def log_softmax(logits: Tensor) -> Tensor:
    """Of rows [B, n]."""
    return torch.log_softmax(logits, 1) if _long(logits) else torch.log_softmax(logits.t().contiguous(), 0).t()


def _long(logits: Tensor) -> bool:
    return logits.shape[1] >= LONG or logits.device.type != "cpu"


class Sample(NamedTuple):
    """Actions drawn for B observations."""

    action: Array  # [B, ...]
    log_prob: Floats  # [B]


class Score(NamedTuple):
    """The log-probability of N actions and the entropy of their distributions."""

    log_prob: Tensor  # [N] float, log π(a|s)
    entropy: Tensor  # [N] float, nats


class Distribution(Protocol):
    """Of actions, from the ``outputs`` numbers that a network says of every observation."""

    outputs: int

    def sample(self, outputs: Floats, rng: np.random.Generator) -> Sample:
        """Of [B, outputs]."""

    def drawn(self, outputs: Floats, noise: Any) -> Sample:
        """Of [B, outputs], by random numbers that are given, one for each choice or variable."""

    def mode(self, outputs: Floats) -> Array:
        """The likeliest actions [B, ...]."""

    def chosen(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """In PyTorch alone: the actions of ``drawn`` by ``noise`` [B, k], or of ``mode`` without it."""

    def score(self, outputs: Tensor, action: Tensor) -> Score:
        """Of [N, outputs] and actions [N, ...]; the gradient flows through ``outputs``."""


class Categorical:
    """One or several independent choices; ``outputs`` are the logits of all alternatives, side by side.

    Args:
        nvec: alternatives of every choice, k of them.
        vector: actions are int64 [B, k]; else there is one choice, and they are int64 [B].
    """

    def __init__(self, nvec: Sequence[int], vector: bool) -> None:
        self._nvec = tuple(nvec)
        self._vector = vector
        ends = list(accumulate(self._nvec))
        self._places = [slice(end - n, end) for n, end in zip(self._nvec, ends, strict=True)]
        self.outputs = ends[-1]

    def sample(self, outputs: Floats, rng: np.random.Generator) -> Sample:
        return self.drawn(outputs, rng.random((len(self._nvec), len(outputs))).T)

    def drawn(self, outputs: Floats, noise: NDArray[np.float64]) -> Sample:
        """The alternatives in whose part of the cumulative probabilities uniform ``noise`` [B, k] falls."""
        count = len(outputs)
        chosen, log_prob = np.empty((count, len(self._nvec)), np.int64), np.zeros(count, np.float32)
        outputs = np.ascontiguousarray(outputs, np.float32)
        _native.draw_choices(outputs, self._nvec, np.ascontiguousarray(noise.T), chosen, log_prob)
        return Sample(chosen if self._vector else chosen[:, 0], log_prob)

    def mode(self, outputs: Floats) -> Array:
        actions = [outputs[:, place].argmax(axis=1) for place in self._places]
        return np.stack(actions, axis=1) if self._vector else actions[0]

    def chosen(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        chosen = []
        for number, place in enumerate(self._places):
            if noise is None:
                chosen.append(outputs[:, place].argmax(dim=1))
            else:  # in double: the sum of many small parts decides
                ends = torch.softmax(outputs[:, place].double(), dim=1).cumsum(dim=1)
                chosen.append((ends[:, :-1] <= noise[:, number : number + 1]).sum(dim=1))
        return torch.stack(chosen, dim=1) if self._vector else chosen[0]

    def log_probs(self, outputs: Tensor) -> Tensor:
        """log π [B, n] of every combination of choices, the last varying fastest."""
        found, *others = (torch.log_softmax(outputs[:, place], dim=1) for place in self._places)
        for other in others:
            found = (found.unsqueeze(2) + other.unsqueeze(1)).flatten(1)
        return found

    def score(self, outputs: Tensor, action: Tensor) -> Score:
        chosen = action.view(len(outputs), len(self._nvec))
        log_prob, entropy = [], []
        for number, place in enumerate(self._places):
            logits, taken = outputs[:, place], chosen[:, number]
            axis = int(_long(logits))
            logits = logits if axis else logits.t().contiguous()
            log_p = torch.log_softmax(logits, axis)
            log_prob.append(log_p.gather(axis, taken.unsqueeze(axis)).squeeze(axis))
            entropy.append(-(torch.softmax(logits, axis) * log_p).sum(dim=axis))
        if len(self._nvec) == 1:
            return Score(log_prob[0], entropy[0])
        return Score(torch.stack(log_prob).sum(dim=0), torch.stack(entropy).sum(dim=0))


class Gaussian:
    """Independent normal variables; ``outputs`` are μ of all and then log σ of all, held between −5 and 2.

    Nothing is squashed: the caller clips the numbers, and the density is that of what was drawn (as in CleanRL
    and Stable-Baselines3).

    Args:
        size: variables.
        least_std: σ is not below it.
    """

    def __init__(self, size: int, least_std: float = 0.0) -> None:
        self._size = size
        self._least, self._greatest = log_std_bounds(least_std)
        self.outputs = 2 * size

    def sample(self, outputs: Floats, rng: np.random.Generator) -> Sample:
        return self.drawn(outputs, rng.standard_normal((len(outputs), self._size), np.float32))

    def drawn(self, outputs: Floats, noise: Floats) -> Sample:
        """μ + σ·noise of standard normal ``noise`` [B, size], and its log-density."""
        mean = outputs[:, : self._size]
        log_std = outputs[:, self._size :].clip(self._least, self._greatest)
        log_prob = -(0.5 * noise * noise + log_std + np.float32(_HALF_LOG_2PI)).sum(axis=1)
        return Sample(mean + np.exp(log_std) * noise, cast("Floats", log_prob))

    def mode(self, outputs: Floats) -> Array:
        return outputs[:, : self._size]

    def chosen(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        mean = outputs[:, : self._size]
        return mean if noise is None else mean + self._log_std(outputs).exp() * noise

    def score(self, outputs: Tensor, action: Tensor) -> Score:
        mean = outputs[:, : self._size]
        log_std = self._log_std(outputs)
        distance = (action - mean) * torch.exp(-log_std)
        log_prob = -(0.5 * distance.square() + log_std + _HALF_LOG_2PI).sum(dim=1)
        return Score(log_prob, (log_std + (0.5 + _HALF_LOG_2PI)).sum(dim=1))

    def _log_std(self, outputs: Tensor) -> Tensor:
        return outputs[:, self._size :].clamp(self._least, self._greatest)


class Hybrid:
    """Independent choices and independent normal variables; ``outputs`` are logits, then μ, then log σ.

    The log-probability of all is the sum of both, and so is the entropy (Fan et al. 2019, Hybrid Actor-Critic
    Reinforcement Learning in Parameterized Action Space, arXiv 1903.01344: PPO with both heads). Actions are float32
    [B, k + size], choices first. Its noise is standard normal, [B, k + size]; a choice is drawn by where its number
    stands among all.

    Args:
        nvec: alternatives of every choice, k of them.
        size: variables.
        least_std: as for ``Gaussian``.
    """

    def __init__(self, nvec: Sequence[int], size: int, least_std: float = 0.0) -> None:
        self._choices, self._numbers = Categorical(nvec, vector=True), Gaussian(size, least_std)
        self._k, self._logits = len(nvec), self._choices.outputs
        self._size = size
        self.outputs = self._choices.outputs + self._numbers.outputs

    def sample(self, outputs: Floats, rng: np.random.Generator) -> Sample:
        return self.drawn(outputs, rng.standard_normal((len(outputs), self._k + self._size), np.float32))

    def drawn(self, outputs: Floats, noise: Floats) -> Sample:
        chosen = self._choices.drawn(outputs[:, : self._logits], uniform(noise[:, : self._k]))
        numbers = self._numbers.drawn(outputs[:, self._logits :], noise[:, self._k :])
        action = np.concatenate((chosen.action.astype(np.float32), numbers.action), axis=1)
        return Sample(action, chosen.log_prob + numbers.log_prob)

    def mode(self, outputs: Floats) -> Array:
        chosen = self._choices.mode(outputs[:, : self._logits])
        return np.concatenate((chosen.astype(np.float32), self._numbers.mode(outputs[:, self._logits :])), axis=1)

    def chosen(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        uniforms, normals = (None, None) if noise is None else (normal_share(noise[:, : self._k]), noise[:, self._k :])
        chosen = self._choices.chosen(outputs[:, : self._logits], uniforms)
        return torch.cat((chosen.float(), self._numbers.chosen(outputs[:, self._logits :], normals)), dim=1)

    def score(self, outputs: Tensor, action: Tensor) -> Score:
        choices = self._choices.score(outputs[:, : self._logits], action[:, : self._k].long())
        numbers = self._numbers.score(outputs[:, self._logits :], action[:, self._k :])
        return Score(choices.log_prob + numbers.log_prob, choices.entropy + numbers.entropy)


def uniform(normal: Floats) -> NDArray[np.float64]:
    """Where standard normal numbers stand among all: uniform in 0 … 1, 1 left out."""
    return cast("NDArray[np.float64]", normal_share(torch.from_numpy(np.ascontiguousarray(normal))).double().numpy())


def normal_share(normal: Tensor) -> Tensor:
    """As ``uniform``, of float32 tensors."""
    return (0.5 * (1.0 + torch.erf(normal * math.sqrt(0.5)))).clamp(max=1.0 - 2.0**-24)
