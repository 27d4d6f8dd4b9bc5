"""One run of a serving engine: a trace, a profile and a policy in, a SimResult out.

run         simulate: checks, arrays, the engine loop, the result
serving     Serving: how the engine is set up
replay      a trace as the arrays that the loop walks
requests    which request comes when: closed and open loops
result      SimResult: the summary, a row a request, a row a step
limits      Limits: what a request is promised, and whether it got it
own         policies of a user's own, planned in Python
intervals   bootstrap intervals over traced requests
warnings    what is doubtful about a run
"""

from .limits import Limits
from .result import SimResult
from .run import simulate
from .serving import Serving, serving_of

__all__ = [
    "Limits",
    "Serving",
    "SimResult",
    "serving_of",
    "simulate",
]
