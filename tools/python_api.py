"""The entries of docs/reference/api.md, from the signatures and docstrings of what Python programs call."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any


def code(text: object) -> str:
    return f"`{text}`"


API = (
    ("apexrl", "Train, resume, load and evaluate."),
    ("apexrl.replay", "The replay. [What the replay promises](replay.md) says what each call means."),
    ("apexrl.client", "Programs with their own loop."),
    ("apexrl.run.callbacks", "Code of your own that watches and steers a run."),
    ("apexrl.compare", "Runs of several topologies or agents on equal terms."),
    ("apexrl.config.placement", "Where a run's parts live."),
    (
        "apexrl.topologies",
        "What a topology of your own is made of. [Add a topology](../how-to/add-a-topology.md) shows how.",
    ),
    ("apexrl.config.settings", "How an agent or a topology declares settings of its own."),
    ("apexrl.protocols", "The interfaces that an agent, a role and a link meet."),
    ("apexrl.spec", "Plain data that describes environments."),
)


SELECTED = {
    "apexrl.run.callbacks": ["Callback", "OpenRun", "EndedEpisodes", "EvaluationReport", "CheckpointReport"],
    "apexrl.topologies": ["Topology", "declare", "Program"],
    "apexrl.config.settings": ["Range", "Needs"],
}
"""Of a module that is not all for other programs: what is."""


def entries() -> Iterator[str]:
    """The page, part by part."""
    for name, says in API:
        module = importlib.import_module(name)
        yield from (f"## {name}", says)
        for member in public(module):
            yield from entry(member, getattr(module, member))


def public(module: Any) -> list[str]:
    if module.__name__ in SELECTED:
        return SELECTED[module.__name__]
    said = getattr(module, "__all__", None)
    if said is None:
        said = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in said if not name.startswith("_")]


def entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}"
    if isinstance(value, type):
        called = "" if dataclasses.is_dataclass(value) and len(dataclasses.fields(value)) > 12 else signature(value)
        yield f"```\nclass {name}{called}\n```"
        yield from text_of(value)
        for method, function in vars(value).items():
            shown = function.__func__ if isinstance(function, (staticmethod, classmethod)) else function
            if method.startswith("_") or not isinstance(shown, (FunctionType, property)) or not shown.__doc__:
                continue
            yield f"`{name}.{method}{'' if isinstance(shown, property) else signature(shown)}`"
            yield from text_of(shown)
    elif callable(value):
        yield f"```\n{name}{signature(value)}\n```"
        yield from text_of(value)
    else:
        yield code(re.sub(r"\s+", " ", str(value))[:200])


def signature(value: Callable[..., Any]) -> str:
    try:
        spelled = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    spelled = re.sub(r"ForwardRef\((['\"])(.*?)\1\)", r"\2", spelled).replace("mappingproxy({})", "{}")
    return (
        re.sub(r"<(?:[^<>]|<[^<>]*>)* at 0x\w+>|<factory>", "…", spelled.replace("'", ""))
        .replace("self, ", "")
        .replace("(self)", "()")
    )


def text_of(value: Any) -> Iterator[str]:
    """A docstring as Markdown: its sections become lists."""
    text = inspect.getdoc(value) or ""
    if dataclasses.is_dataclass(value) and text.startswith(f"{getattr(value, '__name__', '')}("):
        return
    text = text.replace("``", "`")
    sections = re.split(r"(?m)^(Args|Returns|Raises|Attributes):\n", text)
    if sections[0].strip():
        yield sections[0].strip()
    for title, body in zip(sections[1::2], sections[2::2], strict=True):
        body = inspect.cleandoc("\n" + body)
        items = re.split(r"(?m)^(?=\S)", body)
        lines = [re.sub(r"\s+", " ", item).strip() for item in items if item.strip()]
        lines = ["- " + re.sub(r"^([*\w, ]+): ", r"`\1`: ", line) for line in lines]
        yield f"*{title}:*\n\n" + "\n".join(lines)
