# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Shared test set-up: deterministic property tests, no hub, no progress bars."""

import copy
import gc
import logging
import os
import shutil
import sys
import tempfile
from functools import cache

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if "HF_DATASETS_CACHE" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="datasets-")  # removed at the end
    os.environ["HF_DATASETS_CACHE"] = _cache.name
# Code of checkpoints, which goes by the names of their folders: a cache for each process
os.environ["HF_MODULES_CACHE"] = os.path.join(
    os.environ["HF_DATASETS_CACHE"], "modules", os.environ.get("PYTEST_XDIST_WORKER", "main")
)

import huggingface_hub
import pytest
import tiny
import torch
import transformers
from exports import EXPORTS, traced_once
from filelock import FileLock
from hypothesis import HealthCheck, settings
from loopback_hub import LoopbackHub

from csan_hf import EnsembleForConditionalGeneration
from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.data.tokenization import add_language_tags

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("ci")

# Here, because under pytest-xdist the process that reports does not see the conftest files of
# sub-folders
pytest_plugins = ["contract.conformance.report"]


@pytest.fixture(autouse=True)
def _warnings_given_once() -> None:
    """A warning that is given once may have been given in another test."""
    logging.Logger.warning_once.cache_clear()  # of transformers


_LONGEST = ("training", "hub")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the folders of the longest modules first: at the end, a worker would wait for another's."""
    items.sort(key=lambda item: item.path.parent.name not in _LONGEST)


def pytest_collection_finish() -> None:
    """Collects garbage seldom, and never what the imports made: it would take a fifth of the time,
    mostly while programs are traced.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def hub():
    """A Hub on this machine."""
    with LoopbackHub() as server:
        yield server


@pytest.fixture
def hub_here(hub, monkeypatch):
    """The same Hub, which this process pushes to."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)  # which keeps its endpoint
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    return hub


@pytest.fixture
def standard_input(monkeypatch, tmp_path_factory):
    """A function that puts a text, or bytes, on standard input."""

    def give(content):
        path = tmp_path_factory.mktemp("standard_input") / "content"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        monkeypatch.setattr(sys, "stdin", path.open())

    return give


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """Returns a function that opens a window of Chromium, wide and light unless told otherwise."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        missing = "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)"
        if os.environ.get("CSAN_HF_NEEDS_BROWSER"):
            pytest.fail(missing)
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    switches = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    )
    switches += " disable-component-update disable-sync disable-dev-shm-usage"
    for argument in (*switches.split(), f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    browser.set_page_load_timeout(120)
    browser.get(
        "about:blank"
    )  # the browser's start page, still loading, is no request of the page that a test opens
    yield browser
    browser.quit()


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """A function that returns a model of `exports.py` and the folder of its graphs, which one of
    the workers makes for all.
    """
    from csan_hf.hub.onnx_precision import PRECISIONS  # which needs an extra

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    @cache
    def make(name, precision="float32"):
        model = EXPORTS[name].make()
        folder = shared / "graphs" / name.replace(", ", "_").replace(" ", "_")
        with FileLock(f"{folder}.lock"):
            for precision_of_graphs in PRECISIONS:
                export_once(model, name, folder / precision_of_graphs)
        return model, folder / precision

    return make


def export_once(model, name, folder):
    """Exports a model of `exports.py`, with the precision that is the name of the folder."""
    from csan_hf.hub.onnx import export_onnx

    if folder.exists():
        return
    with traced_once():
        export_onnx(
            model,
            folder,
            precision=folder.name,
            with_attention=EXPORTS[name].with_attention,
            tokenizers=EXPORTS[name].tokenizers(),
        )


@pytest.fixture(scope="session")
def graphs(exported):
    """The folder of the graphs of a model that reads letters."""
    pytest.importorskip("onnxruntime")
    return exported("letters")[1]


@pytest.fixture(scope="session")
def tokenizers():
    """Tokenizers that split words into pieces."""
    sentences = [*tiny.SENTENCES, "the number is twenty-one.", "die Zahl ist einundzwanzig."]
    tokenizer = train_tokenizer([*sentences, "one two three", "eins zwei drei"] * 3, 300)
    return TokenizerPair(tokenizer, tokenizer)


@pytest.fixture(scope="session")
def model(tokenizers):
    model = tiny.csan(vocab_size=len(tokenizers.source), local_window=5, head_area=3)
    model.generation_config.max_length = 12
    return model


@pytest.fixture(scope="session")
def saved(tokenizers, tmp_path_factory):
    """A function that saves a model with its tokenizers and returns the folder."""

    def save(model):
        path = tmp_path_factory.mktemp("model")
        model.save_pretrained(path)
        tokenizers.save_pretrained(path)
        return path

    return save


@pytest.fixture(scope="session")
def folder(model, saved):
    return saved(model)


@pytest.fixture(scope="session")
def ensemble(model, tokenizers):
    second_member = tiny.csan(seed=1, vocab_size=len(tokenizers.source))
    return EnsembleForConditionalGeneration.of([model, second_member])


@pytest.fixture(scope="session")
def of_two_languages(tokenizers, tmp_path_factory):
    """The folder of a model whose sources begin with the tag of their target language."""
    pair = copy.deepcopy(tokenizers)
    add_language_tags(pair, [">>de<<", ">>fr<<"])
    path = tmp_path_factory.mktemp("languages")
    tiny.csan(vocab_size=len(pair.source)).save_pretrained(path)
    pair.save_pretrained(path)
    return path
