"""A trained agent as one file that needs nothing of this package: ONNX, or a program of ``torch.export``.

Normalisation, recurrent state and the choice of actions are inside. The caller stacks frames where the agent sees
several, and gives the random numbers by which actions are drawn.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from apexrl.agents.acting_noise import LEVELS
from apexrl.agents.decision import Decides, Decision, Draws
from apexrl.agents.rng_state import pack, restore
from apexrl.errors import AgentError, ConfigError, SnapshotError
from apexrl.networks.encoders import in_float32
from apexrl.networks.recall import CRITIC
from apexrl.networks.recurrent_trunk import POLICY
from apexrl.run.folder import versions
from apexrl.spec import LENGTH, ActionSpec, Array, EnvSpec, Field

if TYPE_CHECKING:
    from apexrl.protocols import Agent

NEXT = "next_"
"""Before the name of a recurrent state: the output that is the input of the next step."""
TOLERANCE = 1e-5
"""Between the exported file's numbers and PyTorch's, of actions' and states' size."""
_ROWS = 3  # of the example that is traced, and checked


class Policy(nn.Module):
    """The policy of an agent: observation, state and noise as positional tensors, action and next state as a tuple.

    Args:
        agent: of ``decide``.
        states: recurrent state, name -> shape of one environment's.
        sampled: whether there is noise, by which actions are drawn; else they are greedy.
    """

    def __init__(
        self, agent: Decides | Draws, spec: EnvSpec, states: Mapping[str, tuple[int, ...]], sampled: bool
    ) -> None:
        super().__init__()
        self._decide: Callable[..., Decision] = agent.decide
        self._spec, self._states, self._sampled = spec, tuple(states), sampled
        networks: Mapping[str, Any] = getattr(agent, "networks", {})
        self.networks = nn.ModuleDict({name.replace(".", "_"): one.network for name, one in networks.items()})

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        noise = inputs[-1:] if self._sampled else ()
        names = (*self._spec.observation, *self._states)
        given = dict(zip(names, inputs[: len(inputs) - len(noise)], strict=True))
        starts = self._spec.starts
        observation = {name: given[name] for name in self._spec.observation}
        observation |= {name: given[name] - start for name, start in starts.items()}
        observation |= {name: observation[name].clamp(min=0) for name in starts if name in self._spec.padded}
        found = self._decide(observation, {name: given[name] for name in self._states}, *noise)
        action, spec = found.action, self._spec.action
        if any(spec.starts):
            starting = (*spec.starts, *[0] * (spec.shape[0] - len(spec.starts)))
            action = action + torch.tensor(starting, dtype=action.dtype)
        elif spec.start:
            action = action + spec.start
        actions = [
            action[:, columns].reshape(-1, *part.shape).to(getattr(torch, part.dtype))
            for part, columns in zip(spec.parts, spec.columns, strict=True)
        ] or [action]
        return (*actions, *(found.state[name] for name in self._states))


def export(
    agent: Agent,
    spec: EnvSpec,
    path: Path,
    about: Mapping[str, str],
    file_format: str = "onnx",
    actions: Literal["greedy", "sampled"] = "greedy",
) -> dict[str, Any]:
    """Write a trained agent to ``path``, and check that file's actions against PyTorch's.

    Shipped networks compute in float32 there, with ``precision`` bfloat16 too: few programs that run ONNX have
    convolutions of those.

    Inputs are the observation's fields, [B, (stack,) *shape] each, and recurrent states, [B, ...], which begin as
    zeros; outputs are ``action``, or ``action/<key>`` for each entry of a tuple or dict, and ``next_`` and the name of
    each state. Texts, sequences and graphs are padded with zeros; ``<name>/length`` is their length. Sampled actions
    have one more input: random numbers, float32 [B, k], ``uniform`` in 0 … 1 (1 left out), one for each choice,
    or ``normal``, one for each number of a box.

    Args:
        agent: on the CPU.
        path: of the new file; one that is there is replaced.
        about: written into it beside the shapes.
        file_format: ``onnx``, or ``pt2`` for ``torch.export.save``.
        actions: ``greedy``, or ``sampled``: drawn from the policy.

    Returns:
        What was written: inputs and outputs with shapes and dtypes.

    Raises:
        AgentError: an agent of your own has no ``decide``; or actions are to be drawn, and the agent has no policy
            that says their probabilities.
        ConfigError: packages that write ONNX are missing; or there is no such format.
        SnapshotError: the file would act otherwise than the agent, or cannot be written; nothing is written.
    """
    if not isinstance(agent, Decides):
        raise AgentError(
            f"{type(agent).__name__} cannot be exported: give it decide(observation, state) -> Decision, which acts "
            "greedily in PyTorch alone (apexrl.agents.decision)"
        )
    sampled = actions == "sampled"
    if sampled and not isinstance(agent, Draws):
        raise AgentError(
            f"{type(agent).__name__} has no policy to draw actions from: export it greedy, and where you want "
            "random actions put them in place of the file's"
        )
    states = state_shapes(agent)
    policy = Policy(agent, spec, states, sampled).eval()
    example = _example(spec, states)
    with in_float32(policy):
        wanted = _acted(agent, spec, example, states, sampled)
    names = tuple(example)
    outputs = (*action_names(spec.action), *(NEXT + name for name in states))
    shapes = {
        "inputs": {name: _shape(value) for name, value in example.items()},
        "outputs": {name: _shape(value) for name, value in wanted.items()},
    }
    meta = {"apexrl": versions()["apexrl"] or "", "stack": str(spec.stack), "shapes": json.dumps(shapes)}
    meta |= {"actions": actions, **about}
    batch = torch.export.Dim("batch", min=1)
    dynamic = (tuple({0: batch} for _ in names),)
    tensors = tuple(torch.from_numpy(example[name]) for name in names)
    part = path.with_name(f"{path.stem}.part{path.suffix}")  # PyTorch warns of a file that does not end in .pt2
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings(), torch.no_grad(), in_float32(policy):
            warnings.simplefilter("ignore")  # of PyTorch's own exporter
            if file_format == "onnx":
                _write_onnx(policy, tensors, dynamic, names, outputs, meta, part)
                found = _run_onnx(part, example)
            elif file_format == "pt2":
                program = torch.export.export(policy, tensors, dynamic_shapes=dynamic)
                torch.export.save(program, part, extra_files={"about.json": json.dumps(meta)})
                found = dict(zip(outputs, torch.export.load(part).module()(*tensors), strict=True))
            else:
                raise ConfigError(f"there is no format {file_format!r}: onnx or pt2")
        _check(found, wanted, path)
        part.replace(path)
    except OSError as error:
        raise SnapshotError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return shapes


def state_shapes(agent: Agent) -> dict[str, tuple[int, ...]]:
    """Recurrent states by which an agent acts greedily, name -> shape of one environment's."""
    recorded: Mapping[str, Field] = getattr(agent, "step_spec", {})
    states = {name: field.shape for name, field in recorded.items() if field.per_item and name not in (LEVELS, POLICY)}
    return {name: shape for name, shape in states.items() if not name.startswith(CRITIC)}


