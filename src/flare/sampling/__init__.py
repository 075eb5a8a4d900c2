"""Sampling with uncertainty, scores of existing samples, and checks of a model and its posterior.

`sample` makes a plan, runs its batches and collects their frames. `existing` scores samples without a
trajectory. `model_check` and `linearization` draw samples to check the model and the tangent rule.
"""
