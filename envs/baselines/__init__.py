"""Reference scores of every environment: random actions and the best known players."""

from envs.baselines.reference import Level, Measure, ReferenceScores, beside_reference, reference_of, reference_summary

__all__ = ["Level", "Measure", "ReferenceScores", "beside_reference", "reference_of", "reference_summary"]
