"""Fast forms of the blocks, each beside its torch reference and loaded at its first use."""
