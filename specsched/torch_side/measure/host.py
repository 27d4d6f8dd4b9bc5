"""What a measurement was made on: finding the GPU that was asked for, and recording the conditions."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

from ...errors import SpecschedError
from ...files.disk import bundled_names
from ...profile.shapes import find_gpu

_SMI = (
    "name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,power.limit,"
    "ecc.mode.current,utilization.gpu"
)
# Newer drivers' name of the field, and older ones'.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
_BITS = {
    0x1: "idle",
    0x2: "applications clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks setting",
}
_SLOWED = frozenset(_BITS[bit] for bit in (0x8, 0x20, 0x40, 0x80))
BUSY_PERCENT, BUSY_BYTES = 5, 2 << 30
# Words that make another card, or a part of one, of the name before them.
_OTHERS = frozenset({"laptop", "max", "mobile", "super", "ti", "d", "ada", "quadro", "pro", "grid", "vgpu"})


def matches(asked: str, device_name: str) -> bool:
    """Whether a CUDA device's own name is that of the GPU asked for: `h100`, `h100-sxm`, `rtx 4090`.

    Words must be whole (`b200` is no GB200). The SXM module is the one that names neither PCIe nor NVL.
    """
    words, wanted = _words(device_name), _words(asked)
    if "sxm" in wanted:
        wanted.remove("sxm")
        if {"pcie", "nvl"} & set(words):
            return False
    if is_part(device_name) or (set(words) & _OTHERS) - set(wanted):
        return False
    whole = set(words) | {w.removesuffix("gb") for w in words}
    return bool(wanted) and all(w in whole for w in wanted)


def is_part(device_name: str) -> bool:
    """Whether a device is a slice of a card: a MIG instance, or a virtual GPU (`L40S-48Q`)."""
    words = _words(device_name)
    return "mig" in words or any(re.fullmatch(r"\d+[abcq]", w) for w in words)


def _words(name: str) -> list[str]:
    """Lower-case words; `rtx4090` is two."""
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<![a-z])(rtx|gtx|pro)(?=\d)", r"\1 ", name.lower()))


def refuse_rocm() -> None:
    """Raises SpecschedError under a PyTorch built for ROCm: its kernels and tools are not those assumed."""
    if torch.version.hip is not None:
        raise SpecschedError(
            f"this PyTorch ({torch.__version__}) is built for ROCm, and measuring here is for CUDA cards; "
            "use --engine to measure a running engine on it, or --source roofline"
        )


def cuda_devices() -> list[str]:
    """Names of the CUDA devices here, by index."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def find_device(asked: str, devices: list[str], index: int | None = None) -> int:
    """Index of the first of `devices` (names) that is the GPU asked for, or `index` where that one is; raises
    SpecschedError listing the choices."""
    if index is not None:
        if not 0 <= index < len(devices):
            raise SpecschedError(f"--device {index}: {len(devices)} CUDA devices are here, counted from 0")
        if not matches(asked, devices[index]):
            raise SpecschedError(f"--device {index} is {devices[index]}, not --gpu {asked}")
        return index
    for number, name in enumerate(devices):
        if matches(asked, name):
            return number
    here = f"this machine has {', '.join(devices)}" if devices else "no CUDA device is here"
    if any(is_part(name) for name in devices):
        here += " (a slice of a card is not measured for the whole)"
    names = bundled_names("profiles", ".json")
    own = [name for name in names if name.startswith("".join(_words(asked)[:1]) or " ")] or names
    raise SpecschedError(
        f"--gpu {asked} asks to measure on that GPU, and {here}; run it on such a machine, or choose: "
        "--source compose (published kernel timings), --gpu cpu (the bundled model on this CPU), or a "
        f"bundled profile ({', '.join(sorted(own, key=len)[:2]) or 'none here'})"
    )


def gpu_key(asked: str, device_name: str) -> str:
    """Short name of a device for the profile's own name: `h100-sxm`, else the words asked for."""
    try:
        key = find_gpu(asked)[0]
    except SpecschedError:
        key = "-".join(re.findall(r"[a-z0-9]+", asked.lower()))
    # h100 means the SXM module everywhere else; a PCIe or NVL card must not pass for one.
    for other in ("pcie", "nvl"):
        if other in device_name.lower() and not key.endswith(other):
            key = f"{key.removesuffix('-sxm')}-{other}"
    return key


def conditions(device: torch.device) -> dict[str, Any]:
    """provenance.host: versions and machine."""
    found: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
    }
    if device.type == "cpu":
        found |= {"threads": torch.get_num_threads(), "load_average": round(os.getloadavg()[0], 2)}
        return found
    return found | {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}


def gpu_state(index: int) -> dict[str, str]:
    """Driver, clocks, temperature, power and why clocks are held down, as nvidia-smi has them; without it
    {"unknown": why}."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    which = f"GPU-{uuid}" if uuid is not None else str(index)
    try:
        state = read_state(_asked(_SMI, which))
    except (OSError, subprocess.SubprocessError) as error:
        return {"unknown": f"nvidia-smi did not answer ({type(error).__name__}): clocks not recorded"}
    for name in _REASONS:
        try:
            return state | {"throttle": throttle_reasons(_asked(name, which))}
        except (OSError, subprocess.SubprocessError, ValueError):
            continue
    return state | {"throttle": "unknown"}


def _asked(fields: str, which: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader", "-i", which]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def throttle_reasons(mask: str) -> str:
    """The reasons in nvidia-smi's bit mask (`0x0000000000000004`), in words. Raises ValueError."""
    bits = int(mask.strip().split("\n")[0], 16)
    return ", ".join(name for bit, name in _BITS.items() if bits & bit) or "none"


def throttled(state: dict[str, str]) -> list[str]:
    """What to say of a card whose clocks were held down for heat or lack of power."""
    reasons = [r for r in state.get("throttle", "").split(", ") if r in _SLOWED]
    if not reasons:
        return []
    return [f"The card was slowed down while measuring ({', '.join(reasons)}): cool it and measure again."]


def busy(state: dict[str, str], memory: tuple[int, int]) -> list[str]:
    """What to say of a card that others use: state of `gpu_state`, memory (free, in all) before measuring."""
    found, used = [], memory[1] - memory[0]
    percent = re.match(r"\d+", state.get("utilization.gpu", ""))
    if percent and int(percent[0]) > BUSY_PERCENT:
        found.append(f"{percent[0]} % busy")
    if used > BUSY_BYTES:
        found.append(f"{used / 1e9:.0f} GB taken")
    if not found:
        return []
    return [f"The card was not idle before measuring ({', '.join(found)}): steps may be priced too high."]


def read_state(line: str) -> dict[str, str]:
    """One line of nvidia-smi's CSV, by field."""
    values = [part.strip() for part in line.strip().split("\n")[0].split(",")]
    return dict(zip(_SMI.split(","), values, strict=False))


def cpu_name() -> str:
    """The processor's own name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named.group(1).strip() if named else platform.processor() or platform.machine()


def memory_bytes() -> int:
    """Memory of this machine, bytes; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def today() -> str:
    """The date for provenance."""
    return datetime.date.today().isoformat()
