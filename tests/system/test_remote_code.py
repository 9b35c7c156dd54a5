# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Code of a checkpoint runs where it is trusted, and nobody is asked on the way."""

import ast
import itertools
import json
from pathlib import Path

import pytest
import tiny

from csan_hf import EnsembleForConditionalGeneration
from csan_hf.evaluation.loading import load_translation_model
from csan_hf.hub.public_files import read_json
from csan_hf.pipelines import translation_pipeline
from csan_hf_runtime.command_line import main

ROOT = Path(__file__).parents[2]
PRODUCT = [
    *ROOT.glob("csan_hf/**/*.py"),
    *ROOT.glob("csan_hf_runtime/command_line/*.py"),
    *ROOT.glob("scripts/**/*.py"),
]
LINES = "y\none\ntwo\n"  # whoever asks would read the first as an answer
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
    calls = [*itertools.chain.from_iterable(map(loaders, PRODUCT))]
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
    settings = read_json(path)
    settings["auto_map"] = {"AutoTokenizer": [None, "odd_tokenizer.OddTokenizer"]}
    settings["tokenizer_class"] = "OddTokenizer"
    path.write_text(json.dumps(settings))
    (folder / "odd_tokenizer.py").write_text(CODE.format(marker=str(folder.parent / "ran")))


def test_the_text_is_not_read_as_an_answer(checkpoint, standard_input, tmp_path, capsys):
    standard_input(LINES)
    assert main(["translate", "--model", str(checkpoint)]) == 2
    printed, told = capsys.readouterr()
    assert "custom code" in told
    assert "Traceback" not in told
    assert printed == ""
    assert not (tmp_path / "ran").exists()


def test_trusted_code_runs_and_every_line_is_translated(
    checkpoint, standard_input, tmp_path, capsys
):
    standard_input(LINES)
    assert main(["translate", "--model", str(checkpoint), "--trust_remote_code"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert (tmp_path / "ran").exists()


def test_a_pipeline_trusts_the_target_tokenizer_as_it_is_told(tmp_path):
    folder = tmp_path / "model"
    separate = {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": False}
    tiny.csan(**separate).save_pretrained(folder)
    tiny.tokenizer(["eins", "zwei"]).save_pretrained(folder)
    save_odd_tokenizer(folder, "target_tokenizer")
    with pytest.raises(ValueError, match="no target tokenizer can be loaded") as refusal:
        translation_pipeline(str(folder), trust_remote_code=False)
    assert "custom code" in str(refusal.value.__cause__)
    translator = translation_pipeline(str(folder), trust_remote_code=True)
    assert type(translator.target_tokenizer).__name__ == "OddTokenizer"


def test_the_vocabulary_check_of_an_ensemble_needs_its_tokenizers(checkpoint, tmp_path):
    tiny.csan(1).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="custom code"):
        EnsembleForConditionalGeneration.from_pretrained([tmp_path / "other", checkpoint])
    assert not (tmp_path / "ran").exists()


def test_a_member_of_a_class_of_its_own_is_refused_before_its_code_runs(checkpoint, tmp_path):
    path = checkpoint / "config.json"
    config = read_json(path)
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
