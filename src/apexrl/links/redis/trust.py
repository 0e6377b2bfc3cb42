"""What a run's record may make this host call. It comes from a server that others can write to, too.

An environment by its id (``module:Id-v0``) may stand in any record: Gymnasium imports the module, which must be
installed here, and makes only what is registered there. What a record names to be called as it is, an environment given
as a callable, an agent or a network of one's own, must be of a module that somebody has named on this host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from apexrl.config import Config
from apexrl.errors import ConfigError
from apexrl.settings import LazyCallable, describe_callable, import_callable


def modules(config: Config) -> tuple[str, ...]:
    """The modules of what a configuration of this host's own names to be called.

    Raises:
        ConfigError: its environment is a callable that cannot be imported by name.
    """
    found = []
    if callable(config.env.env):
        name = describe_callable(config.env.env)
        found += [_module(name), _home(import_callable(name, "--redis"))]
    found += [_module(name) for name in _own(config).values()]
    return tuple(dict.fromkeys(name for name in found if name))


def entrusted(config: Config, trust: Sequence[str], origin: str, env: bool = True) -> Config:
    """The configuration of a record, if it has nothing called that nobody here has named.

    Args:
        trust: modules; those inside a package that is named are meant too.
        origin: of the record, for messages.
        env: whether this host makes the environment at all.

    Returns:
        The same, but an environment's callable is refused when called if it is of another module than its name says:
        what a module has imported from elsewhere is not trusted with it.

    Raises:
        ConfigError: an agent, a network or an environment of another module; or ``trust`` holds what is no module's
            name.
    """
    trusted = (trust,) if isinstance(trust, str) else tuple(trust)
    for name in trusted:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"--trust {name!r} is no module: name it as Python imports it, as in --trust my_sim.envs")
    for what, name in _own(config).items():
        _check(name, _module(name), what, trusted, origin)
    if not (env and callable(config.env.env)):
        return config
    called = describe_callable(config.env.env)
    _check(called, _module(called), "environment", trusted, origin)
    return replace(config, env=replace(config.env, env=_Entrusted(called, origin, trusted)))


@dataclass(frozen=True)
class _Entrusted(LazyCallable):
    trust: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = import_callable(self.name, self.origin)
        _check(self.name, _home(found), "environment", self.trust, self.origin)
        return found(*args, **kwargs)


def _own(config: Config) -> dict[str, str]:
    """The classes of one's own that an agent is made of: what each is -> its name. Shipped agents have none."""
    named = {"agent": config.agent.agent, "network": config.agent.network}
    return {what: name for what, name in named.items() if ":" in name or (what == "network" and name)}


def _check(name: str, module: str, what: str, trust: Sequence[str], origin: str) -> None:
    if any(module == one or module.startswith(one + ".") for one in trust):
        return
    of = f" (of module {module!r})" if module != _module(name) else ""
    raise ConfigError(
        f"{origin} wants {name!r}{of} to be called here as its {what}, and nobody has said that this host may: if you "
        f"know it, name its module with --trust {_shown(module)} (in Python: trust=({_shown(module)!r},)); if you do "
        "not, somebody else writes to that server"
    )


def _shown(module: str) -> str:
    return module if all(part.isidentifier() for part in module.split(".")) else "MODULE"


def _module(name: str) -> str:
    return name.partition(":")[0]


def _home(found: Any) -> str:
    """The module that defines it; empty where it does not say."""
    home = getattr(found, "__module__", None)
    return home if isinstance(home, str) else ""
