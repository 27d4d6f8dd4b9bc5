"""Anyone's policy function, searched for decisions that look at what they must not (docs/losslessness.md).

    found = audit(load("mymodule:policy"))          # a document `specsched/audit/1`

system    what a policy is shown (Step, History), the systems it is shown in, and what a leak is
subject   a policy under audit: loaded by name, called, its answers checked
curves    costs that tempt a policy
grid      every input of tiny systems, smallest first
sample    random larger systems, one request's present changed at a time
shrink    the smallest form of a leak
file      leaks as files that replay
search    the whole: search, shrink, and say what was looked at
"""

from .file import named_in
from .search import audit, replay
from .subject import Subject, load
from .system import History, Leak, Past, Step, System

__all__ = ["History", "Leak", "Past", "Step", "Subject", "System", "audit", "load", "named_in", "replay"]
