# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Recipes that train in seconds, a Marian checkpoint to start from, and runs without their
pictures.
"""

import json
import shlex
from pathlib import Path

import tiny
import torch
from safetensors.torch import save_file
from transformers import MarianMTModel

from csan_hf import PervasiveAttentionConfig, PervasiveAttentionForConditionalGeneration
from csan_hf.data import train_tokenizer
from csan_hf.training import load_recipe
from csan_hf.training.checkpoints import FACTS
from csan_hf_runtime.command_line.train import read_command_line

TINY = Path(__file__).with_name("tiny.yaml")


def parse(words: str):
    """The recipe of a command line."""
    name, overrides, _ = read_command_line(shlex.split(words))
    return load_recipe(name, overrides)


# For evaluations that take no time
LOSS_ALONE = {"predict_with_generate": False, "metric_for_best_model": "loss"}


def assert_weights(model, expected) -> None:
    """Checks that a model holds these weights, bit for bit."""
    weights = model.state_dict()
    weights = {name: weights[name] for name in expected}
    torch.testing.assert_close(weights, dict(expected), rtol=0, atol=0)


def leave_out_pictures(patch) -> list:
    """Draws nothing until a `pytest.MonkeyPatch` is undone (`test_the_folder_is_complete` does);
    returns the paths.
    """
    paths: list = []
    for name in (
        "training.callbacks.draw_training",
        "training.run.draw_training",
        "hub.locality_picture.draw_locality",
    ):
        patch.setattr(f"csan_hf.{name}", lambda what, path, *search: paths.append(path))
    return paths


def tiny_marian(vocab_size: int, **fields) -> MarianMTModel:
    """An untrained Marian model: it has the interface of every family, and the trainer must not
    care which it gets.
    """
    sizes = tiny.transformer_sizes(16, layers=1, heads=2, ffn=32)
    model = tiny.marian(**{**sizes, "vocab_size": vocab_size, "dropout": 0.1, **fields})
    model.generation_config.max_length, model.generation_config.num_beams = 16, 1
    return model


def tiny_grid(vocab_size: int) -> PervasiveAttentionForConditionalGeneration:
    """An untrained Pervasive Attention model."""
    torch.manual_seed(0)
    sizes = {"source_embed_dim": 8, "target_embed_dim": 8, "num_layers": 2, "growth_rate": 4}
    model = PervasiveAttentionForConditionalGeneration(
        PervasiveAttentionConfig(vocab_size=vocab_size, **sizes)
    )
    model.generation_config.max_length = 16
    return model


def save_tiny_marian(folder):
    """Saves an untrained Marian model of three encoder layers and its tokenizer, and returns the
    folder.
    """
    tokenizer = train_tokenizer(["ein Hund läuft", "a dog runs"] * 9, 300)
    sizes = tiny.transformer_sizes(16, layers=1, heads=4, ffn=32)
    tiny_marian(len(tokenizer), **{**sizes, "encoder_layers": 3}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_checkpoint(folder, step, weights=None):
    """Makes the files of a checkpoint without having trained."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    save_file(weights or {"w": torch.zeros(1)}, path / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({}, path / name)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (path / name).write_text("{}")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    (path / FACTS).write_text(json.dumps({"processes": 1}))
    return path
