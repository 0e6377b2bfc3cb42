"""Installs apexrl[train] from a wheel where no compiler is, trains CartPole, and prints how long each took.

python tools/first_curve.py [WHEEL]     default: the one of dist/ for this Python
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOLVED = 475.0


def main(words: Sequence[str]) -> int:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = [Path(words[0]).resolve()] if words else sorted((ROOT / "dist").glob(f"*-{tag}-*.whl"))
    if not wheels:
        print(f"there is no wheel for {tag} in dist/: make wheels", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        env = Path(folder) / "env"
        alone = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "PYTHONPATH")}
        alone["PATH"] = str(env / "bin")  # neither a compiler nor a shell
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", env], check=True)
        wanted = f"apexrl[train] @ {wheels[-1].as_uri()}"
        install = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-c", ROOT / "constraints.txt", wanted]
        subprocess.run([env / "bin" / "python", *install], check=True, env=alone)
        installed = time.monotonic()
        train = [env / "bin" / "apexrl", "train", "cartpole", "--name", "first", "--seed", "1"]
        subprocess.run(train, check=True, env=alone, cwd=folder)
        trained = time.monotonic()
        run = Path(folder) / "runs" / "first"
        reached = json.loads((run / "summary.json").read_text(encoding="utf-8"))["final_eval_return"]
        curve = (run / "learning_curve.png").stat().st_size
    print(
        f"{wheels[-1].name}: installed in {installed - began:.0f} s, trained in {trained - installed:.0f} s; the best"
    )
    print(f"weights reach {reached:.0f} of 500; the learning curve has {curve:,} bytes")
    return 0 if reached >= SOLVED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
