"""Other people's files: step tables, traces, counters and calibrations of the engines, read and written.

`read` recognises a file by what is in it, never by its name, and refuses what is unknown or could be two
things.
`write` makes the files other engines load. One module per owner: `sglang` and `sglang_dump`, `vllm`,
`trtllm`,
`inference_lab`, `specspecs`, `llamacpp`, `modelopt`; `sts` holds the calibrations of two of them,
`aiconfigurator` and `vidur` compose profiles from measured kernels.
"""

from __future__ import annotations

from .acceptance import Acceptance
from .registry import FORMATS, Converted, read
from .writer import write

__all__ = ["FORMATS", "Acceptance", "Converted", "read", "write"]
