# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Contents of a report, and how the systems get into it."""

import copy
import json
import os
import re
import threading
import xml.etree.ElementTree
from dataclasses import replace

import numpy as np
import pytest
import tiny

from csan_hf.data.tokenization import add_language_tags
from csan_hf.evaluation import align
from csan_hf.evaluation.metrics import (
    load_metric,
)
from csan_hf.evaluation.scores import score_translations
from csan_hf.evaluation.significance import (
    confidence_interval,
    holm_adjusted,
    paired_test,
    resample,
)
from csan_hf.lab.analysis import channel_shares
from csan_hf.lab.report import (
    System,
    compare_systems,
    comparison,
    load_systems,
    render_report,
    write_report,
)
from csan_hf.lab.report.plots import attention_plots, checkpoint_plots, word_alignments
from csan_hf_runtime.command_line import main
from csan_hf_runtime.text_files import VARIANTS, open_lines, write_lines

SOURCES = ["the number is one.", "two <b>", "three & four </script>", "five", "six seven eight"]
REFERENCES = [
    "die Zahl ist eins.",
    "zwei <b>",
    "drei & vier </script>",
    "fünf",
    "sechs sieben acht",
]
OURS = ["die Zahl ist eins.", "zwei <b>", "drei & drei </script>", "fünf", "sechs sieben"]
THEIRS = ["eine Zahl ist eins.", "zwei", "drei & vier </script>", "neun", "acht sieben sechs"]


def embedded(page):
    [text] = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL
    )
    return json.loads(text)


@pytest.mark.parametrize(
    ("name", "test"), [("bleu", "bootstrap"), ("wer", "bootstrap"), ("wer", "randomisation")]
)
def test_scores_intervals_and_tests(name, test):
    systems = [System("ours", [OURS]), System("theirs", [THEIRS]), System("good", [REFERENCES])]
    samples = {"samples": 80} if test == "bootstrap" else {}
    options = {"metrics": [name], "test": test, "baseline": "theirs", **samples}
    report = compare_systems(systems, SOURCES, REFERENCES, **options)
    metric = load_metric(name)
    counts, baseline = (metric.statistics(lines, REFERENCES) for lines in (OURS, THEIRS))
    ours, theirs, good = (system.scores[0] for system in report.systems)
    for cell, lines in ((ours, OURS), (theirs, THEIRS)):
        assert cell.score == score_translations(lines, REFERENCES, metrics=[name])[name]
    draws = resample(metric, [counts], **samples).draws[:, 0]
    assert ours.interval == confidence_interval(draws)
    assert ours.test == paired_test(metric, [counts], [baseline], test=test, **samples)
    assert [ours.adjusted, good.adjusted] == holm_adjusted([ours.test.p_value, good.test.p_value])
    assert theirs.test is theirs.adjusted is None
    segment_scores = [metric.segment_score(row) for row in counts]
    assert report.systems[0].segment_scores[0] == pytest.approx(segment_scores)
    assert [plot.name for plot in report.plots] == ["scores_by_length", "ngram_gap"]


def test_the_page_holds_all_text_and_breaks_out_of_nothing():
    references = [VARIANTS.join((REFERENCES[0], "a")), *REFERENCES[1:]]
    page = render_report(
        compare_systems([System("<i>ours</i>", [OURS])], SOURCES, references, samples=20)
    )
    data = embedded(page)
    assert data["sources"] == SOURCES
    assert data["references"] == [[REFERENCES[0], "a"], *([text] for text in REFERENCES[1:])]
    assert data["systems"][0]["hypotheses"] == OURS
    assert "<i>ours" not in page
    assert page.count("</script>") == 2
    assert not re.search(r'(src|href)="(?!#)|url\((?!#)|@import', page)  # nothing is loaded


@pytest.fixture(scope="module")
def checkpoint(tokenizers, tmp_path_factory):
    locality = {"localness_window": "query", "local_window": None, "head_area": 3}
    model = tiny.csan(vocab_size=len(tokenizers.source), decoder_layers=1, **locality)
    model.generation_config.max_length = 12
    folder = tmp_path_factory.mktemp("model") / "checkpoint"
    model.save_pretrained(folder)
    tokenizers.save_pretrained(folder)
    return folder


