# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Every code block in a README runs, on a tiny checkpoint and a tiny corpus; trainings are dry
runs.
"""

import gzip
import itertools
import os
import re
import runpy
import shlex
import sys
import textwrap
from pathlib import Path

import pytest
import tiny
from pipelines import multilingual
from system.hub.conftest import build_csan

from csan_hf_runtime.command_line import COMMANDS, IMPORTS, main

ROOT = Path(__file__).resolve().parent.parent
READMES = sorted(
    [
        ROOT / "README.md",
        ROOT / "scripts/README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("csan_hf/**/README.md"),
    ]
)
HUB_NAME = "Helsinki-NLP/opus-mt-de-en"
NLLB_NAME = "facebook/nllb-200-distilled-600M"
GERMAN, ENGLISH = "Zwei Hunde spielen im Schnee.", "Two dogs play in the snow."
LINES = {"de": f"{GERMAN}\n", "en": f"{ENGLISH}\n"}
LINES |= {"deu_Latn": LINES["de"], "eng_Latn": LINES["en"]}
# What needs a Hub, or is the suite itself: tests/system/hub/test_push.py, and the test command that runs
# this
ELSEWHERE = (
    "push",
    "prepare",
    "cat",
    "pip",
    "accelerate",
    "nvidia-smi",
    "scripts/quickstart.sh",
    "scripts/test.sh",
)


def blocks(readme, language):
    matches = re.findall(
        rf"^( *)```{language}\n(.*?)^\1```", readme.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    return [textwrap.dedent(text) for _, text in matches]


@pytest.fixture(scope="module")
def built_workplace(tmp_path_factory):
    """A folder with what the READMEs name: scripts, checkpoints, corpora, a Marian checkpoint."""
    from csan_hf.hub import save_self_contained

    folder = tmp_path_factory.mktemp("readme")
    for name in ("scripts", "csan_hf"):
        (folder / name).symlink_to(ROOT / name)
    tokenizer = tiny.tokenizer(
        sorted({*GERMAN.split(), *ENGLISH.split(), "The", "number", "is", "twenty-one."})
    )
    for name in ("numbers", "2d", "en-de", "mine", "tuned", "seed_1", "seed_2", "seed_3"):
        save_self_contained(build_csan(len(tokenizer)), tokenizer, folder / "runs" / name)
    words = "".join(f"{number}\th a l l o\n" for number in range(600))
    (folder / "words.tsv").write_text(words)
    (folder / "more_words.txt").write_text("all\n")
    (folder / "baseline.txt").write_text(f"{ENGLISH}\n")
    corpus = folder / "PATH" / "TO" / "multi30k"
    corpus.mkdir(parents=True)
    (corpus / "mono.en").write_text(f"{ENGLISH}\n")
    (folder / "data").mkdir()
    for language, text in LINES.items():
        for name in ("test", "pages", "paragraphs"):
            (folder / f"{name}.{language}").write_text(text)
        for split in ("train", "dev", "test"):
            (folder / "data" / f"{split}.{language}").write_text(text * 20)
        for split in ("train", "both", "val", "test_2016_flickr", "test_2017_flickr"):
            content = gzip.compress(text.encode() * 20)
            (corpus / f"{split}.{language}.gz").write_bytes(content)
    tiny.marian(vocab_size=20, encoder_layers=3).save_pretrained(folder / "marian")
    tokenizer.save_pretrained(folder / "marian")
    for name in ("nllb", "runs/nllb-de-en"):  # the second: trainings are dry
        for part in multilingual.nllb(folder, encoder_layers=3):
            part.save_pretrained(folder / name)
    (folder / "model_cards").symlink_to(ROOT / "model_cards")
    return folder


def is_about(readme):
    return str(readme.relative_to(ROOT))


@pytest.fixture
def workplace(built_workplace, monkeypatch):
    """The folder as working directory; what is registered there is forgotten afterwards."""
    from csan_hf.evaluation import metrics
    from csan_hf.models import locality

    monkeypatch.chdir(built_workplace)
    monkeypatch.setattr(locality, "_REGISTRY", dict(locality._REGISTRY))
    monkeypatch.setattr(metrics, "_METRICS", dict(metrics._METRICS))
    return built_workplace


@pytest.mark.parametrize("readme", READMES, ids=is_about)
def test_python_blocks_run(readme, workplace):
    from csan_hf.evaluation.loading import load_translation_model

    model, tokenizers = load_translation_model("runs/numbers")
    names = {"model": model, "tokenizers": tokenizers, "__name__": "readme"}
    names |= {"hypotheses": [ENGLISH], "baseline": [GERMAN], "references": [ENGLISH]}
    for block in blocks(readme, "python"):
        block = block.replace(HUB_NAME, str(workplace / "marian"))
        block = block.replace("from .", "from csan_hf.models.")
        exec(compile(block, str(readme), "exec"), names)


def commands(readme):
    """The commands of a README: a subcommand or a script, its arguments, what is piped into it,
    what is imported.
    """
    for block in blocks(readme, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if ">" in words:
                words = words[: words.index(">")]
            piped = words[1] if words[:1] == ["echo"] else None
            if piped is not None:
                words = words[3:]
            if words[:1] in (["python"], ["csan-hf"]):
                words = words[1:]
            imports = words[:2] if words[:1] == ["--import"] else []
            if words := words[len(imports) :]:
                yield words[0], words[1:], piped, imports


@pytest.mark.parametrize("readme", READMES, ids=is_about)
def test_commands_run(readme, workplace, monkeypatch, standard_input, capsys):
    from csan_hf.training import dry_run

    monkeypatch.setenv(IMPORTS, "")
    costs = dry_run.Estimate(pairs=1, states=1, activations=1, flops=1)
    monkeypatch.setattr(dry_run, "estimate", lambda *model, **options: costs)
    monkeypatch.setattr(dry_run, "matrix_product_rate", lambda arguments: 1.0)
    for block in blocks(readme, "python"):
        if file := re.match(r"# (\w+\.py)\n", block):
            Path(file[1]).write_text(block)
            monkeypatch.delitem(sys.modules, f"csan_hf.models.{Path(file[1]).stem}", raising=False)
    for name, arguments, piped, imports in commands(readme):
        if name in ELSEWHERE:
            continue
        assert name in COMMANDS or Path(name).is_file(), name
        if piped is not None:
            standard_input(piped)
        local = {NLLB_NAME: str(workplace / "nllb"), HUB_NAME: str(workplace / "marian")}
        arguments = [local.get(word, word) for word in arguments]
        if name == "train":
            arguments = [*arguments, "--dry_run", "true"]
        command = main if name in COMMANDS else runpy.run_path(name, run_name="readme")["main"]
        status = command([*imports, name, *arguments] if name in COMMANDS else arguments)
        assert status == 0, f"{name} {arguments}: {capsys.readouterr().err}"


def test_the_blocks_are_found():
    assert sum(len(blocks(readme, "python")) for readme in READMES) >= 5
    shown = itertools.chain.from_iterable(map(commands, READMES))
    assert {name for name, *_ in shown} >= {"train", "align"}


@pytest.mark.parametrize(
    "readme", [*READMES, ROOT / "model_cards/README.md", ROOT / "CONTRIBUTING.md"], ids=is_about
)
def test_links_lead_somewhere(readme):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"", readme.read_text()):
        path = readme.parent / (target[0] or target[1])
        assert path.exists(), path
        assert path.resolve() == Path(os.path.normpath(path)), (
            "GitHub follows no link through a symbolic link"
        )


def test_every_path_in_a_guide_or_a_recipe_is_there():
    texts = [
        *ROOT.glob("*.md"),
        *ROOT.glob("[!.]*/**/*.md"),
        *ROOT.glob("csan_hf/**/*.yaml"),
        *ROOT.glob("csan_hf/**/*.sbatch"),
    ]
    pattern = re.compile(r"(?<![\w/.])(?:csan_hf|scripts|tests)/[\w./-]+")
    named = set()
    for text in texts:
        if text.name != "CHANGELOG.md":
            paths = pattern.findall(text.read_text(encoding="utf-8"))
            named.update(path.rstrip(".") for path in paths)
    assert len(named) > 20
    assert not [path for path in named if not (ROOT / path).exists()]
