# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The metrics and their table, which everything else reads.

A new one is a class, here or in a file of its own, and a line in `_METRICS`; `register_metric` adds
one from outside."""

import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from csan_hf_runtime.extras import needs_extra
from csan_hf_runtime.text_files import write_lines

from .alignment_files import parse_links
from .corpus_metric import CorpusMetric, Lines, RateMetric, SacrebleuMetric

with needs_extra("train"):
    import rapidfuzz
    import sacrebleu.metrics
    from rapidfuzz.distance import Levenshtein

DEFAULT_METRICS = ("bleu", "chrf")

# Module, and how to install it
_NEEDED = {
    "ja-mecab": ("MeCab", "sacrebleu[ja]"),
    "ko-mecab": ("mecab_ko", "sacrebleu[ko]"),
    **dict.fromkeys(
        ("spm", "flores101", "flores200", "spBLEU-1K"), ("sentencepiece", "sentencepiece")
    ),
}


def check_sacrebleu_tokenizer(name: str | None, key: str = "tokenize") -> None:
    """Raises `ValueError`, with the caller's `key`, if sacreBLEU has no such tokenizer or its
    package is missing.
    """
    if name is not None and name not in sacrebleu.metrics.BLEU.TOKENIZERS:
        raise ValueError(
            f"{key} must be one of {', '.join(sacrebleu.metrics.BLEU.TOKENIZERS)}, got {name!r}."
        )
    package = _missing_package(name)
    if package is not None:
        raise ValueError(f"{key} is {name!r}, which is not installed here: pip install {package}")


def _missing_package(tokenizer: str | None) -> str | None:
    """Package to install for a tokenizer of sacreBLEU; None = none."""
    module, package = _NEEDED.get(tokenizer or "", ("sacrebleu", None))
    return None if importlib.util.find_spec(module) else package


# Beginnings of the names of letters that Unicode gives to scripts in which 13a finds few words;
# the scripts written without spaces that sacreBLEU has no words for are counted by character
_SCRIPTS = {
    "HIRAGANA": "ja-mecab",
    "KATAKANA": "ja-mecab",
    "CJK": "zh",
    "HANGUL": "ko-mecab",
    **dict.fromkeys(("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"), "char"),
}
_SAMPLE = 1000  # references whose script is looked at
_LEAST_SHARE = 0.25  # of the letters; names in Chinese text may have Latin ones
_LEAST_KANA = 0.05  # of the letters; Japanese text has Chinese ones, too


def tokenizer_of(references: Iterable[str]) -> str | None:
    """sacreBLEU's tokenizer for the script of the references, "char" where its package is missing;
    None = that of sacreBLEU, 13a.
    """
    tokenizers: Counter[str | None] = Counter()
    for character in chain.from_iterable(islice(references, _SAMPLE)):
        if character.isalpha():
            script = unicodedata.name(character, "").split(" ")[0]
            tokenizers[_SCRIPTS.get(script)] += 1
    letters = tokenizers.total()
    del tokenizers[None]  # letters of words
    if tokenizers.total() <= _LEAST_SHARE * letters:
        return None
    [(tokenizer, _)] = tokenizers.most_common(1)
    if tokenizer == "zh" and tokenizers["ja-mecab"] > _LEAST_KANA * letters:
        tokenizer = "ja-mecab"
    return "char" if _missing_package(tokenizer) else tokenizer


class Bleu(SacrebleuMetric):
    """Shared 1- to 4-grams with the reference, times a penalty for brevity, as sacreBLEU's command
    computes it.
    """

    name = "bleu"
    label = "BLEU"
    citation = (
        "Papineni et al. (2002), BLEU; Post (2018), A Call for Clarity in Reporting BLEU Scores"
    )
    uses_tokenizer = True
    on_hub = True
    scorer_class = sacrebleu.metrics.BLEU
    # `force` silences the warning about text that looks tokenised, which numbers and dates set off
    options: ClassVar[dict[str, Any]] = {"force": True}

    def __init__(self, tokenize: str | None = None) -> None:
        check_sacrebleu_tokenizer(tokenize)
        super().__init__(tokenize)
        # A sentence of less than 4 words has no 4-grams that could match
        self._sentence_scorer = sacrebleu.metrics.BLEU(force=True, effective_order=True)

    def segment_score(self, counts: np.ndarray) -> float:
        """Returns sacreBLEU's sentence BLEU: n-grams longer than the sentence do not count against
        it.
        """
        return float(self._sentence_scorer._compute_score_from_stats(counts.tolist()).score)

    def details(self, sums: np.ndarray) -> dict[str, Any]:
        """Returns the four precisions, the brevity penalty and the ratio of hypothesis to reference
        tokens.
        """
        score = self.scorer._compute_score_from_stats(sums.tolist())
        return {
            "bleu_precisions": [float(value) for value in score.precisions],
            "brevity_penalty": float(score.bp),
            "length_ratio": float(score.ratio),
        }


class Chrf(SacrebleuMetric):
    """F-score of the character 1- to 6-grams shared with the reference, recall counting twice
    (chrF2, sacreBLEU).
    """

    name = "chrf"
    label = "chrF"
    citation = "Popović (2015), chrF: character n-gram F-score for automatic MT evaluation"
    on_hub = True
    scorer_class = sacrebleu.metrics.CHRF


class Ter(SacrebleuMetric):
    """Insertions, deletions, replacements and shifts per 100 words of the reference (sacreBLEU)."""

    name = "ter"
    label = "TER"
    citation = (
        "Snover et al. (2006), A Study of Translation Edit Rate with Targeted Human Annotation"
    )
    greater_is_better = False
    on_hub = True
    scorer_class = sacrebleu.metrics.TER


class TokenizedBleu(SacrebleuMetric):
    """BLEU of text that is tokenised already, as `multi-bleu.perl` computes it, without smoothing.

    Compare it only with scores on the same tokens, such as those in papers that do not use
    sacreBLEU."""

    name = "tokenized_bleu"
    label = "BLEU (tokens)"
    citation = "Koehn et al. (2007), Moses: multi-bleu.perl"
    needs = "tokens"
    scorer_class = sacrebleu.metrics.BLEU
    options: ClassVar[dict[str, Any]] = {"tokenize": "none", "smooth_method": "none", "force": True}


class ExactMatch(RateMetric):
    """Percentage of segments that equal their reference, white space at either end aside."""

    name = "exact_match"
    label = "exact match"
    on_hub = True

    def count(self, prediction: str, reference: str) -> tuple[float, float]:
        """Returns whether they match, and 1."""
        return prediction.strip() == reference.strip(), 1


class GraphemeToPhonemeWordErrorRate(RateMetric):
    """Percentage of words whose phones, which white space separates, are not the reference's
    (SIGMORPHON).
    """

    name = "g2p_wer"
    label = "G2P WER"
    citation = (
        "Ashby et al. (2021), Results of the Second SIGMORPHON Shared Task on Grapheme-to-Phoneme "
        "Conversion"
    )
    greater_is_better = False
    needs = "tokens"
    takes_all_of_a_source = True

    def count(self, prediction: str, reference: str) -> tuple[float, float]:
        """Returns whether the phones differ, and 1."""
        return prediction.split() != reference.split(), 1


class ErrorRate(RateMetric):
    """Insertions, deletions and replacements of units, at their fewest, per 100 units of the
    references; of several the one with the lowest rate counts.

    Units are what white space separates. The rate exceeds 100 where hypotheses are much too long. A
    segment without any reference unit counts its insertions; if no segment has one, the rate is 0
    without insertions, else 100."""

    greater_is_better = False
    citation = (
        "Levenshtein (1966), Binary codes capable of correcting deletions, insertions and reversals"
    )

    def count(self, prediction: str, reference: str) -> tuple[float, float]:
        """Returns edits and reference units of a segment."""
        units = reference.split()
        return Levenshtein.distance(prediction.split(), units), len(units)

    def score(self, sums: np.ndarray | tuple[float, float]) -> float:
        """Returns edits per 100 reference units."""
        edits, units = sums
        return float(100 * edits / units if units else 100 * (edits > 0))

    @property
    def signature(self) -> str:
        """The most references of a segment, and the library that counts."""
        return f"nrefs:{self.num_refs}|case:mixed|tok:none|rapidfuzz:{rapidfuzz.__version__}"


class WordErrorRate(ErrorRate):
    """Insertions, deletions and replacements per 100 words, which white space separates, of the
    reference.
    """

    name = "wer"
    label = "WER"
    on_hub = True


class PhoneErrorRate(ErrorRate):
    """Insertions, deletions and replacements per 100 phones of the reference, such as "ˈ h aʊ s"
    (SIGMORPHON).
    """

    name = "per"
    label = "PER"
    needs = "tokens"
    takes_all_of_a_source = True


class RepeatedTerms(CorpusMetric):
    """Percentage of the terms that a document repeats that are there as often as in the reference.

    Terms are words, in lower case, that a reference has at least twice and that are in at most a
    tenth of the references (in one at least): whoever translates a term now so, now otherwise,
    loses the others."""

    name = "repeated_terms"
    label = "terms"
    segments_at_once = None

    def statistics(
        self, predictions: Lines, references: Lines, sources: Lines | None = None
    ) -> np.ndarray:
        """Returns how many of each reference's repeated terms are there, and how many it has."""
        expected = [_count_words(text) for text in references]
        documents = Counter(chain.from_iterable(expected))
        most = max(1, len(expected) // 10)
        rows = []
        for prediction, words in zip(predictions, expected, strict=True):
            translated = _count_words(prediction)
            terms = {word: n for word, n in words.items() if n > 1 and documents[word] <= most}
            kept = sum(min(n, translated[word]) for word, n in terms.items())
            rows.append((kept, sum(terms.values())))
        return np.array(rows, np.float64)

    def score(self, sums: np.ndarray) -> float:
        """Returns the percentage; 100 where nothing is repeated."""
        return float(100 * sums[0] / sums[1]) if sums[1] else 100.0


def _count_words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


class AlignmentErrorRate(CorpusMetric):
    """Links that are missing or too many: 100 · (1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|)), counted
    over all sentences.

    A are the links found, such as "0-0 1-2", S the sure links of the gold alignment and P the
    possible ones with them, such as "0-0 1p2"."""

    name = "aer"
    label = "AER"
    citation = "Och and Ney (2003), A Systematic Comparison of Various Statistical Alignment Models"
    greater_is_better = False
    needs = "alignments"

    def statistics(
        self, predictions: Lines, references: Lines, sources: Lines | None = None
    ) -> np.ndarray:
        """Returns |A ∩ S|, |A ∩ P|, |A|, |S| and |P| of each sentence."""
        rows = []
        for number, (found, gold) in enumerate(zip(predictions, references, strict=True), 1):
            links, truth = (parse_links(text, where=f"line {number}") for text in (found, gold))
            hits = len(links.sure & truth.sure), len(links.sure & truth.possible)
            rows.append((*hits, len(links.sure), len(truth.sure), len(truth.possible)))
        return np.array(rows, dtype=np.float64)

    def score(self, sums: np.ndarray) -> float:
        """Returns the rate; 0 where there is neither a link found nor a sure one."""
        sure_hits, possible_hits, found, sure, _ = sums
        return (
            float(100 * (1 - (sure_hits + possible_hits) / (found + sure))) if found + sure else 0.0
        )

    def details(self, sums: np.ndarray) -> dict[str, float]:
        """Returns precision |A ∩ P| / |A| and recall |A ∩ S| / |S|, from 0 to 100."""
        sure_hits, possible_hits, found, sure, _ = sums
        return {
            "alignment_precision": float(100 * possible_hits / found) if found else 0.0,
            "alignment_recall": float(100 * sure_hits / sure) if sure else 0.0,
        }


class Comet(CorpusMetric):
    """A neural network's judgement of source, hypothesis and reference, times 100.

    The package unbabel-comet needs older libraries than csan_hf does, so its program `comet-score`
    runs in an environment of its own: `pipx install unbabel-comet`.

    Attributes:
        model: Name of COMET's model; it is downloaded the first time.
    """

    name = "comet"
    label = "COMET"
    citation = "Rei et al. (2020), COMET: A Neural Framework for MT Evaluation"
    needs_sources = True
    segments_at_once = None
    on_hub = True
    model = "Unbabel/wmt22-comet-da"

    def check_requirements(self) -> None:
        """Raises `OSError` if `comet-score` is not installed."""
        if shutil.which("comet-score") is None:
            raise OSError(
                "COMET needs the program comet-score: install it with `pipx install unbabel-comet`."
            )

    def statistics(
        self, predictions: Lines, references: Lines, sources: Lines | None = None
    ) -> np.ndarray:
        """Returns for each segment its score, and 1; `OSError` holds the last line of a
        `comet-score` that fails.
        """
        self.check_requirements()
        texts = {"src": sources or (), "mt": predictions, "ref": references}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            output = folder / "scores.json"
            for file, lines in texts.items():
                write_lines(folder / file, lines)
            command = ["comet-score", "-s", "src", "-t", "mt", "-r", "ref"]
            command += ["--to_json", output.name]
            command += ["--model", self.model, "--gpus", "0", "--quiet", "--only_system"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode or not output.is_file():
                printed = (done.stderr or done.stdout).strip() or "it printed nothing"
                reason = printed.splitlines()[-1]
                raise OSError(f"comet-score failed with status {done.returncode}: {reason}")
            [entries] = json.loads(output.read_bytes()).values()
        return np.array([(float(entry["COMET"]), 1.0) for entry in entries], dtype=np.float64)

    def score(self, sums: np.ndarray) -> float:
        """Returns the mean over the segments, times 100."""
        return float(100 * sums[0] / sums[1])

    @property
    def signature(self) -> str:
        """The name of COMET's model."""
        return f"nrefs:1|model:{self.model}"


_METRICS: dict[str, type[CorpusMetric]] = {
    metric.name: metric
    for metric in (
        Bleu,
        Chrf,
        Ter,
        ExactMatch,
        WordErrorRate,
        GraphemeToPhonemeWordErrorRate,
        PhoneErrorRate,
        TokenizedBleu,
        Comet,
        AlignmentErrorRate,
        RepeatedTerms,
    )
}


def register_metric(metric: type[CorpusMetric]) -> type[CorpusMetric]:
    """Adds a metric to the table, as a decorator or a call; it replaces one of its name."""
    _METRICS[metric.name] = metric
    return metric


def find_metric(name: str) -> type[CorpusMetric]:
    """Returns the class of a metric; raises `ValueError` if there is none of that name."""
    if name not in _METRICS:
        raise ValueError(
            f"There is no metric {name!r}; choose from {', '.join(_METRICS)}, or import one of "
            "your own first: `csan-hf --import FILE`."
        )
    return _METRICS[name]


def load_metric(name: str, *, tokenize: str | None = None) -> CorpusMetric:
    """Makes a metric by its name; `tokenize` is sacreBLEU's tokenizer, which only some need,
    without network.
    """
    metric: Any = find_metric(name)
    return metric(tokenize=tokenize) if metric.uses_tokenizer else metric()


def load_metrics(names: Iterable[str], *, tokenize: str | None = None) -> list[CorpusMetric]:
    """Makes several metrics; see `load_metric`."""
    return [load_metric(name, tokenize=tokenize) for name in names]


def check_several_references(names: Iterable[str]) -> None:
    """Raises `ValueError` for a metric that compares with one reference alone."""
    for name in names:
        if not find_metric(name).takes_variants:
            raise ValueError(f"{name} compares with one reference: leave it out, or give one.")


def metrics_in(entry: Iterable[str]) -> Iterator[type[CorpusMetric]]:
    """Yields the metrics whose names are among the keys of a result, in the order of the table."""
    keys = set(entry)
    return (metric for name, metric in _METRICS.items() if name in keys)
