"""Sampling with uncertainty, and scores of existing samples.

`sample` makes a plan, runs its batches and collects their frames. `existing` scores samples without a
trajectory.
"""
