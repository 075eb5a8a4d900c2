"""Derivatives of a network: the products J·v and Jᵀ·u, exact or by difference quotients."""