def test_checkpoints_and_files(checkpoint, tmp_path):
    write_lines(tmp_path / "theirs.txt", THEIRS)
    arguments = [str(checkpoint), f"other={tmp_path}/theirs.txt,{tmp_path}/theirs.txt"]
    ours, theirs = load_systems(arguments, SOURCES, num_beams=1)
    assert (ours.name, len(ours.runs), len(ours.runs[0])) == ("checkpoint", 1, 5)
    assert (theirs.name, theirs.model) == ("other", None)
    assert [list(run) for run in theirs.runs] == [THEIRS, THEIRS]
    report = compare_systems([ours, theirs], SOURCES, REFERENCES, samples=20, aligned=3)
    names = [
        f"{name}_checkpoint" for name in ("distance", "entropy", "windows", "area", "alignment")
    ]
    assert [plot.name for plot in report.plots if plot.system == "checkpoint"] == names
    for number, alignment in report.systems[0].alignments.items():
        source = SOURCES[number]
        translation = ours.runs[0][number]
        assert np.shape(alignment.matrix) == (len(translation.split()), len(source.split()))
        assert np.abs(alignment.matrix).max() == 99
        [expected] = align(ours.model, ours.tokenizers, [source], [translation])
        assert alignment.links == expected.links()
    assert set(report.systems[0].alignments) <= {0, 1, 2}
    assert report.systems[1].alignments == {}
    write_report(report, tmp_path / "report.html", plots=tmp_path / "plots")
    plot_files = set()
    for plot in report.plots:
        plot_files |= {f"{plot.name}.png", f"{plot.name}.svg"}
    assert {path.name for path in (tmp_path / "plots").iterdir()} == plot_files
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert embedded(page)["systems"][0]["alignments"]
    identifiers = re.findall(r'\bid="([^"]+)"', page)
    assert len(identifiers) == len({*identifiers})
    assert {*re.findall(r'(?:url\(|href=")#([^)"]+)', page)} <= {*identifiers}


def test_words_of_the_page_are_those_of_its_alignment(tokenizers):
    pair = copy.deepcopy(tokenizers)
    add_language_tags(pair, [">>de<<", ">>fr<<"])
    model = tiny.csan(vocab_size=len(pair.source), decoder_layers=1)
    system = System("s", [OURS], model, pair, target_language="de")
    named = word_alignments(system, SOURCES)
    typed_sources = [source and f">>de<< {source}" for source in SOURCES]
    typed = word_alignments(replace(system, target_language=None), typed_sources)
    for number, alignment in named.items():
        assert typed[number].matrix == [[0, *row] for row in alignment.matrix]
        assert typed[number].links == [(1 + s, t) for s, t in alignment.links]
    assert checkpoint_plots(system, "s", SOURCES)


def test_pervasive_attention_shows_its_channels(tokenizers):
    size = len(tokenizers.source)
    model = tiny.grid(vocab_size=size, decoder_vocab_size=size, aggregation="max")
    plots = {
        plot.name: plot
        for plot in checkpoint_plots(System("g", [OURS], model, tokenizers), "g", SOURCES)
    }
    assert list(plots) == ["alignment_g", "channels_g", "channel_ranks_g"]
    example, *_ = shares = channel_shares(model, tokenizers, SOURCES, OURS)
    assert plots["channels_g"].columns[1:] == list(example.source.tokens)
    largest = np.concatenate([alignment.matrix.max(axis=1) for alignment in shares])
    assert plots["channel_ranks_g"].rows[0] == ["1", f"{100 * largest.mean():.1f}"]


def test_sentences_beyond_the_positions_of_a_model_are_not_aligned(tokenizers):
    model = tiny.marian(vocab_size=len(tokenizers.source), max_position_embeddings=20)
    sources, ours = ["one two", "1 " * 50, "two"], ["eins", "zwei", "2 " * 50]
    system = System("ours", [ours], model, tokenizers)
    report = compare_systems([system], sources, ours, samples=2)
    assert set(report.systems[0].alignments) == {0}
    assert "alignment_ours" in [plot.name for plot in report.plots]
    assert not list(attention_plots(system.model, tokenizers, sources[1:2]))


def test_files_are_read_a_part_at_a_time(tmp_path, invented, monkeypatch):
    sources, references, [ours] = invented(1010, (0.2,))
    files = []
    for name, lines in (("s", sources), ("r", references), ("h", ours)):
        write_lines(tmp_path / name, lines)
        files.append(open_lines(tmp_path / name))
    options = {"metrics": ["wer"], "samples": 10}
    monkeypatch.setattr(comparison, "MOST_LISTED", 50)
    expected = compare_systems([System("ours", [ours])], sources, references, **options)
    report = compare_systems([System("ours", files[2:])], *files[:2], **options)
    assert report.systems[0].scores == expected.systems[0].scores
    assert [plot.rows for plot in report.plots] == [plot.rows for plot in expected.plots]
    page = render_report(report)
    assert "The first 50 of 1,010 sentences are listed" in page
    assert embedded(page)["sources"] == sources[:50]
    assert embedded(page)["systems"][0]["hypotheses"] == ours[:50]


