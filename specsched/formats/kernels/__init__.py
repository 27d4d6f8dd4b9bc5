"""Profiles composed from published kernel timings."""
