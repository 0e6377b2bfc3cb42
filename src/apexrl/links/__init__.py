"""Links carry control, experience and weights between processes (``local``) or hosts (``tcp``, ``redis``)."""
