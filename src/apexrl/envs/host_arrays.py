"""Simulators that bring torch tensors, as NumPy arrays and as what they brought."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym


def brings_tensors(env: gym.vector.VectorEnv[Any, Any, Any]) -> bool:
    """Whether an environment's observations, rewards and ends are torch tensors: it has the attribute ``device``."""
    return getattr(env.unwrapped, "device", None) is not None


class HostArrays(gym.vector.VectorWrapper):
    """Takes actions as NumPy arrays and gives them as tensors; answers with arrays in the host's memory.

    Attributes:
        device: the simulator's, as torch names it.
        seen: the newest observations as the simulator brought them; it may write into them at the next step.
        copies: whether answers are copies of what it brought: they are not where it lies in the host's memory.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.device = str(env.unwrapped.device)  # type: ignore[attr-defined]
        self.copies = not self.device.startswith("cpu")
        self.seen: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seen, _ = self.env.reset(seed=seed, options=options)
        return _on_host(self.seen), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        import torch

        self.seen, *results, infos = self.env.step(torch.as_tensor(actions, device=self.device))
        final = {"final_obs": _on_host(infos["final_obs"])} if infos.get("final_obs") is not None else {}
        reward, terminated, truncated = (_on_host(result) for result in results)
        return _on_host(self.seen), reward, terminated, truncated, final


def _on_host(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _on_host(inner) for name, inner in value.items()}
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
