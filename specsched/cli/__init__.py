"""The command line: one file per command group, heavy imports only inside the callbacks.

`main` is the click group behind the `specsched` script; calling it runs the command in `sys.argv`.
"""

from .app import main

__all__ = ["main"]
