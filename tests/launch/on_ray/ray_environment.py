"""How a Ray of a test's own is set, by its environment."""

from __future__ import annotations

QUIET = {
    "RAY_worker_niceness": "0",  # Ray's own is 15, behind everything else on the machine
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_gcs_server_port_wait_time_s": "120",
}
