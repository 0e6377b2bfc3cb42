"""The role that a program has besides, where agents are played by policies of a pool."""

from __future__ import annotations

from apexrl.errors import ConfigError
from apexrl.roles import Evaluator, PoolKeeper
from apexrl.topologies.program import Probe, Program, stepping


def keep_pool(program: Program, probe: Probe) -> None:
    """Add the pool's keeper, which reads the weights that evaluations read too.

    Raises:
        ConfigError: the program evaluates nothing.
    """
    config = program.config
    weights = next((node.ports.get("weights") for node in program.nodes if node.factory is Evaluator), None)
    if weights is None:
        raise ConfigError(f"topology {config.topology} has no Evaluator with weights, of which a pool could be made")
    program.role(PoolKeeper, config=config, spec=probe.spec, weights=weights, **stepping(config))
