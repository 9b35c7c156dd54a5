# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Code of a checkpoint runs where it is trusted, and nobody is asked on the way."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from csan_hf import EnsembleForConditionalGeneration
from csan_hf.evaluation.loading import load_translation_model

ROOT = Path(__file__).parents[1]
PRODUCT = [
    *ROOT.glob("csan_hf/**/*.py"),
    *ROOT.glob("csan_hf_cli/*.py"),
    *ROOT.glob("scripts/*.py"),
]
ASKS_UNLESS_TOLD = ("from_pretrained", "from_config")  # of the Auto classes

CODE = """
import pathlib
from transformers import PreTrainedTokenizerFast

pathlib.Path({marker!r}).touch()


class OddTokenizer(PreTrainedTokenizerFast):
    pass
"""


def loaders(path):
    """The calls in a file that load by an Auto class or a pipeline of transformers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        owner, _, method = name.rpartition(".")
        if name == "pipeline" or (owner.startswith("Auto") and method in ASKS_UNLESS_TOLD):
            yield f"{path.name}:{node.lineno}", {keyword.arg for keyword in node.keywords}


def test_every_loader_is_told_whether_code_is_trusted():
    calls = [call for path in PRODUCT for call in loaders(path)]
    assert len(calls) > 5
    assert [place for place, keywords in calls if "trust_remote_code" not in keywords] == []


@pytest.fixture
def checkpoint(tmp_path):
    """A model whose tokenizer is a class in its folder; the code leaves the file `ran`."""
    folder = tmp_path / "model"
    tiny.csan().save_pretrained(folder)
    save_odd_tokenizer(folder)
    return folder


def save_odd_tokenizer(folder, subfolder=""):
    """A tokenizer whose class, in the folder of the model, leaves the file `ran` beside that."""
    tiny.tokenizer(["one", "two", "three"]).save_pretrained(folder / subfolder)
    path = folder / subfolder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["auto_map"] = {"AutoTokenizer": [None, "odd_tokenizer.OddTokenizer"]}
    settings["tokenizer_class"] = "OddTokenizer"
    path.write_text(json.dumps(settings))
    (folder / "odd_tokenizer.py").write_text(CODE.format(marker=str(folder.parent / "ran")))


def test_the_text_is_not_read_as_an_answer(checkpoint, tmp_path):
    run = start("translate", "--model", checkpoint, modules=tmp_path)
    assert run.returncode == 2
    assert "custom code" in run.stderr
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert not (tmp_path / "ran").exists()


def test_trusted_code_runs_and_every_line_is_translated(checkpoint, tmp_path):
    run = start("translate", "--model", checkpoint, "--trust_remote_code", modules=tmp_path)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 3
    assert (tmp_path / "ran").exists()


PIPELINE = """
from csan_hf.pipelines import translation_pipeline
for trust in (False, True):
    try:
        print(type(translation_pipeline("model", trust_remote_code=trust).target_tokenizer).__name__)
    except ValueError as error:
        print("refused", *str(error.__cause__).splitlines())
"""


def test_a_pipeline_trusts_the_target_tokenizer_as_it_is_told(tmp_path):
    folder = tmp_path / "model"
    separate = {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": False}
    tiny.csan(**separate).save_pretrained(folder)
    tiny.tokenizer(["eins", "zwei"]).save_pretrained(folder)
    save_odd_tokenizer(folder, "target_tokenizer")
    run = start_python("-c", PIPELINE, modules=tmp_path)
    refused, name = run.stdout.splitlines()
    assert "custom code" in refused
    assert name == "OddTokenizer"


def test_the_vocabulary_check_of_an_ensemble_needs_its_tokenizers(checkpoint, tmp_path):
    tiny.csan(1).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="custom code"):
        EnsembleForConditionalGeneration.from_pretrained([tmp_path / "other", checkpoint])
    assert not (tmp_path / "ran").exists()


def test_a_member_of_a_class_of_its_own_is_refused_before_its_code_runs(checkpoint, tmp_path):
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    config |= {"model_type": "odd", "auto_map": {"AutoConfig": "odd_tokenizer.OddConfig"}}
    path.write_text(json.dumps(config))
    tiny.csan(1).save_pretrained(tmp_path / "other")
    names = [str(tmp_path / "other"), str(checkpoint)]
    for load in (load_translation_model, EnsembleForConditionalGeneration.from_pretrained):
        with pytest.raises(
            ValueError, match="model is a model of type 'odd', a class of its own code"
        ):
            load(names, trust_remote_code=True)
    assert not (tmp_path / "ran").exists()


def start(*arguments, modules):
    return start_python("-m", "csan_hf", *arguments, modules=modules)


def start_python(*arguments, modules):
    environment = {**os.environ, "HF_MODULES_CACHE": str(modules / "modules")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command,
        input="y\none\ntwo\n",
        env=environment,
        cwd=modules,
        capture_output=True,
        text=True,
        timeout=120,
    )
