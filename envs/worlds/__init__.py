"""The environments as batches of independent episodes on tensors."""
