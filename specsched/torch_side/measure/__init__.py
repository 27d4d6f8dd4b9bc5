"""Measuring what a step costs, on a GPU or a CPU."""
