# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
import ast
import json
import re
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from system.hub.cards import faults
from system.hub.elsewhere import card_code

from csan_hf import (
    ConvS2SConfig,
    CsanConfig,
    CsanForSequenceClassification,
    CsanForTokenClassification,
    PervasiveAttentionConfig,
    RnnSearchConfig,
)
from csan_hf.hub import copy_model_card, save_self_contained, write_model_card
from csan_hf.hub.model_card import build_model_card
from csan_hf.hub.network_text import describe_locality, short_name
from csan_hf.hub.public_files import read_json

RECIPE = yaml.safe_load("""
{name: "Numbers, 2D", model: csan, license: apache-2.0, language: [de, en], dataset_name: numbers,
 output_dir: runs/numbers, config: {d_model: 128}, training: {max_tokens: 4000}}
""")
ENTRY = yaml.safe_load("""
{bleu: 97.1234, bleu_signature: "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1", chrf: 98.2,
 chrf_signature: "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.5.1", sentences: 1000, num_beams: 5,
 seconds: 20.0, loss: 0.1}
""")
RESULTS = yaml.safe_load("""
model: CsanForConditionalGeneration
parameters: 7123456
chosen: {weights: the average of 3 checkpoints}
training: {seconds: 330.0, updates: 1500, epochs: 3.25, tokens_per_second: 9000.4, updates_per_second: 4.731, seed: 0}
environment: {torch: 2.13.0, transformers: 5.23.0, sacrebleu: 2.5.1, device: x86_64, threads: 2}
""") | {"scores": {"validation": {**ENTRY, "bleu": 96.0}, "test": ENTRY}}


@pytest.fixture
def run(tmp_path, undrawn):
    """The folder of a run: what a trained model leaves there."""
    CsanConfig.base(vocab_size=8000, localness_window="query").to_json_file(
        tmp_path / "config.json"
    )
    (tmp_path / "training.png").write_bytes(b"")
    return tmp_path


def test_the_hub_is_told_iso_codes_alone(run):
    recipe = {**RECIPE, "language": ["deu_Latn", "de-AT", "eng", "Klingon"]}
    assert build_model_card(run, recipe, RESULTS).data.language == ["deu", "de", "eng"]


def test_metadata_and_text_say_what_was_measured(run):
    path = write_model_card(run, RECIPE, RESULTS)
    data = ModelCard.load(path).data
    text = path.read_text(encoding="utf-8")
    expected = {
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "license": "apache-2.0",
        "model_name": "Numbers, 2D",
        "language": ["de", "en"],
        "metrics": ["bleu", "chrf"],
    }
    assert vars(data).items() >= expected.items()
    measured = {(result.dataset_split, result.metric_type): result for result in data.eval_results}
    assert {key: result.metric_value for key, result in measured.items()} == {
        ("validation", "bleu"): 96.0,
        ("validation", "chrf"): 98.2,
        ("test", "bleu"): 97.12,
        ("test", "chrf"): 98.2,
    }
    assert measured["test", "bleu"].metric_args == {"signature": ENTRY["bleu_signature"]}
    assert measured["test", "bleu"].dataset_name == "numbers"
    for phrase in (
        "max_tokens: 4000",
        "window of 11 tokens",
        "(training.png)",
        "(locality.png)",
    ):
        assert phrase in text
    assert faults(ModelCard(text), RESULTS) == [], "every number of the results"
    assert (run / "locality.png").read_bytes() == b"drawn"
    assert not [word for word in ("{{", "{%", "None", "runs/numbers") if word in text]


@pytest.mark.parametrize("missing", [*RESULTS, "bleu", "chrf_signature", "seconds", "sentences"])
def test_optional_keys_may_be_missing(run, missing):
    results = {key: value for key, value in RESULTS.items() if key != missing}
    if missing in ENTRY:
        results["scores"] = {"test": {key: value for key, value in ENTRY.items() if key != missing}}
    text = write_model_card(run, RECIPE, results).read_text(encoding="utf-8")
    assert "## Limits" in text
    assert "Undefined" not in text


def test_without_anything_the_picture_of_an_older_model_goes(run):
    (run / "locality.png").write_bytes(b"older")
    (run / "config.json").unlink()
    card = ModelCard.load(write_model_card(run, {}, {}))
    assert "## Limits" in card.text
    assert "locality.png" not in card.text
    assert not (run / "locality.png").exists()


def test_no_text_breaks_out_of_the_cards_code(tmp_path):
    recipe = {"training": {"hub_model_id": 'me/x"); print("y'}}
    card = build_model_card(tmp_path, recipe, {"example": 'a "b"\n c'})
    nodes = ast.walk(ast.parse(card_code(card.text)))
    strings = {node.value for node in nodes if isinstance(node, ast.Constant)}
    assert strings >= {'a "b"\n c', 'me/x"); print("y'}


