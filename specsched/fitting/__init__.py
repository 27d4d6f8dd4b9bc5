"""Learning from benchmarks: a profile and a trace from how fast an engine served its loads.

fit       the fit itself: `fit(runs, prior, benchmark)` gives a `Fit`
cases     from runs as files have them to cases that can be simulated
forward   the forward model: the simulator, its steps priced by a candidate profile
steps     a benchmark as its sequence of steps
costs     from unknowns to a profile, with a prior or without
texts     from unknowns to a trace
together  a sweep without drafts whose prompts all wait at its start, for `profile fit-overhead`
judge     a fit held against runs that it did not see
solve     least squares, what is determined, what is left out
unknowns  one number to find, and what is assumed of it
"""

from .cases import Benchmark
from .fit import Fit, fit
from .solve import Undetermined
from .steps import Setting

__all__ = ["Benchmark", "Fit", "Setting", "Undetermined", "fit"]
