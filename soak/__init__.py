"""The test suite under other conditions: random order, a busy machine, other processors, other Pythons."""
