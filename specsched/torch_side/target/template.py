"""A model's chat template, rendered in jinja2's sandbox with its work and its output bounded.

A template is a program of a stranger: it may not reach Python, change what it is given, loop for long, or
build texts of any size. Lines are counted, not seconds, so that a refusal does not depend on the machine.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from ...errors import SpecschedError

MOST_LINES = 200_000  # executed lines of the compiled template: 100 turns of the longest known one take 5,000
MOST_CHARACTERS = 1_000_000  # of the answer, and of every text on the way
_WIDTH = re.compile(r"%[-#0 +]*(\*|[0-9]{4,})|%[^%a-zA-Z]*\.(\*|[0-9]{4,})|[:][^}]*[0-9]{4,}")


class _Refused(Exception):
    """What a template did that is not allowed."""


def render(template: str, where: str, **values: Any) -> str:
    """The text of a template; raises SpecschedError that begins with `where` (the file it came from)."""
    try:
        compiled = _environment().from_string(template)
    except Exception as e:
        raise SpecschedError(f"{where}: the chat template is not valid: {_first(e)}; correct it") from None
    before = sys.gettrace()
    sys.settrace(_line_counter())
    try:
        parts: list[str] = []
        length = 0
        for part in compiled.generate(**values):
            length += len(part)
            if length > MOST_CHARACTERS:
                raise _Refused(f"it writes more than {MOST_CHARACTERS:,} characters")
            parts.append(part)
        return "".join(parts)
    except SpecschedError as e:
        raise SpecschedError(f"{where}: the chat template refuses this conversation: {e}") from None
    except Exception as e:
        raise SpecschedError(
            f"{where}: the chat template cannot be rendered: {_first(e)}; correct it, or give prompt_ids"
        ) from None
    finally:
        sys.settrace(before)


def _first(e: BaseException) -> str:
    return (str(e).splitlines() or [type(e).__name__])[0][:160].rstrip(".") or type(e).__name__


def _line_counter() -> Callable[[FrameType, str, Any], Any]:
    left = MOST_LINES

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != "<template>":
            return None
        left -= 1
        if left < 0:
            raise _Refused(f"it runs for more than {MOST_LINES:,} lines")
        for value in frame.f_locals.values():
            _bound(value)
        return trace

    return trace


def _bound(value: Any) -> None:
    """Refuse a text or list that has grown too long, in a namespace too."""
    if isinstance(value, str | list | tuple) and len(value) > MOST_CHARACTERS:
        raise _Refused(f"it builds a text of more than {MOST_CHARACTERS:,} characters")
    for one in (
        getattr(value, "_Namespace__attrs", {}).values() if type(value).__name__ == "Namespace" else ()
    ):
        if isinstance(one, str | list | tuple) and len(one) > MOST_CHARACTERS:
            raise _Refused(f"it builds a text of more than {MOST_CHARACTERS:,} characters")


def _bound_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for one in (*args, *kwargs.values()):
        if isinstance(one, int | float) and abs(one) > MOST_CHARACTERS:
            raise _Refused(f"it calls with the number {one:.3g}")
        _bound(one)


def _environment() -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["+", "*", "**", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "+":
                _bound(left)
                _bound(right)
            elif operator == "%" and isinstance(left, str):
                if _WIDTH.search(left):
                    raise _Refused("it formats with a width of thousands")
            elif operator == "*":
                size = max((len(v) for v in (left, right) if isinstance(v, str | list | tuple)), default=0)
                times = max((abs(v) for v in (left, right) if isinstance(v, int)), default=1)
                if size * times > MOST_CHARACTERS or times > 10**18:
                    raise _Refused(f"it builds a text of more than {MOST_CHARACTERS:,} characters")
            elif operator == "**" and (abs(left) > 10**6 or abs(right) > 10):
                raise _Refused("it raises to a high power")
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
            _bound_arguments(args, kwargs)
            owner = getattr(obj, "__self__", None)
            if getattr(obj, "__name__", "") in ("format", "format_map") and _WIDTH.search(str(owner)):
                raise _Refused("it formats with a width of thousands")
            return super().call(context, obj, *args, **kwargs)

    environment = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters = {name: _bounded(one) for name, one in environment.filters.items()}
    environment.globals["raise_exception"] = _raise
    return environment


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # with it the marks by which jinja2 passes a filter its context
    def call(*args: Any, **kwargs: Any) -> Any:
        _bound_arguments(args, kwargs)
        return function(*args, **kwargs)

    return call


def _raise(message: Any) -> None:
    raise SpecschedError(str(message))
