"""Command-line flags, made by tyro from the dataclasses of ``apexrl.config``: one flat flag per setting."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro

from apexrl.cli.host_flags import Address, File, Modules, RunName, Url, check_listening, listen, redis_url
from apexrl.config import AgentConfig, Config
from apexrl.config.convert import flat, override
from apexrl.config.placement import Placement, Ray, Redis
from apexrl.config.settings import settings_of
from apexrl.config.trust import entrusted, named
from apexrl.errors import ConfigError
from apexrl.launch.ray import resources
from apexrl.launch.ray.resources import HERE, actors_range
from apexrl.links.tokens import shared_token
from apexrl.topologies.validation import check_read, own_settings, validate

T = TypeVar("T")

OWN = frozenset(("agent_settings", "topology_settings"))
"""Settings that hold those which an agent or a topology of your own declares, each of which is a flag."""

_FLAT = (tyro.conf.OmitArgPrefixes,)
_GROUPS: dict[str, Any] = {
    str(kind.__name__): kind
    for kind in typing.get_type_hints(Config).values()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}


@dataclass(frozen=True)
class _Train(Config):
    preset: Annotated[str, tyro.conf.Suppress] = ""  # the first word, not a flag
    redis: Url = ""
    """Redis server where other hosts join: redis[s]://USER:PASSWORD@HOST:PORT. With --run alone: APEXRL_REDIS_URL."""
    run: RunName = ""
    """What the run is called there; empty: as its run folder."""
    replace_run: bool = False
    """Delete what the server keeps of another run of that name, if it has no learner."""
    resume_or_start: bool = False
    """Go on with the run of this --name, if it has not ended; begin it if there is none.
    For supervisors (systemd, Slurm, Kubernetes), which repeat the same command until it exits with 0."""
    listen: Address = ""
    """Where environment workers of other hosts may ask (topology seed or ga3c; --actors 0: only they).
    :PORT is this machine alone, 0.0.0.0:PORT all its addresses."""
    token_file: File = ""
    """Holds the token that they must know; made if it is not there. Empty: APEXRL_TOKEN says it.
    With --redis it signs what the hosts are told, for those that have it too."""
    tls_self_signed: File = ""
    """Certificate and key with which they know this run; made if not there. Its fingerprint is printed for them."""
    tls_cert: File = ""
    """Certificate of this run (PEM), of an authority that they trust."""
    tls_key: File = ""
    """Private key of --tls-cert; empty: it stands in that file."""
    tls_ca: File = ""
    """Authorities (PEM) of which they must show certificates, too."""
    ray: Annotated[str, tyro.conf.arg(metavar="auto|local|HOST:PORT")] = ""
    """Run on a Ray cluster: this machine's, a new one here, or that with this head.
    With --actors MIN:MAX the run grows and shrinks with it."""
    actor_cpus: float = 1.0
    """Processors that Ray reserves for each actor."""
    learner_gpus: float = 0.0
    """GPUs that Ray reserves for the learner."""
    replay_shards: int = 0
    """Groups of actors with a shard of the replay each, on Ray; 0: one for each node."""
    trust: Modules = ()
    """Module or package of your own, of which FILE.toml may name environments, an agent or a network.
    What it names is refused otherwise, unless a flag names it again. May be given several times."""


