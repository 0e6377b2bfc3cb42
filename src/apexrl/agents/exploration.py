"""How much each environment explores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apexrl.config import ActorConfig
from apexrl.errors import ConfigError
from apexrl.spec import ActionSpec


def epsilon_ladder(n: int, epsilon: float = 0.4, alpha: float = 7.0) -> NDArray[np.float32]:
    """Constant ε of each of ``n`` environments: ε_i = ε^(1 + α·i/(n−1)), float32 [n], falling.

    Horgan et al. 2018, section 4.1, where i counts actors. We count environments, because two actors alone would
    get ε = 0.4 and 0.0007. With ``n`` = 1 the formula divides by zero; the one environment gets ε itself.

    Args:
        n: environments of the whole run; ``slot_epsilons`` says which actor holds which rungs.
        epsilon: the largest ε, a probability.
        alpha: how far the ladder falls; 0 gives every environment ε.

    Raises:
        ConfigError: a value is out of range.
    """
    if n < 1:
        raise ConfigError(f"the ε ladder is over {n} environments; there must be at least 1")
    if not 0.0 <= epsilon <= 1.0:
        raise ConfigError(f"epsilon is {epsilon}; it is a probability and must be between 0 and 1")
    if not (alpha >= 0.0 and np.isfinite(alpha)):
        raise ConfigError(f"epsilon_alpha is {alpha}; it must be 0 or more")
    exponents = 1.0 + alpha * np.arange(n) / max(n - 1, 1)
    return (epsilon**exponents).astype(np.float32)


def slot_epsilons(slot: int, slots: int, envs: int, epsilon: float = 0.4, alpha: float = 7.0) -> NDArray[np.float32]:
    """ε of the environments of one actor slot, float32 [envs]: rungs e·slots + order[slot] of the whole ladder.

    An actor's environments stand ``slots`` rungs apart, so that every actor spans the ladder; and the slots come in
    ``slot_order``, so that the lowest few of many, which are taken first, lie evenly over it. All slots together hold
    every rung once.

    Args:
        slot: 0 … slots-1.
        slots: actors that the run has room for.
        envs: environments of each.

    Raises:
        ConfigError: a value is out of range.
    """
    mine: NDArray[np.float32] = epsilon_ladder(slots * envs, epsilon, alpha)[slot_rungs(slot, slots, envs)]
    return mine


def slot_rungs(slot: int, slots: int, envs: int) -> NDArray[np.int64]:
    """Which of 0 … slots·envs − 1 the environments of one actor slot hold, int64 [envs].

    Raises:
        ConfigError: there is no such slot.
    """
    if not 0 <= slot < slots:
        raise ConfigError(
            f"actor {slot} has no rung of the ε ladder, which has {slots}: raise --actors or --actor-slots, or let the "
            "topology start no more actors than those (count=config.actor.actors)"
        )
    rungs: NDArray[np.int64] = np.arange(envs) * slots + slot_order(slots)[slot]
    return rungs


def slot_exploration(action: ActionSpec, config: ActorConfig, slot: int, slots: int, envs: int) -> NDArray[np.float32]:
    """How much the environments of one actor slot explore, float32 [envs]: ε of discrete actions, σ of a box.

    σ is the standard deviation of Gaussian noise, in half widths of the action's range: ``sigma`` for every
    environment (TD3; Ape-X DPG, Horgan et al. 2018, appendix D), or with ``sigma_alpha`` > 0 a ladder like that of ε.
    With ``sigma_least`` environments lie evenly from ``sigma`` down to it (FastTD3, Seo et al. 2025, where each draws
    its σ from that range in every episode).

    Raises:
        ConfigError: a value is out of range.
    """
    if not action.box:
        return slot_epsilons(slot, slots, envs, config.epsilon, config.epsilon_alpha)
    if not 0.0 <= config.sigma <= 1.0:
        raise ConfigError(f"sigma is {config.sigma}; in half widths of the action's range it must be between 0 and 1")
    if config.sigma_alpha or config.sigma_least is None:
        return slot_epsilons(slot, slots, envs, config.sigma, config.sigma_alpha)
    if not config.sigma_least <= config.sigma:
        raise ConfigError(f"--sigma-least {config.sigma_least:g} must not be more than --sigma {config.sigma:g}")
    share = slot_rungs(slot, slots, envs) / max(slots * envs - 1, 1)  # 0 … 1 from the first environment to the last
    return (config.sigma + share * (config.sigma_least - config.sigma)).astype(np.float32)


def slot_order(slots: int) -> NDArray[np.int64]:
    """A permutation of 0 … slots-1 of which every beginning is spread evenly: 0, 1/2, 1/4, 3/4, … of the way.

    Numbers with their bits reversed (van der Corput's sequence in base 2); where ``slots`` is no power of two, those of
    the next one that are smaller than ``slots``.
    """
    bits = max(slots - 1, 0).bit_length()
    numbers = np.arange(1 << bits)
    reversed_bits = np.zeros_like(numbers)
    for bit in range(bits):
        reversed_bits |= ((numbers >> bit) & 1) << (bits - 1 - bit)
    return reversed_bits[reversed_bits < slots]
