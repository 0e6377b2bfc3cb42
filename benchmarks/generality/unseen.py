"""Does ``apexrl train --env X`` learn on environments that are not of the suite?

    python benchmarks/generality/unseen.py                     # all that are installed, about an hour
    python benchmarks/generality/unseen.py --only Grid-v0 parking-v0
    python benchmarks/generality/unseen.py --table             # the table anew, from the records that there are

Ten environments are of ``unseen_envs.py``, the others of packages that the table names. The command has no other flag
than ``--minutes`` and ``--seed``. Each ended run is a line in ``benchmarks/records/generality/unseen.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import gymnasium as gym

from benchmarks.generality import cells
from benchmarks.generality.cells import Record
from benchmarks.generality.random_play import random_return
from benchmarks.lib import report, runs

OWN = "benchmarks.generality.unseen_envs:"
HAND = "a policy written by hand"
PATH = cells.RECORDS / "unseen.jsonl"
EPISODES = 20  # of random actions


@dataclass(frozen=True)
class Unseen:
    """An environment, for how many minutes it is learned, and a good return."""

    env: str
    minutes: float
    good: str
    package: str = ""
    """Its distribution on PyPI, where Gymnasium does not bring it."""

    @property
    def name(self) -> str:
        return self.env.rpartition(":")[2]


UNSEEN = {
    one.name: one
    for one in (
        Unseen(f"{OWN}Thermostat-v0", 0.75, f"−82, {HAND}"),
        Unseen(f"{OWN}Inventory-v0", 0.75, "2014, orders up to 21 goods in all"),
        Unseen(f"{OWN}Grid-v0", 0.75, f"0.95, {HAND}"),
        Unseen(f"{OWN}Contextual-v0", 0.75, "1.16, the greatest there is"),
        Unseen(f"{OWN}Chain-v0", 0.75, "1, the greatest there is"),
        Unseen(f"{OWN}Tiny-v0", 0.75, f"−4.3, {HAND}"),
        Unseen(f"{OWN}Bits-v0", 0.75, "160, the greatest there is"),
        Unseen(f"{OWN}Wheels-v0", 0.75, "40, the greatest there is"),
        Unseen(f"{OWN}Huge-v0", 0.75, "0, the greatest there is"),
        Unseen(f"{OWN}Rooms-v0", 0.75, f"10.6, {HAND}"),
        Unseen(f"{OWN}Joints-v0", 3.0, f"−5, {HAND}"),
        Unseen(f"{OWN}Level-v0", 1.0, "20, the greatest there is"),
        Unseen("CliffWalking-v1", 0.75, "−13, the greatest there is"),
        Unseen("FrozenLake8x8-v1", 1.0, "0.85, solved"),
        Unseen("HumanoidStandup-v5", 4.0, ""),
        Unseen("Pusher-v5", 4.0, ""),
        Unseen("CarRacing-v3", 6.0, "900, solved"),
        Unseen("highway_env:highway-fast-v0", 3.0, "30, the greatest there is", "highway-env"),
        Unseen("highway_env:parking-v0", 4.0, "", "highway-env"),
        Unseen("highway_env:racetrack-v0", 4.0, "", "highway-env"),
        Unseen("flappy_bird_gymnasium:FlappyBird-v0", 4.0, "", "flappy-bird-gymnasium"),
        Unseen("minigrid:MiniGrid-DoorKey-5x5-v0", 3.0, "0.96", "minigrid"),
        Unseen("minigrid:MiniGrid-FourRooms-v0", 3.0, "", "minigrid"),
        Unseen("gymnasium_robotics:PointMaze_UMaze-v3", 4.0, "", "gymnasium-robotics"),
        Unseen("panda_gym:PandaReach-v3", 3.0, "−1.7, rl-zoo's SAC", "panda-gym"),
        Unseen("gym_anytrading:stocks-v0", 2.0, "", "gym-anytrading"),
        Unseen("vizdoom.gymnasium_wrapper:VizdoomBasic-v1", 4.0, "", "vizdoom"),
    )
}


def run(one: Unseen, seed: int, shared: bool) -> Record:
    """Learn it with the defaults, and play random actions beside."""
    words = ["--env", one.env, "--minutes", str(one.minutes), "--seed", str(seed)]
    versions = {of: report.version(of) for of in (*cells.VERSIONS, one.package) if of}
    record: Record = {
        "env": one.name,
        "seed": seed,
        "command": " ".join(words),
        "machine": report.machine(),
        "commit": cells.commit(),
        "versions": versions,
        "shared": shared,
        "failure": "",
    }
    try:
        summary = runs.train("", f"unseen-{one.name}-{seed}", words, 120.0 * one.minutes + 600.0)
    except (runs.RunFailed, subprocess.TimeoutExpired) as error:
        return record | {"failure": str(error)[-2000:]}
    return record | {
        "agent": summary["agent"],
        "topology": summary["topology"],
        "steps": summary["env_steps"],
        "best": summary["final_eval_return"],
        "last": summary["last_weights_return"],
        "episodes": summary["final_eval_episodes"],
        "random": random_return(one.env, EPISODES),
    }


def as_table(records: list[Record]) -> str:
    """A row for each environment that was run."""
    rows = []
    for record in records:
        one = UNSEEN[record["env"]]
        head = [f"`{one.name}`", one.package or ("this page" if one.env.startswith(OWN) else "Gymnasium")]
        if record["failure"]:
            rows.append([*head, "", f"{one.minutes:g}", "", "failed", "", "", one.good])
            continue
        found = ["–" if record[of] is None else report.short(record[of]) for of in ("random", "best", "last")]
        ran = f"`{record['agent']}`, `{record['topology']}`"
        rows.append([*head, ran, f"{one.minutes:g}", report.short(record["steps"]), *found, one.good])
    return report.table(
        ["environment", "of", "chosen", "minutes", "env steps", "random", "best weights", "last", "good"], rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(UNSEEN), default=list(UNSEEN), metavar="ID")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shared", action="store_true", help="the machine does other work: the records say so")
    parser.add_argument("--table", action="store_true", help="run nothing; make the table of what there is")
    options = parser.parse_args()
    for name in () if options.table else options.only:
        try:
            gym.make(UNSEEN[name].env, disable_env_checker=True).close()
        except (gym.error.Error, ModuleNotFoundError) as error:
            print(f"{name}: left out, {error}", flush=True)
            continue
        record = run(UNSEEN[name], options.seed, options.shared)
        cells.keep(PATH, record)
        print(name, record["failure"] or record["best"], flush=True)
    lines = PATH.read_text(encoding="utf-8").splitlines() if PATH.is_file() else []
    newest = {record["env"]: record for record in map(json.loads, lines)}
    records = [newest[name] for name in UNSEEN if name in newest]
    text = (
        f"{report.made_with(records)}. One seed each{', beside other work' * any(one['shared'] for one in records)}. "
    )
    text += "Returns of up to 20 greedy episodes on fresh seeds.\n\n"
    report.save("generality-unseen", text + as_table(records), records, None)


if __name__ == "__main__":
    main()
