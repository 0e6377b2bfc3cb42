"""Links between hosts over TCP: inference requests and their answers."""
