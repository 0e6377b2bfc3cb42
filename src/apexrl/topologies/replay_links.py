"""Options of the replays that several topologies share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apexrl.agents import AGENTS
from apexrl.agents.horizon import longest
from apexrl.config import AgentConfig, Config
from apexrl.errors import ConfigError
from apexrl.protocols import Item
from apexrl.roles.actor import step_fields
from apexrl.roles.learner import PREFETCH_ON_CUDA
from apexrl.spec import Field
from apexrl.topologies.program import Probe, room

_MOST_STREAMS = 65_536  # that a replay takes


def window(item: Item, agent: AgentConfig) -> dict[str, Any]:
    """What the replay cuts from the streams; an agent of sequences or unrolls sums their rewards itself."""
    if item.kind == "transition":
        return {"kind": "transition", "n_step": longest(agent)}
    if item.kind == "unroll":
        return {"kind": "unroll", "length": item.length, "burn_in": item.burn_in}
    return {"kind": "sequence", "length": item.length, "stride": item.stride, "burn_in": item.burn_in}


def experience(config: Config, probe: Probe) -> dict[str, Any]:
    """Options of the replay that goes with what the agent learns from: ``queue`` for unrolls, else ``prioritized``."""
    return queue(config, probe) if probe.item.kind == "unroll" else prioritized(config, probe)


def prioritized(config: Config, probe: Probe, together: int = 1) -> dict[str, Any]:
    """Options of Ape-X's replay: draws by priority and age, each where it counts.

    Args:
        together: learners that make every update together, each from a batch of its own.
    """
    replay = config.replay
    return {
        **_steps(config, probe),
        "streams": _streams(config),
        "capacity": replay.capacity,
        "alpha": replay.alpha,
        "eps": replay.priority_eps,
        "recency_half_life": replay.recency_half_life,
        "lag_half_life": replay.lag_half_life,
        "remover": replay.remover,
        "remover_alpha": replay.remover_alpha,
        "trim_every": replay.trim_every,
        "min_size": replay.min_size,
        "samples_per_insert": samples_per_insert(config, probe.item, together),
        "insert_band": replay.insert_band,
        **hindsight(config, probe),
    }


def hindsight(config: Config, probe: Probe) -> dict[str, Any]:
    """How goals are drawn in hindsight.

    Raises:
        ConfigError: the agent learns from no transitions, the replay would keep no episodes, or observations hold
            rewards.
    """
    replay = config.replay
    if replay.hindsight == "none":
        return {}
    if probe.item.kind != "transition":
        raise ConfigError(
            f"--hindsight {replay.hindsight} makes rewards of transitions again, and agent {config.agent.agent} learns "
            f"from {probe.item.kind}s: set --hindsight none"
        )
    if replay.remover != "fifo":
        has = AGENTS[config.agent.agent].settings.get("remover") if config.agent.agent in AGENTS else None
        whose = f" (agent {config.agent.agent}'s own)" if has == replay.remover else ""
        raise ConfigError(
            f"--hindsight {replay.hindsight} draws goals from whole episodes, of which "
            f"--remover {replay.remover}{whose} keeps single steps: set --remover fifo"
        )
    if config.env.last_action_reward:
        raise ConfigError(
            f"--hindsight {replay.hindsight} makes rewards anew, and --last-action-reward shows agents those of before:"
            " leave out one of them"
        )
    return {"hindsight": replay.hindsight, "hindsight_share": replay.hindsight_share}


def samples_per_insert(config: Config, item: Item, together: int = 1) -> float:
    """The ratio of sampled to inserted items that makes ``updates_per_step`` updates for every environment step.

    A transition is inserted for every step, a sequence for every ``stride`` steps: of episodes much longer than it. An
    update takes a batch of each of the learners that make it ``together``, of which a dataset may give a share.
    """
    live = 1.0 - config.replay.dataset_share if config.replay.dataset else 1.0
    steps = item.stride if item.kind == "sequence" else 1
    return config.replay.updates_per_step * config.learner.batch_size * together * steps * live


def served(config: Config) -> dict[str, Any]:
    """How a replay serves several learners: as many batches as each may hold, those ahead and the one at hand."""
    learner = config.learner
    ahead = PREFETCH_ON_CUDA * (learner.device != "cpu") if learner.prefetch < 0 else learner.prefetch
    return {"batch_size": learner.batch_size, "beta": config.replay.correction, "prefetch": max(2, 1 + ahead)}


def queue(config: Config, probe: Probe) -> dict[str, Any]:
    """Options of IMPALA's queue: every unroll once, oldest first; when ``queue_batches`` batches wait, actors do.

    As many unrolls as make a batch can always be waiting, however many streams there are and whoever dies. A slot holds
    one unroll: where it could hold several, what dead actors left half full might keep the place of the rest.
    """
    capacity = config.wiring.queue_batches * config.learner.batch_size
    spread = min(capacity // 2, _MOST_STREAMS)  # from this many streams on, a slot holds one item (replay.options)
    return {
        **_steps(config, probe),
        "streams": max(_streams(config), spread),
        "sampler": "fifo",
        "capacity": capacity,
    }


def most_waiting(config: Config, item: Item) -> int:
    """Unrolls that may wait in a queue while others begin, for a lag of at most ``wait_at_policy_lag``; 0: any number.

    An unroll that begins while w others wait is learned from after the batches at the learner (one, and those ahead),
    after those w, and after one unroll of each stream that is under way then, one that others make meanwhile, and one
    while it waits, complete, for the next to begin. Its weights are up to ``publish_period_updates`` less one old.

    Raises:
        ConfigError: actors would wait for a learner that waits for a batch; or nothing is queued.
    """
    lag, learner = config.wiring.wait_at_policy_lag, config.learner
    if not lag:
        return 0
    if item.kind != "unroll":
        raise ConfigError(
            f"--wait-at-policy-lag {lag} bounds a queue of unrolls, and agent {config.agent.agent} learns from a "
            "replay: leave it out, or see --lag-half-life and --max-policy-lag"
        )
    ahead = PREFETCH_ON_CUDA * (learner.device != "cpu") if learner.prefetch < 0 else learner.prefetch
    flying = 1 + ahead + (ahead > 0)  # one more is in the hand of who fetches
    batch, streams = learner.batch_size, _streams(config)
    open_unrolls = 3 * streams
    slots = room(config)
    many = f"{streams} environments" + f" (of --actor-slots {slots})" * (slots > config.actor.actors)
    others = learner.publish_period_updates - 1 + flying
    least = others + (batch - 1 + open_unrolls - 1) // batch
    if lag < least:
        raise ConfigError(
            f"--wait-at-policy-lag {lag} is less than {least}, the lag that cannot be avoided: "
            f"{learner.publish_period_updates - 1} of --publish-period-updates, {flying} of batches at the learner "
            f"(--prefetch, --device) and {least - others} of unrolls under way in {many}, "
            f"at --batch-size {batch}: raise it, or lower those"
        )
    most = (lag - others + 1) * batch - open_unrolls
    left = config.wiring.queue_batches * batch - streams  # a full queue would stop unrolls half-way
    if left < batch - 1:
        raise ConfigError(
            f"--wait-at-policy-lag {lag} needs a queue with room for a batch of {batch} and an unroll of each of "
            f"{many}: raise --queue-batches to at least {-(-(batch - 1 + streams) // batch)}"
        )
    return min(most, left)


def _steps(config: Config, probe: Probe) -> dict[str, Any]:
    """What is stored of every step, and by how many."""
    return {
        **window(probe.item, config.agent),
        "fields": stored_fields(config, probe),
        "stack": config.env.stack,
        "gamma": config.agent.gamma,
        "seed": config.seed,
        "writers": room(config),
        "check_memory": config.replay.check_memory,
    }


def stored_fields(config: Config, probe: Probe) -> dict[str, Field]:
    """What is stored of every step; images compressed where the settings say so.

    Raises:
        ConfigError: they do, and there are none.
    """
    fields, spec = step_fields(probe.spec, probe.step_spec), probe.spec
    if not config.replay.compress_images:
        return fields
    images = {name for name in spec.observation if spec.is_image(name)}
    if not images:
        raise ConfigError("--compress-images: this environment shows no image (three dimensions, or two of uint8)")
    return {name: replace(field, compressed=True) if name in images else field for name, field in fields.items()}


def _streams(config: Config) -> int:
    return room(config) * config.actor.envs_per_actor
