"""What several agents learn, together or against each other: whole ``apexrl train`` runs.

    python benchmarks/teams/run.py                                   # all rows: two hours
    python benchmarks/teams/run.py --rows connect-four --share 0.1   # a tenth of the steps
    python benchmarks/teams/run.py --also=--serial                   # as one process each, beside other work

A row without its package (``pip install mpe2``) is named and left out. Weights are the last ones. A team's return is
measured by the run's final evaluation; a board game's by 200 games against one who looks a move ahead (it wins where it
can, stops a line where it must, and plays at random else), and by 200 against one who plays at random. Every run is a
line in ``benchmarks/records/teams/runs.jsonl``, of which the table is made.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from benchmarks.lib import report

TWO_STEPS = "--env apexrl.envs.team_games:parallel_env --show-state --epsilon 1"
SPREAD_BESIDE = "random −26, without a move −25, by a plan −8"
SPREAD = "--env mpe2.simple_spread_v3:parallel_env --show-state --show-agent"
RECORDS = report.RECORDS / "teams" / "runs.jsonl"
BOARD = "--env apexrl.envs.board_games:env --env-kwargs game"
SELF_PLAY = (
    "--agent ppo --topology impala --hidden 256 256 --no-pink-noise --entropy-coefficient 0.1 "
    "--batch-size 64 --epochs 4 --actors 1 --envs-per-actor 64"
)


@dataclass(frozen=True)
class Row:
    """One command, and what its result means."""

    name: str
    words: str
    env_steps: int
    seeds: tuple[int, ...] = (1,)
    package: str = ""
    game: str = ""  # of a board
    best: str = ""


ROWS = (
    Row("two-step, VDN", f"--agent vdn {TWO_STEPS}", 10_000, (1, 2, 3, 4, 5), best="7 (Rashid et al. 2018)"),
    Row("two-step, QMIX", f"--agent qmix {TWO_STEPS}", 10_000, (1, 2, 3, 4, 5), best="8 (the same)"),
    Row("simple-spread, PPO", f"--agent ppo --topology impala {SPREAD}", 1_000_000, package="mpe2", best=SPREAD_BESIDE),
    Row(
        "simple-spread, MAPPO",
        f"--agent ppo --topology impala {SPREAD} --central-value",
        1_000_000,
        package="mpe2",
        best=SPREAD_BESIDE,
    ),
    Row(
        "simple-spread, VDN",
        f"--agent vdn {SPREAD} --exploration-steps 50000",
        330_000,
        package="mpe2",
        best=SPREAD_BESIDE,
    ),
    Row(
        "simple-spread, QMIX",
        f"--agent qmix {SPREAD} --exploration-steps 50000",
        330_000,
        package="mpe2",
        best=SPREAD_BESIDE,
    ),
    Row(
        "tic-tac-toe",
        f"{BOARD} tic_tac_toe --agent dueling_dqn",
        500_000,
        game="tic_tac_toe",
        best="0 lines lost, 0.5 or more",
    ),
    Row(
        "connect-four",
        f"{BOARD} connect_four {SELF_PLAY} --pool-period-steps 100000",
        2_500_000,
        game="connect_four",
        best="random play 0.05",
    ),
)


def measured(row: Row, seed: int, steps: int, out: Path, also: Sequence[str]) -> dict[str, Any]:
    """Train and look at the last weights."""
    name = f"{row.name.replace(', ', '-').lower()}-{steps}-{seed}"
    words = [
        "train",
        *row.words.split(),
        "--env-steps",
        str(steps),
        "--seed",
        str(seed),
        "--out",
        str(out),
        "--name",
        name,
    ]
    words += ["--resume-or-start", "--eval-period-seconds", "30", *also]
    command = [sys.executable, "-m", "apexrl.cli", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((out / name / "summary.json").read_text())
    found = {"row": row.name, "seed": seed, "env_steps": summary["env_steps"], "seconds": summary["wall_seconds"]}
    found |= {"also": list(also), "machine": report.machine(), "versions": report.versions("apexrl", "torch")}
    return found | (board(out / name, row.game) if row.game else {"return": summary["last_weights_return"]})


def board(run: Path, game: str) -> dict[str, Any]:
    """What the agent's score against one who looks ahead is, and in tic-tac-toe which lines of play it loses."""
    import self_play

    import apexrl
    from apexrl.envs.board_games import env

    agent = apexrl.load(run, checkpoint="latest")
    found: dict[str, Any] = {"score": self_play.score(agent, game, 200)}
    found["random"] = self_play.score(agent, game, 200, other=self_play.plays_at_random)
    if game == "tic_tac_toe":
        for seat in ("first", "second"):
            board = env(game)
            board.reset()
            found[seat] = [int(number) for number in self_play.replies(agent, board, seat)]
    return found


def said(found: dict[str, Any]) -> str:
    if "return" in found:
        return f"{found['return']:.2f}"
    lines = [f"{found[seat][0]} of {found[seat][1]} lost as {seat}" for seat in ("first", "second") if seat in found]
    scores = f"{found['score']:.2f} against one who looks ahead, {found['random']:.2f} against random play"
    return "; ".join([scores, *lines])


def kept() -> list[dict[str, Any]]:
    """All runs that were recorded."""
    lines = RECORDS.read_text(encoding="utf-8").splitlines() if RECORDS.exists() else []
    return [json.loads(line) for line in lines]


def write() -> None:
    """The table of all recorded runs."""
    records, lines = kept(), []
    for row in ROWS:
        own = [one for one in records if one["row"] == row.name]
        for steps in sorted({one["env_steps"] // 1_000 for one in own}):
            those = [one for one in own if one["env_steps"] // 1_000 == steps]
            seeds = ", ".join(str(one["seed"]) for one in those)
            lines.append([row.name, f"{steps:,}k", seeds, ", ".join(map(said, those)), row.best])
    head = ("row", "environment steps", "seeds", "last weights, by seed", "beside it")
    told = "; ".join(sorted({f"{one['machine']}; {one['versions']}" for one in records}))
    report.save("teams", f"{told}.\n\n{report.table(head, lines)}", records, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[], help="begin of rows' names; default: all")
    parser.add_argument("--share", type=float, default=1.0, help="of the environment steps")
    parser.add_argument("--seeds", nargs="+", type=int, default=[])
    parser.add_argument(
        "--also", default="", help="flags that every run is given besides, as --also='--serial --eval-episodes 90'"
    )
    parser.add_argument("--out", type=Path, default=report.OUT / "teams")
    wanted = parser.parse_args()
    RECORDS.parent.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        if wanted.rows and not row.name.startswith(tuple(wanted.rows)):
            continue
        if row.package and importlib.util.find_spec(row.package) is None:
            print(f"{row.name} is left out: pip install {row.package}")
            continue
        for seed in wanted.seeds or row.seeds:
            found = measured(
                row, seed, max(1_000, round(row.env_steps * wanted.share)), wanted.out, wanted.also.split()
            )
            with RECORDS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
            print(f"{row.name}, seed {seed}: {said(found)}", flush=True)
    write()


if __name__ == "__main__":
    main()
