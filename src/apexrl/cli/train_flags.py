"""The commands ``train``, ``learner`` and ``compare``: their flags, and what they mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from apexrl.agents.setting_relevance import check_in_use
from apexrl.cli.flags import offering, plain_group, registry
from apexrl.cli.host_flags import GivenFloat, GivenInt, RunName
from apexrl.cli.observer_flags import ObserverFlags
from apexrl.cli.placement_flags import PlacementFlags, other_hosts
from apexrl.config import Config
from apexrl.config.convert import OWN, flat, known_settings, override
from apexrl.config.elsewhere import ELSEWHERE
from apexrl.config.placement import RAY_FLAGS, Placement, Ray
from apexrl.config.settings import as_flag, flag, settings_of
from apexrl.config.trust import entrusted, named
from apexrl.errors import ConfigError
from apexrl.launch.ray.resources import actors_range
from apexrl.presets.unseen import LOOKED_AT
from apexrl.topologies import placements
from apexrl.topologies.validation import check_read, own_settings, validate


@dataclass(frozen=True, kw_only=True)
class RunFlags(PlacementFlags, ObserverFlags):
    """Flags that ``train``, ``learner`` and ``resume`` have in common."""

    checkpoint_url: Annotated[str, tyro.conf.arg(metavar="URL")] = ""
    """Copy each checkpoint to URL/NAME in an object store: s3://BUCKET/PREFIX, file:///PATH … (extra object-store).
    With --resume-or-start the newest copy is restored where it is newer than the run folder."""
    tracker: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="wandb|trackio|mlflow")] = ()
    """Experiment tracker that gets the settings and metrics (needs apexrl[wandb], apexrl[trackio] or apexrl[mlflow]).
    Its library's environment variables say where it is and whether it is offline. May be given several times."""
    callback: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="MODULE:NAME")] = ()
    """Callback that watches or steers the run: a subclass of apexrl.Callback, an object of one, or a function.
    Also the name under which an installed package offers one. May be given several times; name it again to resume."""


@dataclass(frozen=True)
class Train(RunFlags, Config):
    preset: Annotated[str, tyro.conf.Suppress] = ""  # the first word, not a flag
    run: RunName = ""
    """The run's name on the Redis server; empty: the name of its run folder."""
    resume_or_start: bool = False
    """Resume the run of this --name if it has not ended; start it if there is none.
    For supervisors (systemd, Slurm, Kubernetes), which repeat the same command until it exits with 0."""
    ray: Annotated[str, tyro.conf.arg(metavar="auto|local|HOST:PORT")] = ""
    """Run on a Ray cluster: auto is this machine's, local starts one, HOST:PORT is a head node.
    With --actors MIN:MAX the number of actors follows the size of the cluster."""
    actor_cpus: float = 1.0
    """CPUs that Ray reserves for each actor."""
    learner_gpus: float = 0.0
    """GPUs that Ray reserves for each learner."""
    inference_gpus: float = 0.0
    """GPUs that Ray reserves for each inference server, policy worker or model server; below one they share one."""
    learner_nodes: int = 1
    """Nodes of the Ray cluster over which the learners of apex and impala are spread, each beside its own shards."""
    replay_shards: int = 0
    """Shards of the replay on Ray, each beside a group of actors; 0: one on each node."""


