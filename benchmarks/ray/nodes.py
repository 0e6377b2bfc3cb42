"""CartPole on a Ray of three nodes, and with a node killed on the way.

    python benchmarks/ray/run.py nodes                        # Ape-X and IMPALA, three seeds each, then the losses
    python benchmarks/ray/run.py nodes --parts lost --topologies apex --seeds 1

The nodes are Ray's own for tests (``ray.cluster_utils.Cluster``): a head without processors and three nodes, each with
a raylet, an object store and workers of its own, all on this machine, whose processors they share. Runs are ``apexrl
train cartpole --topology NAME --seed N --ray ADDRESS``, with the preset's settings; places take parts of a processor.

| part | what is done |
| --- | --- |
| `solve` | three groups of actors, each with a shard of the replay, on as many nodes; home beside one of them |
| `lost` | the same; when 5,000 steps are made, every process of a node with actors and one shard is killed |
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.lib import processes, report

Result = dict[str, Any]
PARTS = ("solve", "lost")
TOPOLOGIES = ("apex", "impala")
GOAL = 475.0
KILL_AT = 5_000  # environment steps
NODES, CPUS = 3, 2
HOME_CPUS = 0.75  # which no other place has
QUIET = {"RAY_worker_niceness": "0", "RAY_USAGE_STATS_ENABLED": "0"}


class Nodes:
    """A head without processors and some nodes, on this machine.

    Args:
        count: of nodes beside the head.
        cpus: processors that Ray is told a node has.
        stores: bytes of each object store.
    """

    def __init__(self, count: int = NODES, cpus: int = CPUS, stores: int = 150 * 2**20) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        try:
            # Runs gather what workers print by themselves, and nobody looks at Ray's dashboard.
            quiet: dict[str, Any] = {"include_dashboard": False, "include_log_monitor": False}
            self._start(num_cpus=0, object_store_memory=stores, **quiet)
            self.address = str(self._cluster.address)
            for _ in range(count):
                self._start(num_cpus=cpus, object_store_memory=stores)
        except BaseException:
            self.close()
            raise

    def _start(self, **how: Any) -> None:
        """Ray gives a node 30 seconds, which a busy machine may not have for it at once."""
        for tries_left in (2, 1, 0):
            try:
                node = self._cluster.add_node(wait=False, **how)
                break
            except Exception as error:
                if not tries_left:
                    raise processes.Failed(f"a node of Ray did not start, three times: {error}") from error
        self._cluster._wait_for_node(node, timeout=120)  # type: ignore[no-untyped-call]

    def lose(self, node_id: str) -> None:
        """Kill every process of a node, as if its machine had gone."""
        (node,) = [node for node in self._cluster.worker_nodes if node.node_id == node_id]
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def nodes(count: int = NODES, cpus: int = CPUS, stores: int = 150 * 2**20) -> Iterator[Nodes]:
    """They are gone afterwards."""
    os.environ.update(QUIET)
    made = Nodes(count, cpus, stores)
    try:
        yield made
    finally:
        made.close()


class Loss:
    """Watches a run, and kills the node of a shard when there are ``KILL_AT`` steps; home's own is spared."""

    def __init__(self, cluster: Nodes) -> None:
        self._cluster = cluster
        self.at = 0  # environment steps

    def started(self, config: Any, folder: Path) -> None: ...

    def update(self, status: Any) -> bool:
        if not self.at and status.env_steps >= KILL_AT:
            where = places()
            others = sorted(name for name in where if name.startswith("shard-") and where[name] != where["home"])
            self._cluster.lose(where[others[-1]])
            self.at = status.env_steps
        return False

    def event(self, kind: str, values: dict[str, Any]) -> None: ...

    def message(self, text: str, level: str = "info") -> None: ...

    def finished(self, summary: dict[str, Any]) -> None: ...


def places() -> dict[str, str]:
    """The node of home and of every shard of the one run that there is."""
    import ray
    from ray.util import placement_group_table

    found = {}
    for reserved in placement_group_table().values():
        for number, bundle in reserved["bundles"].items():
            if reserved["state"] == "CREATED" and bundle.get("CPU") == HOME_CPUS:
                found["home"] = str(reserved["bundles_to_node_id"][number])
    for named in ray.util.list_named_actors(all_namespaces=True):
        group, _, generation = named["name"].rpartition(".")
        if generation.isdigit() and group.startswith("shard-"):
            actor = ray.get_actor(named["name"], named["namespace"])
            hello: Any = ray.get(actor.hello.remote(), timeout=30.0)
            found[group] = str(hello.node)
    return found


