# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A locality method in a file of one's own: trained by `csan-hf --import`, and saved with the
model.
"""

import importlib
import sys
from pathlib import Path

import pytest
import yaml
from system.hub.elsewhere import run_elsewhere
from system.hub.test_push import TRAIN

from csan_hf import CsanConfig
from csan_hf.hub import check_checkpoint
from csan_hf.hub.public_files import public_files
from csan_hf.models import locality
from csan_hf.own_code import save_methods
from csan_hf_runtime.command_line import IMPORTS, main

METHOD = """
from dataclasses import dataclass
from typing import ClassVar

from csan_hf.models.attention_call import Term
from csan_hf.models.distances import Window  # of a file that not every checkpoint has
from csan_hf.models.locality import LocalityMethod, register_locality


@dataclass(frozen=True)
class StridedTerm(Term):
    step: int

    def visible(self, cells):
        return cells.distance % self.step == 0


@register_locality
@dataclass(frozen=True)
class Strided(LocalityMethod):
    step: int
    key: ClassVar[str] = "strided"

    def term(self, module, call):
        return StridedTerm(self.step)
"""
# Loads, saves once more and loads that, where neither csan_hf nor the file can be imported; prints
# what a query sees
STRANGER = """
import sys
sys.modules["csan_hf"] = None
import torch
from transformers import AutoModelForSeq2SeqLM
for folder in sys.argv[1:]:
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True, attn_implementation="eager")
    model.save_pretrained("again")
ids = torch.tensor([[5, 6, 7, 8]])
print((model.get_encoder()(ids, output_attentions=True).attentions[0][0, 0, 0] > 0).tolist())
"""


DISTANCES = (Path(locality.__file__).with_name("distances.py")).read_text()
PACKAGE_METHODS = dict(locality._REGISTRY)


def forget(monkeypatch):
    """The method is as unknown as in a new process."""
    monkeypatch.setenv(IMPORTS, "")
    monkeypatch.setattr(locality, "_REGISTRY", dict(PACKAGE_METHODS))
    sys.modules.pop("csan_hf.models.strided", None)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the method's file; what it registers is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    forget(monkeypatch)
    (tmp_path / "strided.py").write_text(METHOD)
    yield tmp_path
    forget(monkeypatch)


@pytest.mark.usefixtures("undrawn")
def test_a_method_of_ones_own_travels_with_what_it_trained(place, monkeypatch):
    training = {
        "max_steps": 2,
        "eval_steps": 2,
        "max_tokens": 2000,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
    }
    config = {**TRAIN["config"], "encoder_locality": [{"strided": 2}]}
    (place / "recipe.yaml").write_text(
        yaml.safe_dump({**TRAIN, "config": config, "training": training})
    )
    assert main(["train", "recipe.yaml", "--output_dir", "run"]) == 2, "the method is not known yet"
    assert main(["--import", "strided", "train", "recipe.yaml", "--output_dir", "run"]) == 0
    assert "`csan-hf --import strided.py train`" in (place / "run" / "README.md").read_text()
    assert "strided.py" in public_files(place / "run")
    (place / "strided.py").unlink()
    seen, _ = run_elsewhere(place, "-c", STRANGER, "run", "again")
    assert seen == "[True, False, True, False]\n"
    with pytest.raises(ValueError, match=r"\(configuration_csan.py, strided.py\): pass --trust_re"):
        check_checkpoint(place / "run")
    check_checkpoint(place / "run", trust_remote_code=True, load=False)
    # Who comes later, with csan_hf, takes the file that was saved
    forget(monkeypatch)
    (place / "words.txt").write_text("a b\n")
    words = ["translate", "--model", "run", "--input", "words.txt", "--output", "out"]
    assert main(words) == 2
    assert main([*words, "--import=run/strided.py"]) == 0, "before or after the command"


def test_a_mistake_in_it_is_one_line(place, capsys):
    (place / "strided.py").write_text("1 / 0\n")
    for _ in range(2):
        assert main(["--import", "strided.py", "recipes"]) == 2
        assert capsys.readouterr().err.endswith("strided.py: ZeroDivisionError: division by zero\n")


def test_a_second_file_of_a_name_is_refused(place, capsys):
    for folder in ("a", "b"):
        (place / folder).mkdir()
        (place / folder / "same_name.py").write_text("")
    assert main(["--import", "a/same_name.py,b/same_name.py", "recipes"]) == 2
    assert "which no file of csan_hf and none imported before has" in capsys.readouterr().err


def test_a_file_of_ones_own_does_not_replace_one_of_the_package(place, caplog, monkeypatch):
    own_file = place / "own" / "distances.py"
    own_file.parent.mkdir()
    own_file.write_text(METHOD)
    monkeypatch.syspath_prepend(place)
    (own_file.parent / "strided_too.py").write_text(
        METHOD.replace('"strided"', '"strided_too"') + "from .helper import HELP\n"
    )
    (own_file.parent / "helper.py").write_text("HELP = 1\n")
    importlib.import_module("own.distances")
    importlib.import_module("own.strided_too")
    for name in ("configuration_csan.py", "distances.py"):
        (place / name).write_text("the package's")
    locality = [{"strided": 2, "strided_too": 2}]
    config = CsanConfig(encoder_layers=1, decoder_layers=1, encoder_locality=locality)
    save_methods(config, place)
    assert "Strided is not saved with the model" in caplog.text
    assert (place / "distances.py").read_text() == DISTANCES
    assert "from .helper import HELP" in (place / "strided_too.py").read_text()
    assert not (place / "helper.py").exists(), "what is not csan_hf's is installed or is not there"
    for name in ("distances", "strided_too", "helper"):
        sys.modules.pop(f"own.{name}")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gaussian.py", "choose another name"),
        ("a-b.py", "choose another name"),
        ("absent", "absent"),
    ],
)
def test_what_cannot_be_imported_is_one_line(place, name, told, capsys):
    if name.endswith(".py"):
        (place / name).write_text("")
    assert main(["--import", name, "recipes"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
