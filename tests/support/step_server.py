"""A server of OpenAI's completions with a step cost that is known: sockets are real, time is not.

A step advances the clock by what it costs, writes its chunks and waits until the clients have looked at the
clock for each of them, so that what they see depends on no machine.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np


class Clock:
    """Seconds that only the servers advance; counts how often it was read."""

    def __init__(self) -> None:
        self.now, self.reads = 0.0, 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


@dataclass
class Request:
    writer: asyncio.StreamWriter
    prompt: int
    left: int
    made: int = 0
    prefilled: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)


class StepServer:
    """step(R, N, tokens) seconds; `prefill` seconds a prompt token; `most` requests at once; `noise` of a
    step; `block` drafts with `accept` a position; `dies_after` requests."""

    def __init__(
        self,
        clock: Clock,
        step: Callable[[int, float, int], float],
        prefill: float = 0.0,
        most: int = 10**6,
        noise: float = 0.0,
        block: int = 0,
        accept: float = 0.0,
        dies_after: int = 10**9,
        longest: int = 10**6,
    ) -> None:
        self.clock, self.step, self.prefill, self.most = clock, step, prefill, most
        self.noise, self.block, self.accept = noise, block, accept
        self.dies_after, self.longest, self.served = dies_after, longest, 0
        self.rng = np.random.default_rng(0)
        self.queue: list[Request] = []
        self.drafts = 0
        self.accepted = [0] * block
        self.expected = 0

    async def __aenter__(self) -> StepServer:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.loop = asyncio.ensure_future(self._steps())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.loop.cancel()
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split()
                length = 0
                while (header := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.decode().partition(":")
                    length = int(value) if name.lower() == "content-length" else length
                body = await reader.readexactly(length)
                if method == "POST" and path == "/v1/completions":
                    await self._complete(json.loads(body), writer)
                elif path == "/v1/models":
                    self._answer(writer, json.dumps({"data": [{"id": "org/Known-Step"}]}))
                else:
                    self._answer(writer, self._metrics())
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, text: str, status: str = "200 OK") -> None:
        data = text.encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    def _metrics(self) -> str:
        if not self.block:
            return "vllm:num_requests_running 0\n"
        lines = [
            f"vllm:spec_decode_num_drafts_total {self.drafts}",
            f"vllm:spec_decode_num_draft_tokens_total {self.drafts * self.block}",
            f"vllm:spec_decode_num_accepted_tokens_total {sum(self.accepted)}",
        ]
        for k, n in enumerate(self.accepted):
            lines.append(f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{k}"}} {n}')
        return "\n".join(lines) + "\n"

    async def _complete(self, body: dict, writer: asyncio.StreamWriter) -> None:
        assert body["stream"] is True
        assert body["ignore_eos"] is True
        assert body["min_tokens"] == body["max_tokens"]
        self.expected += 1  # the client looked at the clock when it sent this
        self.served += 1
        if self.served > self.dies_after:
            self.server.close()
            writer.transport.abort()
            raise ConnectionError
        if len(body["prompt"]) + body["max_tokens"] > self.longest:
            self._answer(writer, '{"error": "too long"}', "400 Bad Request")
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        request = Request(writer, len(body["prompt"]), body["max_tokens"])
        self.queue.append(request)
        await request.done.wait()
        usage = {"completion_tokens": request.made}
        self._send(request, json.dumps({"choices": [], "usage": usage}))
        self._send(request, "[DONE]")
        writer.write(b"0\r\n\r\n")

    def _send(self, request: Request, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        request.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def _steps(self) -> None:
        while True:
            batch = self.queue[: self.most]
            if not batch:
                await asyncio.sleep(0)
                continue
            seconds = 0.0
            fresh = [r for r in batch if not r.prefilled]
            old = [r for r in batch if r.prefilled]
            if old:
                context = sum(r.prompt + r.made for r in old)
                seconds += self.step(len(old), context, len(old) * (1 + self.block))
            seconds += self.prefill * sum(r.prompt for r in fresh)
            self.clock.now += seconds * math.exp(self.noise * self.rng.standard_normal()) or 1e-9
            for r in batch:
                self._token(r)
            while self.clock.reads < self.expected:
                await asyncio.sleep(0)
            for r in [r for r in batch if not r.left]:
                self.queue.remove(r)
                r.done.set()
            await asyncio.sleep(0)

    def _token(self, r: Request) -> None:
        tokens = 1
        if self.block and r.prefilled:
            self.drafts += 1
            for k in range(self.block):
                if self.rng.random() >= self.accept:
                    break
                self.accepted[k] += 1
                tokens += 1
        r.prefilled = True
        tokens = min(tokens, r.left)
        r.left -= tokens
        r.made += tokens
        self.expected += 1
        self._send(r, json.dumps({"choices": [{"text": "x" * tokens}]}))