@dataclass(frozen=True)
class Resume:
    """Go on with a run that was stopped: weights, optimizer, counters, and the replay when it was saved.

    What ended the run would end it again at once, so give the new end.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    env_steps: int | None = None
    """New limit of environment steps, those before included; 0: no limit."""
    minutes: float | None = None
    """New limit of minutes of training, those before included; 0: no limit."""
    stop_at_return: float | None = None
    """New mean greedy return at which to stop."""
    redis: Url = ""
    """Redis server of a run over several hosts, whose actors then go on. With --run alone, APEXRL_REDIS_URL says it."""
    run_name: Annotated[str, tyro.conf.arg(name="run", metavar="NAME")] = ""
    """What the run is called there; empty: as before."""
    replace_run: bool = False
    """Delete what the server keeps of another run of that name, if it has no learner."""
    listen: Address = ""
    """Where environment workers of other hosts may ask; those of the run before go on."""
    token_file: File = ""
    """Holds the token that they must know, or that signs what they are told; empty: APEXRL_TOKEN says it."""
    tls_self_signed: File = ""
    """Certificate and key with which they know this run; made if not there. Its fingerprint is printed for them."""
    tls_cert: File = ""
    """Certificate of this run (PEM), of an authority that they trust."""
    tls_key: File = ""
    """Private key of --tls-cert; empty: it stands in that file."""
    tls_ca: File = ""
    """Authorities (PEM) of which they must show certificates, too."""
    ray: Annotated[str, tyro.conf.arg(metavar="auto|local|HOST:PORT|none")] = ""
    """Ray cluster to go on on; empty: as before; none: this machine alone."""
    actor_cpus: float | None = None
    """Processors that Ray reserves for each actor, if not as before; likewise the next two."""
    learner_gpus: float | None = None
    """GPUs that Ray reserves for the learner."""
    replay_shards: int | None = None
    """Groups of actors with a shard of the replay each."""
    trust: Modules = ()
    """Module or package of your own, of which the folder may name environments, an agent or a network.
    May be given several times. All others are refused."""


@dataclass(frozen=True)
class Eval:
    """Play greedy episodes with the best weights of a run."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder, as printed at the end of apexrl train."""
    episodes: int = 20
    """Episodes to play."""
    video: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for films of the episodes (needs apexrl[video], and an environment that renders rgb_array)."""
    seed: int = 1_000_000_007
    """Of the environments; training uses others."""
    checkpoint: Annotated[str, tyro.conf.arg(metavar="best|latest|FILE")] = "best"
    """Which weights: those of the best evaluation, the newest, or a checkpoint file."""
    trust: Modules = ()
    """Module or package of your own, of which the folder may name environments, an agent or a network.
    May be given several times. All others are refused."""


@dataclass(frozen=True)
class Compare:
    """Run topologies, agents, or both, one after another on equal terms; a table and pictures say how they did.

    The same for all are environment, processes and environments, network, device, budget and goal; the rest is what the
    preset has for each agent. Any other flag of apexrl train may be added and holds for every run: --actors 4. Seed 1
    of all comes first, then seed 2. Runs are ordinary run folders; the same command again goes on where it was
    interrupted, and repeats none that came to its end.
    """

    env: Annotated[str, tyro.conf.arg(metavar="PRESET|ID|MODULE:ID")] = ""
    """Preset, or an environment of your own."""
    topologies: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A,B,…")] = ()
    """Which to compare; see apexrl list topologies. None: that of the preset."""
    agents: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A,B,…")] = ()
    """Each of them in every topology that runs it; see apexrl list agents. None: one that suits, the preset's first."""
    seeds: int = 3
    """Runs of each, with seeds 1, 2, …"""
    minutes: float | None = None
    """Minutes of training that each run may take. With neither this nor --env-steps, the preset's limits hold."""
    env_steps: int | None = None
    """Environment steps that each run may take."""
    until_goal: bool = False
    """Runs end at the preset's return, too (or that of --stop-at-return), and not only when the budget is spent."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder for runs, table and pictures; empty: comparisons/ENV."""


def parse(kind: type[T], words: Sequence[str], command: str) -> T:
    """Parse the flags of a command; exits with code 2 and an explanation when they are wrong."""
    return tyro.cli(kind, prog=f"apexrl {command}", args=list(words), registry=_registry())


