"""What agents learn from: pure functions on tensors that check shapes and dtypes first. Each cites its source."""

from __future__ import annotations

from apexrl.losses.values import n_step_return, q_target, td_error, td_gradient, td_loss

__all__ = ["n_step_return", "q_target", "td_error", "td_gradient", "td_loss"]
