"""What a result was measured with."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path

import torch

_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "sacrebleu", "csan_hf")


def describe_environment() -> dict[str, str | int]:
    """Returns the versions of what computes, the device and the number of threads."""
    environment: dict[str, str | int] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            environment[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            environment[package] = "not installed"
    if torch.cuda.is_available():
        environment["device"] = torch.cuda.get_device_name()
        environment["devices"] = torch.cuda.device_count()
    else:
        environment["device"] = _processor()
        environment["threads"] = torch.get_num_threads()
    return environment


def _processor() -> str:
    """Returns the processor's name where the system tells it, else its architecture."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), None) or platform.processor() or platform.machine()
