"""The mark of losses whose gradient is also written out, so that an agent need not ask autograd for it.

The mark is the function's own: one that overrides or replaces it has none, and is trained by autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def accelerated(function: F) -> F:
    """Mark a loss. A test must hold its written-out gradient equal to autograd's."""
    function.accelerated = True  # type: ignore[attr-defined]
    return function


def is_accelerated(loss: Callable[..., Any]) -> bool:
    """Whether a loss, as the agent has it now, is marked."""
    return getattr(loss, "accelerated", False)
