"""Adapters for models and samplers of other libraries."""
