"""What every room needs and that knows nothing of diffusion: checks, conditions, noise, memory, processes."""
