"""Derivatives of a network: products J·v and Jᵀ·u, exact or by difference quotients."""
