"""Networks as pure functions of their parameters, which of these are uncertain, and how they are trained."""
