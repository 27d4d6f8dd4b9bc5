"""One streamed completion: when it was sent, and when each of its chunks came."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from ..errors import SpecschedError

Clock = Callable[[], float]


@dataclass
class Stream:
    """Times of one request, seconds of one clock: `chunks` those with text; `tokens` as the server counts."""

    sent: float
    chunks: list[float]
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        return {"sent": self.sent, "chunks": self.chunks, "tokens": self.tokens}


async def stream(
    client: httpx.AsyncClient, model: str, prompt: list[int], output_tokens: int, clock: Clock
) -> Stream:
    """Send a prompt of token ids and read `output_tokens` tokens. Raises SpecschedError where the server
    refuses or answers fewer; httpx.HTTPError where it dies."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    made = Stream(clock(), [], 0)
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            said = (await answer.aread()).decode("utf-8", "replace")[:200]
            raise SpecschedError(f"{client.base_url} refused a request (status {answer.status_code}): {said}")
        async for line in answer.aiter_lines():
            if not line.startswith("data:") or line.removeprefix("data:").strip() == "[DONE]":
                continue
            event = _event(line, str(client.base_url))
            usage = event.get("usage") or {}
            made.tokens = int(usage.get("completion_tokens") or made.tokens)
            # A chunk without text may still hold a token: half a character, a special one.
            if event.get("choices"):
                made.chunks.append(clock())
    made.tokens = made.tokens or len(made.chunks)
    if made.tokens < output_tokens or len(made.chunks) < 2:
        raise SpecschedError(
            f"{client.base_url}: {made.tokens} tokens came of {output_tokens} asked for; does the server "
            "heed ignore_eos, and is its longest context long enough?"
        )
    return made


def _event(line: str, where: str) -> dict[str, Any]:
    try:
        event = json.loads(line.removeprefix("data:"))
    except json.JSONDecodeError:
        event = None
    if not isinstance(event, dict):
        raise SpecschedError(f"{where}: a line of the stream is not JSON: {line[:100]!r}")
    if event.get("error"):
        raise SpecschedError(f"{where}: the server answered with an error: {str(event['error'])[:200]}")
    return event


async def model_of(client: httpx.AsyncClient) -> str:
    """The first model that the server lists."""
    answer = await client.get("/v1/models")
    try:
        return str(answer.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise SpecschedError(
            f"{client.base_url}/v1/models lists no model (status {answer.status_code}); is it an "
            "OpenAI-compatible server?"
        ) from None


async def counters(client: httpx.AsyncClient) -> str:
    """The text of /metrics; empty where the server has none."""
    answer = await client.get("/metrics")
    return answer.text if answer.status_code == 200 else ""
