"""100 000 frames gone wrong, through a real server and the whole intake into a real replay.

    python benchmarks/hosts/run.py fuzz          # some minutes
    python benchmarks/hosts/run.py fuzz --quick

Three kinds in turn, with sound frames of an honest sender between them. *damaged*: bits and bytes changed on the way.
*hostile*: sound checksums over lies. *poisoned*: sound frames whose bodies hold other values; what such a frame says
may be untrue and still be well-formed, as from any actor, so of these only what a replay must never hold is looked for.
Every item that comes out of the replay is looked at: an item of a damaged or hostile frame must be one that was in a
chunk of the run, whole; those of the honest sender must all be there, once. Memory is this process's own; the highest
that it ever was counts too.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from apexrl._native import ChunkHeads
from apexrl.config import Config
from apexrl.links.local.role_context import InlineContext, InlineRun, WorkerIdentity
from apexrl.links.redis.experience_stream import ExperienceSender
from apexrl.links.redis.keys import RunKeys
from apexrl.links.redis.server import Server
from apexrl.replay.chunks import Receipts
from apexrl.roles.intake import Intake
from apexrl.shared.weights_board import WeightsBoard
from benchmarks.hosts import chunks_to_send as material
from benchmarks.hosts.bad_frames import Mutants
from benchmarks.hosts.chunks_to_send import Chunk
from benchmarks.lib import hosts as rig
from benchmarks.lib import report

RUN_ID = "fuzz-0000-0000"
AT_ONCE = 200
SHAPE = material.Shape(material.SHAPES["small"].fields, stack=2)
MOST_GROWTH_MB = 32.0
Result = dict[str, Any]


class Rig:
    """A server, an honest sender, and the real intake before a replay that gives out every item once."""

    def __init__(self, schema: bytes, folder: Path) -> None:
        self.server = rig.RedisServer("127.0.0.1", rig.free_port(), (), folder, ())
        self.server.start()
        self.keys = RunKeys("fuzz")
        here = Server(self.server.url)
        self.replay = material.replay(SHAPE, 200_000)
        self.said: Counter[str] = Counter()
        run = InlineRun(self._hear, steps_per_second=1000.0)
        context = InlineContext(run, WorkerIdentity("intake-0", "intake", 0, 0, 1, folder))
        self.receipts = Receipts()
        self.intake = Intake(
            context, config=Config(), server=here, keys=self.keys, run_id=RUN_ID, replays=[self.replay],
            weights=WeightsBoard(64), receipts=self.receipts, streams=2 * material.STREAMS,
        )  # fmt: skip
        self.sender = ExperienceSender(
            here, self.keys, run_id=RUN_ID, member="honest", generation=1, schema=schema, window_bytes=1 << 26
        )
        self.books: dict[str, int] = {}
        self.intake.step()  # it makes the stream

    def push(self, frames: list[bytes]) -> None:
        """As anybody who has the password could."""
        with self.server.client() as client:
            generation = rig.wait_for("a stream", lambda: client.get(self.keys.steps))
            with client.pipeline(transaction=False) as pipe:
                for frame in frames:
                    pipe.execute_command("XADD", f"{self.keys.steps}:{generation.decode()}", "*", "f", frame)
                pipe.execute()

    def take(self) -> list[bytes]:
        """All that is on the server goes through the intake; what came into the replay."""
        items: list[bytes] = []
        quiet = 0
        while quiet < 3 or self.sender.uncommitted_items:
            moved = self.intake.step()
            self.sender.step(0.0)
            quiet = 0 if moved else quiet + 1
            items += material.drained(self.replay)
        return items

    def _hear(self, name: str, kind: str, values: dict[str, Any]) -> None:
        self.said[kind] += 1
        if kind == "intake":
            self.books = values

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.sender.close(0.0)
        self.intake.close()
        self.replay.close()
        self.server.kill()


def run(count: int, seed: int, folder: Path) -> Result:
    """``count`` mutants of each kind."""
    chunks, schema = material.chunks(SHAPE, 400, seed, most_bytes=1800)
    honest, known = chunks[:200], material.items_of(chunks, SHAPE)
    mutants = Mutants(chunks[200:], RUN_ID, schema, seed)
    result: Result = {"kinds": {}, "memory_mb": [], "frames": 0}
    with Rig(schema, folder) as fuzz:
        began = time.monotonic()
        for kind, make in mutants.kinds().items():
            tally = Counter[str]()
            for first in range(0, count, AT_ONCE):
                frames = [make() for _ in range(min(AT_ONCE, count - first))]
                tally["bytes"] += sum(map(len, frames))
                before = fuzz.books.get("refused", 0)
                some = [honest[(first // AT_ONCE + n) % len(honest)] for n in range(4)]
                fuzz.push(frames[: len(frames) // 2])
                _offer(fuzz.sender, some)
                fuzz.push(frames[len(frames) // 2 :])
                items = fuzz.take()
                fuzz.intake._report(last=True)
                wrong, missing = _judge(items, some, known, poisoned=kind == "poisoned")
                tally.update(frames=len(frames), refused=fuzz.books["refused"] - before, items=len(items))
                tally.update(wrong=wrong, missing=missing)
                del frames, items
                result["memory_mb"].append([result["frames"] + tally["frames"], _resident()])
            result["kinds"][kind] = dict(tally)
            result["frames"] += tally["frames"]
            print(f"{kind}: {dict(tally)}, {_resident():.0f} MB", flush=True)
        result["seconds"] = time.monotonic() - began
        result["server_mb"] = int(fuzz.server.ask("INFO", "memory")["used_memory"]) / 1e6
        result["left_on_server"] = int(fuzz.server.ask("XLEN", _stream(fuzz)))
        result["remembered_senders"] = int(fuzz.server.ask("HLEN", fuzz.keys.committed))
        result["log_messages"] = fuzz.said["log"]
        result["highest_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        result["books"] = fuzz.books
    return result


def _stream(fuzz: Rig) -> str:
    return f"{fuzz.keys.steps}:{fuzz.server.ask('GET', fuzz.keys.steps).decode()}"


def _offer(sender: ExperienceSender, some: list[Chunk]) -> None:
    sender.offer(ChunkHeads([chunk.head for chunk in some]), b"".join(chunk.body for chunk in some), {})
    sender.step(0.0)


def _judge(items: list[bytes], some: list[Chunk], known: set[bytes], poisoned: bool) -> tuple[int, int]:
    """(items that must not be there, honest items that are not there once)."""
    times = Counter(items)
    missing = sum(times[item] != 1 for item in material.items_of(some, SHAPE))
    if not poisoned:
        return sum(item not in known for item in items), missing
    # by the order of their names: action 8 bytes, discount 4, next_observation, observation, reward 4
    ends = [(np.frombuffer(item[8:12], np.float32)[0], np.frombuffer(item[-4:], np.float32)[0]) for item in items]
    return sum(not (0 <= discount <= 1 and np.isfinite(reward)) for discount, reward in ends), missing


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096 / 1e6


def _growth(memory: list[list[float]]) -> float:
    """MB, from the second quarter to the end."""
    last = memory[-1][0]
    early = [mb for frames, mb in memory if 0.25 * last <= frames <= 0.5 * last]
    return max(mb for frames, mb in memory if frames >= 0.75 * last) - max(early)


def as_table(result: Result) -> str:
    rows = [
        [kind, f"{tally['frames']:,}", f"{tally['refused']:,}", f"{tally['frames'] - tally['refused']:,}",
         f"{tally['items']:,}", tally["wrong"], tally["missing"]]
        for kind, tally in result["kinds"].items()
    ]  # fmt: skip
    header = ["", "frames", "refused", "decoded, or repeated", "items that came into the replay"]
    return report.table([*header, "wrong ones", "honest ones that did not, or twice"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=102_000, help="of all kinds together (default: 102000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="6000 frames: only to see that it works")
    parser.add_argument("--out", type=Path, default=report.OUT, help="folder for table and figures")
    options = parser.parse_args()
    count = (6000 if options.quick else options.frames) // 3
    with tempfile.TemporaryDirectory(prefix="apexrl-") as folder:
        result = run(count, options.seed, Path(folder))
    growth = _growth(result["memory_mb"])
    bad = sum(tally["wrong"] + tally["missing"] for tally in result["kinds"].values())
    met = not bad and growth < MOST_GROWTH_MB and result["frames"] >= 100_000
    lines = [
        f"{report.machine()}; {report.versions('apexrl', 'redis')}. {result['seconds']:.0f} s.\n",
        as_table(result),
        f"Memory from the second quarter to the end: {growth:+.1f} MB; highest ever {result['highest_mb']:.0f} MB. On "
        f"the server afterwards: {result['left_on_server']} frames, {result['remembered_senders']} senders, "
        f"{result['server_mb']:.1f} MB. Bar (100 000 frames, none wrong, memory flat): {'met' if met else 'missed'}.\n",
    ]
    name = "hosts-fuzz-quick" if options.quick else "hosts-fuzz"
    report.save(name, "\n".join(lines), result, None, options.out)
    return 0 if not bad else 1
