"""Networks as pure functions of their parameters, subsets of the parameters, and training."""
