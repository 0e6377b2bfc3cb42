"""The metrics of a run: their names, units and meanings.

``metrics.jsonl``, TensorBoard, Prometheus, OpenTelemetry and docs/reference/metrics.md take them from here.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Metric(NamedTuple):
    """One number of a run."""

    name: str
    """In ``metrics.jsonl``."""
    meaning: str
    """In Markdown."""
    unit: str = ""
    counts: bool = False
    """It only grows, until its process begins anew."""
    tag: str = ""
    """In TensorBoard; empty: it is not there, or has the same name."""
    agents: str = ""
    """Agents that report it."""

    @property
    def prometheus(self) -> str:
        """``apexrl_`` and the name, with ``_`` for what Prometheus does not allow; a counter's ends in ``_total``."""
        return "apexrl_" + re.sub(r"[^a-zA-Z0-9_]", "_", self.name) + "_total" * self.counts

    @property
    def otel(self) -> str:
        """``apexrl.`` and the name, with ``.`` for ``/``, and ``_`` for what OpenTelemetry does not allow."""
        return "apexrl." + re.sub(r"[^a-zA-Z0-9_.]", "_", self.name.replace("/", "."))

    @property
    def description(self) -> str:
        """The meaning as plain text, with the unit."""
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", self.meaning).replace("`", "")
        return f"{text} ({self.unit})" if self.unit and self.unit not in text else text


_LAG: Final = "[policy lag](../explanation/policy-lag.md) of the steps learned from since the learner's last report"

STATUS: Final = (
    Metric("wall_seconds", "time of training: since the first environment step; start-up is not counted", "s", True),
    Metric(
        "env_steps", "environment steps of all actors together, final observations not counted", "steps", counts=True
    ),
    Metric("updates", "learner updates", "updates", True, "progress/updates"),
    Metric("episodes", "training episodes finished", "episodes", True, "progress/episodes"),
    Metric("env_steps_per_second", "environment steps per second", "1/s", tag="speed/env_steps_per_second"),
    Metric("updates_per_second", "learner updates per second", "1/s", tag="speed/updates_per_second"),
    Metric(
        "train_return",
        "mean undiscounted return of the latest training episodes, exploring, all actors",
        "reward",
        tag="return/train",
    ),
    Metric("eval_return", "mean return of the newest evaluation", "reward", tag="return/eval"),
    Metric(
        "best_eval_return", "largest `eval_return` so far; untrained weights count until others are evaluated", "reward"
    ),
    Metric("replay_size", "items that can be sampled", "items", tag="replay/size"),
    Metric(
        "samples_per_insert",
        "sampled items per inserted item, since the start",
        "ratio",
        tag="replay/samples_per_insert",
    ),
    Metric(
        "updates_per_step",
        "learner updates per environment step that were reached since the first update of this part of the run; a "
        "setting of the same name says what is wanted",
        "ratio",
        tag="progress/updates_per_step",
    ),
    Metric("policy_lag_mean", f"{_LAG}: their mean", "updates", tag="policy_lag/mean"),
    Metric("policy_lag_p95", "95 % of these steps had no more", "updates", tag="policy_lag/p95"),
    Metric("policy_lag_max", "the largest of these steps", "updates", tag="policy_lag/max"),
    Metric(
        "lag_wait_seconds",
        "seconds that all actors together waited for `--wait-at-policy-lag`",
        "s",
        True,
        "policy_lag/wait_seconds",
    ),
    Metric("weights_version", "newest published weights version", "updates"),
    Metric("restarts", "workers started again", "restarts", True),
    Metric("dropped", "sum of what was [dropped](#dropped)", counts=True),
)

PHASE: Final = Metric("phase", "1 for the phase in which the run is")
WORKERS: Final = Metric("workers", "workers by role and state", "workers")

_TRANSITIONS, _UNROLLS = "those of transitions and sequences", "those of unrolls"
_SOFT: Final = "`sac`, `tqc`, `redq`, `droq`, `simba_v2`, `fast_sac`, `crossq`, `cql`, `discrete_sac`"

AGENT: Final = (
    Metric("loss", "the loss, before the optimizer's step", agents="all"),
    Metric("gradient_norm", "global L2 norm of the gradient, before it is clipped", agents="all"),
    Metric("priority", "mean raw priority of the batch", "TD error", agents=_TRANSITIONS),
    Metric("q", "mean value of the actions taken", "return", agents=f"{_TRANSITIONS} but `bc`, `pqn`"),
    Metric("advantage", "mean Q of the target critics less V, of recorded actions", "return", agents="`iql`"),
    Metric("temperature", "α of the entropy", agents=_SOFT),
    Metric(
        "entropy",
        "mean entropy of the policy",
        "nats",
        agents=f"{_SOFT}, {_UNROLLS} but `pqn`",
    ),
    Metric("value", "mean V", "return", agents=f"{_UNROLLS} but `pqn`"),
    Metric("kl", "estimate of KL(policy that acted ‖ policy now)", "nats", agents=f"{_UNROLLS} but `pqn`"),
    Metric("clipped", "share of steps whose ratio is clipped", "0 … 1", agents="`ppo`, `appo`"),
    Metric(
        "clipped_gradients",
        "share of gradients that were clipped since the last report, of the network with most",
        "0 … 1",
        agents="all",
    ),
    Metric("learning_rate", "learning rate now; of several networks the largest", agents="all"),
    Metric(
        "epsilon_mean",
        "ε with which actors act now: mean of all places for environments",
        "0 … 1",
        agents="those that act ε-greedily",
    ),
    Metric("epsilon_max", "the largest ε of all places for environments", "0 … 1", agents="those that act ε-greedily"),
    Metric("beta", "β, the exponent of importance weights", agents=f"{_TRANSITIONS}, where `--alpha` is not 0"),
    Metric("relative_update", "L2 norm of an update over that of the parameters", "ratio", agents="all"),
    Metric("dead_units", "share of ReLU units that are 0 for the whole batch", "0 … 1", agents="all"),
    Metric(
        "observation_size",
        "root mean square of the observations as the network gets them, without images",
        agents="all",
    ),
    Metric("reward_size", "root mean square of the rewards as they are learned from", "reward", agents="all"),
    Metric("effective_samples", "(Σw)² / (n·Σw²) of importance weights or ratios", "0 … 1", agents="all but `pqn`"),
    Metric("explained_variance", "1 − Var(target − V) / Var(target)", "at most 1", agents=_UNROLLS),
    Metric(
        "support_edges",
        "probability of the least and the greatest category",
        "0 … 1",
        agents="`c51`, `rainbow`, `bbf`, `d4pg`, `simba_v2`, `fast_td3`, `fast_sac`",
    ),
    Metric("rho", "mean of V-trace's clipped importance ratio ρ", "ratio", agents="`impala`, `appo`"),
    Metric(
        "compression_error",
        "L2 norm of what `--gradient-compression` left out of a gradient, over the gradient's; of every 50th",
        "ratio",
        agents="all, in several learners",
    ),
    Metric(
        "gradient_lag",
        "updates of the parameters between those of a gradient and its arrival: the running mean of all servers",
        "updates",
        agents="all, in `gorila`",
    ),
    Metric(
        "training_batch",
        "mean number of unrolls of an update since the last report",
        "unrolls",
        agents="all, in `ga3c`",
    ),
)

INFERENCE: Final = (
    Metric("batch", "mean number of environments per batch, over the last seconds", "environments"),
    Metric("wait_ms", "mean time from a request to its answer, over the last seconds", "ms"),
)

MACHINE: Final = (
    Metric("cpu", "share of all processors' time that was used since the last line", "0 … 1"),
    Metric("memory_used", "memory that is not available to new programs", "bytes"),
    Metric("memory_bytes", "memory in all", "bytes"),
)
"""Of the machine of the run's main process, all its programs together; in the log alone."""

DROPPED: Final = (
    Metric("messages", "messages of workers for which there was no room"),
    Metric("reports", "what could not be shown or stored of the run (panel, log, exporters, small files)"),
    Metric("checkpoint_writes", "checkpoints that could not be written; each is tried again"),
    Metric("checkpoint_copies", "attempts to copy a checkpoint to `--checkpoint-url` that failed"),
    Metric("aged_steps", "steps older than `--max-policy-lag`, left out of the loss"),
    Metric("stale_gradients", "gradients older than `--max-gradient-lag`, slice by slice"),
    Metric("lost_gradients", "gradients under way between hosts when a connection or a relay ended, slice by slice"),
    Metric("outlier_batches", "batches left out by `--outlier-deviations`"),
    Metric("late_requests", "requests of an environment worker's earlier generation"),
    Metric("unsent_priorities", "priorities for items of shards that were lost or are behind"),
    Metric("stale_priorities", "priorities for items that had been removed"),
    Metric("lost_items", "items that had been given out when their owner died (fifo), or lay in a lost shard"),
    Metric("items", "experience that did not get from one host to another, as far as this side knows"),
    Metric("hung_env_calls", "environment calls that ran beyond `--env-timeout`"),
    Metric("spoilt_weight_reads", "reads of weights that newer ones overtook; each is repeated"),
    Metric("log_bytes", "bytes that roles on Ray printed and that stay on their nodes, as they were too many at once"),
    Metric("host_messages", "episodes and warnings of other hosts that were not passed on"),
    Metric("episode_metrics", "numbers of environments' infos that have none of the run's 64 names"),
    Metric("custom_metrics", "values of callbacks that have none of the run's 64 names"),
    Metric(
        "evaluations",
        "of `--eval-period-steps`: periods that passed unseen, and weights that had no room, or no time at the end",
    ),
    Metric("weight_publications", "attempts to publish weights for other hosts that failed; each is tried again"),
)

_REFUSED: Final = "what was none of this run: frames of experience over Redis, connections over TCP"

LEARNER_HOSTS: Final = (
    Metric("committed", "in the replay, each once", "items", True),
    Metric("missing", "numbered by a sender and never come, though later ones have: dropped on purpose", "items", True),
    Metric("repeated", "come again after something failed, and thrown away", "items", True),
    Metric("refused", _REFUSED, "frames", True),
    Metric("refused_items", "items of frames that were none of this run", "items", True),
    Metric("waiting", "not yet taken from the server", "frames"),
    Metric("drained", "hosts that have left because of `apexrl drain`", "hosts", True),
    Metric("weights_published", "newest version that the server took", "updates"),
    Metric("weights_behind", "versions by which what other hosts can have is older", "updates"),
)
"""On the learner's host of a run over Redis, since that learner was started."""

ACTOR_HOSTS: Final = (
    Metric("sent_items", "committed, dropped and uncommitted items together", "items", True),
    Metric("committed_items", "sent items that are in the learner's replay", "items", True),
    Metric("dropped_items", "items that this host gave up", "items", True),
    Metric("uncommitted_items", "sent or waiting to be sent, and not known to be in the learner's replay", "items"),
    Metric("uncommitted_bytes", "the same in bytes", "bytes"),
    Metric("resent_frames", "frames that were sent again", "frames", True),
    Metric("left_items", "items not yet handed over to what sends them", "items"),
)
"""On an actor host of a run over Redis, since its uplink was started."""

GATEWAY_HOSTS: Final = (
    Metric("hosts", "hosts that are connected", "hosts"),
    Metric("workers", "workers that are connected", "workers"),
    Metric("worker_connections", "connections of workers that were let in", "connections", True),
    Metric("worker_restarts", "workers started again on these hosts", "restarts", True),
    Metric("refused", _REFUSED, "connections", True),
    Metric("env_steps", "environment steps of other hosts", "steps", True),
    Metric("episodes", "training episodes of other hosts", "episodes", True),
    Metric("lost_gradients", "gradients of other hosts that were under way when a connection ended", "slices", True),
    Metric("late_requests", "requests of an environment worker's earlier generation", "requests", True),
)
"""On the learner's host of a run that listens, since its gateway was started."""

KNOWN: Final = {
    **{metric.name: metric for metric in STATUS},
    **{f"agent/{metric.name}": metric for metric in AGENT},
    **{f"inference/{metric.name}": metric for metric in INFERENCE},
    **{f"machine/{metric.name}": metric for metric in MACHINE},
    **{f"hosts/{metric.name}": metric for metric in (*GATEWAY_HOSTS, *ACTOR_HOSTS, *LEARNER_HOSTS)},
}
"""Name in ``metrics.jsonl`` -> metric, of all that apexrl itself reports."""

TAGS: Final = {metric.name: metric.tag for metric in STATUS if metric.tag and metric.name != "eval_return"}
"""Name in ``metrics.jsonl`` -> name in TensorBoard, of what is written with every status."""


def metric_of(name: str) -> Metric:
    """The metric of a name in ``metrics.jsonl``. An agent of your own may report any name, with any meaning."""
    known = KNOWN.get(name)
    if known is None:
        return Metric(name, "reported by the agent, its link, the environment or a callback")
    return known._replace(name=name)
