"""What roles on Ray print is read from the files of their node, without end and without loss that is not counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apexrl.launch.ray.role_output import MOST_BYTES, read


def test_only_what_is_new_is_read_and_of_much_the_newest(tmp_path: Path) -> None:
    log = tmp_path / "out"
    log.write_bytes(b"before\n")
    place = [(str(log), 7)]
    assert read(place).data == b""
    with log.open("ab") as file:
        file.write(b"one\n")
    first = read(place)
    assert (first.data, first.left_out, first.places) == (b"one\n", 0, ((str(log), 11),))
    with log.open("ab") as file:
        file.write(100 * b"x" + MOST_BYTES * b"y")
    second = read(first.places)
    assert (second.data, second.left_out) == (MOST_BYTES * b"y", 100)
    assert read(second.places).data == b""
    os.truncate(log, 0)
    log.write_bytes(b"anew\n")
    assert read(second.places).data == b"anew\n"


def test_a_file_that_has_gone_has_nothing(tmp_path: Path) -> None:
    gone = ((str(tmp_path / "gone"), 5),)
    assert (read(gone).data, read(gone).places) == (b"", gone)


@pytest.mark.parametrize("rotated", [False, True])
def test_a_process_knows_to_which_files_it_prints(tmp_path: Path, rotated: bool) -> None:
    code = "import sys; from apexrl.launch.ray.role_output import places; print(places(), file=open(sys.argv[1], 'w'))"
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        out.write(b"abc")
        out.flush()
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} if rotated else {"stdout": out, "stderr": err}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "said")], check=True, timeout=120, **streams)  # type: ignore[call-overload]
    expected = () if rotated else ((f"{tmp_path}/out", 3), (f"{tmp_path}/err", 0))
    assert (tmp_path / "said").read_text().strip() == str(expected)
