# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Metrics (agreement with sacreBLEU, counts by hand, from outside) and scores by length of sources
and n-grams.
"""

import importlib.util
import json
import subprocess
import sys

import evaluate
import numpy as np
import pytest
import sacrebleu

from csan_hf.evaluation import metrics
from csan_hf.evaluation.alignment_files import parse_links, read_alignments
from csan_hf.evaluation.metrics import (
    CorpusMetric,
    load_metric,
    metrics_in,
    register_metric,
    tokenizer_of,
)
from csan_hf.evaluation.scores import bleu_by_order, score_by_length, score_translations
from csan_hf_runtime.text_files import VARIANTS, write_lines

HYPOTHESES = [
    "Ein Hund läuft durch den Schnee.",
    "Zwei Katzen schlafen.",
    "Eine Frau, sie hat 3,5 Äpfel!",
    "",
    "Ja",
]
REFERENCES = [
    "Ein Hund rennt durch Schnee.",
    "Zwei Katzen schlafen.",
    "Eine Frau hat 3.5 Äpfel.",
    "Nichts.",
    "Ja!",
]


def test_scores_equal_sacrebleus_command_line_to_the_last_digit(tmp_path):
    write_lines(tmp_path / "hypotheses", HYPOTHESES)
    write_lines(tmp_path / "references", REFERENCES)
    command = f"{sys.executable} -m sacrebleu references -i hypotheses -m bleu chrf ter -w 14"
    done = subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    scores = score_translations(HYPOTHESES, REFERENCES, metrics=["bleu", "chrf", "ter"])
    for name, entry in zip(("bleu", "chrf", "ter"), printed, strict=True):
        assert f"{scores[name]:.14f}" == f"{entry['score']:.14f}"
        assert scores[f"{name}_signature"] == entry["signature"]


@pytest.mark.parametrize(
    ("name", "predictions", "references", "expected"),
    [
        ("exact_match", ["a b", "a", " c "], ["a b", "b", "c"], 200 / 3),
        # one replacement, one insertion, one deletion; 3 + 2 + 2 reference words
        ("wer", ["a x c", "a b c", "a"], ["a b c", "a b", "a b"], 300 / 7),
        ("wer", ["a b", "a"], ["", "a"], 200.0),
        ("wer", ["", ""], ["", ""], 0.0),
        ("wer", ["a"], [""], 100.0),
        # two of six phones are replaced or missing
        ("per", ["h a ʊ z", "m a"], ["h a ʊ s", "m a ː"], 200 / 7),
        # white space between phones does not count
        ("g2p_wer", ["h a ʊ z", "m  a", " n "], ["h a ʊ s", "m a", "n"], 100 / 3),
        # 3 of 4, 2 of 3, 1 of 2 and 1 of 1 n-grams: (3/4 · 2/3 · 1/2 · 1/1) ^ 1/4 would need a
        # 4-gram that matches
        (
            "tokenized_bleu",
            ["a b c d e"],
            ["a b c d f"],
            100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25,
        ),
        ("tokenized_bleu", ["a b c"], ["a b c"], 0.0),  # no 4-gram and no smoothing
        # A = 3 links, S = 2, P = 3 (sure ones included): A ∩ S = 1, A ∩ P = 2
        ("aer", ["0-0 1-1 2-2"], ["0-0 1p1 3-3"], 100 * (1 - (1 + 2) / (3 + 2))),
        ("aer", ["0-0", "1-1 0-1"], ["0-0", "1-1 0?1"], 0.0),
        ("alignment_precision", ["0-0 1-1 2-2"], ["0-0 1p1 3-3"], 200 / 3),
        ("alignment_recall", ["0-0 1-1 2-2"], ["0-0 1p1 3-3"], 50),
        ("aer", [""], [""], 0.0),
        # "cell" twice of 3, "sheet" 2 of 2 (more do not count), "the" stands in both, "once" only
        # once
        (
            "repeated_terms",
            ["the Cell cell sheet sheet sheet", "row"],
            ["the the cell, cell Cell sheet sheet", "the once"],
            80.0,
        ),
        ("repeated_terms", ["a"], ["a b"], 100.0),
        # of several references the best one
        ("exact_match", ["a", "b"], [f"x{VARIANTS}a", f"x{VARIANTS}y"], 50.0),
        ("g2p_wer", ["n", "b"], [f"m{VARIANTS}n", "x"], 50.0),
        ("wer", ["a b c", "a"], [f"a b x y{VARIANTS}a b x", "a"], 100 * 1 / 4),
    ],
)
def test_counts_by_hand(name, predictions, references, expected):
    metric = "aer" if name.startswith("alignment") else name
    results = load_metric(metric).results(predictions, references)
    assert results[name] == pytest.approx(expected, abs=1e-12)


def test_metrics_combine():
    names = ["bleu", "chrf", "ter", "wer", "per", "g2p_wer", "exact_match", "tokenized_bleu"]
    combined = evaluate.combine([load_metric(name) for name in names])
    combined.add_batch(predictions=HYPOTHESES[:3], references=REFERENCES[:3])
    combined.add_batch(predictions=HYPOTHESES[3:], references=REFERENCES[3:])
    assert combined.compute() == score_translations(HYPOTHESES, REFERENCES, metrics=names)


class Words(CorpusMetric):
    name = "words"
    label = "words"
    summary = "Mean number of words."

    def statistics(self, predictions, references, sources=None):
        return np.array([(len(line.split()), 1.0) for line in predictions])

    def score(self, sums):
        return float(sums[0] / sums[1])


def test_a_metric_from_outside():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_METRICS", dict(metrics._METRICS))
        register_metric(Words)
        register_metric(type("Words", (Words,), {}))  # as a cell of a notebook that runs again
        assert score_translations(["a b", "c"], ["", ""], metrics=["words"]) == {"words": 1.5}
        assert [metric.name for metric in metrics_in({"words": 1, "bleu": 2, "loss": 3})] == [
            "bleu",
            "words",
        ]
    with pytest.raises(ValueError, match="There is no metric 'words'; choose from bleu, chrf, "):
        load_metric("words")


COMET_SCORE = """#!{python}
import json, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
sources = open(arguments["-s"], encoding="utf-8").read().splitlines()
if sources[0] == "fail":
    sys.exit("Traceback\\nNo such model")
