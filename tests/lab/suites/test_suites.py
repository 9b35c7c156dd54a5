# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Suites: what they expand to, and that those of the repository can be trained."""

import shutil

import pytest
import yaml

from csan_hf import CsanConfig
from csan_hf.lab.suites import load_suite
from csan_hf.recipes import SUITES
from csan_hf.training.errors import RecipeError
from csan_hf.training.plan import resolve

BASE = {
    "model": "csan",
    "config": {"d_model": 16, "encoder_layers": 2, "local_window": 7, "head_area": 3},
    "data": {"train": "train.tsv", "validation": "dev.tsv", "source_lang": "a", "target_lang": "b"},
    "training": {"max_steps": 10, "seed": 7},
}
SUITE = {
    "metric": "g2p_wer",
    "seeds": [3, 4],
    "systems": {
        "plain": {"preset": None},
        "soft": {"preset": "local_soft", "seeds": 1},
        "2D": {"config": {"head_area": 5}},
        "grid": {
            "model": "pervasive_attention",
            "config": {"num_layers": 2},
            "data": {"train": "more.tsv"},
        },
    },
    "data": {"one": {}, "two": {"data": {"test": "test.tsv"}}},
    "tables": {"dev": ["validation"], "test": ["test"]},
    "sizes": {"small": {"base": "base.yaml", "settings": {"training": {"max_steps": 20}}}},
}


def sizes_of_suites():
    for name in SUITES.names():
        for size in yaml.safe_load(SUITES.file(name).read_text())["sizes"]:
            yield name, size


def write_suite(folder, **changes):
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({**SUITE, **changes}, sort_keys=False))
    return path


def test_a_suite_becomes_runs(tmp_path):
    suite = load_suite(write_suite(tmp_path), data_dir="here")
    runs = {run.key: run.recipe for run in suite.runs}
    # 4 systems × 2 data sets × 2 seeds, less one seed of "soft"
    assert [seed for _, _, seed in runs] == [3] * 8 + [4] * 6
    for (_, _, seed), recipe in runs.items():
        assert recipe["training"] == {"max_steps": 20, "seed": seed}
    plain, soft, local, grid = (runs["two", name, 3] for name in suite.systems)
    sizes = {"d_model": 16, "encoder_layers": 2}  # a preset replaces the base's locality
    assert plain["config"] == {**sizes, "preset": None}
    assert soft["config"] == {**sizes, "preset": "local_soft"}
    assert (local["config"]["local_window"], local["config"]["head_area"]) == (7, 5)
    assert grid["config"] == {"num_layers": 2}
    assert plain["data"] == {**BASE["data"], "data_dir": "here", "test": "test.tsv"}
    assert grid["data"] == {**plain["data"], "train": "more.tsv"}
    assert suite.tables == {
        "dev": {"one": ("one", ("validation",)), "two": ("two", ("validation",))},
        "test": {"two": ("two", ("test",))},
    }


