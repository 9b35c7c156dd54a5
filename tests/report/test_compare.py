"""What a report says, and how the systems get into it."""

import json
import re

import numpy as np
import pytest
import torch

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.evaluation import score_translations
from csan_hf.evaluation.metrics import CorpusMetric, load_metric, register_metric, unregister_metric
from csan_hf.evaluation.significance import bootstrap_scores, confidence_interval, paired_test
from csan_hf.report import System, compare_systems, load_system, render_report, write_report

SOURCES = ["the number is one.", "two <b>", "three & four </script>", "five", "six seven eight"]
REFERENCES = ["die Zahl ist eins.", "zwei <b>", "drei & vier </script>", "fünf", "sechs sieben acht"]
OURS = ["die Zahl ist eins.", "zwei <b>", "drei & drei </script>", "fünf", "sechs sieben"]
THEIRS = ["eine Zahl ist eins.", "zwei", "drei & vier </script>", "neun", "acht sieben sechs"]


def embedded(page):
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text)


def test_scores_intervals_and_tests():
    report = compare_systems(
        [System("ours", [OURS]), System("theirs", [THEIRS])],
        SOURCES,
        REFERENCES,
        metrics=["bleu", "wer"],
        samples=80,
    )
    for place, name in enumerate(("bleu", "wer")):
        metric = load_metric(name)
        counts, baseline = (metric.statistics(lines, REFERENCES) for lines in (OURS, THEIRS))
        ours, theirs = report.scores[0][place], report.scores[1][place]
        assert ours.score == score_translations(OURS, REFERENCES, metrics=[name])[name]
        assert ours.interval == confidence_interval(bootstrap_scores(metric, [counts], samples=80))
        assert ours.test is None
        assert theirs.score == score_translations(THEIRS, REFERENCES, metrics=[name])[name]
        assert theirs.test == paired_test(metric, [counts], [baseline], samples=80)
    assert report.segment_scores[0][1] == pytest.approx([0, 0, 25, 0, 100 / 3])
    assert report.scores[1][0].test.difference > 0
    assert report.scores[1][1].test.difference < 0
    assert [plot.name for plot in report.plots] == ["scores_by_length", "ngram_accuracy", "ngram_gap"]


def test_several_seeds_are_a_mean():
    report = compare_systems(
        [System("ours", [OURS, THEIRS])], SOURCES, REFERENCES, metrics=["exact_match"], samples=50
    )
    assert report.scores[0][0].score == pytest.approx((60 + 20) / 2)
    assert report.runs == [2]
    assert "mean of 2 seeds" in render_report(report)


def test_the_page_holds_all_text_and_breaks_out_of_nothing():
    page = render_report(compare_systems([System("<i>ours</i>", [OURS])], SOURCES, REFERENCES, samples=20))
    data = embedded(page)
    assert data["sources"] == SOURCES
    assert data["references"] == REFERENCES
    assert data["systems"][0]["hypotheses"] == OURS
    assert "<i>ours" not in page
    assert page.count("</script>") == 2
    assert not re.search(r'(src|href)="(?!#)|url\((?!#)|@import', page)  # nothing is loaded
    assert len(re.findall(r' id="([^"]+)"', page)) == len(set(re.findall(r' id="([^"]+)"', page)))


class Length(CorpusMetric):
    name = "length"
    label = "characters"
    summary = "Mean number of characters."
    decimals = 1

    def statistics(self, predictions, references, sources=None):
        return np.array([(len(line), 1.0) for line in predictions])

    def score(self, sums):
        return float(sums[0] / sums[1])


def test_a_metric_from_outside_is_in_the_report():
    register_metric(Length)
    try:
        report = compare_systems([System("ours", [OURS])], SOURCES, REFERENCES, metrics=["length"], samples=20)
    finally:
        unregister_metric("length")
    page = render_report(report)
    assert f"<strong>{np.mean([len(line) for line in OURS]):.1f}</strong>" in page
    assert "characters by length of the source" in page
    assert embedded(page)["metrics"] == [{"label": "characters", "decimals": 1}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    tokenizer = train_tokenizer([*SOURCES, *REFERENCES] * 2, 300)
    torch.manual_seed(1)
    config = CsanConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        localness_window="query",
        local_window=None,
        head_area=3,
    )
    model = CsanForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    model.generation_config.max_length = 12
    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    model.save_pretrained(folder)
    TokenizerPair(tokenizer, tokenizer).save_pretrained(folder)
    return folder


def test_checkpoints_and_files(checkpoint, tmp_path):
    (tmp_path / "theirs.txt").write_text("".join(f"{line}\n" for line in THEIRS), encoding="utf-8")
    ours = load_system(str(checkpoint), SOURCES, num_beams=1)
    theirs = load_system(f"other={tmp_path / 'theirs.txt'},{tmp_path / 'theirs.txt'}", SOURCES)
    assert (ours.name, len(ours.runs), len(ours.runs[0])) == ("checkpoint", 1, 5)
    assert (theirs.name, theirs.runs, theirs.model) == ("other", [THEIRS, THEIRS], None)
    report = compare_systems([ours, theirs], SOURCES, REFERENCES, samples=20, aligned=3)
    assert [plot.name for plot in report.plots][-4:] == [
        f"{name}_checkpoint" for name in ("distance", "entropy", "windows", "area")
    ]
    for number, matrix in report.alignments[0].items():
        shape = len(report.hypotheses[0][number].split()), len(SOURCES[number].split())
        assert np.array(matrix).shape == shape
        assert np.abs(matrix).max() == 99
    assert set(report.alignments[0]) <= {0, 1, 2}
    assert report.alignments[0]
    assert report.alignments[1] == {}
    write_report(report, tmp_path / "report.html", plots=tmp_path / "plots")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        f"{plot.name}.{ending}" for plot in report.plots for ending in ("png", "svg")
    }
    assert embedded((tmp_path / "report.html").read_text(encoding="utf-8"))["systems"][0]["alignments"]


def test_what_cannot_be_compared_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("eins\n")
    with pytest.raises(ValueError, match=r"short.txt has 1 lines for 5 sources"):
        load_system(str(tmp_path / "short.txt"), SOURCES)
    with pytest.raises(ValueError, match="Two systems have one name among a, a: write NAME=PATH"):
        compare_systems([System("a", [OURS]), System("a", [THEIRS])], SOURCES, REFERENCES)
    with pytest.raises(ValueError, match="0 systems"):
        compare_systems([], SOURCES, REFERENCES)