def parse_compare(words: Sequence[str]) -> tuple[Compare, list[str]]:
    """Parse the flags of ``compare``.

    Returns:
        They, and the words that are flags of ``train``.

    Raises:
        ConfigError: a flag of ``train`` that comparing leaves no choice about.
    """
    wanted, rest = tyro.cli(
        Compare, prog="apexrl compare", args=list(words), registry=_registry(), return_unknown_args=True
    )
    instead = {
        "topology": "say --topologies",
        "agent": "say --agents",
        "seed": "say --seeds, how many; they are 1, 2, …",
        "name": "runs are called by topology, agent and seed",
        "redis": "runs are compared on one machine",
        "run": "runs are compared on one machine",
        "listen": "runs are compared on one machine",
        "ray": "runs are compared on one machine",
        "resume_or_start": "the same command again goes on where it was interrupted",
        "save_replay": "runs that came to their end are not resumed",
    }
    for word in rest:
        if (name := _setting(word)) in instead:
            raise ConfigError(f"{word.partition('=')[0]} means nothing to apexrl compare: {instead[name]}")
    return wanted, rest


def parse_train(
    words: Sequence[str], start: Config, word: str, command: str = "train"
) -> tuple[Config, Placement | None]:
    """Parse the flags of ``train`` or ``learner``, which change ``start``; ``word`` names it in the help.

    Returns:
        The configuration, and where other hosts may join if they may.
    """
    from apexrl import agents, topologies

    alone = command == "learner"
    if alone and any(name == "--actors" or name.startswith("--actors=") for name in words):
        raise ConfigError(
            "apexrl learner starts no actors: leave --actors out, and run apexrl actor --redis URL --run NAME "
            "--actors N here or on other hosts, or apexrl train --redis URL for both"
        )
    agent, topology = start.agent.agent, start.topology
    words = _with_range(words)
    given = [_setting(word) for word in words]
    check_read(start, given)
    _check_own_agent(start, words, given, word)
    what = "Learn, with actors that other hosts bring," if alone else "Train"
    description = (
        f"{what} {word}. Every setting below is a flag; its value here is {word}'s."
        if word
        else f"{what} a preset, a run's config.toml, or your own environment:\n\n"
        f"  apexrl {command} PRESET [--flags]\n"
        f"  apexrl {command} --env MODULE:Env-v0 [--flags]\n\n"
        "See apexrl list for presets. Every setting is a flag; the defaults below are those without a preset."
    )
    description += (
        f"\n\nShown is what topology {topology} and agent {agent} read; with --topology NAME or --agent NAME before "
        "--help, what others do."
    )
    kind, values = _offering(start, agents.unread(agent) | topologies.unread(topology), own_settings(start))
    parsed = tyro.cli(
        kind,
        prog=f"apexrl {command} {word}".strip(),
        description=description,
        args=list(words),
        default=kind(**values),
        config=_FLAT,
        registry=_registry(),
    )
    config = Config(**{name: _plain(getattr(parsed, name)) for name in values})
    config = override(config, {name: vars(getattr(parsed, name)) for name in OWN if hasattr(parsed, name)})
    config = validate(_trusted(config, parsed.trust, given, word), given, elsewhere=bool(parsed.listen))
    if alone and config.actor.actor_slots:  # how many actors a host brings unless it says so
        actors = min(config.actor.actors, config.actor.actor_slots)
        config = dataclasses.replace(config, actor=dataclasses.replace(config.actor, actors=actors))
    wanted = {name: getattr(parsed, name) for name in ("actor_cpus", "learner_gpus", "replay_shards")}
    if parsed.ray:
        if parsed.listen or parsed.redis or parsed.run or alone:
            raise ConfigError("--ray runs on a cluster, --redis and --listen over hosts: give one of them")
        return config, Ray(parsed.ray, **wanted)
    for name, value in wanted.items():
        if value != getattr(Ray(), name):
            raise ConfigError(f"--{name.replace('_', '-')} means nothing without --ray")
    hosts = alone or parsed.redis or parsed.run
    if parsed.token_file and not (parsed.listen or hosts):
        raise ConfigError("--token-file means nothing without --listen, --redis or --run")
    if parsed.replace_run and not hosts:
        raise ConfigError("--replace-run means nothing without --redis")
    check_listening(parsed)
    if parsed.listen:
        return config, listen(parsed, parsed.redis or parsed.run or alone)
    if not hosts:
        return config, None
    token = shared_token(parsed.token_file, make=True)
    return config, Redis(
        redis_url(parsed.redis), parsed.run, actors=not alone, token=token, replace_run=parsed.replace_run
    )


