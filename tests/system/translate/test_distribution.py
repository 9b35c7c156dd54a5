# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The distribution csan_hf_runtime, alone in an environment of what it requires, translates with the
tokenizers and settings of every recipe of letters.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from csan_hf.hub.vocabularies import save_vocabularies
from csan_hf.recipes import RECIPES
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import load_recipe

pytest.importorskip("onnxruntime")

ROOT = Path(__file__).parents[3]
RUNTIME = ROOT / "runtime"
BUILD = "import setuptools.build_meta as build, sys; print(build.build_wheel(sys.argv[1]))"
WORDS = {"abba": "A B A", "bad": "B AA D", "dab": "D AE B"}
OF_LETTERS = [name for name in RECIPES.names() if name.startswith(("g2p", "pronouncer"))]


def run(command, **options):
    """Runs a command without the packages of this environment, and returns its output."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], env=variables, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def link_required(requirements, site):
    """Links what distributions require from this environment, with what that requires."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        distribution = importlib.metadata.distribution(requirement.name)
        names = {Path(file).parts[0] for file in distribution.files} - {"..", "__pycache__"}
        missing = [name for name in names if not (site / name).exists()]
        for name in missing:
            (site / name).symlink_to(distribution.locate_file(name))
        if missing:
            link_required(distribution.requires or (), site)


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The folder of an environment with the wheel of `runtime` and what that requires."""
    folder = tmp_path_factory.mktemp("distribution")
    shutil.copytree(RUNTIME, folder / "runtime", ignore=shutil.ignore_patterns("__pycache__"))
    built = run([sys.executable, "-c", BUILD, folder], cwd=folder / "runtime")
    wheel = folder / built.split()[-1]
    venv.create(folder / "environment", with_pip=False)
    python = folder / "environment/bin/python"
    install = ["-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel]
    run([sys.executable, *install])
    [site] = (folder / "environment/lib").glob("python*/site-packages")
    [installed] = importlib.metadata.distributions(name="csan_hf_runtime", path=[str(site)])
    link_required(installed.requires, site)
    return folder / "environment"


@pytest.fixture
def export(exported, tmp_path):
    """A function that gives tiny graphs the tokenizers and the settings that a recipe leads to."""

    def export(name, source_lang):
        folder = shutil.copytree(exported("pervasive attention")[1], tmp_path / "onnx")
        options = {
            "output_dir": tmp_path / "run",
            "data.data_dir": tmp_path,
            "data.train": "words.tsv",
            "data.validation": "words.tsv",
            "data.test": "null",
        }
        if source_lang is not None:
            options["data.source_lang"] = source_lang
        recipe = load_recipe(name, [(key, str(value)) for key, value in options.items()])
        words = WORDS
        if recipe.tokenizer["kind"] == "symbols":
            words = {" ".join(word): phones for word, phones in WORDS.items()}
        rows = "".join(f"{word}\t{phones}\n" for word, phones in words.items())
        (tmp_path / "words.tsv").write_text(rows)
        plan = resolve(recipe)
        corpus = plan.prepare_corpus()
        model = plan.build_model(corpus)
        settings = model.generation_config
        phones = range(3, len(corpus.tokenizers.target))
        settings.suppress_tokens = sorted({*range(40)} - {*phones})
        settings.save_pretrained(folder)
        save_vocabularies(corpus.tokenizers, folder, model.config)
        (tmp_path / "words").write_text("\n".join(words))
        return folder, tmp_path / "words"

    return export


@pytest.mark.parametrize(
    ("name", "source_lang"), [*((name, None) for name in OF_LETTERS), ("g2p_csan_2d", "ady")]
)
def test_words_are_pronounced(name, source_lang, export, environment):
    folder, words = export(name, source_lang)
    command = ["translate", "--model", folder, "--input", words, "--quiet"]
    output = run([environment / "bin/csan-hf", *command])
    assert output.count("\n") == len(WORDS)
    assert output.strip()


def test_the_runtime_is_there_whole_and_alone(environment):
    code = (
        "import importlib.util as util; print(*map(util.find_spec, ['csan_hf', 'torch', 'babel']))"
    )
    python = environment / "bin/python"
    assert run([python, "-c", code], cwd=environment).split() == ["None"] * 3
    [site] = (environment / "lib").glob("python*/site-packages")
    package = ROOT / "csan_hf_runtime"
    for file in package.rglob("*.py"):
        assert (site / file.relative_to(ROOT)).is_file()
