"""World models, UniZero and GLAM, from the same memory blocks: for Atari, Gymnasium and this suite's environments."""
