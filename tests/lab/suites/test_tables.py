# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Numbers of a report beside a count by hand."""

import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from lab.suites.small_suites import (
    REFERENCES,
    SPEED,
    finish,
    finished_suite,
    make_suite,
    report_of,
    tables_of,
)

from csan_hf.evaluation.significance import (
    Resampled,
    SeedVariance,
    holm_adjusted,
    sign_flip_test,
    unequal_seeds_p_value,
)
from csan_hf.training.errors import RecipeError
from csan_hf_runtime.text_files import digest_of_lines

FIXTURES = Path(__file__).parents[2] / "frozen"


def test_scores_and_differences(tmp_path):
    wrong = {("plain", "one"): 18, ("plain", "two"): 28, ("1D", "one"): 8}

    def count(run):
        fewest = wrong.get((run.system, run.data))
        return None if fewest is None else fewest + 2 * run.seed

    suite = finished_suite(tmp_path, count)
    (table,) = tables_of(suite, tmp_path)
    plain, local = table.rows["plain"], table.rows["1D"]
    assert plain.columns["one"].seeds == {1: 50.0, 2: 55.0, 3: 60.0}
    assert plain.columns["one"].score == pytest.approx(55)
    assert plain.mean == pytest.approx((55 + 80) / 2)
    assert plain.pooled is None
    # Words 20 and 21 are wrong in two of three seeds
    assert plain.columns["one"].vote == pytest.approx(55)
    assert list(local.columns) == ["one"]
    assert local.pooled.difference == pytest.approx(-25)  # the columns that both have
    low, high = local.pooled.interval
    assert low < -25 < high < 0
    assert local.pooled.p_value < 0.01
    assert local.pooled.test == "bootstrap"
    assert local.over_columns is None


def test_the_report_of_a_small_suite_is_frozen(tmp_path):
    """Byte for byte: unfinished seeds, columns and systems, a single seed, a vote, a failure."""
    wrong = {"plain": (20, 24, 31), "1D": (10, 12, 14), "2D": (19,)}

    def count(run):
        if run.seed > len(wrong[run.system]) or run.key == ("two", "1D", 3):
            return None
        return wrong[run.system][run.seed - 1] - (run.data == "two")

    suite = finished_suite(tmp_path, count, systems=("plain", "1D", "2D"))
    suite.tables["joined"] = {"one": suite.tables["dev"]["one"]}
    speeds = {"plain": SPEED, "1D": replace(SPEED, parameters=9, relative=1.25)}
    failed = {"1D, two, seed 3": "exit status 2, log.txt: <b> is [not](here)"}
    report_of(suite, tmp_path, speeds, failed)
    for name in ("report.md", "scores.csv"):
        assert (tmp_path / name).read_text() == (FIXTURES / f"suite_{name}").read_text()


