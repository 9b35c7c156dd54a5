# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import errno
import json
import os
import pickle
import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest
import tiny
import torch
import transformers
from safetensors.torch import load_file, save_file
from system.hub.conftest import SOURCE, build_csan
from system.hub.elsewhere import run_elsewhere
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    MarianMTModel,
    pipeline,
)

from csan_hf import (
    CsanForConditionalGeneration,
    CsanForSequenceClassification,
    CsanForTokenClassification,
)
from csan_hf.data import TokenizerPair
from csan_hf.hub import save_self_contained
from csan_hf.hub.public_files import read_json
from csan_hf.pipelines import TranslationPipeline, translation_pipeline

SENTENCES = ["eins zwei", "Hund", "", "drei vier Katze Hund"]
CODE = {
    "csan": {
        "configuration_csan.py",
        "locality.py",
        "modeling_csan.py",
    },
    "pervasive_attention": {
        "configuration_pervasive_attention.py",
        "modeling_pervasive_attention.py",
        "grid_cache.py",
    },
    "rnnsearch": {"configuration_rnnsearch.py", "modeling_rnnsearch.py", "encoder_decoder.py"},
    "conv_s2s": {"configuration_conv_s2s.py", "modeling_conv_s2s.py", "encoder_decoder.py"},
}
for names in CODE.values():
    names.update({"configuration_seq2seq.py", "layers.py", "seq2seq_model.py", "translation.py"})
CLASSIFICATION = "modeling_csan_classification.py"

# Runs where csan_hf cannot be imported: loads each translation checkpoint in every way, saves it
# again, loads that; classifies, saves again what it loaded, classifies with that; encodes with an
# encoder alone. All in one process, since a fresh one costs more than what it does here.
ELSEWHERE = """
import json, sys
sys.modules["csan_hf"] = None
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForTextEncoding,
    AutoTokenizer,
    pipeline,
)
translators, classifiers, sentences = json.loads(sys.argv[1])
trust = {"trust_remote_code": True}

def translate(directory, names):
    pipe = pipeline("translation", model=directory, device="cpu", batch_size=2, **trust)
    results = [pipe(sentences)]
    results.append(pipeline(model=directory, device="cpu", **trust)(sentences))
    model = AutoModelForSeq2SeqLM.from_pretrained(directory, **trust)
    tokenizer = AutoTokenizer.from_pretrained(directory, **trust)
    results.append(type(pipe)(model=model, tokenizer=tokenizer, device="cpu")(sentences))
    assert type(AutoConfig.from_pretrained(directory, **trust)).__name__ == names[0]
    assert type(AutoModel.from_pretrained(directory, **trust)).__name__ == names[1]
    return pipe, results

def translate_and_save(directory, names):
    pipe, results = translate(directory, names)
    pipe.save_pretrained(directory + "-again")
    results += translate(directory + "-again", names)[1]
    # not the pipeline but its parts, as after a fine-tuning
    for loaded in (AutoModelForSeq2SeqLM, AutoTokenizer):
        loaded.from_pretrained(directory, **trust).save_pretrained(directory + "-parts")
    return results + [pipeline("translation", model=directory + "-parts", device="cpu", **trust)(sentences)]

def classify_and_save(task, directory):
    classify = pipeline(task, model=directory, device="cpu", batch_size=2, **trust)
    classify.save_pretrained(directory + "-again")
    reloaded = pipeline(task, model=directory + "-again", device="cpu", **trust)
    words = [sentence for sentence in sentences if sentence]
    return [[pipe(words) for pipe in (classify, reloaded)], type(reloaded.model).__name__]

translations = {directory: translate_and_save(directory, names) for directory, names in translators.items()}
classes = {task: classify_and_save(task, directory) for task, directory in classifiers.items()}
for load in (AutoModelForTextEncoding, AutoModel):
    encoder = load.from_pretrained("encoder", **trust)
words = AutoTokenizer.from_pretrained("encoder", **trust)(sentences[0], return_tensors="pt")
states = encoder(words["input_ids"]).last_hidden_state.tolist()
for load in (AutoModel, AutoModelForSeq2SeqLM):
    try:
        load.from_pretrained("broken", dropout=0.3, **trust)
    except ValueError as error:
        print(error)
pipeline("translation", model="joint", device="cpu", **trust)(["Hund", "Hund. Katze."])
print(json.dumps([translations, classes, states], default=float))  # scores are numpy numbers
"""
HEADS = {
    "text-classification": CsanForSequenceClassification,
    "token-classification": CsanForTokenClassification,
}


