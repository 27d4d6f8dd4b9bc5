"""Confidence traces: what a drafter proposes and what its target would accept.

trace       Trace: columns of one trace, checked
file        traces read from and written as Parquet
mixture     several traces as one, with shares
columns     the columns: names, types, what each must hold
settings    what a trace says of how it was made
synthesis   dense traces made from acceptance rates
"""

from .file import load_trace
from .mixture import mix
from .synthesis import synthesise
from .trace import Trace

__all__ = [
    "Trace",
    "load_trace",
    "mix",
    "synthesise",
]
