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

directory, lines, options = (
    Path(sys.argv[1]),
    [line.strip() for line in sys.stdin],
    SessionOptions(),
)
options.intra_op_num_threads = 1  # small graphs gain nothing from more
encoder = InferenceSession(directory / "encoder_model.onnx", options)
decoder = InferenceSession(directory / "decoder_model_merged.onnx", options)
files = {
    path.relative_to(directory).as_posix(): json.loads(path.read_bytes())
    for path in directory.rglob("*.json")
}
source, config = files["tokenizer.json"], files["generation_config.json"]
target, end, limit = (
    files.get("target_tokenizer/tokenizer.json", source),
    config["eos_token_id"],
    config["max_length"],
)
ids, form, separator = (
    source["model"]["vocab"],
    source["normalizer"]["type"],
    "" if target["decoder"] else " ",
)
phones = {
    number: phone for phone, number in target["model"]["vocab"].items() if number > 2
}  # no special ones
words = [
    [*(ids.get(each, ids["<unk>"]) for each in unicodedata.normalize(form, line)), ids["</s>"]]
    for line in lines
]
found = np.full((len(lines), limit), end)
order = np.argsort([*map(len, words)])
for rows in (
    order[start : start + 32] for start in range(0, len(lines), 32)
):  # batches of similar lengths
    batch = [words[row] + [ids["<pad>"]] * (len(words[rows[-1]]) - len(words[row])) for row in rows]
    mask = np.not_equal(batch, ids["<pad>"]).astype(np.int64)
    (states,) = encoder.run(None, {"input_ids": np.array(batch), "attention_mask": mask})
    feeds = {"encoder_attention_mask": mask, "encoder_hidden_states": states}
    for node in decoder.get_inputs()[3:]:  # the cache, of no position yet
        sizes = (0 if isinstance(size, str) else size for size in node.shape[1:])
        feeds[node.name] = np.zeros((len(rows), *sizes), np.float32)
    feeds["input_ids"] = np.full((len(rows), 1), config["decoder_start_token_id"])
    for step in range(limit - 1):
        logits, *cache = decoder.run(None, feeds)
        found[rows, step] = logits[:, 0].argmax(-1)
        feeds |= zip([*feeds][2:], [*cache, found[rows, step, None]], strict=True)
        left = found[rows, step] != end
        rows, feeds = rows[left], {name: tensor[left] for name, tensor in feeds.items()}
        if not len(rows):
            break
for line, row in zip(lines, found.tolist(), strict=True):
    print(separator.join(phones[each] for each in row if line and each in phones))
