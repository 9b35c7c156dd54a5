# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The plots of a report in the card of a run, and in what is uploaded."""

import json

import pytest
import yaml
from huggingface_hub import ModelCard
from system.hub.cards import faults

from csan_hf import CsanConfig
from csan_hf.hub import copy_model_card, write_model_card
from csan_hf.hub.figures import new_figure
from csan_hf.hub.model_card import build_model_card
from csan_hf.hub.public_files import public_content, public_files, read_json
from csan_hf.lab.report import Report, ReportPlot, System, show_in_card

RESULTS = {"parameters": 7, "scores": {"test": {"exact_match": 50.0, "sentences": 4}}}
RECIPE = {"name": "tiny", "license": "mit", "language": ["de", "en"]}
SHOWN = {
    "plots/by_length.png",
    "plots/by_length.svg",
    "plots/windows_run.png",
    "plots/windows_run.svg",
}


def plot(name, system=None, title="scores [x](secret.png)"):
    return ReportPlot(name, title, new_figure(), ["n"], [["1"]], system)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The folder of a run with the plots of a report in its card."""
    monkeypatch.setattr(
        "csan_hf.hub.locality_picture.draw_locality",
        lambda config, path: path.write_bytes(b"drawn"),
    )
    folder = tmp_path / "run"
    CsanConfig().save_pretrained(folder)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    (folder / "results.json").write_text(json.dumps(RESULTS))
    write_model_card(folder, RECIPE, RESULTS)
    return folder


def show(run, *plots):
    show_in_card(
        Report("t", [], [], [], [System("run", [[]]), System("theirs", [[]])], list(plots)), run
    )
    return (run / "README.md").read_text()


def test_the_card_shows_the_plots_of_the_first_system(run):
    before = (run / "README.md").read_text()
    text = show(
        run,
        plot("by_length"),
        plot("windows_run", "run", "run: windows"),
        plot("windows_theirs", "theirs"),
    )
    start, end = text.index("## Plots"), text.index("## Limits")
    assert text[:start] + text[end:] == before  # nothing else is changed
    assert "[![run: windows](plots/windows_run.png)](plots/windows_run.svg)" in text
    assert {f"plots/{path.name}" for path in (run / "plots").iterdir()} == SHOWN
    for name in SHOWN:
        assert (
            (run / name).read_bytes().startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
        )
    assert faults(ModelCard(text), json.loads((run / "results.json").read_text())) == []


def test_what_is_uploaded_is_what_the_card_shows(run):
    show(run, plot("by_length"), plot("windows_run", "run"))
    for name in ("secret.png", "plots/other.svg", "plots/notes.txt"):
        (run / name).write_text("private")
    assert {name for name in public_files(run) if name.endswith((".png", ".svg", ".txt"))} - {
        "locality.png"
    } == SHOWN
    results = read_json(run / "results.json")
    results["plots"].append({"name": "../../stranger", "title": "x"})
    (run / "results.json").write_text(json.dumps(results))
    for ending in ("png", "svg"):
        (run.parent / f"stranger.{ending}").write_text("private")
    assert "stranger" not in build_model_card(run, {}, results).text
    svg = run / "plots" / "by_length.svg"
    svg.write_text(f"<svg><text>{run}/notes</text></svg>")
    with pytest.raises(ValueError, match=r"by_length\.svg, line 1 .*: a path of this machine"):
        public_content(run, "plots/by_length.svg", svg, run / "recipe.yaml")
    svg.unlink()
    svg.symlink_to(run.parent / "elsewhere.svg")
    (run.parent / "elsewhere.svg").write_text("private")
    with pytest.raises(ValueError, match="leads out of the folder"):
        public_files(run)


def test_a_later_report_replaces_the_plots(run, tmp_path):
    with pytest.raises(
        ValueError, match=r"no recipe.yaml and results.json.*--card needs a run's folder"
    ):
        show(tmp_path, plot("a"))
    show(run, plot("by_length"), plot("windows_run", "run"))
    text = show(run, plot("by_length"))
    assert "windows_run" not in text
    assert {path.name for path in (run / "plots").iterdir()} == {"by_length.png", "by_length.svg"}
    copy = copy_model_card(run, tmp_path / "cards" / "tiny.md")
    assert "(tiny_by_length.png)](tiny_by_length.svg)" in copy.read_text()
    assert {"tiny_by_length.png", "tiny_by_length.svg"} <= {
        path.name for path in copy.parent.iterdir()
    }