def test_loads_where_the_package_is_not_installed(
    joint, separate, grid, recurrent, convolutional, tmp_path
):
    """Translators of every kind, both classifiers, an encoder, and what lacks a weight."""
    generation = {**joint[0].generation_config.to_dict(), "_from_model_config": False}
    usual = {"tokens": 20, "sentences": 1}
    joint[0].generation_config = GenerationConfig(**generation, usual_source=usual)
    translators = {"joint": joint, "separate": separate, "grid": grid}
    translators |= {"recurrent": recurrent, "convolutional": convolutional}
    for kind, (model, tokenizers) in translators.items():
        for part in (tokenizers, model):  # plainly, as transformers' own scripts do
            part.save_pretrained(tmp_path / kind)
    classifiers = {}
    torch.manual_seed(0)  # whatever was made before
    for task, head in HEADS.items():
        classifiers[task] = classifier_of(tmp_path / "separate", head).eval()
        save_self_contained(classifiers[task], separate[1], tmp_path / task)
    names = {
        kind: [type(m.config).__name__, type(m.model).__name__]
        for kind, (m, _) in translators.items()
    }
    encoder = transformers.AutoModelForTextEncoding.from_pretrained(tmp_path / "separate")
    save_self_contained(encoder, separate[1], tmp_path / "encoder")
    shutil.copytree(tmp_path / "joint", tmp_path / "broken")
    weights = load_file(tmp_path / "broken" / "model.safetensors")
    del weights["model.encoder.layers.0.fc1.weight"]
    save_file(weights, tmp_path / "broken" / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "check.py").write_text(ELSEWHERE)
    arguments = json.dumps([names, dict(zip(HEADS, HEADS, strict=True)), SENTENCES])
    printed, errors = run_elsewhere(tmp_path, "check.py", arguments)
    assert "not supported" not in errors
    assert printed.count("'broken' lacks") == 2
    assert errors.count("A source has") == 1
    assert "99 % of those in training had (at most 20 and 1): part of it may be left out" in errors
    translations, classes, states = json.loads(printed.splitlines()[-1])
    for kind, (model, tokenizers) in translators.items():
        assert_same_translator(model, tokenizers, translations[kind], tmp_path / kind)
    for task, classifier in classifiers.items():
        assert_same_classifier(classifier, separate[1].source, task, classes[task], tmp_path)
    ids = separate[1].source(SENTENCES[0], return_tensors="pt")["input_ids"]
    torch.testing.assert_close(torch.tensor(states), encoder(ids).last_hidden_state)


def assert_same_translator(model, tokenizers, elsewhere, directory):
    """What was translated with a checkpoint elsewhere, and what was saved there beside it."""
    assert set(os.listdir(directory)) >= CODE[model.config.model_type]
    assert CLASSIFICATION not in os.listdir(directory)
    target = getattr(tokenizers, "target", tokenizers)
    source = getattr(tokenizers, "source", tokenizers)
    expected = TranslationPipeline(
        model=model, tokenizer=source, target_tokenizer=target, device="cpu"
    )(SENTENCES)
    assert len({result["translation_text"] for result in expected}) > 2
    assert elsewhere == [expected] * 7
    # what was loaded and saved there is as complete as what was saved here
    for suffix in ("again", "parts"):
        again = directory.with_name(f"{directory.name}-{suffix}")
        assert set(os.listdir(directory)) <= set(os.listdir(again))
        for name in ("config.json", "generation_config.json"):
            saved = read_json(again / name)
            assert saved == read_json(directory / name)


def assert_same_classifier(classifier, tokenizer, task, elsewhere, tmp_path):
    """How a checkpoint classified elsewhere, and what was saved there beside it."""
    sentences = [sentence for sentence in SENTENCES if sentence]
    expected = pipeline(task, model=classifier, tokenizer=tokenizer, device="cpu")(sentences)
    answers, name = elsewhere
    assert name == type(classifier).__name__
    for answer in answers:
        assert flat(answer) == pytest.approx(flat(expected), abs=1e-5)
    assert set(os.listdir(tmp_path / task)) <= set(os.listdir(tmp_path / f"{task}-again"))


@pytest.mark.parametrize("kind", ["joint", "separate", "grid", "recurrent", "convolutional"])
def test_a_plain_save_is_complete_unasked(kind, request, tmp_path, caplog):
    model, tokenizers = request.getfixturevalue(kind)
    complete = save_self_contained(model, tokenizers, tmp_path / "complete")
    plain = tmp_path / "plain"
    assert not caplog.records
    model.save_pretrained(plain)
    getattr(tokenizers, "source", tokenizers).save_pretrained(plain)
    if kind != "joint":
        # A model does not know the second tokenizer; the call that adds it stands in the warning
        [call] = re.findall(
            r"lacks target_tokenizer/: .* `(target_tokenizer\.save_pretrained\(.*?\))`", caplog.text
        )
        eval(call, {"target_tokenizer": tokenizers.target})
    caplog.clear()
    model.save_pretrained(plain)
    assert not caplog.records, "now it is there"
    assert {path.relative_to(plain) for path in plain.rglob("*")} == {
        path.relative_to(complete) for path in complete.rglob("*")
    }
    for name in ("config.json", "translation.py"):
        assert (plain / name).read_bytes() == (complete / name).read_bytes()


