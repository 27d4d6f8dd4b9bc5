"""Many runs: grids of points, resumable, on threads or a Dask cluster.

spec        the TOML file of a sweep, and its grid
points      one point: its inputs, its run
run         the sweep: what is missing is run and written down
store       rows on disk, as they finish
"""

from .points import run_point
from .runner import run
from .spec import Point, Sweep, read_spec

__all__ = [
    "Point",
    "Sweep",
    "read_spec",
    "run",
    "run_point",
]
