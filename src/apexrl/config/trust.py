"""Which code a configuration from somebody else may run here: one of a run folder, a TOML file or a run's record.

Such a configuration is data. It may name environments by their id: those that Gymnasium knows, and those of a package
that is installed here (``module:Id-v0``: Gymnasium imports the module and makes only what is registered). It may name
agents and topologies that an installed package offers (``config.outside``). Anything else runs only if somebody here
has named its module: an environment given as a callable; an agent, a topology or a network by ``module:name``; an
environment of a module that is of no installed package.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from apexrl.config import Config, outside
from apexrl.config.convert import LazyCallable, describe_callable, flat, import_callable, known_settings
from apexrl.config.game_names import is_game
from apexrl.errors import ConfigError

_SOURCES: Final = ("", "src", "lib", "python")
"""Where in a project that is installed as editable its packages lie."""

_GAMES: Final = ("apexrl.envs", "pettingzoo", "mpe2")
"""Packages whose functions ``parallel_env`` and ``env`` make environments; elsewhere such a name may be anything."""

_IMPORTABLE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d][\w./-]*")
"""Text that code which is given it may import: ``module:name``."""


def modules(config: Config, imports: bool = True) -> tuple[str, ...]:
    """The modules of what a configuration of this host's own names to be imported or called.

    Args:
        imports: an environment's callable is looked at, and may be of another module than its name says.

    Raises:
        ConfigError: its environment is a callable that cannot be imported by name.
    """
    found = []
    if callable(config.env.env):
        name = describe_callable(config.env.env)
        found += [_module(name), _home(import_callable(name, "--redis")) if imports else ""]
    return tuple(dict.fromkeys(name for name in (*found, *_named(config)) if name))


def named(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The modules that settings name which somebody here has given by their flat names."""
    texts = [values.get(name) for name in ("env", "agent", "network", "topology")]
    texts += _texts(values.get("env_kwargs"))
    return tuple(_module(text) for text in texts if isinstance(text, str) and ":" in text and _plain(_module(text)))


def entrusted(config: Config, trust: Sequence[str], origin: str, env: bool = True, command: str = "") -> Config:
    """``config``, if it names no code but what is installed or trusted here.

    Args:
        config: an environment that is a callable and no ``LazyCallable`` is the caller's own.
        trust: modules; those inside a package that is named are meant too.
        origin: of the configuration, for messages.
        env: whether the environment is made here at all.
        command: of the person here, to which a flag can be added.

    Returns:
        The same, but an environment's callable is refused when called if it is of another module than its name says:
        what a module has imported from elsewhere is not trusted with it.

    Raises:
        ConfigError: it names an agent, a network, a topology or an environment that may not be run, or gives an
            environment a name to import; or a value is out of range; or ``trust`` holds what is no module.
    """
    trusted = (trust,) if isinstance(trust, str) else tuple(trust)
    for name in trusted:
        if not _plain(name):
            raise ConfigError(f"--trust {name!r} is no module: name it as Python imports it, as in --trust my_sim.envs")
    for name, value in flat(config).items():
        try:
            known_settings()[name][1].check(value)
        except ConfigError as error:
            raise ConfigError(f"{origin}: {error}") from None
    for what, name in _own(config).items():
        _check(name, _module(name), what, trusted, origin, command)
    for what, point in (
        ("agent", outside.installed("agents").get(config.agent.agent)),
        ("topology", outside.installed("topologies").get(config.topology)),
    ):
        if point is not None and not installed(_module(point.value)):
            _check(point.value, _module(point.value), what, trusted, origin, command)
    if not env:
        return config
    for text in _texts(config.env.env_kwargs):
        if _IMPORTABLE.fullmatch(text):
            _check(text, _module(text), "environment's argument", trusted, origin, command)
    if isinstance(config.env.env, LazyCallable):
        called = config.env.env.name
        _check(called, _module(called), "environment", trusted, origin, command)
        return replace(config, env=replace(config.env, env=_Entrusted(called, origin, trusted)))
    if isinstance(config.env.env, str) and ":" in config.env.env:
        module = _module(config.env.env)
        if is_game(config.env.env):
            _check(config.env.env, module, "environment", (*trusted, *_GAMES), origin, command)
        if not _within(module, trusted) and not installed(module):
            raise ConfigError(
                f"{origin} names the environment {config.env.env!r}, and module {module!r} belongs to no installed "
                f"package (or is a program, __main__), so it is not trusted here. {_advice(module, command)}"
            )
    return config


