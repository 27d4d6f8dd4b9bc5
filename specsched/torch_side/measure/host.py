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
    "ecc.mode.current"
)


def matches(asked: str, device_name: str) -> bool:
    """Whether a CUDA device's own name is that of the GPU asked for: `h100`, `h100-sxm`, `rtx 4090`.

    Words must be whole (`b200` is no GB200). The SXM module is the one that names neither PCIe nor NVL.
    """
    words = set(re.findall(r"[a-z0-9]+", device_name.lower()))
    wanted = re.findall(r"[a-z0-9]+", asked.lower())
    if "sxm" in wanted:
        wanted.remove("sxm")
        if words & {"pcie", "nvl"}:
            return False
    whole = words | {w.removesuffix("gb") for w in words}
    return bool(wanted) and all(w in whole for w in wanted)


def cuda_devices() -> list[str]:
    """Names of the CUDA devices here, by index."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def find_device(asked: str, devices: list[str]) -> int:
    """Index of the first of `devices` (names) that is the GPU asked for; raises SpecschedError listing the
    choices."""
    for index, name in enumerate(devices):
        if matches(asked, name):
            return index
    here = f"this machine has {', '.join(devices)}" if devices else "no CUDA device is here"
    raise SpecschedError(
        f"--gpu {asked} asks to measure on that GPU, and {here}; run it on such a machine, or choose: "
        "--source compose (published kernel timings), --gpu cpu (the bundled model on this CPU), or a "
        f"bundled profile ({', '.join(bundled_names('profiles', '.json')) or 'none here'})"
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
    """provenance.host: versions and machine; on a GPU also driver, clocks and temperature now."""
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
    found |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return found | {"gpu": gpu_state(device.index or 0)}


def gpu_state(index: int) -> dict[str, str]:
    """Driver, clocks, temperature and power as nvidia-smi has them; {"unknown": why} without it."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    which = f"GPU-{uuid}" if uuid is not None else str(index)
    command = ["nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader", "-i", which]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"unknown": f"nvidia-smi did not answer ({type(error).__name__}): clocks not recorded"}
    return read_state(done.stdout)


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
