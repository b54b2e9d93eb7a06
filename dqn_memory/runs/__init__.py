"""One run: its folder, settings, seeds, checkpoints, metrics, and the trainer that keeps them."""
