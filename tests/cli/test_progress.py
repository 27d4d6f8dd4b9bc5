"""When the command line says that it compiles, and when it does not."""

from __future__ import annotations

import pytest
from numba.core import event

from specsched import kernels
from specsched.cli.progress import COMPILING, compiling_told


def compiled(dispatcher: object) -> None:
    """Send the events that numba sends around one compilation."""
    with event.trigger_event("numba:compile", data={"dispatcher": dispatcher}):
        pass


def test_the_wait_for_the_compiler_is_told_when_it_begins_and_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with compiling_told():
        compiled(len)
        assert capsys.readouterr().err == ""
        compiled(kernels.run_engine)
        compiled(kernels.run_engine)
        assert capsys.readouterr() == ("", COMPILING + "\n")
    compiled(kernels.run_engine)
    assert capsys.readouterr().err == ""
