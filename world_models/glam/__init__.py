"""GLAM (He et al. 2025): a world model that watches variation, on Mamba, and the agent that learns in it."""
