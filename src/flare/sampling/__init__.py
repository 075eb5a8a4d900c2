"""Sampling with uncertainty: a validated plan, its batches, and the result that their frames add up to."""
