"""The settings of Q-learning: what is learned of the return, how it explores by noise, and when it is reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from apexrl.config.settings import Needs, Range


@dataclass(frozen=True)
class ValueSettings:
    """Q-learning: DQN and R2D2."""

    double: bool = True
    """The online network chooses the next action, the target network values it (van Hasselt et al. 2016)."""
    dueling: bool = True
    """Value and advantage heads (Wang et al. 2016)."""
    target_acts: bool = False
    """Actors and evaluator choose by the target network, whose choices change less from update to update (BBF)."""


@dataclass(frozen=True)
class ResetSettings:
    """Resets of Q-networks (BBF)."""

    reset_period_updates: Annotated[int, Range(0)] = 0
    """Learner updates between resets of network, target and optimizer; 0: never (BBF: 40 000).
    The encoder keeps shrink_factor of itself, all other layers begin anew."""
    reset_until_updates: Annotated[int, Range(0), Needs("reset_period_updates", unless=(0,))] = 0
    """Learner updates after which nothing is reset, so that a run ends with a trained network; 0: no end."""
    shrink_factor: Annotated[float, Range(0, 1), Needs("reset_period_updates", unless=(0,))] = 0.5
    """Share of the encoder's weights that a reset keeps; the rest are fresh ones (BBF: 0.5, SR-SPR: 0.8)."""


@dataclass(frozen=True)
class HorizonSettings:
    """Returns whose horizon changes."""

    anneal_horizon: bool = False
    """At the beginning, and after each reset, n goes from n_step_start to n_step (BBF).
    γ goes from gamma_start to gamma meanwhile; with unrolls it alone does."""
    n_step_start: Annotated[int, Range(1, 1_000), Needs("anneal_horizon")] = 10
    """n at first (BBF: 10, to an n_step of 3). The same as n_step: γ alone changes."""
    gamma_start: Annotated[float, Range(0, below=1), Needs("anneal_horizon")] = 0.97
    """γ at first (BBF: 0.97, to a gamma of 0.997)."""
    horizon_updates: Annotated[int, Range(1), Needs("anneal_horizon")] = 10_000
    """Learner updates until n and γ are what they then stay (BBF: 10 000)."""


@dataclass(frozen=True)
class NoisySettings:
    """Exploration by noisy layers."""

    noisy: bool = False
    """Noisy layers explore instead of ε (Fortunato et al. 2018)."""
    noisy_sigma: Annotated[float, Range(above=0), Needs("noisy")] = 0.5
    """σ0, initial noise of noisy layers (Fortunato et al.: 0.5)."""
    noise_period: Annotated[int, Range(1, 1_000_000), Needs("noisy")] = 1
    """Steps of one environment for which the noise it acts by stays the same (Fortunato et al.: 1; in A3C an unroll).
    Longer periods explore farther."""


@dataclass(frozen=True)
class MunchausenSettings:
    """Munchausen's targets."""

    munchausen: bool = False
    """Soft targets with a scaled log-policy added to the reward (Vieillard et al. 2020)."""
    munchausen_alpha: Annotated[float, Range(0, 1), Needs("munchausen")] = 0.9
    """Weight of the log-policy (Vieillard et al.: 0.9)."""
    munchausen_temperature: Annotated[float, Range(above=0), Needs("munchausen")] = 0.03
    """τ of the softmax policy (Vieillard et al.: 0.03)."""
    munchausen_clip: Annotated[float, Range(at_most=0), Needs("munchausen")] = -1.0
    """l0, the least that τ·log π may be (Vieillard et al.: −1)."""


@dataclass(frozen=True)
class DistributionSettings:
    """Which distribution of the return is learned."""

    distribution: Literal["expected", "categorical", "quantile", "implicit_quantile"] = "expected"
    """What the network learns of the return: its mean, C51's categories, QR-DQN's or IQN's quantiles."""
    quantiles: Annotated[int, Range(2, 1 << 20), Needs("distribution", ("quantile",))] = 200
    """Quantiles that QR-DQN learns (Dabney et al. 2018a: 200), or each critic of TQC (Kuznetsov et al. 2020: 25)."""
    quantile_samples: Annotated[int, Range(2), Needs("distribution", ("implicit_quantile",))] = 64
    """Fractions τ that IQN draws for each of its two states (Dabney et al. 2018b: 64); it acts on half of them."""
    cosines: Annotated[int, Range(1), Needs("distribution", ("implicit_quantile",))] = 64
    """Cosines in IQN's embedding of τ (Dabney et al. 2018b: 64)."""


@dataclass(frozen=True)
class CategoricalSettings:
    """Categories of the return: C51 and D4PG."""

    atoms: Annotated[int, Range(2, 1 << 20), Needs("distribution", ("categorical",))] = 51
    """Categories of the categorical distribution (C51: 51)."""
    v_min: Annotated[float, Range(), Needs("distribution", ("categorical",))] = -10.0
    """Least return that the categories cover (C51: −10, for clipped rewards)."""
    v_max: Annotated[float, Range(), Needs("distribution", ("categorical",))] = 10.0
    """Greatest return that they cover (C51: 10)."""
