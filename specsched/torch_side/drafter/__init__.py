"""Drafters: DSpark, DFlash and Eagle3."""
