"""The sequential half of DSpark: Markov and RNN heads (equations 4 to 6 of the paper), the gated head of
DeepSpec's code, which the paper does not have, and the confidence head (eq. 7).

Every Markov head is a low-rank bias W2 · u_k on the backbone's logits; the kinds differ only in the latent
u_k of width r they make from the token before. Training needs u_k for a whole block at once
(`block_latent`), decoding one step at a time (`step`): both are given here, and a test holds them equal.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .config import DrafterConfig


class MarkovHead(nn.Module):
    """Vanilla head (eq. 5): u_k = W1[x_{k-1}]; the bias is added to the backbone's logits (eq. 4)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.rank = config.markov_rank
        self.markov_w1 = nn.Embedding(config.vocab_size, self.rank)
        self.markov_w2 = nn.Linear(self.rank, config.draft_vocab_size or config.vocab_size, bias=False)

    def start(self, rows: int) -> Tensor:
        """State before the first position: float[rows, r]; only the RNN head changes it."""
        return torch.zeros(
            rows, self.rank, dtype=self.markov_w1.weight.dtype, device=self.markov_w1.weight.device
        )

    def step(self, state: Tensor, previous: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """One position: state[N, r], previous token int64[N], hidden[N, d] -> (new state, latent u[N, r])."""
        return state, self.markov_w1(previous)

    def block_latent(self, previous: Tensor, hidden: Tensor) -> Tensor:
        """Latents of whole blocks: previous int64[N, γ] (anchor first), hidden[N, γ, d] -> [N, γ, r]."""
        return self.markov_w1(previous)


class GatedMarkovHead(MarkovHead):
    """Gated head (DeepSpec's code): u_k = σ(W_g [h_k; W1[x_{k-1}]]) ⊙ W1[x_{k-1}]."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.gate_proj = nn.Linear(config.hidden_size + self.rank, self.rank)

    def _gated(self, previous: Tensor, hidden: Tensor) -> Tensor:
        embedded = self.markov_w1(previous)
        return torch.sigmoid(self.gate_proj(torch.cat([hidden, embedded], dim=-1))) * embedded

    def step(self, state: Tensor, previous: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        return state, self._gated(previous, hidden)

    def block_latent(self, previous: Tensor, hidden: Tensor) -> Tensor:
        return self._gated(previous, hidden)


class RNNHead(MarkovHead):
    """Recurrent head (eq. 6): one projection of [s_{k-1}; W1[x_{k-1}]; h_k] gives gate, candidate and output.

    s_k = g ⊙ s_{k-1} + (1 - g) ⊙ tanh(candidate), u_k = tanh(output); s_0 = 0.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        self.joint_proj = nn.Linear(2 * self.rank + config.hidden_size, 3 * self.rank)

    def step(self, state: Tensor, previous: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        joint = self.joint_proj(torch.cat([state, self.markov_w1(previous), hidden], dim=-1))
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return gate * state + (1 - gate) * torch.tanh(candidate), torch.tanh(output)

    def block_latent(self, previous: Tensor, hidden: Tensor) -> Tensor:
        state = self.start(len(previous)).to(hidden.dtype)
        latents = []
        for k in range(previous.shape[1]):
            state, latent = self.step(state, previous[:, k], hidden[:, k])
            latents.append(latent)
        return torch.stack(latents, dim=1)


_HEADS = {"vanilla": MarkovHead, "gated": GatedMarkovHead, "rnn": RNNHead}


def make_markov_head(config: DrafterConfig) -> MarkovHead | None:
    """The head the config names, None for `none`."""
    return None if config.markov_head_type == "none" else _HEADS[config.markov_head_type](config)


class ConfidenceHead(nn.Module):
    """Confidence (eq. 7, and a bias): logit c_k = w · [h_k; W1[x_{k-1}]] + b, known before token k is drawn.

    With `confidence_draft_stats` two more inputs: the draft distribution's entropy and log of its largest
    probability. Neither depends on the token drawn at k, so the schedule stays lossless.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.with_markov = config.confidence_head_with_markov
        self.with_stats = config.confidence_draft_stats
        width = config.hidden_size
        width += config.markov_rank if self.with_markov else 0
        width += 2 if self.with_stats else 0
        self.proj = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, embedded: Tensor | None, stats: Tensor | None = None) -> Tensor:
        """hidden[..., d], W1[x_{k-1}] [..., r], stats[..., 2] -> float32 logits [...]."""
        parts = [hidden]
        if self.with_markov:
            assert embedded is not None
            parts.append(embedded)
        if self.with_stats:
            assert stats is not None
            parts.append(stats.to(hidden.dtype))
        return self.proj(torch.cat(parts, dim=-1)).squeeze(-1).float()


def draft_stats(logits: Tensor) -> Tensor:
    """Entropy (nats) and log of the largest probability of softmax(logits): float32 [..., V] -> [..., 2]."""
    log_p = torch.log_softmax(logits.float(), dim=-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return torch.stack([entropy, log_p.amax(-1)], dim=-1)
