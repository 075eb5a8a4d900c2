"""Tools for every room, independent of diffusion: validation, conditions, noise, memory, processes.

The version and the defaults that the library and the command line share are here: this file imports nothing.
"""

__version__ = "0.5.0"

DIRECTIONS = 16  # posterior directions that are propagated
LEVELS = (0.05, 0.1, 0.2)  # reference levels of the scores, as fractions of T
ENDPOINT_LEVELS = (0.02, 0.05, 0.1)  # levels of the endpoint rule, as fractions of T
REPEATS = 1  # noise draws per level of the endpoint rule
SHARED_LEVELS = (0.03, 0.15, 0.4, 0.7)  # levels to which finished samples are noised, as fractions of T
PROFILE_LEVELS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the error profile
SHARED_REPEATS = 2  # noise draws per level that all finished samples share
