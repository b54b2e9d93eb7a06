"""World models for Atari built from the same memory blocks."""
