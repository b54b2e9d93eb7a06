"""What can be had without a memory: the best policy from the newest observation alone that a search finds."""
