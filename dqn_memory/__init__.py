"""Deep Q-learning with interchangeable memory blocks for partially observable worlds."""
