# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""scripts/tutorial.ipynb runs from the first cell to the last, with few steps."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
from transformers import AutoConfig

NOTEBOOK = Path(__file__).parents[2] / "scripts" / "tutorial.ipynb"
FEW = {"STEPS": 1, "PAIRS": 60, "HELD_OUT": 1}


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    # Only the last picture of a run is looked at, which its end draws once more
    monkeypatch.setattr("csan_hf.training.callbacks.draw_training", lambda *drawn: None)
    cells = [
        cell
        for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    shown = json.dumps([cell["outputs"] for cell in cells])
    assert shown.count("BLEU on the test set:") == 2
    assert shown.count("image/png") == 3
    assert not re.search("stderr|error|/home|/root|/tmp", shown), "only what a reader needs is kept"
    parameters, *later_cells = ["".join(cell["source"]) for cell in cells]
    names: dict = {}
    exec(parameters, names)
    assert names.keys() - {"__builtins__"} == FEW.keys()
    names.update(FEW)
    for number, source in enumerate(later_cells, start=1):
        exec(compile(source, f"cell {number}", "exec"), names)
    assert capsys.readouterr().out.count("BLEU on the test set:") == 2
    tuned = AutoConfig.from_pretrained("runs/notebook-tuned")
    assert tuned.layer_locality("encoder", 0).area.window == 5
    assert plt.get_fignums() == [1, 2, 3]
    plt.close("all")
