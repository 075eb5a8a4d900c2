"""Tools for every room, independent of diffusion: validation, conditions, noise, memory, processes."""
