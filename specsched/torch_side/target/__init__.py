"""Targets: the models whose text is served."""
