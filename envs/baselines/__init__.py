"""Reference scores: random actions and the best known players in every environment."""

from envs.baselines.known import Level, Lines, Measure, baseline_summary, lines, relative

__all__ = ["Level", "Lines", "Measure", "baseline_summary", "lines", "relative"]
