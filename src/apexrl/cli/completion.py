"""Scripts by which shells complete the command line. They hold every word themselves: no Python runs at a key press."""

from __future__ import annotations

import shlex
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from apexrl.agents import AGENTS
from apexrl.cli.command_flags import FLAGS, Shell
from apexrl.cli.listing import SUBJECTS
from apexrl.config import Config
from apexrl.config.convert import OWN, known_settings
from apexrl.config.outside import installed
from apexrl.config.settings import flag, settings_of
from apexrl.presets import PRESETS
from apexrl.topologies import TOPOLOGIES


class Values(NamedTuple):
    """What may follow: one of ``words``, or a path; nothing of these is known where both are empty."""

    words: Sequence[str] = ()
    paths: typing.Literal["", "files", "folders"] = ""


class Flag(NamedTuple):
    """A flag of a command; ``values`` is None where nothing follows it."""

    name: str
    values: Values | None
    about: str = ""


class Offer(NamedTuple):
    """What a command takes: its first word, and its flags."""

    about: str
    first: Values
    flags: Sequence[Flag]


_RUN: Final = Values(paths="folders")
_METAVARS: Final = {"FILE": Values(paths="files"), "DIR": _RUN, "RUN": _RUN, "RUNS": _RUN, "[RUN]": _RUN,
                    "best|latest|FILE": Values(("best", "latest"), "files")}  # fmt: skip


def script(shell: Shell, commands: Mapping[str, Any]) -> str:
    """The completion script of a shell, for commands whose docstrings say what they do."""
    offers = {name: _offer(name, str(command.__doc__)) for name, command in commands.items()}
    return _fish(offers) if shell == "fish" else _bash(offers, zsh=shell == "zsh")


def _offer(command: str, about: str) -> Offer:
    kinds = [kind for name, kind in FLAGS.items() if name.partition(" ")[0] == command]
    flags = {one.name: one for kind in kinds for one in _flags(kind)}
    switches = [name.partition(" ")[2] for name in FLAGS if name.startswith(f"{command} --")]
    flags |= {name: Flag(name, None) for name in (*switches, "--help")}
    return Offer(about, _first_word(command, kinds), list(flags.values()))


def _first_word(command: str, kinds: Sequence[type[Any]]) -> Values:
    if command in ("train", "learner"):
        return Values(tuple(PRESETS), "files")
    if command == "compare":
        return Values(tuple(PRESETS))
    if command == "list":
        return Values((*SUBJECTS, *PRESETS, *_agents(), *_topologies(), *known_settings()))
    for kind in kinds:
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            if "Positional" in repr(typing.get_args(hint)[1:]):
                return _values("", hint)
    return Values()


def _flags(kind: type[Any]) -> Iterator[Flag]:
    """The flags that a dataclass declares, those of the settings among them."""
    groups = {name for name, (group, _) in known_settings().items() if group} | set(settings_of(Config)) | OWN
    hints = typing.get_type_hints(kind, include_extras=True)
    for name, setting in settings_of(kind).items():
        notes = typing.get_args(hints[name])[1:] if typing.get_origin(hints[name]) is typing.Annotated else ()
        if (name in groups and issubclass(kind, Config)) or "Positional" in repr(notes) or "Suppress" in repr(notes):
            continue
        named = next((note.name for note in notes if getattr(note, "name", None)), None)
        yield from _forms(named or name, hints[name], setting.description)
    if issubclass(kind, Config):
        for name, (_, setting) in known_settings().items():
            if name not in OWN and name != "preset":
                yield from _forms(name, setting.hint, setting.description)


def _forms(name: str, hint: Any, description: str) -> Iterator[Flag]:
    about = description.partition("\n")[0].partition(". ")[0].rstrip(".")
    if hint is bool:
        yield Flag(flag(name), None, about)
        yield Flag(f"--no-{flag(name)[2:]}", None, f"the opposite of {flag(name)}")
    else:
        yield Flag(flag(name), _values(name, hint), about)