@dataclass(frozen=True)
class Compare:
    """Run topologies, agents, or both, one after another, and compare the results in a table and pictures.

    Every run has the same environment, number of processes and environments, network, device, budget and goal. Other
    settings are those that the preset has for each agent. Any other flag of apexrl train holds for every run:
    --actors 4. All run with seed 1 first, then with seed 2. Each run has a run folder. The same command again resumes
    what was interrupted, and repeats no run that has ended.
    """

    env: Annotated[str, tyro.conf.arg(metavar="PRESET|ID|MODULE:ID")] = ""
    """Preset, or an environment of your own."""
    topologies: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A,B,…")] = ()
    """Topologies to compare (apexrl list topologies). Default: the preset's."""
    agents: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A,B,…")] = ()
    """Agents to compare, each in every topology that runs it (apexrl list agents).
    Default: for each topology one that it runs, the preset's if possible."""
    seeds: int = 3
    """Number of runs of each, with seeds 1, 2, …"""
    minutes: GivenFloat = None
    """Minutes of training of each run. Without this and --env-steps, the preset's limits hold."""
    env_steps: GivenInt = None
    """Environment steps of each run."""
    until_goal: bool = False
    """End a run also when it reaches the preset's return, or that of --stop-at-return."""
    out: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder for runs, table and pictures; empty: comparisons/ENV."""


def parse_compare(words: Sequence[str]) -> tuple[Compare, list[str]]:
    """Parse the flags of ``compare``.

    Returns:
        They, and the words that are flags of ``train``.

    Raises:
        ConfigError: a flag of ``train`` that comparing leaves no choice about.
    """
    wanted, rest = tyro.cli(
        Compare, prog="apexrl compare", args=list(words), registry=registry(), return_unknown_args=True
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
        "prometheus": "watch a single run with it",
        "otel": "watch a single run with it",
        "checkpoint_url": "copy a single run",
        "tracker": "give it to a single run",
        "callback": "give it to a single run",
        "save_replay": "runs that came to their end are not resumed",
    }
    for word in rest:
        if (name := setting_of(word)) in instead:
            raise ConfigError(f"{word.partition('=')[0]} means nothing to apexrl compare: {instead[name]}")
    return wanted, rest


def parse_train(
    words: Sequence[str], start: Config, word: str, command: str = "train"
) -> tuple[Config, Placement | None, RunFlags]:
    """Parse the flags of ``train`` or ``learner``, which change ``start``; ``word`` names it in the help.

    Returns:
        The configuration, where other hosts may join if they may, and where metrics and copies go.
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
    given = [setting_of(word) for word in words]
    _check_imports(start, words, given, word)
    if "recipe" in given and (word or start.preset):
        raise ConfigError(f"--recipe is for a run without a preset or a file: {word or start.preset} has its settings")
    check_read(start, given)
    own = own_settings(start)
    _check_names(own, given)
    what = "Train, with actors on other hosts," if alone else "Train"
    description = (
        f"{what} {word}. Every setting below is a flag; its value here is {word}'s."
        if word
        else f"{what} a preset, a run's config.toml, or your own environment:\n\n"
        f"  apexrl {command} PRESET [--flags]\n"
        f"  apexrl {command} --env MODULE:Env-v0 [--flags]\n\n"
        "See apexrl list for presets. Without one, --agent auto is the default: agent and topology are chosen from the "
        "environment's actions, the time of a step and the cores, and printed. Settings are then those of the agent "
        "that learn on an unseen environment; --recipe paper has its paper's.\n\n"
        "Every setting is a flag; the defaults below are those without a preset, for observations that are vectors."
    )
    if alone:
        description += "\n\napexrl learner --standby --redis URL --run NAME takes over from one that died (--help)."
    description += (
        f"\n\nThese are the settings that topology {topology} and agent {agent} read. For others, add --topology "
        "NAME or --agent NAME."
    )
    kind, values = offering(Train, start, agents.unread(agent) | topologies.unread(topology), own)
    chosen = [as_flag(name, value) for name, value in (("topology", topology), ("agent", agent)) if name in given]
    parsed = tyro.cli(
        kind,
        prog=" ".join(["apexrl", command, *([word] if word else []), *chosen]),
        description=description,
        args=list(words),
        default=kind(**values),
        config=(tyro.conf.OmitArgPrefixes,),
        registry=registry(),
    )
    config = Config(**{name: plain_group(getattr(parsed, name)) for name in values})
    config = override(config, {name: vars(getattr(parsed, name)) for name in OWN if hasattr(parsed, name)})
    if alone and config.actor.actor_slots:  # how many actors a host brings unless it says so
        actors = min(config.actor.actors, config.actor.actor_slots)
        config = dataclasses.replace(config, actor=dataclasses.replace(config.actor, actors=actors))
    config = _trusted(config, parsed.trust, given, word)
    if command == "compare":  # which leaves out what cannot run, and has the limits of a run still to come
        check_in_use(config, given)
        return config, None, parsed
    placements.check(config, _placement(parsed, alone))  # before a dataset or a token is asked for
    config = validate(config, given, elsewhere=bool(parsed.listen))
    wanted = {name: getattr(parsed, name) for name in RAY_FLAGS}
    if parsed.ray:
        if parsed.listen or parsed.redis or parsed.run or alone:
            raise ConfigError("--ray runs on a cluster, --redis and --listen over hosts: give one of them")
        return config, Ray(parsed.ray, **wanted), parsed
    for name, value in wanted.items():
        if value != getattr(Ray(), name):
            raise ConfigError(f"{flag(name)} means nothing without --ray")
    return config, other_hosts(parsed, parsed.run, actors=not alone, make=True), parsed


def _placement(parsed: Any, alone: bool) -> str:
    """The placement that flags ask for, by its name in ``placements.PLACEMENTS``."""
    if parsed.ray:
        return "ray"
    if parsed.redis or parsed.run or alone:
        return "redis"
    return "listen" if parsed.listen else placements.MACHINE


