"""A3C: workers act and change the shared parameters by their own gradients, all at the same time."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config, WiringConfig
from apexrl.config.settings import as_flag
from apexrl.errors import ConfigError
from apexrl.links.local.shared_parameters import SharedParameters
from apexrl.protocols import is_optimizer_state
from apexrl.roles import A3CWorker, Evaluator, ParameterKeeper, ParameterServer
from apexrl.topologies.parameter_server_links import sharded
from apexrl.topologies.program import Probe, Program, acting, room, stepping


def a3c(config: Config, probe: Probe) -> Program:
    """A3C (Mnih et al. 2016, arXiv 1602.01783), with processes for its threads.

    Inference runs in the worker, and nothing travels to a learner: each worker applies its own gradients, in place, to
    parameters and optimizer statistics in shared memory (Hogwild). A keeper writes the first ones, publishes them for
    the evaluator, and saves them.

    With ``--no-hogwild``, gradients travel to parameter servers, which apply them one by one, and publish.

    Raises:
        ConfigError: a setting means nothing with or without Hogwild, or there are more servers than slices.
    """
    _check(config)
    program = Program(config)
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}
    sturdy: dict[str, Any] = {"restarts": config.learner.learner_restarts}
    working: dict[str, Any] = {**settings, **acting(config, nice=0)}

    if config.wiring.hogwild:
        shares = config.wiring.shared_statistics
        sizes = {name: size for name, size in probe.vectors.items() if shares or not is_optimizer_state(name)}
        parameters = program.link(SharedParameters, sizes=sizes)
        weights: Any = program.weights(probe.weights_nbytes)
        keeping = {**settings, "parameters": parameters, "weights": weights}
        program.role(ParameterKeeper, **keeping, **sturdy)
        program.role(A3CWorker, **working, parameters=parameters)
    else:
        links = sharded(program, config, probe, senders=room(config))
        weights = links["parameters"]
        program.role(A3CWorker, **working, **links)
        serving = {**settings, **links, "count": config.wiring.parameter_servers}
        program.role(ParameterServer, **serving, **sturdy)
    program.role(Evaluator, **settings, weights=weights, **stepping(config, nice=0))
    return program


def _check(config: Config) -> None:
    wiring, usual = config.wiring, WiringConfig()
    idle = ("parameter_servers", "max_gradient_lag") if wiring.hogwild else ("shared_statistics",)
    for name in idle:
        if getattr(wiring, name) != getattr(usual, name):
            given, other = as_flag(name, getattr(wiring, name)), as_flag("hogwild", wiring.hogwild)
            raise ConfigError(f"{given} means nothing with {other}: leave it out, or change the other")
    if config.agent.anneal_horizon:
        raise ConfigError("--anneal-horizon goes by all updates, and a worker counts its own: set --no-anneal-horizon")
    if config.agent.anneal and not wiring.hogwild:
        raise ConfigError(
            "--anneal cannot go with --no-hogwild: parameter servers make steps of one size. Set --no-anneal, or "
            "--hogwild"
        )