def _values(name: str, hint: Any) -> Values:
    known = {"agent": _agents, "agents": _agents, "topology": _topologies, "topologies": _topologies}
    if name in known:
        return Values(known[name]())
    if name == "out":
        return _RUN
    parts = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
    metavar = next((note.metavar for note in parts[1:] if getattr(note, "metavar", None)), "")
    if metavar in _METAVARS:
        return _METAVARS[metavar]
    choices = [parts[0], *typing.get_args(parts[0])]
    literals = [
        one for choice in choices if typing.get_origin(choice) is typing.Literal for one in typing.get_args(choice)
    ]
    return Values(tuple(dict.fromkeys(str(one) for one in literals)))


def _agents() -> tuple[str, ...]:
    return (*AGENTS, *installed("agents"))


def _topologies() -> tuple[str, ...]:
    return (*TOPOLOGIES, *installed("topologies"))


_COMPGEN: Final = {"": "", "files": " -f", "folders": " -d"}
_AS_PATHS: Final = "compopt -o filenames 2>/dev/null; "  # a slash behind a folder; zsh has no such command


def _bash(offers: Mapping[str, Offer], zsh: bool) -> str:
    """For bash; zsh runs the same by its emulation of bash's completion."""

    def reply(values: Values) -> str:
        words = shlex.quote(" ".join(values.words))
        how = _AS_PATHS if values.paths else ""
        return f'{how}COMPREPLY=($(compgen{_COMPGEN[values.paths]} -W {words} -- "$word"))'

    lines = ["# Completion of apexrl. Made by: apexrl completion " + ("zsh" if zsh else "bash")]
    if zsh:
        lines += ["autoload -Uz compinit bashcompinit", "(( $+functions[compdef] )) || compinit", "bashcompinit"]
    lines += [
        "_apexrl() {",
        '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" command="${COMP_WORDS[1]}"',
        "  COMPREPLY=()",
        f'  if [ "$COMP_CWORD" = 1 ]; then {reply(Values((*offers, "--help", "--version")))}; return; fi',
        '  case "$command $before" in',
    ]
    after: dict[Values, list[str]] = {}
    for command, offer in offers.items():
        for one in offer.flags:
            if one.values is not None:
                after.setdefault(one.values, []).append(f'"{command} {one.name}"')
    lines += [f"    {'|'.join(places)}) {reply(values)}; return;;" for values, places in after.items()]
    lines += ["  esac", '  case "$command" in']
    for command, offer in offers.items():
        flags = reply(Values([one.name for one in offer.flags]))
        first = f'if [ "$COMP_CWORD" = 2 ] && [ "${{word#-}}" = "$word" ]; then {reply(offer.first)}; return; fi; '
        lines.append(f"    {command}) {first if any(offer.first) else ''}{flags};;")
    return "\n".join([*lines, "  esac", "}", "complete -F _apexrl apexrl", ""])


def _fish(offers: Mapping[str, Offer]) -> str:
    def line(condition: str, *words: str) -> str:
        return " ".join(["complete -c apexrl -n", _fish_text(condition), *words])

    def offered(values: Values) -> str:
        paths = {"": [], "files": ["(__fish_complete_path (commandline -ct))"],
                 "folders": ["(__fish_complete_directories (commandline -ct))"]}[values.paths]  # fmt: skip
        return _fish_text(" ".join([*values.words, *paths]))

    lines = ["# Completion of apexrl. Made by: apexrl completion fish", "complete -c apexrl -f"]
    lines += [line("__fish_use_subcommand", "-l", name) for name in ("help", "version")]
    for command, offer in offers.items():
        lines.append(line("__fish_use_subcommand", "-a", command, "-d", _fish_text(offer.about)))
        here = f"__fish_seen_subcommand_from {command}"
        if any(offer.first):
            second = f"{here}; and test (count (commandline -opc)) = 2"
            lines.append(line(second, "-a", offered(offer.first)))
        for one in offer.flags:
            takes = [] if one.values is None else ["-x", *(["-a", offered(one.values)] if any(one.values) else [])]
            about = ["-d", _fish_text(one.about)] if one.about else []
            lines.append(line(here, "-l", one.name[2:], *takes, *about))
    return "\n".join([*lines, ""])


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
