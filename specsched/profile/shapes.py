"""Shapes of models and limits of GPUs, as far as the cost of a step depends on them. Numbers only, no
torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ProfileError, nearest

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0}


@dataclass(frozen=True)
class Quantization:
    """How a checkpoint stores its layers: by which `method`, as which `dtype`, in how many bytes a weight.

    `dtype`: `fp8`, or `int4` / `int8` for narrow storage that is computed in bfloat16. Bytes count
    the scales.
    """

    method: str
    dtype: str
    bytes_per_weight: float


@dataclass(frozen=True)
class ModelShape:
    """A Llama- or Qwen3-like decoder. `experts` = 0 for a dense model; then `moe_intermediate` is unused."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_context: int
    family: str = "qwen3"
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    quantization: Quantization | None = None
    where: str = field(default="", compare=False)  # the config.json it was read from, for messages

    @property
    def label(self) -> str:
        """How messages name it: by its file where it has one."""
        return f"{self.where}: {self.name}" if self.where else self.name

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention projections (qkv and output)."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def mlp_parameters(self) -> int:
        """Weights of one layer's MLP, or of one expert."""
        return 3 * self.hidden * (self.moe_intermediate if self.experts else self.intermediate)

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer, all experts and the router included."""
        router = self.hidden * self.experts
        return self.attention_parameters + self.mlp_parameters * max(self.experts, 1) + router

    @property
    def parameters(self) -> int:
        """Weights of the model; norms (a few thousand per layer) are left out."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + embeddings

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights; embedding, head and routers of a narrow checkpoint stay in bfloat16, as
        engines keep them. A quantized checkpoint is as narrow as it is, whatever `dtype` says.
        """
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        outside = BYTES["bfloat16"] if dtype == "fp8" or self.quantization else _width(dtype)
        return int(self.layers * self.layer_parameters * self.layer_width(dtype) + embeddings * outside)

    def layer_width(self, dtype: str) -> float:
        """Bytes of one weight of a layer."""
        return self.quantization.bytes_per_weight if self.quantization else _width(dtype)

    def kv_bytes_per_token(self, dtype: str) -> int:
        """KV-cache bytes of one token, all layers."""
        return int(2 * self.layers * self.kv_heads * self.head_dim * _width(dtype))

    def drafter_bytes(self, layers: int, markov_rank: int, features: int) -> tuple[int, int]:
        """(weights, KV of a token) in bytes of a bfloat16 drafter of so many dense layers like this shape's.

        With what fuses `features` hidden states of the target and a Markov head of this rank; embedding and
        head are the target's own, as engines share them.
        """
        dense = self.attention_parameters + 3 * self.hidden * self.intermediate
        weights = layers * dense + features * self.hidden**2 + 2 * markov_rank * self.vocab
        per_token = 2 * layers * self.kv_heads * self.head_dim
        return int(weights * BYTES["bfloat16"]), int(per_token * BYTES["bfloat16"])

    def config(self) -> dict[str, Any]:
        """The `config.json` of the Hugging Face layout that describes this shape."""
        architecture = {"llama": "Llama", "qwen3": "Qwen3Moe" if self.experts else "Qwen3"}[self.family]
        config: dict[str, Any] = {
            "architectures": [f"{architecture}ForCausalLM"],
            "model_type": {"Llama": "llama", "Qwen3": "qwen3", "Qwen3Moe": "qwen3_moe"}[architecture],
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.max_context,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "torch_dtype": "bfloat16",
        }
        if self.experts:
            config |= {
                "num_experts": self.experts,
                "num_experts_per_tok": self.experts_per_token,
                "moe_intermediate_size": self.moe_intermediate,
            }
        return config


def _width(dtype: str) -> float:
    if dtype not in BYTES:
        raise ProfileError(f"unknown dtype {dtype!r}; known: {', '.join(BYTES)}")
    return BYTES[dtype]


def _qwen3(
    name: str, hidden: int, layers: int, heads: int, intermediate: int, tied: bool = False
) -> ModelShape:
    return ModelShape(name, hidden, layers, heads, 8, 128, intermediate, 151936, 40960, tied=tied)


MODELS = {
    "qwen3-4b": _qwen3("Qwen3-4B", 2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen3("Qwen3-8B", 4096, 36, 32, 12288),
    "qwen3-14b": _qwen3("Qwen3-14B", 5120, 40, 40, 17408),
    "qwen3-32b": _qwen3("Qwen3-32B", 5120, 64, 64, 25600),
    "qwen3-30b-a3b": replace(
        _qwen3("Qwen3-30B-A3B", 2048, 48, 32, 6144),
        kv_heads=4,
        experts=128,
        experts_per_token=8,
        moe_intermediate=768,
    ),
    "llama3-8b": ModelShape("Llama-3-8B", 4096, 32, 32, 8, 128, 14336, 128256, 131072, "llama"),
    "llama3-70b": ModelShape("Llama-3-70B", 8192, 80, 64, 8, 128, 28672, 128256, 131072, "llama"),
    "llama2-70b": ModelShape("Llama-2-70B", 8192, 80, 64, 8, 128, 28672, 32000, 4096, "llama"),
}


@dataclass(frozen=True)
class Gpu:
    """Vendor limits of one GPU, dense (no sparsity): bytes, bytes/s, FLOP/s, bytes/s one way to its
    neighbours.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    bf16_flops: float
    fp8_flops: float | None
    link: float


