"""Step costs of a running engine, seen from outside: any server that speaks OpenAI's completions.

`client` streams one request, `levels` runs waves of 1, 2, 4, ... clients and keeps the raw times, `fit` makes
a profile of them, `measure` is the whole.
"""

from .measure import Setting, measure_engine

__all__ = ["Setting", "measure_engine"]
