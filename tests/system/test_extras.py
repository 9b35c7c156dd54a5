# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Work without the optional packages, and how each is asked for where it is missing."""

import subprocess
import sys
from pathlib import Path

CHECKPOINT = str(Path(__file__).parents[1] / "frozen/csan")
WITHOUT = """
import sys
optional = "babel gradio markdown matplotlib num2words onnx onnxruntime onnxscript rapidfuzz sacrebleu tensorboard"
sys.modules.update(dict.fromkeys(optional.split()))
"""
FINE_TUNED = """
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments
import csan_hf
from csan_hf import convert_marian, translation_pipeline
checkpoint, folder = sys.argv[1:]
model = AutoModelForSeq2SeqLM.from_pretrained(checkpoint)
arguments = Seq2SeqTrainingArguments(folder, max_steps=1, use_cpu=True, report_to="none", save_strategy="no")
pair = {"input_ids": [4, 5, 1], "labels": [5, 4, 1]}
Seq2SeqTrainer(model=model, args=arguments, train_dataset=[pair]).train()
model.save_pretrained(folder)
translate = translation_pipeline(checkpoint)
translate.tokenizer.save_pretrained(folder)
assert translation_pipeline(folder)(["one two", "three"])[1]["translation_text"]
"""
COMMANDS = """
from csan_hf_runtime.command_line import main
for command in sys.argv[1:]:
    status = main(command.split())
    print("ended with", status, file=sys.stderr)
"""
EXTRAS = {
    "translate --model {model} --input {text} --output {new}": None,
    "align {model} --source {text} --output {new}": None,
    "train numbers --output_dir {new}": "train",
    "evaluate --model {model} --source {text} --reference {text}": "train",
    "report {text} --source {text} --reference {text}": "lab",
    "compare multi30k --output {new}": "lab",
    "demo {model}": "demo",
    "export-onnx {model} {new}": "onnx",
}


def run(code, *words):
    command = [sys.executable, "-c", WITHOUT + code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def test_models_are_fine_tuned_saved_and_loaded_without_them(tmp_path):
    run(FINE_TUNED, CHECKPOINT, str(tmp_path))


def test_an_extra_is_asked_for_by_name_where_it_is_needed(tmp_path):
    (tmp_path / "text").write_text("one\n")
    places = {"new": tmp_path / "new", "model": CHECKPOINT, "text": tmp_path / "text"}
    printed = run(COMMANDS, *(command.format(**places) for command in EXTRAS)).splitlines()
    ends = [number for number, line in enumerate(printed) if line.startswith("ended with")]
    for end, extra in zip(ends, EXTRAS.values(), strict=True):
        assert printed[end] == f"ended with {0 if extra is None else 2}"
        assert (
            extra is None or f"is not installed: pip install 'csan_hf[{extra}]'" in printed[end - 1]
        )
