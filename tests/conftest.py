"""Shared test set-up: deterministic property tests, no hub, no progress bars."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("ci")

# Here, because under pytest-xdist the process that reports does not see the conftest files of sub-folders
pytest_plugins = ["conformance.report"]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
