"""Links: how control and messages cross a process. Inline (one process) and shared memory (one machine)."""