def test_all_seeds_of_a_system_teach(tmp_path):
    student = {"preset": "csan_1d", "seeds": 1, "teachers": ["plain", "soft"]}
    suite = load_suite(write_suite(tmp_path, systems={**SUITE["systems"], "student": student}))
    runs = {run.key: run for run in suite.runs}
    taught = runs["two", "student", 3]
    expected = ["plain, two, seed 3", "soft, two, seed 3", "plain, two, seed 4"]
    assert [teacher.name for teacher in taught.teachers] == expected
    assert taught.recipe["training"]["teachers"] == expected
    assert all(not run.teachers for run in suite.runs if run.system != "student")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metric": "wre"}, "no metric 'wre'"),
        ({"metric": None}, "the key metric is missing"),
        ({"baseline": "none"}, "the baseline 'none' is not one of the systems plain"),
        ({"baseline": ["plain"]}, r"the baseline \['plain'\] is not one of the systems plain"),
        (
            {"systems": {"x": {"published": 3}}},
            r"systems\.x: published must hold names and their settings, got 3",
        ),
        ({"systems": {"a/b": {}}}, "'a/b' cannot be the name of a file"),
        (
            {"seeds": [-1]},
            r"seeds must be a list of different whole numbers from 0 to 2\^32 - 1, got \[-1\]",
        ),
        (
            {"systems": {"x": {"overwrite": True}}},
            "x: overwrite says what to do with a run, which a suite decides",
        ),
        (
            {"systems": {"x": {"training": {"max_steps": None}}}},
            r"x: a suite needs training\.max_steps",
        ),
        (
            {"systems": {"x": {"training": {"push_to_hub": True}}}},
            r"x: training\.push_to_hub: .* to one name",
        ),
        (
            {"systems": {"plain": {}, "x": {"data": {"source_lang": "c"}}}},
            r"x has another data\.source_lang than plain, and would be scored on other sentences",
        ),
        ({"tables": {"test": ["tset"]}}, "no data set has a split tset"),
        (
            {"data": {"one": {}}, "tables": {"dev": {"all": ["validation", "validation"]}}},
            "of one stands twice",
        ),
        (
            {"tables": {"dev": {"all": ["validation"]}}},
            r"dev\.all: there is no data set of that name, only one, two",
        ),
        ({"sise": 3}, "unknown key sise"),
        ({"data": {}}, "data must hold names"),
        ({"sizes": {"small": {"seeds": [1]}}}, "a size needs a base"),
        ({"sizes": {1: {"base": "base.yaml"}}}, "sizes: the name 1 is no text: put it in quotes"),
        (
            {"systems": {"x": "plain"}},
            r"systems\.x must hold keys of a recipe and their values, got 'plain'",
        ),
        (
            {"systems": {"x": {"seeds": -1}}},
            r"systems\.x\.seeds must say how many seeds, 1 or more, got -1",
        ),
        (
            {"systems": {"x": {}, "y": {"teachers": ["x"]}, "z": {"teachers": ["y"]}}},
            r"systems\.z\.teachers must list systems that have no teachers themselves \(x\)",
        ),
        (
            {"systems": {"x": {}, "y": {"teachers": ["x"], "training": {"teachers": ["z"]}}}},
            r"systems\.y: teachers are systems of the suite or models of training\.teachers",
        ),
        ({"metric": "comet"}, "a suite compares hypotheses with references, comet needs more"),
        (
            {"tables": {"dev": {"two": "validation"}}},
            r"tables\.dev\.two must be a list of splits, got 'validation'",
        ),
        ({"tables": {"../dev": ["validation"]}}, r"tables '\.\./dev' cannot be the name of a file"),
    ],
)
def test_what_a_suite_cannot_say(tmp_path, changes, words):
    with pytest.raises(RecipeError, match=words):
        load_suite(write_suite(tmp_path, **changes))


def test_a_size_that_is_not_there(tmp_path):
    with pytest.raises(RecipeError, match="no size 'large', only small"):
        load_suite(write_suite(tmp_path), size="large")


def test_splits_of_several_language_pairs(tmp_path):
    pairs = {"data": {"language_pairs": ["de-en", "en-de"], "test": {"2016": "test.tsv"}}}
    tables = {"test": {"into English": ["2016_de-en"], "into German": ["2016_en-de"]}}
    suite = load_suite(write_suite(tmp_path, data={"one": pairs}, tables=tables))
    assert suite.tables["test"] == {
        "into English": ("one", ("2016_de-en",)),
        "into German": ("one", ("2016_en-de",)),
    }
    assert suite.splits == {"one": ["validation", "2016_de-en", "2016_en-de"]}


def test_a_base_is_a_file_beside_the_suite_or_the_name_of_a_recipe(tmp_path):
    copy = shutil.copy(SUITES.file("multi30k"), tmp_path)
    assert load_suite(copy).runs[0].recipe == load_suite("multi30k").runs[0].recipe
    sizes = {"small": {"base": "numbers"}}
    suite = load_suite(write_suite(tmp_path, data={"one": {}}, tables=None, sizes=sizes))
    assert suite.runs[0].recipe["data"]["dataset"] == "numbers"
    sizes = {"small": {"base": "other.yaml"}}
    with pytest.raises(RecipeError, match=r"There is no recipe .*other.yaml. The folder holds .*b"):
        load_suite(write_suite(tmp_path, sizes=sizes))


@pytest.mark.parametrize(("name", "size"), [*sizes_of_suites()])
def test_the_suites_of_the_repository(name, size, tmp_path):
    suite = load_suite(name, size=size)
    assert {run.system for run in suite.runs} == set(suite.systems)
    for run in suite.first_run_by_system.values():  # the model does not depend on the data set
        recipe = run.recipe_in(tmp_path)
        assert recipe.training_arguments().max_steps > 0
        assert suite.metric in recipe.training_arguments().metrics
        resolve(recipe, with_data=False)
    for run in suite.first_run_by_data.values():
        run.recipe_in(tmp_path)


def test_table_1_has_the_papers_ten_systems():
    suite = load_suite("naacl_table1", size="paper")
    configs = {
        run.system: CsanConfig(**CsanConfig.long_form(run.recipe["config"])) for run in suite.runs
    }
    assert len(configs) == 10
    assert configs.pop("Transformer").local_layers("encoder") == []
    assert all(config.local_layers("encoder") == [0, 1, 2] for config in configs.values())
    localities = {repr(config.layer_locality("encoder", 0)) for config in configs.values()}
    assert len(localities) == 9
