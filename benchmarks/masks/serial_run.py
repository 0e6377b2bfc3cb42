"""One serial run: prints the microseconds of CPU time that it takes for an environment step, as JSON.

    python benchmarks/masks/serial_run.py FIRST STEPS -- FLAGS OF apexrl train

Counted from step FIRST to step STEPS, without the start and the end. It needs apexrl alone, also an older one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from apexrl.cli.main import main
from apexrl.envs.vector import VectorEnv


def measured(first: int, steps: int, flags: list[str]) -> float:
    marks: list[tuple[int, float]] = []
    made, own = 0, VectorEnv.send

    def send(self: VectorEnv, actions: Any, which: Any = None) -> None:
        nonlocal made
        own(self, actions, which)
        if self.num_envs > 1:  # an evaluator has one
            made += len(np.asarray(actions))
            if made >= first:
                marks[1:] = [(made, time.process_time())]

    VectorEnv.send = send  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        code = main(["train", "--serial", "--env-steps", str(steps), "--out", folder, "--name", "run", *flags])
    if code:
        raise SystemExit(code)
    (begin, since), (end, until) = marks
    return 1e6 * (until - since) / (end - begin)


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]), int(sys.argv[2]), sys.argv[4:])))
