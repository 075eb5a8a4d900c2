"""Diffusion as tables of numbers: schedules, parameterizations, samplers and noised training pairs."""