def resumes_or_starts(words: Sequence[str]) -> bool:
    """Whether ``--resume-or-start`` is among the flags of ``train`` or ``learner``."""
    said = [word for word in words if _setting(word) == "resume_or_start"]
    return bool(said) and not said[-1].startswith("--no-")


def _check_own_agent(start: Config, words: Sequence[str], given: Sequence[str], word: str) -> None:
    """Refuse to import, for the sake of its flags, an agent that only the file ``word`` names and nobody trusts."""
    if word.endswith(".toml") and "agent" not in given:
        pairs = zip(words, [*words[1:], ""], strict=True)
        trust = [after if one == "--trust" else one[8:] for one, after in pairs if one.partition("=")[0] == "--trust"]
        entrusted(Config(agent=AgentConfig(agent=start.agent.agent)), trust, word, env=False)


def _trusted(config: Config, trust: Sequence[str], given: Sequence[str], word: str) -> Config:
    """``config``, if the file ``word`` names nothing that it may not; what flags name it may.

    Raises:
        ConfigError: it names code that nobody trusts, or a folder outside of the current one; or it is no file.
    """
    if not word.endswith(".toml"):
        if trust:
            raise ConfigError("--trust says what a FILE.toml may name, and means nothing without one")
        return config
    flags = {name: value for name, value in flat(config).items() if name in given}
    config = entrusted(config, (*trust, *named(flags)), word)
    out = Path(config.out)
    if "out" not in given and (out.is_absolute() or ".." in out.parts or config.out.startswith("~")):
        raise ConfigError(f"{word} wants its run folder in {config.out}: say --out {config.out} if that is right")
    return config


def _with_range(words: Sequence[str]) -> Sequence[str]:
    """``--actors MIN:MAX`` as the two flags that it stands for, which mean that together with ``--ray`` alone."""
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        end = place + 1 if equals else place + 2
        value = value if equals else "".join(words[place + 1 : end])
        if flag != "--actors" or ":" not in value:
            continue
        least, most = actors_range(value)
        names = [_setting(other) for other in words]
        if "ray" not in names:
            raise ConfigError(
                f"--actors {value} grows and shrinks with a cluster, and means nothing without --ray. On one machine "
                f"--autotune finds out how many are best: --actors {least} --autotune --actor-slots {most}"
            )
        if "actor_slots" in names:
            raise ConfigError(f"--actors {value} says how many slots there are: leave out --actor-slots")
        return [*words[:place], "--actors", str(least), "--actor-slots", str(most), *words[end:]]
    return words


def _setting(word: str) -> str:
    """The setting that a flag is of: ``double`` of ``--no-double``; nothing where ``word`` is no flag."""
    return word.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_") if word[:2] == "--" else ""


def _offering(start: Config, unread: Set[str], own: Mapping[str, type[Any]]) -> tuple[type[_Train], dict[str, Any]]:
    """``_Train`` with flags for settings in ``own``, without those in ``unread``, and its values from ``start``."""
    values = {entry.name: getattr(start, entry.name) for entry in dataclasses.fields(Config)}
    groups: list[tuple[str, Any, Any]] = []
    for name, value in values.items():
        if dataclasses.is_dataclass(value):
            kind = _without(type(value), unread | OWN)
            groups.append((name, kind, dataclasses.field(default_factory=kind)))
            values[name] = kind(**{entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)})
    has = {**start.agent.agent_settings, **start.wiring.topology_settings}
    for place, kind in own.items():
        known = {
            name: setting.converted(has[name]) if name in has else setting.default
            for name, setting in settings_of(kind).items()
        }
        filled = {name: tyro.MISSING if value is dataclasses.MISSING else value for name, value in known.items()}
        groups.append((place, kind, dataclasses.field(default=kind(**filled))))
    return dataclasses.make_dataclass("Train", groups, bases=(_Train,), frozen=True), values


