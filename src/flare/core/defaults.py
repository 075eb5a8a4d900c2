"""Forwards to `core` until all rooms import from there; tools/base_imports.py removes it."""

from . import DIRECTIONS as DIRECTIONS
from . import ENDPOINT_LEVELS as ENDPOINT_LEVELS
from . import INFLUENCE_LEVELS as INFLUENCE_LEVELS
from . import LEVELS as LEVELS
from . import PROFILE_LEVELS as PROFILE_LEVELS
from . import REPEATS as REPEATS
from . import SHARED_REPEATS as SHARED_REPEATS
