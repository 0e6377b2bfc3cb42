"""Links: how control, experience and weights cross a process (``local``) or a host (``tcp``, ``redis``)."""