def parse_look(words: Sequence[str], start: Config) -> Config:
    """``start`` with those flags of ``train`` that count before an agent is chosen: the environment's."""
    values, known = flat(start), known_settings()
    fields = [(name, Annotated[known[name][1].hint, tyro.conf.arg(help="")]) for name in LOOKED_AT]
    kind = dataclasses.make_dataclass("Look", fields, frozen=True)
    parsed, _ = tyro.cli(
        kind,
        prog="apexrl train",
        args=list(words),
        default=kind(**{name: values[name] for name in LOOKED_AT}),
        registry=registry(),
        return_unknown_args=True,
    )
    return override(start, vars(parsed))


def look_of_file(words: Sequence[str], start: Config, word: str) -> Config:
    """The same for a file ``word``, if it may have its environment made here.

    Raises:
        ConfigError: it names code that nobody trusts.
    """
    look = parse_look(words, start)
    given = {name: value for name, value in flat(look).items() if name in settings_given(words)}
    return entrusted(look, (*_modules(words), *named(given)), word)


def settings_given(words: Sequence[str]) -> list[str]:
    """The settings of which there are flags among ``words``."""
    return [name for name in map(setting_of, words) if name]


def resumes_or_starts(words: Sequence[str]) -> bool:
    """Whether ``--resume-or-start`` is among the flags of ``train`` or ``learner``."""
    said = [word for word in words if setting_of(word) == "resume_or_start"]
    return bool(said) and not said[-1].startswith("--no-")


def _check_imports(start: Config, words: Sequence[str], given: Sequence[str], word: str) -> None:
    """Refuse to import, for its flags, an agent or a topology that only the file ``word`` names and nobody trusts."""
    if word.endswith(".toml"):
        named = {"agent": start.agent.agent, "topology": start.topology}
        only_there = {name: value for name, value in named.items() if name not in given}
        entrusted(override(Config(), only_there), _modules(words), word, env=False)


def _check_names(own: Mapping[str, type[Any]], given: Sequence[str]) -> None:
    """Refuse a flag that has another name here, and is none of your ``own``. ConfigError: the message says which."""
    known = {name for kind in own.values() for name in settings_of(kind)}
    for name in given:
        if name in ELSEWHERE and name not in known:
            raise ConfigError(f"there is no {flag(name)}: here it is {flag(ELSEWHERE[name])}")


def _modules(words: Sequence[str]) -> list[str]:
    """What follows each ``--trust``."""
    pairs = zip(words, [*words, ""][1:], strict=True)
    return [after if one == "--trust" else one[8:] for one, after in pairs if one.partition("=")[0] == "--trust"]


def _trusted(config: Config, trust: Sequence[str], given: Sequence[str], word: str) -> Config:
    """``config``, if the file ``word`` names nothing that it may not; what flags name it may.

    Raises:
        ConfigError: it names code that nobody trusts, or a folder outside of the current one; or it is no file.
    """
    if not word.endswith(".toml"):
        if trust:
            raise ConfigError("--trust is for a FILE.toml of somebody else: leave it out, or give the file first")
        return config
    flags = {name: value for name, value in flat(config).items() if name in given}
    config = entrusted(config, (*trust, *named(flags)), word)
    out = Path(config.out)
    if "out" not in given and (out.is_absolute() or ".." in out.parts or config.out.startswith("~")):
        raise ConfigError(
            f"{word} puts the run folder in {config.out}, outside of here: add --out {config.out} if that is right"
        )
    return config


def _with_range(words: Sequence[str]) -> Sequence[str]:
    """``--actors MIN:MAX`` as the two flags that it stands for, which mean that together with ``--ray`` alone."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        end = place + 1 if equals else place + 2
        value = value if equals else "".join(words[place + 1 : end])
        if name != "--actors" or ":" not in value:
            continue
        least, most = actors_range(value)
        names = [setting_of(other) for other in words]
        if "ray" not in names:
            raise ConfigError(
                f"--actors {value} grows and shrinks with a cluster, and means nothing without --ray. On one machine "
                f"--autotune finds out how many are best: --actors {least} --autotune --actor-slots {most}"
            )
        if "actor_slots" in names:
            raise ConfigError(f"--actors {value} says how many slots there are: leave out --actor-slots")
        return [*words[:place], "--actors", str(least), "--actor-slots", str(most), *words[end:]]
    return words


def setting_of(word: str) -> str:
    """The setting that a flag is of: ``double`` of ``--no-double``; nothing where ``word`` is no flag."""
    return word.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_") if word[:2] == "--" else ""