lines = open(arguments["-t"], encoding="utf-8").read().splitlines()
output = sys.argv[sys.argv.index("--to_json") + 1]
json.dump({{"mt": [{{"COMET": 0.25 * len(line)}} for line in lines]}}, open(output, "w"))
"""


def test_comet_runs_its_own_program(tmp_path, monkeypatch):
    metric = load_metric("comet")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="comet-score: install it with `pipx install unbabel-comet`"):
        metric.results(["a"], ["b"], ["c"])
    program = tmp_path / "comet-score"
    program.write_text(COMET_SCORE.format(python=sys.executable))
    program.chmod(0o755)
    assert metric.results(["a", "aa\na"], ["b", "b"], ["c", "c"])["comet"] == pytest.approx(62.5)
    with pytest.raises(ValueError, match="COMET compares with the source sentences"):
        metric.results(["a"], ["b"])
    with pytest.raises(OSError, match="comet-score failed with status 1: No such model"):
        metric.results(["a"], ["b"], ["fail"])


# ---- gold alignments in Pharaoh's format and that of the NAACL 2003 shared task


def test_both_formats_say_the_same(tmp_path):
    (tmp_path / "pharaoh").write_text("0-0 1p2\n\n2?1 0-0\n")
    (tmp_path / "naacl").write_text("0001 1 1\n1 2 3 P\n3 1 1 S 0.9\n\n3 3 2 P\n")
    pharaoh, naacl = (
        read_alignments(tmp_path / name, ["a b c"] * 3, ["x y z"] * 3)
        for name in ("pharaoh", "naacl")
    )
    assert pharaoh == naacl
    assert [links.pharaoh() for links in naacl] == ["0-0 1p2", "", "0-0 2p1"]
    assert parse_links("0-0 0p0").sure == {(0, 0)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-0\n1:2\n", "gold, line 2: '1:2' is no link"),
        ("0-0\n", "gold has 1 lines for 2 sentence pairs"),
        ("1 1 1\n3 1 1\n", "gold, line 2: '3 1 1' is no link; write the sentence, up to 2,"),
        ("1 1 1\n1 0 1\n", "gold, line 2: '1 0 1' is no link"),
        ("1 1 1 0.5\n1 1 2 p\n", "gold, line 2: '1 1 2 p' is no link"),
        (
            "2-0\n\n",
            "gold, sentence 1: the link 2-0, .* outside of its 2 source and 3 target words",
        ),  # from 1
        (
            "0p3\n\n",
            "gold, sentence 1: the link 0-3, .* outside of its 2 source and 3 target words",
        ),
        ("1 1 1 nan\n", "gold, line 1: '1 1 1 nan' is no link"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, message):
    (tmp_path / "gold").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_alignments(tmp_path / "gold", ["a b", ""], ["x y z", ""])


# ---- scores of a corpus


@pytest.mark.parametrize(
    ("text", "installed", "expected"),
    [
        ("你好，世界！", "", "zh"),
        ("東京は日本の首都です。", "MeCab", "ja-mecab"),
        ("東京は日本の首都です。", "", "char"),
        ("안녕하세요 여러분", "mecab_ko", "ko-mecab"),
        ("สวัสดีชาวโลก", "", "char"),
        ("Die Zahl 2 heißt 二.", "", None),
        ("我用 transformers 翻译这句话", "", "zh"),
        ("кафе", "", None),
        ("1, 2!", "", None),
    ],
)
def test_the_tokenizer_follows_the_script(text, installed, expected, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == installed or None)
    assert tokenizer_of([text, "OK"]) == expected


def test_a_text_without_spaces_is_cut():
    texts = ["你好，世界！", "今天天气很好。"]
    scores = score_translations(texts, texts)
    assert scores["bleu"] == pytest.approx(100)
    assert "tok:zh" in scores["bleu_signature"]
    [entry] = score_by_length(texts, texts, texts)
    assert entry["bleu"] == pytest.approx(100)
    assert "tok:13a" in score_translations(texts, texts, tokenize="13a")["bleu_signature"]


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_several_references_are_sacrebleus(name):
    second = ["Ein Hund läuft durch Schnee.", "Zwei Katzen", "x", "y", "Ja!"]
    metric = load_metric(name)
    both = list(map(VARIANTS.join, zip(REFERENCES, second, strict=True)))
    expected = metric.scorer_class(**metric.scorer_options)
    score = expected.corpus_score(HYPOTHESES, [REFERENCES, second]).score
    results = metric.results(HYPOTHESES, both)
    assert results[name] == pytest.approx(score, abs=1e-12)
    assert results[f"{name}_signature"] == str(expected.get_signature())
    if name == "bleu":
        rows = metric.statistics(HYPOTHESES, REFERENCES)
        for row, hypothesis, reference in zip(rows, HYPOTHESES, REFERENCES, strict=True):
            of_segment = sacrebleu.sentence_bleu(hypothesis, [reference]).score
            assert metric.segment_score(row) == pytest.approx(of_segment, abs=1e-12)


def test_every_pronunciation_of_a_word_is_right():
    words, phones = ["read", "cat", "read"], ["R EH D", "K AE T", "R IY D"]
    scores = score_translations(
        ["R IY D", "K AE D", "R IY D"],
        phones,
        sources=words,
        metrics=["g2p_wer", "per", "tokenized_bleu"],
    )
    assert scores["g2p_wer"] == pytest.approx(100 / 3)
    assert scores["per"] == pytest.approx(100 / 9)
    assert "nrefs:1" in scores["tokenized_bleu_signature"]
    [entry] = score_by_length(words, phones[::-1], phones, metrics=["g2p_wer"])
    assert entry["g2p_wer"] == 0.0


def test_a_tokenizer_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(ValueError, match=r"tokenize must be one of none, zh, 13a, .*, got '31a'"):
        score_translations(HYPOTHESES, REFERENCES, tokenize="31a")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"tokenize is 'ja-mecab', which .* pip install sacrebleu\[ja\]"
    ):
        score_translations(HYPOTHESES, REFERENCES, tokenize="ja-mecab")


def test_wrong_numbers_are_refused():
    for hypotheses, references, sources, message in (
        (["a", "b"], ["a"], None, "2 hypotheses and 1 references"),
        (["a", "b"], ["a", "b"], ["a"], "1 sources and 2 references"),
        ([], [], None, "0 hypotheses and 0 references"),
    ):
        with pytest.raises(ValueError, match=message):
            score_translations(hypotheses, references, sources=sources)
    with pytest.raises(ValueError, match="1 hypotheses and 0 references"):
        score_by_length(["a"], ["a"], [])


# ---- by length of the source


def sentences(lengths, word="x"):
    return [" ".join([word] * length) for length in lengths]


def test_groups_are_those_of_the_whole_corpus_by_length():
    rng = np.random.RandomState(0)
    lengths = rng.randint(1, 30, 200)
    references = [" ".join(rng.choice(list("abcdefghij"), length + 1)) for length in lengths]
    hypotheses = [" ".join(rng.permutation(text.split()[:8])) for text in references]
    groups = score_by_length(sentences(lengths), hypotheses, references)
    assert all(30 <= group["sentences"] <= 50 for group in groups)
    end = 0
    for group in groups:
        assert group["shortest"] > end
        end = group["longest"]
        rows = ((group["shortest"] <= lengths) & (lengths <= end)).nonzero()[0]
        assert len(rows) == group["sentences"]
        assert group["reference_words"] == pytest.approx((lengths[rows] + 1).mean())
        assert group["hypothesis_words"] == pytest.approx(np.minimum(lengths[rows] + 1, 8).mean())
        scores = score_translations(
            [hypotheses[row] for row in rows], [references[row] for row in rows]
        )
        assert (group["bleu"], group["chrf"]) == (scores["bleu"], scores["chrf"])
    assert end == max(lengths)
    few = sentences([3] * 9 + [7])
    assert [group["sentences"] for group in score_by_length(few, few, few)] == [9, 1]
    assert [group["sentences"] for group in score_by_length(few[:9], few[:9], few[:9])] == [9]


# ---- by length of n-grams


def test_n_grams_by_hand():
    # 5 and 2 words; of the 7 words "d", and one "a" of two, are not in the reference as often
    scores = bleu_by_order(["a b c d e", "a a"], ["a b c x e", "a f"])
    assert len(scores) == 8
    assert scores[:2] == pytest.approx([500 / 7, 100 * (5 / 7 * 2 / 5) ** 0.5])
    bleu = score_translations(HYPOTHESES, REFERENCES)["bleu"]
    assert bleu_by_order(HYPOTHESES, REFERENCES)[3] == pytest.approx(bleu, abs=1e-12)


def test_unequal_lines_have_no_statistics():
    with pytest.raises(ValueError, match="2 hypotheses and 1 references"):
        load_metric("bleu").statistics(["one", "two"], ["one"])