def test_the_hub_is_not_asked_for_a_folder_that_is_gone(separate, tmp_path, monkeypatch, caplog):
    """A relative folder, `owner/name`, may be the name of anybody's repository."""
    monkeypatch.chdir(tmp_path)
    directory = save_self_contained(*separate, "owner/name")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(str(directory))
    shutil.rmtree(directory)
    asked = []
    monkeypatch.setattr(
        AutoTokenizer, "from_pretrained", lambda name, **options: asked.append(name) or separate[1]
    )
    loaded.save_pretrained("again")
    assert asked == []
    assert Path("again", "modeling_csan.py").is_file()
    assert "again lacks target_tokenizer/" in caplog.text


@pytest.fixture
def cached(pair, tmp_path, monkeypatch):
    """A cache that holds two commits of a repository whole, but not what they lack; they differ in
    the target's vocabulary.
    """
    repository = tmp_path / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    pairs = {"main": pair, "v2": TokenizerPair(pair.source, tiny.tokenizer(["one", "two"]))}
    for number, (revision, tokenizers) in enumerate(pairs.items()):
        commit = f"{number}" * 40
        (repository / "refs" / revision).write_text(commit)
        sizes = len(tokenizers.source), len(tokenizers.target)
        save_self_contained(build_csan(*sizes), tokenizers, repository / "snapshots" / commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return repository


@pytest.mark.parametrize("revision", ["main", "v2"])
def test_the_target_tokenizer_is_of_the_models_revision(revision, cached):
    commit = (cached / "refs" / revision).read_text()
    other_revision = {"main": "v2", "v2": "main"}[revision]
    (cached / "refs" / other_revision).unlink()
    expected = TokenizerPair.from_pretrained(cached / "snapshots" / commit).target.get_vocab()
    hub = {"revision": revision}
    load = CsanForConditionalGeneration.from_pretrained
    tokenizer = AutoTokenizer.from_pretrained("owner/name", **hub)
    model = load("owner/name", **hub)
    for translator in (
        translation_pipeline("owner/name", **hub),
        pipeline("translation", model="owner/name", trust_remote_code=True, **hub),
        TranslationPipeline(model=model, tokenizer=tokenizer),
        TranslationPipeline(model=load("owner/name", revision=commit), tokenizer=tokenizer),
    ):
        assert translator.target_tokenizer.get_vocab() == expected
    assert TokenizerPair.from_pretrained("owner/name", **hub).target.get_vocab() == expected


def test_a_target_tokenizer_that_cannot_be_asked_for_is_not_none(cached, pair):
    """Both vocabularies are of one size, and the cache has what models and tokenizers load."""
    folder = cached / "snapshots" / (cached / "refs" / "main").read_text()
    both = TokenizerPair(pair.source, tiny.tokenizer(SOURCE[::-1]))
    save_self_contained(build_csan(len(both.source), len(both.target)), both, folder)
    assert not TokenizerPair.from_pretrained("owner/name").is_joint
    shutil.rmtree(folder / "target_tokenizer")
    with pytest.raises(ValueError, match="no target tokenizer can be loaded"):
        translation_pipeline("owner/name")
    with pytest.raises(OSError, match="couldn't connect"):
        TokenizerPair.from_pretrained("owner/name")
    save_self_contained(build_csan(len(pair.source)), pair.source, folder)
    assert TokenizerPair.from_pretrained("owner/name").is_joint
    assert TokenizerPair.from_pretrained(folder).is_joint
    assert translation_pipeline("owner/name")("Hund")


def test_a_token_goes_along_for_the_target_tokenizer_and_into_no_file(cached, monkeypatch):
    model = CsanForConditionalGeneration.from_pretrained("owner/name", token="secret")
    tokenizer = AutoTokenizer.from_pretrained("owner/name")
    asked = []
    load = AutoTokenizer.from_pretrained
    monkeypatch.setattr(
        AutoTokenizer,
        "from_pretrained",
        lambda name, **options: asked.append(options.pop("token")) or load(name, **options),
    )
    TranslationPipeline(model=model, tokenizer=tokenizer)
    assert asked == ["secret"]
    assert b"secret" not in pickle.dumps(model)
    assert pickle.loads(pickle.dumps(model)).location["revision"] == model.location["revision"]


def test_code_of_a_target_tokenizer_that_did_not_run_is_not_passed_on(separate, tmp_path):
    theirs = save_self_contained(*separate, tmp_path / "theirs")
    file = theirs / "target_tokenizer" / "tokenizer_config.json"
    settings = read_json(file) | {"auto_map": {"AutoTokenizer": [None, "odd.Odd"]}}
    file.write_text(json.dumps(settings))
    AutoModelForSeq2SeqLM.from_pretrained(theirs).save_pretrained(tmp_path / "ours")
    saved = read_json(tmp_path / "ours" / file.relative_to(theirs))
    assert "auto_map" not in saved


def test_the_code_of_a_class_goes_along_only_if_it_is_registered(tmp_path):
    subclass = type("Mine", (CsanForConditionalGeneration,), {"__module__": __name__})
    subclass(tiny.csan().config).save_pretrained(tmp_path)
    assert not {Path(__file__).name, "modeling_csan.py"} & set(os.listdir(tmp_path))


def classifier_of(directory, head):
    """A classifier whose encoder is that of the translation model in a directory."""
    labels = ["thing", "animal", "number"]
    numbers = {label: number for number, label in enumerate(labels)}
    return head.from_pretrained(
        directory, num_labels=3, id2label=dict(enumerate(labels)), label2id=numbers
    )


def flat(answer):
    """Everything that a pipeline answered, in one dict."""
    if isinstance(answer, dict | list):
        items = answer.items() if isinstance(answer, dict) else enumerate(answer)
        leaves = {}
        for key, value in items:
            for path, leaf in flat(value).items():
                leaves[f"{key} {path}"] = leaf
        return leaves
    return {"": answer}


@pytest.mark.parametrize("head", HEADS.values())
def test_a_classifier_saved_over_a_translator(head, separate, tmp_path):
    model, pair = separate
    directory = save_self_contained(model, pair, tmp_path / "model")
    translator = read_json(directory / "config.json")
    save_self_contained(classifier_of(directory, head), pair, directory)
    config = read_json(directory / "config.json")
    assert config["architectures"] == [head.__name__]
    assert config["auto_map"].items() >= translator["auto_map"].items()
    assert not config["custom_pipelines"]
    files = set(os.listdir(directory))
    assert files >= CODE["csan"] | {CLASSIFICATION, "tokenizer.json"}
    assert not files & {"target_tokenizer", "generation_config.json"}
    assert len(AutoTokenizer.from_pretrained(directory)) == len(pair.source)


def test_saved_over_an_earlier_model(joint, separate, tmp_path):
    directory = save_self_contained(*separate, tmp_path / "model")
    kept = {"training.log", "modeling_mine.py"}
    stale = {CLASSIFICATION, "model-00001-of-00002.safetensors"}
    for name in kept | stale:
        (directory / name).touch()
    save_self_contained(*joint, directory)
    files = set(os.listdir(directory))
    assert files >= kept
    assert not files & (stale | {"target_tokenizer"})
    assert len(AutoTokenizer.from_pretrained(directory)) == len(joint[1])
    assert AutoModelForSeq2SeqLM.from_pretrained(directory).config.vocab_size == len(joint[1])
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing temporary is left"


def test_the_tokenizers_stay_where_none_are_saved(separate, tmp_path):
    model, tokenizers = separate
    save_self_contained(model, tokenizers, tmp_path)
    before = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    save_self_contained(model, None, tmp_path)
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*")} == before


def test_failure_leaves_the_earlier_model(joint, tmp_path):
    model, tokenizer = joint
    directory = save_self_contained(model, tokenizer, tmp_path / "model")
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}

    class Broken:
        def save_pretrained(self, directory):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_self_contained(model, Broken(), directory)
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_would_be_incomplete_is_refused(separate, tmp_path):
    model, pair = separate
    with pytest.raises(ValueError, match=r"9 source and 10 target entries.*TokenizerPair"):
        save_self_contained(model, pair.source, tmp_path / "model")
    subclass = type("Mine", (MarianMTModel,), {"__module__": __name__})
    with pytest.raises(ValueError, match="cannot be saved with the model"):
        save_self_contained(subclass(tiny.marian().config), pair, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_folder_that_is_another_file_system_is_saved_to(joint, tmp_path, monkeypatch):
    """As the volumes of containers are; or a link leads to one."""
    volume, directory = tmp_path / "volume", tmp_path / "model"
    volume.mkdir()
    directory.symlink_to(volume)

    def within_one_file_system(move):
        def checked(source, target):
            if len({Path(path).resolve().is_relative_to(volume) for path in (source, target)}) > 1:
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            move(source, target)

        return checked

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, within_one_file_system(getattr(os, name)))
    for _ in range(2):
        save_self_contained(*joint, directory)
    model = CsanForConditionalGeneration.from_pretrained(directory)
    (directory / "locality.py").unlink()
    model.save_pretrained(directory)
    assert (directory / "locality.py").is_file()
    assert not [
        path for path in (*tmp_path.iterdir(), *volume.iterdir()) if path.name.startswith(".")
    ]
