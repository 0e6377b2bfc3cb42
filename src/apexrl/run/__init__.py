"""A run on disk: its folder, files written atomically, checkpoints, metrics, and who may write there."""
