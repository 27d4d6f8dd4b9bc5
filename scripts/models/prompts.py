"""Which prompts train a drafter and which record its traces: two sets that never meet.

Training: GSM8K train and MATH-500 (math); MBPP without its sanitized test, function headers of TheAlgorithms
(code); arena-hard-v2 without a held-out slice, coffee orders of Taskmaster-4, and requests put together
from the lists below (chat). Recording: GSM8K test; HumanEval and MBPP sanitized; MT-Bench (both turns)
and the held-out slice of arena-hard-v2. Share-alike text (Schema-Guided Dialogue) is used for neither.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specsched.files.output import write_json
from specsched.torch_side.engine.prompts import Prompt, read_rows

MATH_SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."
DOMAINS = ("math", "code", "chat")
ARENA_HELD_OUT = 150


def _arena(data: Path) -> list[Prompt]:
    rows = read_rows(data / "prompts" / "arena-hard-v2.jsonl.gz")
    prompts = [Prompt(tuple(r["turns"]), "chat", "arena-hard-v2") for r in rows]
    random.Random(20).shuffle(prompts)
    return prompts


def training_prompts(data: str | Path, seed: int = 0) -> dict[str, list[Prompt]]:
    """Prompts by domain, shuffled by `seed`. `data`: folder with text/ and prompts/ (see the README of
    models/)."""
    data = Path(data)
    math = [
        Prompt((r["q"] + MATH_SUFFIX,), "math", "gsm8k-train")
        for r in read_rows(data / "text" / "gsm8k_train.jsonl.gz")
    ]
    math = random.Random(1).sample(math, 2000)
    math += [
        Prompt(tuple(r["turns"]), "math", "math500") for r in read_rows(data / "prompts" / "math500.jsonl")
    ]
    held_out = {text_key(p.turns[0]) for p in recording_prompts(data)["code"]}
    code = [
        Prompt((r["text"],), "code", "mbpp")
        for r in read_rows(data / "text" / "mbpp_full.jsonl.gz")
        if text_key(r["text"]) not in held_out
    ]
    code += [
        Prompt((text,), "code", "thealgorithms")
        for text in function_prompts(read_rows(data / "text" / "thealgorithms_py.jsonl.gz"))
        if text_key(text) not in held_out
    ]
    chat = _arena(data)[ARENA_HELD_OUT:]
    orders = [r["t"][0][1] for r in read_rows(data / "text" / "taskmaster4_coffee.jsonl.gz") if r["t"]]
    chat += [
        Prompt((text,), "chat", "taskmaster4")
        for text in random.Random(2).sample(sorted({o for o in orders if len(o) > 20}), 60)
    ]
    chat += [Prompt((text,), "chat", "composed") for text in random.Random(3).sample(_composed(), 900)]
    prompts = {"math": math, "code": code, "chat": chat}
    for domain in DOMAINS:
        random.Random(seed).shuffle(prompts[domain])
    return prompts


def recording_prompts(data: str | Path) -> dict[str, list[Prompt]]:
    """Prompts by domain that no training run sees; order fixed."""
    data = Path(data) / "prompts"

    def whole(name: str, domain: str) -> list[Prompt]:
        return [Prompt(tuple(r["turns"]), domain, name) for r in read_rows(data / f"{name}.jsonl")]

    prompts = {
        "math": whole("gsm8k", "math"),
        "code": whole("humaneval", "code") + whole("mbpp", "code"),
        "chat": whole("mt-bench", "chat") + _arena(data.parent)[:ARENA_HELD_OUT],
    }
    for domain in DOMAINS:
        random.Random(4).shuffle(prompts[domain])
    return prompts


def text_key(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def function_prompts(rows: list[dict[str, Any]]) -> list[str]:
    """HumanEval-like prompts from documented functions: the header and docstring, without the body."""
    ask = "Write a solution to the following problem and make sure that it passes the tests:\n"
    ask += "```python\n{}\n```"
    out = []
    for row in rows:
        source = row["src"]
        lines = source.splitlines()
        try:
            tree = ast.parse(source)
        except SyntaxError:  # a file written for a newer Python than this one
            continue
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith(("_", "test", "main")):
                continue
            doc = ast.get_docstring(node)
            if doc is None or not 60 < len(doc) < 900 or node.body[0].end_lineno is None:
                continue
            out.append(ask.format("\n".join(lines[node.lineno - 1 : node.body[0].end_lineno])))
    return out


_TOPICS = """remote work; learning a new language; coral reefs; the French Revolution; black holes;
sourdough bread; electric cars; meditation; the stock market; ancient Rome; vaccines; jazz music; chess
openings; urban gardening; renewable energy; machine learning; sleep; the water cycle; public speaking;
budget travel in Japan; time management; volcanoes; the Great Depression; yoga; photosynthesis; marathon
training; home composting; Shakespeare's tragedies; space exploration; the human heart; coffee brewing;
wildlife photography; the printing press; climate change; social media; job interviews; inflation; plate
tectonics; watercolor painting; the immune system; bicycle commuting; Greek mythology; data privacy; supply
chains; minimalism; the Silk Road; online education; tea ceremonies; bees; recycling; quantum computers;
board games; the Industrial Revolution; mental health at work; ocean currents; personal finance;
houseplants; the Renaissance; podcasting; earthquakes; nutrition; antibiotics; the Olympic Games;
rainforests; email etiquette; negotiation; dog training; film noir; glaciers; teamwork; robotics; street
food"""
_FORMS = """Explain {} to a ten-year-old.
Write a short blog post about {}.
What are the most important facts about {}?
Give me five practical tips about {}.
Write a friendly email to a colleague about {}.
What are the pros and cons people mention about {}?
Write a short story in which {} plays a role.
I am preparing a presentation on {}. Suggest an outline.
How has our understanding of {} changed over time?
Write a poem about {}.
Draft three discussion questions about {} and answer the first one.
What is a common misconception about {}?
Summarize {} in one paragraph for a general audience.
Act as an expert on {} and answer questions from a curious beginner.
Compare {} with something similar and describe the differences.
Write a dialogue between two friends who disagree about {}.
Create a one-week plan for someone who wants to learn about {}.
Write a product description for a book about {}."""


def _composed() -> list[str]:
    topics = [t.strip() for t in _TOPICS.replace("\n", " ").split(";")]
    return [form.format(topic) for topic in topics for form in _FORMS.splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write math.json, code.json and chat.json, the prompts the bundled traces are recorded on."""
    parser = argparse.ArgumentParser(prog="python -m scripts.models.prompts", description=main.__doc__)
    parser.add_argument("--data", required=True, type=Path, help="folder with prompts/")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args(arguments)
    for domain, prompts in recording_prompts(options.data).items():
        rows = [{"turns": list(p.turns), "domain": domain, "source": p.source} for p in prompts]
        write_json(options.out / f"{domain}.json", rows)


if __name__ == "__main__":
    main()