def _without(kind: type[Any], unread: Set[str]) -> type[Any]:
    """A dataclass like ``kind``, some of whose fields are no flags."""
    hidden = [
        (name, Annotated[one.hint, tyro.conf.Suppress], dataclasses.field(default_factory=partial(copy, one.default)))
        for name, one in settings_of(kind).items()
        if name in unread
    ]
    if not hidden:
        return kind
    said = {"__doc__": kind.__doc__}
    return dataclasses.make_dataclass(kind.__name__, hidden, bases=(kind,), frozen=True, namespace=said)


def _plain(value: Any) -> Any:
    """A group of settings as ``apexrl.config`` has it."""
    known = _GROUPS.get(type(value).__name__)
    return value if known is None else known(**{e.name: getattr(value, e.name) for e in dataclasses.fields(known)})


def resumed(config: Config, wanted: Resume) -> Config:
    """A run's configuration with the new stop rules of ``resume``."""
    given = {
        name: value
        for name in ("env_steps", "minutes", "stop_at_return")
        if (value := getattr(wanted, name)) is not None
    }
    return dataclasses.replace(config, stop=dataclasses.replace(config.stop, **given))


def resume_placement(wanted: Resume, folder: Path) -> Placement | None:
    """Where other hosts may join a resumed run, or the cluster that it goes on on; None: nowhere."""
    hosts = wanted.listen or wanted.redis or wanted.run_name
    if wanted.ray and hosts:
        raise ConfigError("--ray runs on a cluster, --redis and --listen over hosts: give one of them")
    names = ("actor_cpus", "learner_gpus", "replay_shards")
    cluster = resources.resumed(
        folder, HERE if hosts else wanted.ray, **{name: getattr(wanted, name) for name in names}
    )
    if cluster is not None:
        return cluster
    if wanted.token_file and not hosts:
        raise ConfigError("--token-file means nothing without --listen, --redis or --run")
    check_listening(wanted)
    if wanted.listen:
        return listen(wanted, wanted.redis or wanted.run_name, make=False)
    if not (wanted.redis or wanted.run_name):
        if wanted.replace_run:
            raise ConfigError("--replace-run means nothing without --redis")
        return None
    token = shared_token(wanted.token_file)
    return Redis(redis_url(wanted.redis), wanted.run_name, actors=None, token=token, replace_run=wanted.replace_run)


def _registry() -> tyro.constructors.ConstructorRegistry:
    """What tyro cannot guess: keyword arguments of an environment, and an environment that may be a callable."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def kwargs(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type != dict[str, Any]:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",
            metavar="[KEY VALUE]…",
            instance_from_str=_read_kwargs,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [w for k, v in value.items() for w in (k, _spell(v))] or ["none"],
        )

    @registry.primitive_rule
    def env(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type != str | Callable[..., Any]:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="ID|MODULE:ID",
            instance_from_str=lambda words: words[0],
            is_instance=lambda value: isinstance(value, str) or callable(value),
            str_from_instance=lambda value: [value if isinstance(value, str) else "(callable)"],
        )

    return registry


def _read_kwargs(words: list[str]) -> dict[str, Any]:
    if len(words) % 2:
        raise ValueError(f"wants pairs of KEY VALUE, got {len(words)} words: {' '.join(words)}")
    return {key: _read(value) for key, value in zip(words[::2], words[1::2], strict=True)}


def _read(word: str) -> Any:
    """Numbers, true, false, lists and objects as in JSON; anything else is text."""
    if word in ("True", "False"):
        return word == "True"
    try:
        value = json.loads(word)
    except ValueError:
        return word
    return word if value is None else value


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
