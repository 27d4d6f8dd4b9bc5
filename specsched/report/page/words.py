"""The words of reports, each in a sentence, ours beside the trade's; docs/glossary.md is made from these."""

from __future__ import annotations

WORDS: dict[str, str] = {
    "user": "One stream of text being decoded: a request. In a closed loop a user asks again as "
    "soon as the last "
    "answer is complete, so the number of users is the concurrency.",
    "speed of a user": "Output tokens per second of one request: its tokens divided by the time "
    "from when its "
    "first token was ready to its last. The wait for a place and the prefill are not in it; TTFT has them. "
    "Where prompts arrive prefilled their first token comes with them, so the wait for a place is in the "
    "speed.",
    "SLA": "The promised speed: output tokens/s that a share of the requests (95 % by default) "
    "must reach or exceed.",
    "p05, p50, p95": "Percentiles over requests. p05 of the speed is the speed that 95 % of the "
    "requests reach or "
    "exceed (the slow end); p95 of a time is the time that 95 % do not exceed (the slow end again).",
    "capacity": "Users that one engine carries at the SLA: the last load before the first that "
    "fails, to one user.",
    "interval": "What the noise of a finite trace leaves open, at 95 %: another trace of the same "
    "size from the "
    "same traffic would give a figure within it 19 times out of 20.",
    "throughput": "Output tokens per second of an engine, or of a fleet, all users together.",
    "TTFT": "Time to first token: from a request's arrival to its first token. Queueing and "
    "prefill are in it.",
    "TPOT": "Time per output token: the mean time between a request's tokens after its first, in ms. It is "
    "1000 divided by the speed of a user.",
    "goodput": "What is served of good requests: those that keep all that is promised at once, the SLA and "
    "every limit on their times. In requests/s and in output tokens/s.",
    "ITL": "Inter-token latency: the time between one token and the next. With drafts several "
    "tokens come at once "
    "and then none for a step, so single gaps vary; their mean over a request is its TPOT. A limit on it "
    "(--itl-ms) is on the longest of a request's pauses between two deliveries.",
    "end-to-end": "From a request's arrival to its last token: TTFT, and TPOT times the other tokens.",
    "ISL, OSL": "Input and output sequence length: prompt tokens and output tokens of a request.",
    "draft, block": "Tokens that a small model proposes after the last settled one; a block is the "
    "most it proposes "
    "in a step (num_speculative_tokens in engines).",
    "accepted": "A draft that the target model would have produced itself, by the rule of "
    "speculative sampling.",
    "emitted per step": "Tokens that a request gets from one step: accepted drafts and one of the "
    "target's own. "
    "Engines call it acceptance length.",
    "verification": "The pass of the target model over a request's last token and its drafts. A "
    "policy chooses how "
    "many drafts are verified.",
    "confidence": "The probability that a draft is accepted, given that all before it were. "
    "Survival is the product "
    "of confidences up to a position: the probability that the prefix is accepted.",
    "calibration": "Making confidences honest: of drafts said to survive with 70 %, 70 % should. "
    "ECE is the mean "
    "distance from that.",
    "step profile": "What one forward pass costs on a GPU, by the tokens in it, the context it reads and the "
    "requests it serves.",
    "captured size": "A batch size for which the engine has recorded a CUDA graph. Smaller passes "
    "are padded up to "
    "the next one; beyond the largest, the capture limit, a pass runs off the graph, and slower.",
    "knee": "The number of tokens in a pass up to which its cost is nearly flat.",
    "cliff": "A jump of a pass's cost between neighbouring sizes.",
    "lossless": "The text has exactly the distribution of the target model alone, at any temperature.",
    "hindsight": "A policy that knows what will be accepted. No engine can run it; others are "
    "compared with it.",
}
