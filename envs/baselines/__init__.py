"""How good is good: what random actions and the best known players reach in every world."""

from envs.baselines.known import Level, Lines, Measure, baseline_summary, lines, relative

__all__ = ["Level", "Lines", "Measure", "baseline_summary", "lines", "relative"]
