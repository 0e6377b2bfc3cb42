"""How much memory compressed images take, and what acting and sampling pay for it.

    python benchmarks/replay/run.py compressed
    python benchmarks/replay/run.py compressed --games Pong --stack 4

Two replays of the same options hold the same frames of 84 × 84: as they are, and compressed. The frames are those of
Atari games (extra atari) played at random, and noise, which nothing makes smaller. Speeds are of one thread's processor
time, in turn.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from apexrl.replay import Field, Replay
from benchmarks.lib import report
from benchmarks.replay.ragged import physical

STREAMS = 8
NOISE = "noise"


def frames_of(game: str, steps: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Frames uint8 [steps, STREAMS, 84, 84] of random play, and where episodes end, bool [steps, STREAMS]."""
    rng = np.random.default_rng(1)
    frames, ends = np.zeros((steps, STREAMS, 84, 84), np.uint8), np.zeros((steps, STREAMS), bool)
    if game == NOISE:
        return rng.integers(256, size=frames.shape, dtype=np.uint8), ends
    from apexrl.config import EnvConfig
    from apexrl.envs import make_vector

    env = make_vector(EnvConfig(env=f"ALE/{game}-v5", atari=True), STREAMS, 1)
    seen = env.reset()
    for t in range(steps):
        frames[t] = seen["observation"]
        stepped = env.step(rng.integers(env.spec.action.n, size=STREAMS))
        seen, ends[t] = stepped.observation, stepped.terminated | stepped.truncated
    env.close()
    return frames, ends


def filled(frames: Any, ends: Any, options: argparse.Namespace, compressed: bool) -> tuple[Replay, float]:
    """A replay of all frames, and the seconds of a step that writing took."""
    fields = {"observation": Field((84, 84), "uint8", compressed=compressed), "action": Field((), "int64")}
    shape = {"kind": "transition", "n_step": 3, "stack": options.stack}
    replay = Replay(frames.shape[0] * STREAMS, fields, streams=STREAMS, writers=1, check_memory=False, **shape)
    replay.core.own()
    actions, no = np.zeros(STREAMS, np.int64), np.zeros(STREAMS, bool)
    ended, began = no, time.thread_time()
    with replay.writer(streams=STREAMS) as writer:
        for seen, over in zip(frames, ends, strict=True):
            step = {"reward": np.zeros(STREAMS), "terminated": over & ~ended, "truncated": no}
            writer.append({"observation": seen, "action": actions, **step})
            ended = over & ~ended
    return replay, (time.thread_time() - began) / (len(frames) * STREAMS)


def speed(replay: Replay, batch: int) -> float:
    """Items a second."""
    times = []
    for _ in range(20):
        start = time.thread_time()
        replay.sample(batch)
        times.append(time.thread_time() - start)
    return batch / median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--games", nargs="*", default=["Pong", "Breakout", "SpaceInvaders", "Seaquest", NOISE])
    parser.add_argument("--steps", type=int, default=1500, help="of each of 8 streams")
    parser.add_argument("--stack", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    rows, raw = [], {}
    for game in options.games:
        found = raw[game] = measure(game, options)
        plain, packed = found["plain"], found["compressed"]
        rows.append(
            [
                game,
                f"{plain['bytes'] / 1e3:.2f}",
                f"{packed['bytes'] / 1e3:.2f}",
                f"{plain['bytes'] / packed['bytes']:.1f}",
                f"{median(plain['rates']) / 1e3:.1f}",
                f"{median(packed['rates']) / 1e3:.1f}",
                report.ratio(packed["rates"], plain["rates"])[1],
                f"{plain['write'] * 1e6:.1f}",
                f"{packed['write'] * 1e6:.1f}",
            ]
        )
    head = [
        "frames",
        "KB a step",
        "compressed",
        "times as many",
        "items/s (k)",
        "compressed",
        "ratio",
        "µs to write",
        "compressed",
    ]
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'numpy')}.",
        f"Stacks of {options.stack}, n = 3, batches of {options.batch}; {options.rounds} rounds in turn.\n",
        report.table(head, rows),
    ]
    report.save("replay-compressed", "\n".join(lines), raw, None, options.out)


def measure(game: str, options: argparse.Namespace) -> dict[str, Any]:
    """Of each replay: bytes and seconds of a step, and items a second, a figure a round."""
    frames, ends = frames_of(game, options.steps)
    found: dict[str, Any] = {}
    replays = {}
    for name in ("plain", "compressed"):
        replays[name], write = filled(frames, ends, options, name == "compressed")
        found[name] = {"bytes": physical(replays[name]) / frames.shape[0] / STREAMS, "write": write, "rates": []}
    try:
        for _ in range(options.rounds):
            for name, replay in replays.items():
                found[name]["rates"].append(speed(replay, options.batch))
    finally:
        for replay in replays.values():
            replay.close()
    return found
