"""Whether a configuration can run: names, values, and which settings its agent and its topology read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, replace
from typing import Any

from apexrl import agents, topologies
from apexrl.agents import setting_relevance
from apexrl.config import Config
from apexrl.config.agent_game_settings import AgentGameSettings
from apexrl.config.convert import check_values, flat, known_settings
from apexrl.config.game_names import has_opponents, is_game
from apexrl.config.metric_bounds import metric_bound
from apexrl.config.outside import is_outside
from apexrl.config.settings import as_flag, did_you_mean, flag, settings_of
from apexrl.errors import ConfigError
from apexrl.roles.pool_players import sources
from apexrl.run.metric_catalogue import KNOWN
from apexrl.run.metric_samples import status_scalars
from apexrl.run.status import RunStatus


def validate(config: Config, given: Iterable[str] = (), elsewhere: bool = False) -> Config:
    """Refuse a configuration that cannot run, or has settings that somebody gave in vain. Starts no process.

    An agent or a topology of your own is imported: ``config.trust`` comes first where somebody else wrote the names.

    Args:
        given: flat names of the settings that somebody gave: each of them must mean something.
        elsewhere: other hosts may bring all that steps environments.

    Returns:
        The same, with all the settings that an agent or a topology of your own declares.

    Raises:
        ConfigError: the message names the flag, and what to do.
        AgentError: a class of your own is no agent; or an agent's updates cannot be as they are set.
    """
    given = tuple(given)
    agent, topology = config.agent.agent, config.topology
    agents.check_name(agent)
    topologies.check_name(topology)
    topologies.check_agent(topology, agent)
    check_read(config, given)
    check_agent_games(config, given)
    config = with_own_settings(config, given)
    if config.learner.initial_weights and config.actor.random_start:
        if "random_start" in given:
            raise ConfigError("--random-start means nothing with --initial-weights, by which first actions are chosen")
        config = replace(config, actor=replace(config.actor, random_start=False))
    check_values(config, elsewhere)
    _check_metrics(config)
    topologies.check_fixed(config)
    agents.check_in_use(config, given)
    agents.check_identity(config.agent)
    agents.check_evaluation(config)
    if agent in agents.AGENTS:
        agents.check_gradient_steps(config.agent)
    return config


def check_agent_games(config: Config, given: Iterable[str]) -> None:
    """Refuse settings of several agents where they mean nothing.

    Raises:
        ConfigError: the message says where they do.
    """
    if config.env.image_size and is_game(config.env.env):
        raise ConfigError("--image-size is for an environment of one agent: let the environment show smaller images")
    name, shown, agent = config.env.env, {"show_agent", "show_state"}, config.agent.agent
    if is_game(name) and not config.env.team and agent in agents.AGENTS and agents.AGENTS[agent].settings.get("team"):
        raise ConfigError(
            f"agent {agent} makes one value of those of a team's agents, and with --no-team each agent learns by "
            "itself: leave --no-team out, or choose an agent for that, as dqn"
        )
    for setting in given:
        if setting not in AgentGameSettings.__dataclass_fields__:
            continue
        if not is_game(name):
            raise ConfigError(
                f"{flag(setting)} is for an environment of several agents, package.module:parallel_env or "
                "package.module:env: leave it out"
            )
        if config.env.team and setting not in {*shown, "show_last_action", "team"}:
            raise ConfigError(
                f"{flag(setting)} means nothing with --team, where one learner has all agents: leave one out"
            )
        if not (setting in {*shown, "show_last_action", "team", "learned_agents"} or has_opponents(config.env, name)):
            raise ConfigError(
                f"{flag(setting)} means nothing where all agents are learned: say which are with --learned-agents"
            )
    sources(config.env)


def _check_metrics(config: Config) -> None:
    """Refuse bounds of metrics that no run has; those of environments, callbacks, links, and agents and topologies of
    one's own are known later (``launch.stop_rules``)."""
    known = {*status_scalars(RunStatus()), *KNOWN}
    ours = config.agent.agent in agents.AGENTS and config.topology in topologies.TOPOLOGIES
    later = ("episode", "custom", "hosts", *(() if ours else ("agent",)))
    for text in config.stop.stop_when:
        name = metric_bound(text).name
        group, _, rest = name.partition("/")
        if name not in known and not (rest and group in later):
            of_agent = f"agent/{name}"
            near = f" (did you mean {of_agent!r}?)" if of_agent in known else did_you_mean(name, known)
            raise ConfigError(f"--stop-when {text!r}: there is no metric {name!r}{near}")