def test_names_without_a_picture_and_long_names(tmp_path):
    long = "multi30k_transformer_with_an_area_of_three_heads_seed_"
    formulas = ["$a_{b", "$a_{b$", "_x", "x\\frac{$", "A b", "a-B"]
    names = ["a\nb", "c\x01\u202ed", "e\udcfff", f"{long}1", f"{long}2", *formulas]
    systems = [System(name, [OURS]) for name in names]
    report = compare_systems(systems, SOURCES, REFERENCES, samples=2, title="\udcff")
    write_report(report, tmp_path / "report.html", plots=tmp_path)
    legend = report.plots[0].figure.axes[0].get_legend()
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[:3] == ["a\\nb", "c\\x01\\u202ed", "e\\udcfff"]
    assert [(len(text), text[-1]) for text in texts[3:5]] == [(33, "1"), (33, "2")]
    assert [text.replace("\\$", "$").strip() for text in texts[5:]] == formulas
    svg = (tmp_path / "scores_by_length.svg").read_text()
    assert "$a_{b$" in svg, "as it stands, and no formula"
    for plot in report.plots:
        xml.etree.ElementTree.parse(tmp_path / f"{plot.name}.svg")
    assert comparison.file_names(["A b", "a-B", "c"]) == ["A_b", "a_B_2", "c"]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert embedded(page)["systems"][2]["name"] == "e\ufffdf"
    assert "<bdi>c\x01\u202ed</bdi>" in page  # the direction of a name ends with it


def test_signs_of_the_argument_in_the_names_of_files_and_pipes(tmp_path):
    path = tmp_path / "lr=0.1,x.txt"
    path.write_text("".join(f"{line}\n" for line in OURS), encoding="utf-8")
    for argument, name in ((str(path), "lr=0.1,x.txt"), (f"ours={path}", "ours")):
        [system] = load_systems([argument], SOURCES)
        assert (system.name, [list(run) for run in system.runs]) == (name, [OURS])
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(path.read_bytes(),))
    writer.start()
    assert list(load_systems([str(tmp_path / "pipe")], SOURCES)[0].runs[0]) == OURS
    writer.join()
    for name in ("missing.txt", "./a/b", "/a", "a/b/c", ""):
        with pytest.raises(
            FileNotFoundError, match=rf"^{re.escape(name)}: no such file or checkpoint$"
        ):
            load_systems([name], SOURCES)


def test_the_worst_the_median_and_the_best_text_are_shown_piece_by_piece(tmp_path):
    pieces = {"one <b>": "eins <b> & mehr", "two": "zwei Wörter", "three": "drei davon"}
    whole = " ".join(pieces.values())
    without_a_piece = whole.replace("zwei Wörter ", "")
    files = {
        "source": [" ".join(pieces)] * 4,
        "reference": [whole] * 4,
        "<i>": [whole, without_a_piece, "vier", "drei davon"],
        "source_pieces": [*pieces] * 4,
        "reference_pieces": [*pieces.values()] * 4,
    }
    for name, lines in files.items():
        write_lines(tmp_path / name, lines)
    command = "report {0}/<i> --source {0}/source --reference {0}/reference --samples 2 --quiet"
    command += " --pieces {0}/source_pieces {0}/reference_pieces --output {0}/page.html"
    assert main(command.format(tmp_path).split()) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.findall(r'<caption id="pieces-(\d)"', page) == ["2", "1", "0"]
    cells = re.findall(r'<td dir="auto"( class="low")?>([^<]*) <span class="quiet">(.*?)<', page)
    assert cells[3:6] == [
        ("", "eins &lt;b&gt; &amp; mehr", "chrF 100"),
        (' class="low"', "", "low: chrF 0"),
        ("", "drei davon", "chrF 100"),
    ]
    assert "<bdi>&lt;i&gt;</bdi>" in page
    assert '<td dir="auto">one &lt;b&gt;</td>' in page


def test_documents_are_shown_line_by_line(tmp_path):
    (tmp_path / "source").write_text("one\ntwo\n\nthree\n\nfour\nfive")
    (tmp_path / "reference").write_text("eins\nzwei\n\ndrei\n\nvier\nfünf")
    write_lines(tmp_path / "ours", ["eins zwei", "", "drei", "vier", "fünf"])
    command = "report {0}/ours --source {0}/source --reference {0}/reference --samples 2 --quiet"
    command += " --documents --output {0}/page.html"
    assert main(command.format(tmp_path).split()) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    cells = re.findall(r'<td dir="auto"(?: class="low")?>([^<]*) <span class="quiet">', page)
    assert cells == ["eins zwei", "", "drei", "vier", "fünf"]
    assert "Sentences (3)" in page
