"""The scripts of docs/how-to/unattended.md do what the page says."""

from __future__ import annotations

import subprocess

from doc_pages import DOCS, blocks


def script(language):
    ((_, code),) = blocks(DOCS / "how-to" / "unattended.md", language)
    return code


SLURM = """
scontrol() { echo "$@"; }
apexrl() { trap 'exit 130' TERM; sleep 1; builtin kill -TERM $$; while :; do sleep 0.05; done; }
kill() { builtin kill "$@"; local code=$?; sleep 1; return $code; }  # long enough for what it ends
"""


def test_a_slurm_job_is_requeued_however_fast_the_run_ends():
    """The run may be gone before the script, which the signal has woken up, looks at it."""
    command = ["bash", "-c", "SLURM_JOB_ID=7" + SLURM + script("bash")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.returncode) == ("requeue 7\n", 130), ended.stderr


def test_what_systemd_shall_repeat_is_no_success():
    unit = script("ini")
    assert "Restart=on-failure" in unit
    assert "SuccessExitStatus" not in unit
