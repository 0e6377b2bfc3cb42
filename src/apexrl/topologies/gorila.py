"""Gorila: several learners send gradients to parameter servers, which own slices of the network."""

from __future__ import annotations

from typing import Any

from apexrl.config import Config
from apexrl.config.convert import override
from apexrl.errors import ConfigError
from apexrl.roles import Actor, Evaluator, GradientLearner, ParameterServer, ReplayServer
from apexrl.topologies.dataset_links import with_dataset
from apexrl.topologies.parameter_server_links import sharded
from apexrl.topologies.program import Probe, Program, acting, stepping
from apexrl.topologies.queue_links import OfQueue, queue_ports
from apexrl.topologies.replay_links import prioritized


def gorila(config: Config, probe: Probe) -> Program:
    """Gorila (Nair et al. 2015, arXiv 1507.04296), with its global replay or its local ones.

    Inference runs in the actor. Every learner is given batches by the one replay, or samples that of its own actors;
    from there its gradients travel, cut into slices, to the parameter servers, which apply them as they come. Actors,
    learners and evaluator read the newest slices. Two things are Ape-X's: draws by priority (``--alpha 0``: uniform, as
    there), and the constant ladder of ε, where theirs anneals from 1 to 0.1 over 1M updates.

    Raises:
        ConfigError: there are more servers than slices; or what local replays, or parameter servers, cannot do.
    """
    if config.agent.target_acts:
        raise ConfigError(
            "parameter servers own the network that learns, and no target: actors could not choose by one. Set "
            "--no-target-acts, or use --topology apex"
        )
    if config.agent.reset_period_updates or config.agent.anneal_horizon:
        raise ConfigError(
            "parameter servers own slices of the network and apply gradients alone: none could reset it, and learners "
            "have no common count of updates. Set --reset-period-updates 0 --no-anneal-horizon, or use --topology apex"
        )
    wiring, restarts = config.wiring, config.learner.learner_restarts
    program = Program(config)

    links = sharded(program, config, probe, senders=wiring.learners)
    weights = links["parameters"]
    settings: dict[str, Any] = {"config": config, "spec": probe.spec}
    sturdy: dict[str, Any] = {"restarts": restarts}

    learning = {**settings, **links, "count": wiring.learners, **sturdy}
    actors = {**settings, "weights": weights, **acting(config)}
    if wiring.replay == "global":
        replay = program.replay(**prioritized(config, probe))
        given = {"batch_size": config.learner.batch_size, "beta": config.replay.correction}
        source = with_dataset(program, config, probe, replay)
        batches = program.batches(source, learners=wiring.learners, **given)
        program.role(ReplayServer, config=config, batches=batches, **sturdy)
        program.role(GradientLearner, batches=batches, **learning)
        program.role(Actor, replay=replay, **actors)
    else:
        share = _share(config)
        options = [{**prioritized(share, probe), "seed": config.seed + i} for i in range(wiring.learners)]
        own = [program.replay(**replay) for replay in options]
        mixed = [with_dataset(program, config, probe, replay, i) for i, replay in enumerate(own)]
        program.role(OfQueue(GradientLearner), **queue_ports(mixed), **learning)
        program.role(OfQueue(Actor), **queue_ports(own), **actors)
    serving = {**settings, **links, "count": wiring.parameter_servers}
    program.role(ParameterServer, **serving, **sturdy)
    program.role(Evaluator, **settings, weights=weights, **stepping(config))
    return program


def _share(config: Config) -> Config:
    """What holds for the replay of one learner of several.

    Raises:
        ConfigError: local replays cannot do what is asked for.
    """
    learners, replay = config.wiring.learners, config.replay
    if config.learner.save_replay:
        raise ConfigError(
            "--save-replay keeps one replay, and with --replay local every learner has its own: leave it out"
        )
    if config.actor.actors < learners:
        raise ConfigError(
            f"--replay local: with --actors {config.actor.actors} some of the --learners {learners} would have none to "
            "fill their replay"
        )
    capacity, least = replay.capacity // learners, -(-replay.min_size // learners)
    return override(config, {"capacity": capacity, "min_size": min(least, capacity)})
