"""Links between processes of one machine, over shared memory."""
