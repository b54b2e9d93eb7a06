"""GLAM (He et al. 2025): a Mamba world model with a variation loss, and an agent that learns by imagination."""
