# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The cards in model_cards/: the Hub's rules, the results beside them, their pictures, and their code."""

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from csan_hf.hub import card_problems, save_self_contained
from csan_hf.hub.model_card import TEMPLATE

FOLDER = Path(__file__).parents[2] / "model_cards"
CARDS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
by_name = pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)


def test_there_are_cards_and_the_template():
    assert len(CARDS) >= 6
    assert (FOLDER / "model_card.md.jinja").resolve() == TEMPLATE.resolve()
    recipes = {path.stem for path in (FOLDER.parent / "scripts/recipes").glob("*.yaml")}
    assert {path.stem for path in CARDS} <= recipes
    assert {path.stem for path in FOLDER.glob("*.json")} == {path.stem for path in CARDS}


@by_name
def test_the_card_keeps_the_rules_and_agrees_with_its_run(path):
    card = ModelCard.load(path)
    results = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert results.keys() >= {"model", "parameters", "chosen", "scores", "training", "environment"}
    assert all("version:" in entry["bleu_signature"] for entry in results["scores"].values())
    assert card_problems(card, results, pipeline_tag="translation") == []
    assert len(card.data.language) == 2
    assert card.data.license != "unknown"


@by_name
def test_the_card_is_whole(path):
    text = path.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.+?\]\((.*?)\)", text)
    assert f"{path.stem}.png" in pictures
    assert all((FOLDER / picture).read_bytes().startswith(b"\x89PNG") for picture in pictures)
    for heading in ("The model", "Use", "Training", "Scores", "Limits and biases", "Citation"):
        assert text.count(f"\n## {heading}\n") == 1
    assert "{{" not in text
    assert "{%" not in text


@by_name
def test_the_code_of_the_card_runs(path, joint, tmp_path, monkeypatch, capsys):
    [code] = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    directory = save_self_contained(*joint, tmp_path / "model")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    code, count = re.subn(r'model="[^"]+"', f"model={str(directory)!r}", code)
    assert count == 1
    exec(code, {})
    assert capsys.readouterr().out.strip()
