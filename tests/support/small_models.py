"""Small random targets and drafters whose laws can be computed exactly, for the tests of engine and
recorder."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from scipy.stats import chi2

from specsched.torch_side.drafter.base import Drafter
from specsched.torch_side.drafter.config import DrafterConfig
from specsched.torch_side.drafter.dspark import DSpark, make_drafter
from specsched.torch_side.target.config import TargetConfig
from specsched.torch_side.target.decoder import Target

VOCAB = 6
PROMPT = (1, 2, 3)


def make_target(seed: int = 0, scale: float = 0.35, **changes) -> Target:
    """Two random layers over six tokens; its laws are neither flat nor certain."""
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 24,
        "qk_norm": True,
        "name": "small",
    }
    target = Target(TargetConfig(**(shape | changes)))
    _randomise(target, seed, scale)
    return target.eval().requires_grad_(False)


def make_draft(target: Target, kind: str = "dspark", block_size: int = 3, seed: int = 1) -> Drafter:
    """A random drafter of the kind; it agrees with the target often enough to accept whole blocks."""
    dspark = kind == "dspark"
    config = DrafterConfig(
        kind=kind,
        vocab_size=target.config.vocab_size,
        hidden_size=target.config.hidden_size,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        block_size=block_size,
        target_layer_ids=(0, 1),
        mask_token_id=0,
        markov_rank=4 if dspark else 0,
        markov_head_type="vanilla" if dspark else "none",
        enable_confidence_head=dspark,
        confidence_head_with_markov=dspark,
        num_target_layers=target.config.num_hidden_layers,
    )
    drafter = make_drafter(config, target, seed=seed)
    _randomise(drafter, seed, 0.35)
    drafter.attach_target(target)
    if isinstance(drafter, DSpark) and drafter.confidence_head is not None:
        with torch.no_grad():
            drafter.confidence_head.proj.weight.mul_(3)
    return drafter.eval().requires_grad_(False)


def _randomise(module: torch.nn.Module, seed: int, scale: float) -> None:
    """Normal matrices; a drafter's embedding is the target's, so it is left alone."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim == 2 and (isinstance(module, Target) or not name.startswith("embed_tokens")):
                parameter.normal_(0, scale, generator=generator)


class Slope:
    """A profile of costs that rise with every token, so that trimming pays: `sps` as `StepProfile` gives
    it."""

    def __init__(self, slope: float = 0.5) -> None:
        self.slope = slope

    def sps(
        self,
        requests: int,
        context_tokens: float,
        max_tokens: int,
        draft: bool = True,
        sync: bool = False,
    ) -> np.ndarray:
        tokens = np.arange(max_tokens + 1)
        drafting = 0.25 if draft else 0.0
        return 1.0 / (1.0 + drafting + self.slope * np.maximum(tokens - requests, 0) / requests)


def exact_law(target: Target, prompt: tuple[int, ...], length: int, temperature: float) -> np.ndarray:
    """Probability of every text of `length` tokens after `prompt`: float64[V ** length], first token
    slowest."""
    vocab = target.config.vocab_size
    texts = torch.tensor(list(itertools.product(range(vocab), repeat=length)))
    whole = torch.cat([torch.tensor(prompt).expand(len(texts), -1), texts], dim=1)
    hidden, _ = target.parallel(whole)
    log_p = torch.log_softmax(target.logits(hidden).double() / temperature, -1)
    at = log_p[:, len(prompt) - 1 : -1].gather(2, texts.unsqueeze(2)).squeeze(2)
    return at.sum(1).exp().numpy()


def text_index(texts: list[list[int]], vocab: int = VOCAB) -> np.ndarray:
    """Index of each text into `exact_law`."""
    digits = np.array(texts)
    return (digits * vocab ** np.arange(digits.shape[1])[::-1]).sum(1)


def fit_p_value(counts: np.ndarray, law: np.ndarray) -> float:
    """Chi-square goodness of fit; cells expected below 5 are pooled."""
    expected = law * counts.sum()
    rare = expected < 5
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    return float(chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(wanted) - 1))


def same_p_value(a: np.ndarray, b: np.ndarray) -> float:
    """Chi-square test that two arrays of counts come from one law; columns with few counts are pooled."""
    table = np.array([a, b], dtype=np.float64)
    rare = table.sum(0) < 20
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(1)])
    table = table[:, table.sum(0) > 0]
    if table.shape[1] < 2:
        return 1.0
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    return float(chi2.sf(((table - expected) ** 2 / expected).sum(), table.shape[1] - 1))