def test_the_page_of_a_suite_holds_its_pictures_and_loads_nothing(tmp_path):
    suite = replace(finished_suite(tmp_path), description="<script>1</script>\n\nIn <w> columns.")
    report_of(suite, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<td>plain</td>" in page
    assert "&lt;script&gt;1&lt;/script&gt;" in page
    assert "In &lt;w&gt; columns." in page
    assert 'id="how-the-tables-are-read"' in page
    sources = re.findall(r'src="(.{22})', page)
    assert sources == ["data:image/png;base64,"]


def test_operations_and_published_figures_are_columns(tmp_path):
    figures = {"1D": {"BLEU": 27.1, "parameters": "6M"}}
    suite = replace(finished_suite(tmp_path), published=figures)
    speeds = {"plain": replace(SPEED, flops=2.5e7), "1D": SPEED}
    text = report_of(suite, tmp_path, speeds=speeds)
    head, _, plain, local, *_ = (line for line in text.splitlines() if line.startswith("|"))
    assert head.endswith(
        " | runs | FLOPs a target token (×10⁵) | published BLEU | published parameters |"
    )
    assert plain.endswith(" | 250 |  |  |")
    assert local.endswith(" |  | 27.1 | 6M |")
    assert "matrix products and convolutions of a forward pass" in text
    assert "for their own data" in text


def test_what_a_seed_changes_is_learned_from_others(tmp_path):
    wrong = {
        "plain": lambda seed: 20 + 4 * seed,
        "1D": lambda seed: 10,
        "2D": lambda seed: 10 if seed == 1 else None,
    }
    suite = finished_suite(tmp_path, lambda run: wrong[run.system](run.seed), systems=[*wrong])
    (table,) = tables_of(suite, tmp_path)
    assert table.between_seeds.degrees == 4
    assert table.between_seeds.variance == pytest.approx(50)  # of 10, 0, -10 and 0, 0, 0
    three_seeds, single_seed = (table.rows[name].pooled.interval for name in ("1D", "2D"))
    # Their segments are the same, but 1 + 1/3 of the variance between seeds counts instead of 1/3 +
    # 1/3
    assert 1.2 < (single_seed[1] - single_seed[0]) / (three_seeds[1] - three_seeds[0]) <= 2**0.5
    assert table.unequal_seeds[0] == "plain"
    assert table.rows["plain"].between_seeds == pytest.approx(10)
    assert table.rows["2D"].between_seeds is None


def test_signs_flipped_by_hand():
    # Of the 8 signs of 1, 2, 3, two have a sum of 6 either way, four one of at least 4
    assert sign_flip_test([1.0, 2.0, 3.0]) == 2 / 8
    assert sign_flip_test([-1.0, 2.0, 3.0]) == 4 / 8
    assert sign_flip_test([0.1] * 10) == 2 / 1024
    assert sign_flip_test([0.0, 0.0]) == 1.0
    assert sign_flip_test(list(np.linspace(-1, 1, 30))) > 0.9  # by random signs


def test_signs_flipped_where_a_seed_moves_all():
    generator = np.random.default_rng(5)
    rejections = {"alone": 0, "with seeds": 0}
    for _ in range(300):
        # Ten languages and one training each for two systems, whose seeds are known by 8 degrees of
        # freedom
        differences = (
            0.3 * generator.standard_normal(10) + np.sqrt(2 / 3) * generator.standard_normal()
        )
        variance = SeedVariance(generator.chisquare(8) / 8, 0.0, 8)
        rejections["alone"] += sign_flip_test(differences) < 0.05
        with_seeds = sign_flip_test(differences, variance=variance, per_run=2 / 3)
        rejections["with seeds"] += with_seeds < 0.05
    assert rejections["alone"] > 0.5 * 300
    assert 0.01 * 300 < rejections["with seeds"] < 0.08 * 300
    few = [0.5, 1.0, 1.5]
    assert (
        sign_flip_test(few, variance=SeedVariance(0.0, 0.0, 8), per_run=1.0)
        == sign_flip_test(few)
        == 0.25
    )


def test_columns_of_one_training_are_moved_together(tmp_path):
    suite = finished_suite(tmp_path, lambda run: 10 * run.seed if run.system == "plain" else 18)
    separate, together = [], []
    for seen in (separate, together):
        (table,) = tables_of(suite, tmp_path)
        seen.append(table.rows["1D"].over_columns)
        dev = suite.tables["dev"]
        suite.tables["dev"] = {"one": dev["one"], "again": dev["one"]}
    assert separate[0][0] == together[0][0] == pytest.approx(-5)
    assert separate[0][1] == 2 / 4
    assert together[0][1] > 0.7


def test_seeds_that_differ_more_than_those_of_others():
    def system(variance):
        scores = np.array([-1.0, 0.0, 1.0]) * np.sqrt(variance)
        return Resampled(scores, scores[None])

    # Cochran's C of two systems of three seeds: 2 (1 - C)
    for share in (0.6, 0.9, 0.975):
        expected = pytest.approx(2 * (1 - share), abs=0.02)
        assert unequal_seeds_p_value([system(1 - share), system(share)]) == expected
    single_run = Resampled(np.ones(1), np.ones((1, 1)))
    assert unequal_seeds_p_value([system(1.0), single_run]) == 1
    assert unequal_seeds_p_value([system(0.0), system(0.0)]) == 1


def test_several_tests_beside_bonferroni_of_every_set():
    # Holm is Bonferroni's test of every set of hypotheses that holds the one in question
    generator = np.random.default_rng(3)
    for number in range(1, 7):
        p_values = [*(generator.random(number) ** 3)]
        p_values[-1] = p_values[0]
        expected = [0.0] * number
        for size in range(1, number + 1):
            for members in combinations(range(number), size):
                bonferroni = min(1, size * min(p_values[member] for member in members))
                for member in members:
                    expected[member] = max(expected[member], bonferroni)
        assert holm_adjusted(p_values) == pytest.approx(expected)
    assert holm_adjusted([]) == []


def finish_on(runs, folder, references=REFERENCES, training_set=None):
    """Finishes runs on these data, by default with a training set for each system."""
    digests = {"validation": digest_of_lines(references)}
    for run in runs:
        data = {"training_set": training_set or run.system, "references": digests}
        finish(run, folder, 4, data=data)


@pytest.mark.parametrize("stale", ["0 x\n" * 40, "0 x\n"], ids=["of other data", "cut"])
def test_references_are_those_that_the_runs_were_scored_with(stale, tmp_path):
    suite = make_suite(tmp_path, data={"one": {}})
    finish_on(suite.runs, tmp_path)
    path = tmp_path / "references/one/validation.txt"
    path.parent.mkdir(parents=True)
    path.write_text(stale)
    (table,) = tables_of(suite, tmp_path)
    assert table.rows["plain"].columns["one"].score == pytest.approx(10)
    assert path.read_text().splitlines() == REFERENCES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training_set": "b"}, "the training set of one, 1D: 1D, one, seed 3 and 1D, one, seed 1"),
        ({"references": ["0 x"]}, "one/validation: 1D, one, seed 3 and plain, one, seed 1 in"),
    ],
)
def test_runs_of_different_data_are_refused(changes, message, tmp_path):
    suite = make_suite(tmp_path, data={"one": {}})
    finish_on(suite.runs, tmp_path)
    finish_on(suite.runs[-1:], tmp_path, **changes)
    with pytest.raises(RecipeError, match=message):
        tables_of(suite, tmp_path)
