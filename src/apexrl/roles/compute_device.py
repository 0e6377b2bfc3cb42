"""Where a learner or an inference server computes: ``--device``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.spec import EnvSpec

LEAST_MULTIPLICATIONS = 2**22
"""Of a forward pass of a gradient step, from which a GPU is likely worth its launches (ours, an estimate: an H200 makes
1081 updates a second of SAC by graphs, 2^24 of them in the policy; AMD's cores 253 of a quarter of that, beside other
work)."""
WITHOUT_GRAPHS = 8
"""So many times as much where the host launches every kernel by itself (ours: SAC takes six times as long then)."""


def agent_on_device(config: Config, spec: EnvSpec, place: int, seed: int) -> tuple[Any, str]:
    """The run's agent on the learner's ``--device``, and which that is; from here on this process computes with as many
    threads as the learner may have.

    Args:
        place: as for ``device_of``.

    Raises:
        ConfigError: as ``torch_device``.
    """
    import torch

    from apexrl.agents import agent_class

    torch.set_num_threads(max(1, config.learner.learner_threads))
    device = device_of(config, spec, place)
    return agent_class(config.agent.agent)(spec, config.agent, device, seed), device


def device_of(config: Config, spec: EnvSpec, place: int = 0) -> str:
    """The learner's ``--device``, where ``auto`` is a visible GPU if the networks are large enough for one.

    Args:
        place: as for ``torch_device``.

    Raises:
        ConfigError: as ``torch_device``.
    """
    name = config.learner.device
    return "cpu" if name == "auto" and not gpu_pays(config, spec) else torch_device(name, place)


def choice_told(config: Config, device: str) -> str:
    """What ``auto`` has chosen on a machine with a GPU, in words; else nothing."""
    import torch

    if config.learner.device != "auto" or not torch.cuda.is_available():
        return ""
    if device == "cpu":
        return "learns on the CPU: for networks this small it is likely faster than the GPU, which --device cuda takes"
    return f"learns on {device}, {torch.cuda.get_device_name(device)}"


def gpu_pays(config: Config, spec: EnvSpec) -> bool:
    """Whether a GPU is likely to learn faster than one core: images, sequences, encoders and agents of one's own, or
    hidden layers of ``LEAST_MULTIPLICATIONS`` a gradient step."""
    from apexrl.agents import AGENTS, agent_class
    from apexrl.agents.cuda_graphs import is_recordable
    from apexrl.networks.encoders import sees_image

    agent = config.agent
    if agent.network or agent.memory != "none" or agent.agent not in AGENTS or AGENTS[agent.agent].item == "sequence":
        return True
    if any(sees_image(spec, name) or spec.varies(name) for name in spec.observation):
        return True
    rows = config.learner.batch_size
    if AGENTS[agent.agent].item == "unroll":
        rows = rows * agent.unroll_length // agent.minibatches
    if agent.distribution == "implicit_quantile":
        rows *= agent.quantile_samples
    critics = agent.critic_hidden or agent.hidden
    most = max(_multiplications(agent.hidden), agent.critics * _multiplications(critics))
    graphs = is_recordable(agent_class(agent.agent))
    return rows * most >= LEAST_MULTIPLICATIONS * (1 if graphs else WITHOUT_GRAPHS)


def _multiplications(hidden: Sequence[int]) -> int:
    """Of one row, with as many inputs as units in the first layer."""
    return sum(a * b for a, b in pairwise((*hidden[:1], *hidden)))


def torch_device(name: str, place: int = 0) -> str:
    """``auto`` resolved; anything else checked.

    Args:
        place: of this process among those of the run on this machine that compute there: with ``auto`` they take the
            visible GPUs in turn.

    Raises:
        ConfigError: PyTorch does not know the device, or has no CUDA.
    """
    import torch

    if name == "auto":
        if not torch.cuda.is_available():
            return "cpu"
        own = place % torch.cuda.device_count()
        torch.cuda.set_device(own)  # or streams and pinned memory would take up the first one besides
        return f"cuda:{own}"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name!r} is no device: use auto, cpu, cuda or cuda:N") from error
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        found = f"{count} CUDA devices; use cuda:0 … cuda:{count - 1}" if count else "no CUDA device; use --device cpu"
        raise ConfigError(f"--device {name!r}: this PyTorch finds {found}")
    return name
