import re

import pytest
from huggingface_hub import ModelCard

from csan_hf import CsanConfig
from csan_hf.hub import save_self_contained, write_model_card
from csan_hf.hub.locality_text import describe_locality, short_name

RECIPE = {
    "name": "Numbers, 2D",
    "model": "csan",
    "license": "apache-2.0",
    "language": ["de", "en"],
    "dataset_name": "numbers",
    "output_dir": "runs/numbers",
    "config": {"d_model": 128},
    "training": {"max_tokens": 4000},
}
ENTRY = {
    "bleu": 97.1234,
    "bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1",
    "chrf": 98.2,
    "chrf_signature": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.5.1",
    "sentences": 1000,
    "num_beams": 5,
    "seconds": 20.0,
    "loss": 0.1,
}
RESULTS = {
    "model": "CsanForConditionalGeneration",
    "parameters": 7_123_456,
    "chosen": {"weights": "the average of 3 checkpoints"},
    "scores": {"validation": {**ENTRY, "bleu": 96.0}, "test": ENTRY},
    "training": {"seconds": 330.0, "updates": 1500, "epochs": 3.25, "tokens_per_second": 9000.4, "seed": 0},
    "environment": {"torch": "2.13.0", "transformers": "5.23.0", "sacrebleu": "2.5.1", "device": "x86_64"},
}


@pytest.fixture
def run(tmp_path):
    """The folder of a run: what a trained model leaves there."""
    CsanConfig.base(vocab_size=8000, localness_window="query").save_pretrained(tmp_path)
    (tmp_path / "training.png").write_bytes(b"")
    return tmp_path


def test_metadata_is_what_the_hub_reads(run):
    data = ModelCard.load(write_model_card(run, RECIPE, RESULTS)).data
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "translation"
    assert data.language == ["de", "en"]
    assert data.license == "apache-2.0"
    assert data.metrics == ["bleu", "chrf"]
    assert data.model_name == "Numbers, 2D"
    found = {(result.dataset_split, result.metric_type): result for result in data.eval_results}
    assert {key: result.metric_value for key, result in found.items()} == {
        ("validation", "bleu"): 96.0,
        ("validation", "chrf"): 98.2,
        ("test", "bleu"): 97.12,
        ("test", "chrf"): 98.2,
    }
    assert found["test", "bleu"].metric_args == {"signature": ENTRY["bleu_signature"]}
    assert found["test", "bleu"].dataset_name == "numbers"


def test_text_says_what_was_measured(run):
    text = write_model_card(run, RECIPE, RESULTS).read_text(encoding="utf-8")
    assert "7,123,456 parameters" in text
    assert "| test | 1,000 | 97.12 | 98.20 | 5 | 50.0 |" in text
    assert text.count(ENTRY["bleu_signature"]) == 3  # twice in the metadata, once in words
    assert "1,500 updates (3.25 epochs) in 5.5 minutes, 9,000 tokens per second" in text
    assert "seed 0" in text
    assert "the average of 3 checkpoints" in text
    assert "max_tokens: 4000" in text
    assert "runs/numbers" not in text
    assert "window of 11 tokens" in text
    assert "(training.png)" in text
    for paper in ("N19-1407", "D18-1475"):
        assert paper in text
    assert not [line for line in text.splitlines() if "{{" in line or "{%" in line or "None" in line]


@pytest.mark.parametrize("missing", [*RESULTS, "bleu", "chrf_signature", "seconds", "sentences", "everything"])
def test_optional_keys_may_be_missing(run, missing):
    recipe, results = RECIPE, {key: value for key, value in RESULTS.items() if key != missing}
    if "scores" in results and missing in ENTRY:
        results["scores"] = {"test": {key: value for key, value in ENTRY.items() if key != missing}}
    if missing == "everything":
        recipe, results = {}, {}
        (run / "config.json").unlink()
    text = write_model_card(run, recipe, results).read_text(encoding="utf-8")
    assert "## Limits" in text
    assert "Undefined" not in text
    ModelCard(text)


def test_written_at_once_or_not_at_all(run, monkeypatch):
    path = write_model_card(run, RECIPE, RESULTS)
    before = path.read_text(encoding="utf-8")

    def fail(self, path):
        path.write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(ModelCard, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        write_model_card(run, {}, {})
    assert path.read_text(encoding="utf-8") == before
    assert {file.name for file in run.iterdir()} == {"README.md", "config.json", "training.png"}


def test_names_of_the_hub_are_linked_and_local_ones_are_not(run):
    recipe = {**RECIPE, "init_from": "Helsinki-NLP/opus-mt-de-en", "data": {"dataset": "bentrevett/multi30k"}}
    data = ModelCard.load(write_model_card(run, recipe, RESULTS)).data
    assert data.base_model == "Helsinki-NLP/opus-mt-de-en"
    assert data.datasets == ["bentrevett/multi30k"]
    recipe = {"init_from": str(run / "older"), "data": {"data_dir": str(run / "pairs"), "target_lang": "fr"}}
    path = write_model_card(run, recipe, RESULTS)
    data, text = ModelCard.load(path).data, path.read_text(encoding="utf-8")
    assert data.base_model is None
    assert not data.datasets
    assert data.language == ["en", "fr"], "the source language is the default of the recipe"
    assert "It started from the weights of older." in text
    assert "Data: pairs." in text
    assert str(run) not in text


def test_code_of_the_card_runs(joint, tmp_path, monkeypatch, capsys):
    model, tokenizer = joint
    directory = save_self_contained(model, tokenizer, tmp_path / "model")
    text = write_model_card(directory, RECIPE, RESULTS).read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(code.strip().splitlines()) == 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    exec(code, {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("fields", "name", "phrases"),
    [
        ({"local_window": None, "head_area": 1}, "Transformer", ["None: every layer"]),
        ({"local_window": 11, "head_area": 1}, "1D-CSAN (11)", ["layers 1, 2, 3 of 6", "11 tokens", "5 on either"]),
        ({}, "2D-CSAN (3×11)", ["an area of 3 heads (of 8)", "1 on either side, under one softmax"]),
        ({"head_boundary": "circular"}, "2D-CSAN (3×11)", ["first and last head being neighbours"]),
        ({"local_window": None}, "2D-CSAN (3×sentence)", ["an area of 3 heads"]),
        ({"localness_layers": []}, "Transformer", ["None: every layer"]),
        (
            {"localness_layers": [5], "decoder_localness_layers": [0]},
            "2D-CSAN (3×11)",
            ["encoder**, layer 6", "decoder**, layer 1"],
        ),
        (
            {"localness_window": "fixed", "local_window": None, "head_area": 1, "cross_localness_layers": [1]},
            "Transformer with Gaussian localness",
            ["a constant window of 10 tokens", "**Cross-attention of the decoder**, layer 2 of 6"],
        ),
    ],
)
def test_locality_in_words(fields, name, phrases):
    config = CsanConfig.base(**fields).to_dict()
    assert short_name(config) == name
    text = "\n".join(describe_locality(config))
    for phrase in phrases:
        assert phrase in text


@pytest.mark.parametrize("strategy", ["fixed", "layer", "query", "head"])
def test_every_strategy_has_words(strategy):
    assert "Gaussian" in " ".join(describe_locality(CsanConfig.base(localness_window=strategy).to_dict()))
