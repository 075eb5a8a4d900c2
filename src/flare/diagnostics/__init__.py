"""Checks of a model and its posterior: does the model fit its data, and is first order enough?"""