@pytest.mark.parametrize(
    ("recipe", "base_model", "datasets"),
    [
        (
            {
                "init_from": "Helsinki-NLP/opus-mt-de-en",
                "data": {"dataset": "bentrevett/multi30k"},
            },
            "Helsinki-NLP/opus-mt-de-en",
            ["bentrevett/multi30k"],
        ),
        (
            {"hub_dataset": "bentrevett/multi30k", "data": {"data_dir": "multi30k"}},
            None,
            ["bentrevett/multi30k"],
        ),
        ({"init_from": "/runs/older", "data": {"data_dir": "/pairs"}}, None, None),
    ],
)
def test_names_of_the_hub_are_linked_and_local_ones_are_not(recipe, base_model, datasets, run):
    data = ModelCard.load(write_model_card(run, recipe, RESULTS)).data
    assert (data.base_model, data.datasets) == (base_model, datasets)


def test_local_names_are_those_of_folders(run):
    data = {"data_dir": "/home/me/pairs", "target_lang": "fr"}
    recipe = {"init_from": "/home/me/older", "data": data}
    card = ModelCard.load(write_model_card(run, recipe, RESULTS))
    assert card.data.language == ["en", "fr"], "the source language is the default of the recipe"
    assert card.data.eval_results[0].dataset_type == "pairs"
    assert "It started from the weights of older." in card.text
    assert "Data: pairs." in card.text
    assert "/home" not in card.content


@pytest.fixture
def run_code(tmp_path, monkeypatch, capsys):
    """Runs the code of a card, which names a model in the working directory, and returns what it
    printed.
    """
    monkeypatch.chdir(tmp_path)

    def run(text):
        exec(card_code(text), {})
        return capsys.readouterr().out.strip()

    return run


@pytest.mark.parametrize(
    ("head", "task", "unit"),
    [
        (CsanForSequenceClassification, "text-classification", "sentence"),
        (CsanForTokenClassification, "token-classification", "token"),
    ],
)
def test_the_card_of_a_classifier(head, task, unit, joint, tmp_path, run_code):
    translator = save_self_contained(*joint, tmp_path / "translator")
    model = head.from_pretrained(
        translator, num_labels=3, id2label={0: "O", 1: "animal", 2: "number"}
    )
    directory = save_self_contained(model, joint[1], tmp_path / "model")
    scores = {"test": {"accuracy": 0.91234, "f1": 0.8, "sentences": 30, "seconds": 3.0}}
    path = write_model_card(directory, {"license": "mit", "language": "de"}, {"scores": scores})
    card = ModelCard.load(path)
    text = path.read_text(encoding="utf-8")
    assert faults(card, {"scores": scores}, pipeline_tag=task) == []
    assert task in card.data.tags
    assert "translation" not in card.data.tags
    assert [result.task_type for result in card.data.eval_results] == [task, task]
    assert f"gives each {unit} one of 3 labels (O, animal, number)" in text
    assert "| test | 30 | 0.9123 | 0.8000 | 10.0 |" in text
    assert "ranslat" not in text.replace("translator", "")
    assert "decoder" not in text
    assert any(label in run_code(text) for label in ("O", "animal", "number"))


@pytest.mark.parametrize(
    ("config", "cited"),
    [
        (CsanConfig(localness_window="query"), {"N19-1407", "D18-1475", "7181-attention"}),
        (CsanConfig(local_window=None, head_area=1), {"7181-attention"}),
        (PervasiveAttentionConfig(), {"K18-1010"}),
    ],
)
def test_the_papers_that_apply_are_cited(config, cited, run):
    config.save_pretrained(run)
    text = write_model_card(run, {}, {}).read_text(encoding="utf-8")
    citation = text[text.index("## Citation") :]
    papers = {"N19-1407", "D18-1475", "7181-attention", "K18-1010"}
    assert {paper for paper in papers if paper in citation} == cited
    assert citation.count("{") == citation.count("}")
    assert len(re.findall(r"^@inproceedings", citation, flags=re.MULTILINE)) == len(cited)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            RnnSearchConfig(encoder_layers=2),
            "RNNsearch, a recurrent encoder-decoder with attention.",
        ),
        (ConvS2SConfig(), "with attention in every decoder layer."),
    ],
)
def test_networks_without_feed_forward_layers(config, sentence, run):
    config.save_pretrained(run)
    assert sentence in write_model_card(run, {}, {}).read_text(encoding="utf-8")


