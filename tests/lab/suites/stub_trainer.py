# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Stands for training: counts to the updates of a recipe, goes on where it was killed, writes what
a run writes.
"""

import hashlib
import json
import sys
import time
from pathlib import Path

import yaml

recipe = yaml.safe_load(Path(sys.argv[1]).read_text())
folder = Path(recipe["output_dir"])
(folder / "arguments").write_text(json.dumps(sys.argv[1:]))
if recipe["name"] == "fails":
    token = f"hf_{34 * 'a'}"
    print(token if recipe["training"]["seed"] == 3 else "there is no such\x1b[0m corpus")
    sys.exit(2)
state = folder / "state"
while (step := int(state.read_text()) if state.is_file() else 0) < recipe["training"]["max_steps"]:
    time.sleep(0.01)
    (folder / "state.new").write_text(str(step + 1))
    (folder / "state.new").rename(state)
    with open(folder / "trained", "a") as file:
        file.write(f"{step}\n")
    print(f"step {step + 1}/{recipe['training']['max_steps']}  loss 1.0", flush=True)
words = [f"{number % (recipe['training']['seed'] + len(recipe['name']))} x" for number in range(40)]
(folder / "hypotheses").mkdir(exist_ok=True)
(folder / "hypotheses" / "validation.txt").write_text("".join(f"{word}\n" for word in words))
rows = Path(recipe["data"]["data_dir"], "dev.tsv").read_text()
digest = hashlib.sha256(
    "".join(f"{row.split(chr(9))[1]}\n" for row in rows.splitlines()).encode()
).hexdigest()
data = {
    "training_set": hashlib.sha256(rows.encode()).hexdigest(),
    "references": {"validation": digest},
}
results = {
    "data": data,
    "parameters": 10,
    "training": {"seconds": 1.0, "updates": step},
    "scores": {},
}
(folder / "results.json").write_text(json.dumps(results))
(folder / "checkpoint-1").mkdir(exist_ok=True)
