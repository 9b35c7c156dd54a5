# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Letters to phones by onnxruntime and numpy alone: `translate_onnx.py DIRECTORY_OF_export-onnx <
words.txt`.
"""

import json
import sys
import unicodedata
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession, SessionOptions

BATCH = 32

directory = Path(sys.argv[1])
for stream in (sys.stdin, sys.stdout):
    stream.reconfigure(encoding="utf-8")  # whatever the locale is
words = [line.strip() for line in sys.stdin]
options = SessionOptions()
options.intra_op_num_threads = 1  # small graphs gain nothing from more
encoder = InferenceSession(directory / "encoder_model.onnx", options)
decoder = InferenceSession(directory / "decoder_model_merged.onnx", options)

config = json.loads((directory / "generation_config.json").read_bytes())
source = target = json.loads((directory / "tokenizer.json").read_bytes())
if (directory / "target_tokenizer").exists():
    target = json.loads((directory / "target_tokenizer/tokenizer.json").read_bytes())
letters = source["model"]["vocab"]
phones = {number: phone for phone, number in target["model"]["vocab"].items()}
separator = "" if target["decoder"] else " "
end = config["eos_token_id"]
limit = config["max_length"]


def letter_ids(word: str) -> list[int]:
    """The letters of a word and the end."""
    normalizer = source["normalizer"]
    for step in normalizer.get("normalizers", [normalizer]):
        if step["type"] == "Lowercase":
            word = word.lower()
        elif step["type"] == "Replace":
            word = word.replace(step["pattern"]["String"], step["content"])
        else:
            word = unicodedata.normalize(step["type"], word)
    return [*(letters.get(letter, letters["<unk>"]) for letter in word), letters["</s>"]]


def translate(batch: list[list[int]]) -> np.ndarray:
    """Greedily, [words, limit] with the end after the last phone."""
    longest = max(map(len, batch))
    ids = np.array([row + [letters["<pad>"]] * (longest - len(row)) for row in batch])
    mask = (ids != letters["<pad>"]).astype(np.int64)
    (states,) = encoder.run(None, {"input_ids": ids, "attention_mask": mask})
    feeds = {"encoder_attention_mask": mask, "encoder_hidden_states": states}
    cache_inputs = decoder.get_inputs()[3:]
    for node in cache_inputs:  # no position yet
        sizes = [0 if isinstance(size, str) else size for size in node.shape[1:]]
        feeds[node.name] = np.zeros((len(batch), *sizes), np.float32)
    feeds["input_ids"] = np.full((len(batch), 1), config["decoder_start_token_id"])
    translations = np.full((len(batch), limit), end)
    unfinished = np.arange(len(batch))
    for step in range(limit - 1):
        logits, *cache = decoder.run(None, feeds)
        tokens = logits[:, 0].argmax(-1)
        translations[unfinished, step] = tokens
        feeds["input_ids"] = tokens[:, None]
        for node, tensor in zip(cache_inputs, cache, strict=True):
            feeds[node.name] = tensor
        goes_on = tokens != end
        unfinished = unfinished[goes_on]
        if len(unfinished) == 0:
            break
        feeds = {name: tensor[goes_on] for name, tensor in feeds.items()}
    return translations


ids_of_words = [letter_ids(word) for word in words]
order = np.argsort([len(ids) for ids in ids_of_words])  # batches of similar lengths
translations = np.full((len(words), limit), end)
for start in range(0, len(words), BATCH):
    rows = order[start : start + BATCH]
    translations[rows] = translate([ids_of_words[row] for row in rows])
for word, translation in zip(words, translations.tolist(), strict=True):
    # The first numbers are special ones
    print(separator.join(phones[number] for number in translation if word and number > 2))