def test_a_card_is_copied_with_what_belongs_to_it(run, tmp_path):
    write_model_card(run, RECIPE, RESULTS)
    (run / "results.json").write_text(json.dumps(RESULTS))
    path = copy_model_card(run, tmp_path / "cards" / "numbers.md")
    names = {"numbers.md", "numbers.json", "numbers.png", "numbers_locality.png"}
    assert {file.name for file in path.parent.iterdir()} == names
    card = ModelCard.load(path)
    assert set(re.findall(r"!\[.*?\]\((.*?)\)", card.text)) == {
        "numbers.png",
        "numbers_locality.png",
    }
    assert faults(card, read_json(tmp_path / "cards" / "numbers.json")) == []
    [problem] = faults(card, {**RESULTS, "chosen": {"weights": "the last"}})
    assert problem.startswith("the text does not say 'The weights are those of the last.'")


GAUSSIANS = {"local_window": None, "head_area": 1, "cross_localness_layers": [1]}


@pytest.mark.parametrize(
    ("fields", "name", "phrases"),
    [
        ({"local_window": None, "head_area": 1}, "Transformer", ["None: every layer"]),
        ({"head_area": 1}, "1D-CSAN (11)", ["layers 1, 2, 3 of 6", "window of 11 tokens"]),
        ({"head_boundary": "circular"}, "2D-CSAN (3×11)", ["3 heads (of 8)", "circular"]),
        ({"local_window": None, "localness_layers": [5]}, "2D-CSAN (3×sentence)", ["layer 6"]),
        (
            {"localness_window": "query", **GAUSSIANS},
            "Transformer with Gaussian localness",
            ["a Gaussian around a position", "**Cross-attention of the decoder**, layer 2 of 6"],
        ),
    ],
)
def test_locality_in_words(fields, name, phrases):
    config = CsanConfig.base(**fields).to_dict()
    assert short_name(config) == name
    text = "\n".join(describe_locality(config))
    assert [phrase for phrase in phrases if phrase not in text] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1,500 updates", "1,501 updates"),
        ("9,000 tokens per second", "9,001 tokens per second"),
        ("4.73 updates", "4.74 updates"),
        ("the average of 3", "the average of 4"),
        ("| test | 1,000 | 97.12 |", "| test | 1,000 | 97.13 |"),
        ("| 98.20 | 5 | 50.0 |", "| 98.20 | 4 | 50.0 |"),
        ("`nrefs:1|case:mixed|eff:no", "`nrefs:1|case:lc|eff:no"),
    ],
)
def test_a_card_that_says_something_else_than_the_results(old, new, run):
    card = ModelCard.load(write_model_card(run, RECIPE, RESULTS))
    assert faults(card, RESULTS, pipeline_tag="translation") == []
    assert old in card.text
    head, rule, body = card.content.rpartition("---\n\n# ")
    assert faults(ModelCard(head + rule + body.replace(old, new)), RESULTS), f"{new} went unnoticed"


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (
            {**RESULTS["scores"], "test_2017": ENTRY},
            "bleu of test_2017 is None in the metadata and (97.12, {",
        ),
        ({"test": ENTRY}, "chrf of validation is (98.2, {"),
    ],
)
def test_scores_that_only_one_side_has(scores, words, run):
    card = ModelCard.load(write_model_card(run, RECIPE, RESULTS))
    problems = faults(card, {**RESULTS, "scores": scores})
    assert any(problem.startswith(words) for problem in problems)


# ---- the cards in model_cards/: the Hub's rules, the results beside them, their pictures, and
# their code

FOLDER = Path(__file__).parents[3] / "model_cards"
CARDS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
by_name = pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)


@by_name
def test_the_card_is_whole_keeps_the_rules_and_agrees_with_its_run(path):
    card = ModelCard.load(path)
    results = read_json(path.with_suffix(".json"))
    assert results.keys() >= {"model", "parameters", "chosen", "scores", "training", "environment"}
    # A pronouncer's
    languages = ["en"]
    signature = "per_signature"
    if path.stem != "pronouncer_english":
        languages = card.data.language
        signature = "bleu_signature"
        assert len(languages) == 2
    version = r"(version|rapidfuzz):\d"
    assert all(re.search(version, entry[signature]) for entry in results["scores"].values())
    tag = "translation" if len(languages) == 2 else "text2text-generation"
    assert faults(card, results, pipeline_tag=tag) == []
    assert card.data.language == languages
    assert card.data.license != "unknown"
    text = path.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.+?\]\((.*?)\)", text)
    assert f"{path.stem}.png" in pictures
    assert all((FOLDER / picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)
    for heading in ("The model", "Use", "Training", "Scores", "Limits and biases", "Citation"):
        assert text.count(f"\n## {heading}\n") == 1
    assert not [mark for mark in ("{{", "{%") if mark in text]


@by_name
def test_the_code_of_the_card_runs(path, joint, tmp_path, run_code):
    directory = save_self_contained(*joint, tmp_path / "model")
    assert run_code(
        re.sub(r'model="[^"]+"', f"model={str(directory)!r}", path.read_text(encoding="utf-8"))
    )
