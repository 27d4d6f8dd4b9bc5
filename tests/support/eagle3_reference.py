"""EAGLE-3 from its definition, in plain PyTorch and float64: no cache, no batch, the whole sequence again
for every token drafted.

Of a text x_0 .. x_a and hidden states g_0 .. g_{a-1} of the target (three layers, side by side), the drafter
reads the pairs (e(x_{i+1}), f_i) with f_i = fc(g_i), causally. The last pair predicts x_{a+1}; y is drawn,
and (e(y), output of the last pair) is one more pair. Section 3 of arXiv 2503.01840; which vectors are normed
is in `llama_eagle3.py` of vLLM and in speculators' models/eagle3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Reference:
    """A drafter of the tensors and the config of a public layout."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor], embedding: Tensor) -> None:
        self.layer = config.get("transformer_layer_config", config)
        self.own = {**config, **(config.get("eagle_config") or {})}
        self.weights = {
            name.replace("midlayer.", "layers.0."): value.double() if value.is_floating_point() else value
            for name, value in tensors.items()
        }
        self.embedding = self.weights.get("embed_tokens.weight", embedding.double())

    def draft(
        self, text: list[int], hidden: Tensor, draws: int, choose: Callable[[Tensor], int]
    ) -> list[Tensor]:
        """Laws over the target's vocabulary of the `draws` tokens after `text`: float64[V] each.

        hidden: [len(text) - 1, F], of all tokens but the last. `choose` picks each token from its law.
        """
        w = self.weights
        if "input_norm.weight" in w:
            hidden = self._norm(hidden, "input_norm")
        if "fc_norm.0.weight" in w:
            parts = hidden.split(self.layer["hidden_size"], dim=1)
            hidden = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], dim=1)
        features = [f for f in hidden.double() @ w["fc.weight"].T]
        words = list(text[1:])
        laws = []
        for _ in range(draws):
            output = self._layer(self.embedding[words], torch.stack(features))[-1]
            normed = self._norm(output, "norm")
            law = (w["lm_head.weight"] @ normed).softmax(0)
            whole = torch.zeros(len(self.embedding), dtype=torch.float64)
            for i, p in enumerate(law):
                whole[i + int(w["d2t"][i]) if "d2t" in w else i] += p
            laws.append(whole)
            words.append(choose(whole))
            features.append(normed if self.own.get("norm_output") else output)
        return laws

    def _norm(self, x: Tensor, name: str) -> Tensor:
        x = x.double()
        mean = (x**2).mean(-1, keepdim=True)
        return x / torch.sqrt(mean + self.layer["rms_norm_eps"]) * self.weights[f"{name}.weight"]

    def _layer(self, embedded: Tensor, features: Tensor) -> Tensor:
        """The decoder layer over n pairs, [n, d] each -> [n, d]."""
        at = "layers.0."
        normed = self._norm(features, f"{at}hidden_norm")
        residual = normed if self.own.get("norm_before_residual") else features
        pairs = torch.cat([self._norm(embedded, f"{at}input_layernorm"), normed], dim=1)
        x = residual + self._attention(pairs)
        y = self._norm(x, f"{at}post_attention_layernorm")
        gate = y @ self.weights[f"{at}mlp.gate_proj.weight"].T
        up = y @ self.weights[f"{at}mlp.up_proj.weight"].T
        return x + (gate / (1 + torch.exp(-gate)) * up) @ self.weights[f"{at}mlp.down_proj.weight"].T

    def _attention(self, pairs: Tensor) -> Tensor:
        heads, kv = self.layer["num_attention_heads"], self.layer["num_key_value_heads"]
        at = "layers.0.self_attn."
        q, k, v = (pairs @ self.weights[f"{at}{name}_proj.weight"].T for name in "qkv")
        size = q.shape[1] // heads
        out = []
        for head in range(heads):
            own = head // (heads // kv)
            query = self._placed(q[:, head * size : (head + 1) * size], f"{at}q_norm")
            key = self._placed(k[:, own * size : (own + 1) * size], f"{at}k_norm")
            value = v[:, own * size : (own + 1) * size]
            # Re of one times the conjugate of the other: the scalar product of rotated vectors.
            scores = (query @ key.conj().T).real / math.sqrt(size)
            mixed = [scores[i, : i + 1].softmax(0) @ value[: i + 1] for i in range(len(pairs))]
            out.append(torch.stack(mixed))
        return torch.cat(out, dim=1) @ self.weights[f"{at}o_proj.weight"].T

    def _placed(self, x: Tensor, norm: str) -> Tensor:
        """Rotated by position, as complex numbers of half-split pairs: [n, size] -> complex[n, size / 2]."""
        if f"{norm}.weight" in self.weights:
            x = self._norm(x, norm)
        half = x.shape[1] // 2
        rope = self.layer.get("rope_parameters") or self.layer.get("rope_scaling") or {}
        theta = rope.get("rope_theta") or self.layer.get("rope_theta", 10000.0)
        speeds = []
        for i in range(half):
            speed = theta ** (-i / half)
            if rope.get("rope_type") == "llama3":
                turns = rope["original_max_position_embeddings"] * speed / (2 * math.pi)
                low, high = rope["low_freq_factor"], rope["high_freq_factor"]
                share = min(max((turns - low) / (high - low), 0.0), 1.0)
                speed = share * speed + (1 - share) * speed / rope["factor"]
            speeds.append(speed)
        angle = torch.arange(len(x)).double()[:, None] * torch.tensor(speeds, dtype=torch.float64)
        return torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)
