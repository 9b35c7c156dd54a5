"""Translation of lists, and the two scripts on top of it, with a tiny untrained model."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.evaluation import translate, translate_batch
from csan_hf.evaluation.loading import load_translation_model, read_lines
from csan_hf.evaluation.translate import _batches_by_length

ROOT = Path(__file__).parents[2]
SENTENCES = [
    "two",
    "one hundred and twenty-seven thousand",
    "",
    "the third of May",
    "   ",
    "nine",
    "a much longer sentence with nineteen hundred and eighty-four words in it",
    "two",
]


@pytest.fixture(scope="module")
def tokenizers():
    tokenizer = train_tokenizer([*SENTENCES, "zwei", "eins"] * 3, 300)
    return TokenizerPair(tokenizer, tokenizer)


@pytest.fixture(scope="module")
def model(tokenizers):
    torch.manual_seed(3)
    config = CsanConfig(
        vocab_size=len(tokenizers.source),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        local_window=5,
        head_area=3,
    )
    model = CsanForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # far from uniform, so that different sources get different translations
    model.generation_config.max_length = 12
    return model


@pytest.fixture(scope="module")
def folder(model, tokenizers, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    tokenizers.save_pretrained(path)
    return path


@pytest.mark.parametrize("max_batch_tokens", [1, 30, 4096])
def test_order_is_kept_and_blank_lines_stay_blank(model, tokenizers, max_batch_tokens):
    together = translate(model, tokenizers, SENTENCES, max_batch_tokens=max_batch_tokens)
    alone = [translate_batch(model, tokenizers, [text])[0] if text.strip() else "" for text in SENTENCES]
    assert together == alone
    assert len(set(alone)) > 3, "the test wants different translations"


def test_nothing_to_translate(model, tokenizers):
    assert translate(model, tokenizers, []) == []
    assert translate(model, tokenizers, ["", " "]) == ["", ""]
    with pytest.raises(ValueError, match="max_batch_tokens must be at least 1, got 0"):
        translate(model, tokenizers, ["two"], max_batch_tokens=0)


def test_arguments_reach_generate(model, tokenizers):
    short = translate(model, tokenizers, SENTENCES, max_length=3, num_beams=2)
    full = translate(model, tokenizers, SENTENCES)
    assert sum(map(len, short)) < sum(map(len, full))


def test_length_is_never_20_by_accident(model, tokenizers):
    seen = {}

    class Recorder:
        def __init__(self):
            self.config, self.device = model.config, model.device
            self.generation_config = type(model.generation_config)(pad_token_id=0)

        def generate(self, **arguments):
            seen.update(arguments)
            return arguments["input_ids"]

    translate_batch(Recorder(), tokenizers, ["two"])
    assert seen["max_length"] == 256


def test_batches_are_bounded_and_longest_first():
    lengths = [3, 9, 1, 9, 4, 30, 2]
    batches = list(_batches_by_length(lengths, 20))
    assert sorted(n for batch in batches for n in batch) == list(range(7))
    assert batches[0] == [5]  # too long for the bound, and alone
    for batch in batches[1:]:
        assert len(batch) * max(lengths[n] for n in batch) <= 20
    widths = [max(lengths[n] for n in batch) for batch in batches]
    assert widths == sorted(widths, reverse=True)


def test_loading(folder):
    model, tokenizers = load_translation_model(str(folder), device="cpu", dtype="bfloat16")
    assert next(model.parameters()).dtype == torch.bfloat16
    assert not model.training
    assert tokenizers.is_joint
    with pytest.raises(ValueError, match="dtype must be one of"):
        load_translation_model(str(folder), dtype="int3")
    with pytest.raises(ValueError, match="device 'abacus' is unknown"):
        load_translation_model(str(folder), device="abacus")


def test_lines_are_separated_by_line_feeds_alone(tmp_path):
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        file.write("a\u2028b\r\n\nc".encode())
    assert read_lines(tmp_path / "a.gz") == ["a\u2028b", "", "c"]
    (tmp_path / "b").write_bytes(b"good\n\xff\n")
    with pytest.raises(ValueError, match="line 2: not UTF-8"):
        read_lines(tmp_path / "b")


def run_script(name, *arguments, stdin=""):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)],
        input=stdin.encode(),
        capture_output=True,
        env=environment,
        check=False,
    )


def test_translate_script_line_for_line(folder, model, tokenizers, tmp_path):
    text = "\n".join(SENTENCES) + "\n"
    expected = "".join(f"{line}\n" for line in translate(model, tokenizers, SENTENCES))
    result = run_script("translate.py", "--model", folder, "--device", "cpu", stdin=text)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.decode() == expected
    (tmp_path / "in").write_text(text)
    result = run_script(
        "translate.py", "--model", folder, "--input", tmp_path / "in", "--output", tmp_path / "out", "--num_beams", "2"
    )
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout == b""
    lines = (tmp_path / "out").read_text().split("\n")
    assert lines == [*translate(model, tokenizers, SENTENCES, num_beams=2), ""]


def test_evaluate_script_on_files(folder, model, tokenizers, tmp_path):
    (tmp_path / "news.en").write_text("\n".join(SENTENCES) + "\n")
    (tmp_path / "news.de").write_text("\n".join("zwei" for _ in SENTENCES) + "\n")
    arguments = ["--model", folder, "--source", tmp_path / "news.en", "--reference", tmp_path / "news.de"]
    result = run_script("evaluate.py", *arguments, "--output_dir", tmp_path / "out", "--quiet")
    assert result.returncode == 0, result.stderr.decode()
    hypotheses = (tmp_path / "out" / "news.hypotheses.txt").read_text().split("\n")[:-1]
    assert hypotheses == translate(model, tokenizers, SENTENCES)
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())["scores"]["news"]
    assert scores["sentences"] == len(SENTENCES)
    assert "nrefs:1" in scores["bleu_signature"]
    assert "BLEU" in result.stdout.decode()


def test_evaluate_script_on_a_translation(tmp_path):
    texts = {"source": "ein\nein Hund läuft\n", "reference": "a\na dog runs\n", "hypotheses": "a\na dog walks\n"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = [argument for name in texts for argument in (f"--{name}", tmp_path / name)]
    result = run_script("evaluate.py", *files, "--by_length", "--output_dir", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "| 1 to 1 | 1 | 1.0 | 1.0 |" in result.stdout.decode()
    assert "| 3 to 3 | 1 | 3.0 | 3.0 |" in result.stdout.decode()
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())["scores"]["source"]
    assert scores["sentences"] == 2
    assert scores["by_length"][0]["chrf"] == 100.0
    (tmp_path / "hypotheses").write_text("a\n")
    result = run_script("evaluate.py", *files)
    assert result.returncode == 2
    assert "hypotheses has 1 lines" in result.stderr.decode()


def test_scripts_say_what_is_wrong(folder, tmp_path):
    (tmp_path / "a").write_text("x\n")
    (tmp_path / "b").write_text("x\ny\n")
    result = run_script("evaluate.py", "--model", folder, "--source", tmp_path / "a", "--reference", tmp_path / "b")
    assert result.returncode == 2
    assert "1 lines" in result.stderr.decode()
    assert "2: they must" in result.stderr.decode()
    assert b"Traceback" not in result.stderr
    result = run_script("translate.py", "--model", tmp_path / "none", stdin="x\n")
    assert result.returncode == 2
    assert b"error:" in result.stderr
    assert b"Traceback" not in result.stderr
