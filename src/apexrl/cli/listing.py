"""What ``apexrl list`` shows. Neither PyTorch nor Gymnasium is imported, unless your own agent or topology does."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from apexrl.agents import AGENTS, AgentInfo, agent_class, unread
from apexrl.agents.setting_relevance import SOME, idle
from apexrl.config import Config
from apexrl.config.convert import OWN, flat, known_settings
from apexrl.config.outside import installed
from apexrl.config.settings import Setting, as_flag, did_you_mean, flag, settings_of, spell_type
from apexrl.errors import ConfigError
from apexrl.presets import PRESETS, Preset
from apexrl.presets.unseen import Recipe, assumed_start, default_topology
from apexrl.run.folder import env_name
from apexrl.topologies import TOPOLOGIES, info, placements, runs
from apexrl.topologies.validation import readers

if TYPE_CHECKING:
    from rich.console import Console

SUBJECTS = ("presets", "agents", "topologies")
_SUBJECT_SETTINGS = {"preset", "agent", "topology"}  # their names are meant for the subjects
SETS = "Settings that differ from the defaults. All of them: apexrl train PRESET --agent NAME --help."

_AFTER = "ours, after rl-zoo, Stable-Baselines3 and CleanRL"  # the sources of agents.default_settings


class Entry(NamedTuple):
    """One name, what it is, what it sets, and what else there is to say of it, a line each."""

    name: str
    summary: str
    notes: Sequence[str] = ()
    sets: str = ""


class Section(NamedTuple):
    title: str
    entries: Sequence[Entry]
    notes: Sequence[str] = ()  # of all of them


def show(words: Sequence[str], console: Console) -> None:
    """Print everything in short, or one subject, agent or preset in full.

    Raises:
        ConfigError: no such word.
    """
    sections = _sections(words)
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    for place, section in enumerate(sections):
        if place:
            console.print()
        console.print(Text(section.title, style="bold"))
        for note in section.notes:
            console.print(Padding(Text(note, style="dim"), (0, 0, 0, 2)))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(style="bold cyan", no_wrap=True)
        table.add_column()
        for entry in section.entries:
            sets = [Text.assemble("sets ", (entry.sets, "green"))] if entry.sets else []
            lines = [Text(entry.summary), *sets, *(Text(note, style="dim") for note in entry.notes)]
            table.add_row(entry.name, Text("\n").join(lines))
        console.print(Padding(table, (0, 0, 0, 2)))
    if list(words) == ["topologies"]:
        _show_placements(console)
    if not words:
        console.print("\nMore of each: apexrl list presets, agents or topologies.", style="dim", highlight=False)


def _show_placements(console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    lines, notes = placements.table()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="none")
    table.add_column(style="bold cyan", no_wrap=True)
    for placement in placements.PLACEMENTS.values():
        table.add_column(placement, no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console.print(Text("\nWhere they run", style="bold"))
    below = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False, style="dim")
    for number, note in enumerate(notes, 1):
        below.add_row(f"({number})", Text(note))
    for one in (table, below):
        console.print(Padding(one, (0, 0, 0, 2)))


def _sections(words: Sequence[str]) -> list[Section]:
    if len(words) > 1:
        raise ConfigError(
            f"apexrl list takes one word at most, of {', '.join(SUBJECTS)} or a name; got {' '.join(words)}"
        )
    full = bool(words)
    if full and (found := _of_one(words[0])):
        return found
    known = {"presets": lambda full: [_presets(full)], "agents": _agents, "topologies": _topologies}
    if full and words[0] not in known:
        settings = known_settings().keys() - _SUBJECT_SETTINGS
        raise ConfigError(
            f"apexrl list knows {', '.join(SUBJECTS)}, their names, settings and MODULE:NAME, not {words[0]!r}"
            f"{did_you_mean(words[0], (*SUBJECTS, *PRESETS, *AGENTS, *TOPOLOGIES, *settings))}"
        )
    return [section for subject in words or SUBJECTS for section in known[subject](full)]


def _of_one(name: str) -> list[Section]:
    """Everything that has this name: it may be an agent's and a topology's."""
    if ":" in name or name in installed("agents"):
        return _from_outside(name)
    sections = [_agent(name)] if name in AGENTS else []
    sections += [_presets(True, (name,))] if name in PRESETS else []
    sections += _topologies(True, (name,)) if name in (*TOPOLOGIES, *installed("topologies")) else []
    setting = name.removeprefix("--").replace("-", "_")
    known = setting in known_settings().keys() - _SUBJECT_SETTINGS
    return sections + ([_setting(setting)] if known and not sections else [])


def _from_outside(name: str) -> list[Section]:
    """An agent or a topology from outside this package, imported, and the settings that it declares.

    Raises:
        ConfigError: there is neither.
    """
    module, _, attribute = (installed("agents")[name].value if ":" not in name else name).partition(":")
    if not all(map(str.isidentifier, module.split("."))) or not inspect.isfunction(
        getattr(_imported(module), attribute, None)
    ):
        found = agent_class(name)
        about = [Section("Agents: --agent NAME", [Entry(name, (inspect.getdoc(found) or "").partition("\n")[0])])]
        declared = getattr(found, "Settings", None)
    else:
        about, declared = _topologies(True, (name,)), info(name).settings
    own = [_described(setting) for setting in settings_of(declared).values()] if declared else []
    return [*about, *([Section("Settings of its own", own)] if own else [])]


def _imported(module: str) -> Any:
    """The module, or None where there is none: ``agent_class`` says what is wrong."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return None