def _example(spec: EnvSpec, states: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Observations of ``_ROWS`` environments, and states."""
    rng = np.random.default_rng(0)
    stack = (spec.stack,) if spec.stack > 1 else ()
    example: dict[str, Array] = {}
    for name, field in spec.observation.items():
        shape, dtype = (_ROWS, *stack, *field.shape), np.dtype(field.dtype)
        if name.removesuffix(LENGTH) in spec.padded and name not in spec.padded:
            example[name] = rng.integers(spec.observation[name.removesuffix(LENGTH)].shape[0] + 1, size=shape)
            example[name] = example[name].astype(dtype)
        elif name in spec.padded and name.endswith("/edge_links"):
            example[name] = rng.integers(field.shape[0], size=shape).astype(dtype)
        elif name in spec.categories:
            example[name] = rng.integers(spec.categories[name], size=shape).astype(dtype) + spec.starts.get(name, 0)
        elif dtype.kind in "ui":
            example[name] = rng.integers(256 if dtype == np.uint8 else 8, size=shape).astype(dtype)
        elif dtype.kind == "b":
            example[name] = rng.random(shape) < 0.5
        else:
            example[name] = rng.standard_normal(shape).astype(dtype)
    return example | {name: rng.standard_normal((_ROWS, *shape), np.float32) for name, shape in states.items()}


def _acted(
    agent: Agent, spec: EnvSpec, example: dict[str, Array], states: Mapping[str, Any], sampled: bool
) -> dict[str, Array]:
    """What the agent itself does. The numbers by which it draws are put into ``example``."""
    seen = {name: example[name] for name in spec.observation}
    seen |= {name: example[name] - start for name, start in spec.starts.items()}
    state = {name: example[name] for name in states} or None
    if sampled:
        draws = cast("Draws", agent)
        noise, rng = draws.policy_noise, cast("np.random.Generator", draws.generators["rng"])
        before = pack(rng)
        example[noise.kind] = noise.numbers(_ROWS, None, rng)[0].astype(np.float32)
        restore(rng, before)
    actions, _, after = agent.act(seen, state, np.zeros(_ROWS, np.float32), greedy=not sampled)
    if sampled:
        restore(rng, before)
    counted = spec.action.as_counted(np.asarray(actions))
    found = {"action": counted} if not spec.action.parts else {}
    for name, part, columns in zip(action_names(spec.action), spec.action.parts, spec.action.columns, strict=False):
        found[name] = counted[:, columns].reshape(-1, *part.shape).astype(part.dtype)
    return found | {NEXT + name: (after or {})[name] for name in states}


def action_names(action: ActionSpec) -> tuple[str, ...]:
    """``action``, or one name for each entry of a tuple or dict."""
    return tuple("/".join(("action", *map(str, part.path))) for part in action.parts) or ("action",)


def _write_onnx(
    policy: Policy,
    tensors: tuple[Tensor, ...],
    dynamic: Any,
    names: Any,
    outputs: Any,
    meta: Mapping[str, str],
    to: Path,
) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"--onnx needs {error.name}: pip install 'apexrl[onnx]'") from None
    operators = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = operators.level
    operators.setLevel(logging.ERROR)  # it warns of a missing torchvision, which nothing here needs
    try:
        program: Any = torch.onnx.export(
            torch.export.export(policy, tensors, dynamic_shapes=dynamic),
            tensors,
            dynamo=True,
            input_names=list(names),
            output_names=list(outputs),
            verbose=False,
        )
    finally:
        operators.setLevel(level)
    model = program.model_proto
    onnx.helper.set_model_props(model, dict(meta))
    onnx.checker.check_model(model)
    onnx.save(model, to)


def _run_onnx(path: Path, example: Mapping[str, Array]) -> dict[str, Any]:
    """What ONNX's own interpreter makes of it."""
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):
        """Theirs takes from 64 places at most, as NumPy's ``choose`` does; edges of graphs take from more nodes."""

        def _run(self, data: Array, indices: Any, axis: int = 0) -> tuple[Array]:
            return (np.take_along_axis(data, indices, axis),)

    session = ReferenceEvaluator(str(path), new_ops=[GatherElements])
    return dict(zip(session.output_names, session.run(None, dict(example)), strict=True))


def _check(found: Mapping[str, Any], wanted: Mapping[str, Array], path: Path) -> None:
    for name, value in wanted.items():
        has = np.asarray(found[name])
        if has.shape != value.shape or not np.allclose(has, value, rtol=TOLERANCE, atol=TOLERANCE):
            raise SnapshotError(
                f"{path} is not written: its {name} is {has.tolist()}, and the agent's {value.tolist()}"
            )


def _shape(value: Array) -> list[Any]:
    return [str(value.dtype), ["batch", *value.shape[1:]]]
