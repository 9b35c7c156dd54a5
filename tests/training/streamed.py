# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A training on a stream in each of two launched processes, for `test_processes.py`: the arguments
are a recipe, its folder, and the update at which the processes kill themselves.

Every process adds the sources of each update to `seen-RANK.jsonl`.
"""

import json
import os
import signal
import sys
from pathlib import Path

from csan_hf.training import TranslationTrainer, run
from csan_hf.training.recipe import load_recipe


class RecordingTrainer(TranslationTrainer):
    """Notes what it is trained on."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        """Trains on a batch, or dies."""
        update = self.state.global_step + 1
        if update == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        texts = self.tokenizers.source.batch_decode(inputs["input_ids"], skip_special_tokens=True)
        with Path(sys.argv[2], f"seen-{self.args.process_index}.jsonl").open("a") as file:
            file.write(json.dumps([update, texts]) + "\n")
        return super().training_step(model, inputs, num_items_in_batch)


if __name__ == "__main__":
    run.TranslationTrainer = RecordingTrainer
    run.train_from_recipe(load_recipe(sys.argv[1], [("output_dir", f"{sys.argv[2]}/run")]))
