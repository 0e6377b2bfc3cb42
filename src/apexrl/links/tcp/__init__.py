"""Links between hosts over TCP: inference requests and answers, gradients and parameters."""
