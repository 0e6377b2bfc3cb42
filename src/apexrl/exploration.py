"""How much each environment explores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from apexrl.errors import ConfigError


def epsilon_ladder(n: int, epsilon: float = 0.4, alpha: float = 7.0) -> NDArray[np.float32]:
    """Constant ε of each of ``n`` environments: ε_i = ε^(1 + α·i/(n−1)), float32 [n], falling.

    Horgan et al. 2018, section 4.1, where i counts actors. We count environments, because two actors alone would
    get ε = 0.4 and 0.0007. With ``n`` = 1 the formula divides by zero; the one environment gets ε itself.

    Args:
        n: environments of the whole run; actor ``a`` with M of them holds ``ladder[a * M : (a + 1) * M]``.
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
