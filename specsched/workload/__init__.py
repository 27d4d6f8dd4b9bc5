"""Workloads: when requests arrive and how long they are.

workload    Workload: arrival times and lengths
arrivals    Poisson and bursty arrivals, and the command line's way to name them
file        workloads read from public formats
clock       the unit of a file's clock, and clocks too coarse
portion     the busiest window of a long workload, a short one made longer
blocks      large text files read in blocks
servegen    ServeGen's description of a client population
assignment  which traced request each arrival replays
"""

from .arrivals import gamma_burst, parse_arrivals, poisson
from .assignment import Assignment, assign
from .file import load_workload
from .portion import Portion, portion, prolonged
from .workload import Workload

__all__ = [
    "Assignment",
    "Portion",
    "Workload",
    "assign",
    "gamma_burst",
    "load_workload",
    "parse_arrivals",
    "poisson",
    "portion",
    "prolonged",
]