def _agent(name: str) -> Section:
    """One agent, its recipes, and the settings that not every agent reads."""
    section = _of_needs(AGENTS[name].needs, {name: AGENTS[name]}, True)
    reads = [flag(setting) for setting in known_settings() if setting in SOME and setting not in unread(name)]
    (entry,) = section.entries
    notes = [
        *entry.notes,
        f"without a preset, for vectors ({_AFTER}): {_recipe(name, 'default')}",
        f"with --recipe paper ({AGENTS[name].citation}): {_recipe(name, 'paper')}",
        f"reads {' '.join(reads)}",
    ]
    return section._replace(entries=[entry._replace(notes=notes)])


def _recipe(name: str, recipe: Recipe) -> str:
    """The settings of an agent without a preset, but for those that have their defaults or mean nothing to it."""
    config = assumed_start(name, default_topology(name), recipe)
    values, defaults = flat(config), flat(Config())
    never = unread(name) | set(idle(config)) | {"agent", "topology", "recipe"}
    return " ".join(as_flag(key, value) for key, value in values.items() if key not in never and value != defaults[key])


def _setting(name: str) -> Section:
    """What a setting may be, and who reads it."""
    (agents, topologies), entry = readers(name), _described(known_settings()[name][1])
    notes = [*entry.notes]
    notes += [f"read by agents {', '.join(agents)}"] if len(agents) < len(AGENTS) else []
    notes += [f"read by topologies {', '.join(topologies)}"] if len(topologies) < len(TOPOLOGIES) else []
    return Section("Settings", [entry._replace(notes=notes)])


def _described(setting: Setting) -> Entry:
    """A setting: its description, type, range and default, and what it needs."""
    limits = "".join(f"; {rule}" for rule in setting.rules)
    default = "none: it must be given" if setting.default is dataclasses.MISSING else repr(setting.default)
    notes = [f"{spell_type(setting.hint)}{limits}; default: {default}"]
    notes += [f"has an effect only with {setting.needs}"] if setting.needs else []
    return Entry(setting.flag, setting.description, notes)


def _presets(full: bool, names: Sequence[str] = tuple(PRESETS)) -> Section:
    entries = [Entry(name, PRESETS[name].summary, _of_preset(PRESETS[name], full)) for name in names]
    return Section("Presets: apexrl train NAME", entries)


def _of_preset(preset: Preset, full: bool) -> list[str]:
    notes = []
    if full:
        others = [name for name in preset.agents if name != preset.config.agent.agent]
        also = f", or {', '.join(others)}" if others else ""
        notes.append(f"{env_name(preset.config)}; --agent {preset.config.agent.agent}{also}")
    if preset.extra and (full or preset.missing):
        notes.append(f"needs apexrl[{preset.extra}] ({'not installed' if preset.missing else 'installed'})")
    return notes


def _agents(full: bool) -> list[Section]:
    groups: dict[str, dict[str, AgentInfo]] = {}
    for name, agent in AGENTS.items():
        groups.setdefault(agent.needs, {})[name] = agent
    outside = [Entry(name, point.value) for name, point in installed("agents").items()]
    sections = [_of_needs(needs, group, full) for needs, group in groups.items()]
    return [*sections, *([Section("Agents of installed packages: --agent NAME", outside)] if outside else [])]


def _of_needs(needs: str, group: Mapping[str, AgentInfo], full: bool) -> Section:
    """The agents of one kind of actions, and what their names set other than the defaults are."""
    title = f"Agents for {needs}: --agent NAME"
    if not full:
        return Section(title, [Entry(name, info.description) for name, info in group.items()])
    defaults = flat(Config())
    entries = []
    for name, agent in group.items():
        own = [as_flag(key, value) for key, value in agent.settings.items() if value != defaults[key]]
        entries.append(Entry(name, agent.description, [agent.citation], " ".join(own)))
    return Section(title, entries, [SETS])


def _topologies(full: bool, names: Sequence[str] = ()) -> list[Section]:
    names = names or [*TOPOLOGIES, *installed("topologies")]
    entries = [Entry(name, info(name).summary, _of_topology(name) if full else []) for name in names]
    return [Section("Topologies: --topology NAME", entries)]


def _of_topology(name: str) -> list[str]:
    """The agents that it runs, its own flags, and its source."""
    about = info(name)
    able = [agent for agent in AGENTS if runs(name, agent)]
    defaults = flat(Config())
    otherwise = [agent for agent in able if not about.fixed.items() <= {**defaults, **AGENTS[agent].settings}.items()]
    kinds = " or ".join(f"{kind}s" for kind in about.kinds)
    notes = [f"runs agents that learn from {kinds}: {', '.join(agent for agent in able if agent not in otherwise)}"]
    if otherwise:
        notes.append(f"and with {' '.join(as_flag(*one) for one in about.fixed.items())}: {', '.join(otherwise)}")
    notes.append(f"its default agent is {about.agent}")
    if own := [*about.reads, *([about.settings] if about.settings else [])]:
        notes.append("has " + " ".join(flag(name) for kind in own for name in settings_of(kind) if name not in OWN))
    return [*notes, about.source]