def config_of(topology: str, seed: int, out: Path, options: argparse.Namespace) -> Any:
    from apexrl import presets
    from apexrl.config import convert

    config = presets.with_topology(presets.preset("cartpole").config, topology)
    return convert.override(
        config,
        {"seed": seed, "out": str(out), "actors": NODES, "minutes": options.minutes},
    )


def one(part: str, topology: str, seed: int, options: argparse.Namespace) -> Result:
    """One run on a cluster of its own. A failure is a result, too."""
    from apexrl.api import run
    from apexrl.config.placement import Ray
    from apexrl.errors import ApexrlError

    with nodes() as cluster, tempfile.TemporaryDirectory() as out:
        watch = Loss(cluster)
        placement = Ray(
            cluster.address,
            actor_cpus=0.25,
            shard_cpus=0.25,
            learner_cpus=HOME_CPUS,
            replay_shards=NODES,
            wait_seconds=90.0,
        )
        config = config_of(topology, seed, Path(out), options)
        try:
            summary = run(config, observers=[watch] if part == "lost" else [], placement=placement).summary
        except ApexrlError as error:
            return {"part": part, "topology": topology, "seed": seed, "failure": str(error)[-1000:]}
    kept = ("env_steps", "updates", "wall_seconds", "startup_seconds", "final_eval_return", "restarts", "dropped")
    solved = summary["final_eval_return"] >= GOAL
    found = {name: summary[name] for name in kept} | {"solved": solved, "lost_at": watch.at, "failure": ""}
    return {"part": part, "topology": topology, "seed": seed, "agent": summary["agent"]} | found


def solved(results: list[Result]) -> str:
    """The table of runs that nobody disturbed."""
    lines = []
    for topology in dict.fromkeys(result["topology"] for result in results):
        own = [result for result in results if result["topology"] == topology]
        good = [result for result in own if not result["failure"]]
        if not good:
            lines.append([topology, "", f"0 of {len(own)}", "–", "–", "–", "–", "–"])
            continue
        spreads = [
            report.spread([result[name] for result in good]) for name in ("wall_seconds", "env_steps", "updates")
        ]
        returns = ", ".join(f"{result['final_eval_return']:.1f}" for result in good)
        count = sum(result["solved"] for result in good)
        lines.append(
            [f"`{topology}`", f"`{good[0]['agent']}`", f"{count} of {len(own)}", returns, *spreads,
             report.spread([result["startup_seconds"] for result in good])]
        )  # fmt: skip
    header = ["topology", "agent", "solved", "final return, each seed", "seconds", "env steps", "updates"]
    return report.table([*header, "seconds before the first step"], lines)


def lost(results: list[Result]) -> str:
    """The table of runs that lost a node."""
    header = ["topology", "seed", "node lost at step", "solved", "final return", "seconds", "env steps"]
    lines = [
        [
            f"`{result['topology']}`", result["seed"], f"{result['lost_at']:,}",
            "yes" if result["solved"] else "**no**",
            f"{result['final_eval_return']:.1f}", f"{result['wall_seconds']:.1f}", f"{result['env_steps']:,}",
            _counts(result["restarts"]), _counts(result["dropped"]),
        ]
        for result in results
        if not result["failure"]
    ]  # fmt: skip
    return report.table([*header, "restarts", "dropped"], lines)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "none"


def text(results: list[Result]) -> str:
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'ray', 'torch', 'gymnasium')}.",
        f"A Ray of {NODES} nodes with {CPUS} processors each, as far as Ray knows, all on this machine; {NODES} groups "
        "of actors with a shard each. A run ends at the preset's goal of 499; solved: 475 on 20 fresh episodes. Median "
        "(least–greatest) over seeds; seconds from the first step to the goal.",
        "",
    ]
    undisturbed = [result for result in results if result["part"] == "solve"]
    disturbed = [result for result in results if result["part"] == "lost"]
    for found, table in ((undisturbed, solved), (disturbed, lost)):
        lines += [table(found), ""] if found else []
    for result in results:
        if result["failure"]:
            lines.append(f"{result['part']}, {result['topology']}, seed {result['seed']} failed: {result['failure']}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--topologies", nargs="+", default=list(TOPOLOGIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=10.0, help="limit of one run (default: 10)")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for the table")
    options = parser.parse_args()
    processes.end_in_order()
    results: list[Result] = []
    for part in options.parts:
        for seed in options.seeds:
            for topology in options.topologies:
                result = one(part, topology, seed, options)
                results.append(result)
                said = result["failure"] or f"solved: {result['solved']}, {result['wall_seconds']:.1f} s"
                print(f"{part} {topology} {seed}: {said}", flush=True)
    report.save("ray-nodes", text(results), results, None, options.out)