def check_read(config: Config, given: Iterable[str]) -> None:
    """Refuse settings that somebody has ``given`` and that its agent or its topology never reads.

    Raises:
        ConfigError: the message names those that do.
    """
    topologies.check_read(config.topology, given)
    agents.check_read(config.agent.agent, given)


def readers(name: str) -> tuple[list[str], list[str]]:
    """The shipped agents and the topologies to which a setting means something, whatever their others are."""
    return (
        [agent for agent in agents.AGENTS if name not in agents.unread(agent)],
        [topology for topology in topologies.TOPOLOGIES if name not in topologies.unread(topology)],
    )


def unused(config: Config) -> set[str]:
    """The settings that its agent or its topology does not read, or not with the others as they are."""
    unread = agents.unread(config.agent.agent) | topologies.unread(config.topology)
    return unread | set(setting_relevance.idle(config))


def own_settings(config: Config) -> dict[str, type[Any]]:
    """The dataclasses with which an agent or a topology of your own declares settings, by the field that holds them.

    Raises:
        ConfigError: there is no such agent; or what declares its settings is no dataclass, or has a name of apexrl's.
    """
    found = {}
    agent = config.agent.agent
    if is_outside("agents", agent):
        found["agent_settings"] = (f"agent {agent}", getattr(agents.agent_class(agent), "Settings", None))
    found["topology_settings"] = (
        f"topology {config.topology}",
        topologies.info(config.topology).settings,
    )
    for owner, kind in found.values():
        if kind is None:
            continue
        if not isinstance(kind, type) or not hasattr(kind, "__dataclass_fields__"):
            raise ConfigError(f"{owner}: its settings, {kind!r}, are no dataclass: write @dataclass above the class")
        if taken := settings_of(kind).keys() & known_settings().keys():
            raise ConfigError(f"{owner}: apexrl has a setting {min(taken)!r} already: read that, or take another name")
        for name, setting in settings_of(kind).items():
            if setting.needs and setting.default is MISSING:
                raise ConfigError(f"{owner}: its setting {name!r} needs {setting.needs}, so give it a default")
    kinds = {place: kind for place, (_, kind) in found.items() if kind is not None}
    if len(kinds) > 1 and (both := set.intersection(*(set(settings_of(kind)) for kind in kinds.values()))):
        raise ConfigError(
            f"agent {agent} and topology {config.topology} both declare {min(both)!r}: rename one of them"
        )
    return kinds


def with_own_settings(config: Config, given: Iterable[str] = ()) -> Config:
    """``config`` with all the settings that an agent or a topology of your own declares, checked.

    Raises:
        ConfigError: a setting that neither declares, a value of the wrong type or out of range, or one of ``given``
            that another setting keeps from being read.
    """
    kinds = own_settings(config)
    known = {name: setting for kind in kinds.values() for name, setting in settings_of(kind).items()}
    has = {**config.agent.agent_settings, **config.wiring.topology_settings}
    if unknown := [name for name in has if name not in known]:
        near = did_you_mean(unknown[0], {*known, *known_settings()})
        raise ConfigError(
            f"unknown setting {unknown[0]!r}{near}: neither apexrl, nor agent {config.agent.agent}, "
            f"nor topology {config.topology} declares it"
        )
    values = flat(config)
    for name, setting in known.items():
        values[name] = setting.converted(has[name]) if name in has else setting.default
        if values[name] is MISSING:
            raise ConfigError(f"say {flag(name)}: it has no default")
        setting.check(values[name])
    for name, setting in known.items():
        if name in given and (needs := setting.needs) and not needs.met(values.get(needs.switch)):
            switch = as_flag(needs.switch, values.get(needs.switch))
            raise ConfigError(f"{flag(name)} means nothing with {switch}: change the other")
    own: dict[str, dict[str, Any]] = {"agent_settings": {}, "topology_settings": {}}
    for place, kind in kinds.items():
        for name, setting in settings_of(kind).items():
            if values[name] is not None or setting.default is not None:  # TOML has no word for None
                own[place][name] = values[name]
    return replace(
        config,
        agent=replace(config.agent, agent_settings=own["agent_settings"]),
        wiring=replace(config.wiring, topology_settings=own["topology_settings"]),
    )
