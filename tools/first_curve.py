"""Installs apexrl from a wheel where no compiler is, trains CartPole, and prints how long each took.

python tools/first_curve.py [WHEEL]              default: the one of dist/ for this Python
python tools/first_curve.py --notebook [WHEEL]   the cells of examples/first_curve.ipynb up to the curve, in a kernel
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
NOTEBOOK = ROOT / "examples" / "first_curve.ipynb"
SOLVED = 475.0
CELLS = """
import sys
import nbclient, nbformat
book = nbformat.read(sys.argv[1], as_version=4)
curve = next(place for place, cell in enumerate(book.cells) if "learning_curve.png" in cell.source)
del book.cells[curve + 1 :]
nbclient.NotebookClient(book, timeout=400, kernel_name="python3").execute()
assert "image/png" in book.cells[curve].outputs[0]["data"]
"""


def main(words: Sequence[str]) -> int:
    in_notebook, given = "--notebook" in words, [word for word in words if word != "--notebook"]
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = [Path(given[0]).resolve()] if given else sorted((ROOT / "dist").glob(f"*-{tag}-*.whl"))
    if not wheels:
        print(f"there is no wheel for {tag} in dist/: make wheels", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        env = Path(folder) / "env"
        alone = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX", "PYTHONPATH")}
        alone |= {"PATH": str(env / "bin"), "JUPYTER_PREFER_ENV_PATH": "1"}  # neither a compiler nor a shell
        extras, more = ("train,notebook", ["nbclient"]) if in_notebook else ("train", [])
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", env], check=True)
        wanted = [f"apexrl[{extras}] @ {wheels[-1].as_uri()}", *more]
        install = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-c", ROOT / "constraints.txt", *wanted]
        subprocess.run([env / "bin" / "python", *install], check=True, env=alone)
        installed = time.monotonic()
        train = [env / "bin" / "apexrl", "train", "cartpole", "--name", "first", "--seed", "1"]
        cells = [env / "bin" / "python", "-c", CELLS, NOTEBOOK]
        subprocess.run(cells if in_notebook else train, check=True, env=alone, cwd=folder)
        trained = time.monotonic()
        (run,) = (Path(folder) / "runs").iterdir()
        reached = json.loads((run / "summary.json").read_text(encoding="utf-8"))["final_eval_return"]
        curve = (run / "learning_curve.png").stat().st_size
    how = "in a notebook" if in_notebook else "by the command"
    times = f"installed in {installed - began:.0f} s, trained {how} in {trained - installed:.0f} s"
    print(f"{wheels[-1].name}: {times}, on {os.cpu_count()} cores with a load of {os.getloadavg()[1]:.1f};")
    print(f"the best weights reach {reached:.0f} of 500; the learning curve has {curve:,} bytes")
    return 0 if reached >= SOLVED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