def installed(module: str) -> bool:
    """Whether ``module`` belongs to a package that was installed here (by pip, also as editable): not one of the
    standard library, no file that merely lies where Python looks, such as the current folder, and no ``__main__``: that
    is a program, and importing it runs it. Imports nothing."""
    if not _plain(module) or "__main__" in module.split("."):
        return False
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return False
    file = _file(module)
    return file is not None and any(file.is_relative_to(root) for root in _roots(top))


@dataclass(frozen=True)
class _Entrusted(LazyCallable):
    trust: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = import_callable(self.name, self.origin)
        _check(self.name, _home(found), "environment", self.trust, self.origin)
        return found(*args, **kwargs)


def _named(config: Config) -> list[str]:
    """The modules that texts of a configuration name."""
    env = config.env.env
    texts = [text for text in _texts(config.env.env_kwargs) if _IMPORTABLE.fullmatch(text)]
    texts += [env] if isinstance(env, str) and ":" in env else []
    return [_module(name) for name in (*_own(config).values(), *texts)]


def _own(config: Config) -> dict[str, str]:
    """What a configuration names that is none of apexrl's own: what each is -> its name."""
    named = {"agent": config.agent.agent, "network": config.agent.network, "topology": config.topology}
    return {what: name for what, name in named.items() if ":" in name or (what == "network" and name)}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def _check(name: str, module: str, what: str, trust: Sequence[str], origin: str, command: str = "") -> None:
    if _within(module, trust):
        return
    of = f" (of module {module!r})" if module != _module(name) else ""
    raise ConfigError(
        f"{origin} names {name!r}{of} as its {what}, and that code is not trusted here. {_advice(module, command)}"
    )


def _advice(module: str, command: str) -> str:
    shown = module if _plain(module) else "MODULE"
    flag = f"{command} --trust {shown}" if command else f"--trust {shown}"
    return (
        f"If you know that module, allow it: {flag} (in Python: trust=({shown!r},)). If not, do not: it may be "
        "somebody else's"
    )


def _within(module: str, packages: Sequence[str]) -> bool:
    return any(module == one or module.startswith(one + ".") for one in packages)


def _plain(module: str) -> bool:
    return all(part.isidentifier() for part in module.split("."))


def _module(name: str) -> str:
    return name.rpartition(":")[0] if name.count(":") > 1 else name.partition(":")[0]


def _home(found: Any) -> str:
    """The module that defines it; empty where it does not say."""
    home = getattr(found, "__module__", None)
    return home if isinstance(home, str) else ""


def _file(module: str) -> Path | None:
    """The file that importing ``module`` would run last, found without running those of its packages."""
    top, *rest = module.split(".")
    spec: ModuleSpec | None
    try:
        spec = importlib.util.find_spec(top)
        for part in rest:
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    except (ImportError, AttributeError, ValueError):
        return None
    return Path(spec.origin).resolve() if spec is not None and spec.has_location and spec.origin else None


@functools.cache
def _roots(top: str) -> tuple[Path, ...]:
    """Where the installed distributions that have a package or module ``top`` keep it."""
    roots = []
    here = Path.cwd()  # may be anybody's folder, with a distribution in it
    for distribution in metadata.distributions(path=[entry for entry in sys.path if Path(entry).resolve() != here]):
        files = distribution.files or []
        tops = {file.parts[0].removesuffix(".py") for file in files} | set(
            (distribution.read_text("top_level.txt") or "").split()
        )
        project = _editable(distribution)
        for folder in (project / part for part in _SOURCES) if project is not None else ():
            if (folder / top / "__init__.py").is_file() or (folder / f"{top}.py").is_file():
                roots += [folder / top, folder / f"{top}.py"]
        if top in tops:
            home = Path(str(distribution.locate_file("")))
            roots += [home / top, home / f"{top}.py"]
            roots += [home / file for file in files if file.parts[0].partition(".")[0] == top and len(file.parts) == 1]
    return tuple(root.resolve() for root in roots)


def _editable(distribution: metadata.Distribution) -> Path | None:
    """The project's folder, of a distribution that was installed as editable."""
    try:
        told = json.loads(distribution.read_text("direct_url.json") or "{}")
        url = urlsplit(told["url"])
        return Path(unquote(url.path)) if told["dir_info"]["editable"] and url.scheme == "file" else None
    except (KeyError, TypeError, ValueError):
        return None