_MIB = 1 << 20
GPUS = {
    "a100-sxm": Gpu("NVIDIA A100 SXM 80GB", 81920 * _MIB, 2.039e12, 312e12, None, 300e9),
    "h100-sxm": Gpu("NVIDIA H100 SXM 80GB", 81559 * _MIB, 3.35e12, 989e12, 1978e12, 450e9),
    "h200-sxm": Gpu("NVIDIA H200 SXM 141GB", 143771 * _MIB, 4.8e12, 989e12, 1978e12, 450e9),
    "b200-sxm": Gpu("NVIDIA B200 SXM 180GB", 183359 * _MIB, 7.7e12, 2250e12, 4500e12, 900e9),
    "b300-sxm": Gpu("NVIDIA B300 SXM 288GB", 275040 * _MIB, 7.75e12, 2250e12, 4500e12, 900e9),
    "gb200": Gpu("NVIDIA GB200", 189471 * _MIB, 8.0e12, 2500e12, 5000e12, 900e9),
    "l40s": Gpu("NVIDIA L40S 48GB", 46068 * _MIB, 0.864e12, 362e12, 733e12, 32e9),
    "rtx-pro-6000": Gpu("NVIDIA RTX PRO 6000 Server 96GB", 97887 * _MIB, 1.792e12, 468e12, 936e12, 64e9),
}
_ALIASES = {
    "a100": "a100-sxm",
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
}


def find_gpu(name: str) -> tuple[str, Gpu]:
    """(canonical key, limits) of a GPU; `h100` means `h100-sxm`. Raises `ProfileError` with the choices."""
    key = name.lower().replace("_", "-")
    key = _ALIASES.get(key, key)
    if key not in GPUS:
        raise ProfileError(unknown("GPU", name, [*GPUS, *_ALIASES]))
    return key, GPUS[key]


def require_plain(shape: ModelShape, how: str) -> None:
    """Raise `ProfileError` for a quantized checkpoint where its kernels are not those of its dtype."""
    if shape.quantization is not None:
        raise ProfileError(
            f"{shape.label} is a checkpoint quantized by {shape.quantization.method} to "
            f"{shape.quantization.dtype}, and {how} runs kernels of one dtype: use --source roofline, or "
            "the config.json of the checkpoint before quantization with --dtype"
        )


def require_runnable(shape: ModelShape, gpu: Gpu, tensor: int, dtype: str) -> None:
    """Raise `ProfileError` where `tensor` GPUs cannot run the model: heads, fp8 units, or memory."""
    if tensor < 1 or shape.heads % tensor:
        raise ProfileError(
            f"tensor is {tensor}; it must divide the {shape.heads} attention heads of {shape.label}"
        )
    if dtype == "fp8" and gpu.fp8_flops is None:
        raise ProfileError(f"{gpu.name} has no fp8 units; use dtype bfloat16")
    weights, memory = shape.weight_bytes(dtype), gpu.memory_bytes * tensor
    if weights >= 0.9 * memory:
        raise ProfileError(
            f"{shape.label} in {dtype} weighs {weights / 1e9:.0f} GB and {tensor} x {gpu.name} hold "
            f"{memory / 1e9:.0f} GB: no room for a KV cache; use more GPUs (tensor) or a smaller dtype"
        )


def unknown(what: str, name: str, known: list[str]) -> str:
    """The sentence for a name that is none of `known`, with the nearest."""
    return f"unknown {what} {name!r};{nearest(name.lower(), known)} known: {', '.join(known)}"


def vllm_capture_sizes(limit: int = 512) -> list[int]:
    """The sizes vLLM captures by default up to `limit`: 1, 2, 4, then every 8 to 256, then every 16."""
    return [s for s in (1, 2, 4, *range(8, 257, 8), *range(272, limit + 1, 16)) if s <= limit]
