# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Students of teachers: the loss, what is kept, sources that they translate, resumed runs, teachers
that cannot teach.
"""

import copy
import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
import tiny
import torch
from contract.families import FAMILIES
from system.training.tiny_runs import LOSS_ALONE, TINY, assert_weights, parse, tiny_marian
from transformers import AutoModelForSeq2SeqLM

from csan_hf import EnsembleForConditionalGeneration
from csan_hf.data import TokenizerPair, example_lengths, load_translation_dataset
from csan_hf.hub.public_files import public_files, read_json
from csan_hf.training import RecipeError, train_from_recipe
from csan_hf.training import teachers as module
from csan_hf.training.arguments import TranslationTrainingArguments
from csan_hf.training.checkpoints import list_checkpoints, read_weights
from csan_hf.training.dry_run import dry_run
from csan_hf.training.teachers import teach
from csan_hf.training.unlabelled import Unlabelled, translated_pairs
from csan_hf_runtime.text_files import digest_of_lines, write_lines
from csan_hf_runtime.texts import Translation
from csan_hf_runtime.translator import TextTranslator

TOP_K = 7
WEIGHT = 0.3
SMOOTHING = 0.2
N_BEST = 4
UNLABELLED = ["a dog", "two hundred dogs", "one thousand and six dogs", "no dog", "dogs, ninety"]
TOO_LONG = "seven " * 60


@pytest.fixture(scope="module")
def make_teacher(tokenizers, tmp_path_factory):
    """Saves an untrained model with the tokenizers, and returns the folder."""

    def make(model, pair=tokenizers):
        folder = tmp_path_factory.mktemp("teacher")
        model.generation_config.max_length = 16
        model.save_pretrained(folder)
        pair.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def teachers(make_teacher, tokenizers):
    """Folders of two, of different families."""
    size = len(tokenizers.source)
    return [make_teacher(tiny.csan(vocab_size=size)), make_teacher(tiny.recurrent(vocab_size=size))]


def predictions_in_float64(folders, batch):
    """What teachers say of the targets of a batch, one pair at a time: [target tokens, V]."""
    models = [AutoModelForSeq2SeqLM.from_pretrained(folder).double() for folder in folders]
    rows = []
    for row, labels in enumerate(batch["labels"]):
        source = batch["input_ids"][row][batch["attention_mask"][row].bool()]
        target = labels[labels != -100]
        pair = {"input_ids": source[None], "labels": target[None]}
        with torch.no_grad():
            distributions = [model(**pair).logits[0].softmax(-1) for model in models]
        rows.append(torch.stack(distributions).mean(0))
    return torch.cat(rows)


def loss_in_float64(logits, labels, predictions, weights, temperature, tokens_in_update):
    """The plain formula, label by label."""
    total = 0.0
    for row, label, prediction, weight in zip(logits, labels, predictions, weights, strict=True):
        log_probabilities = row.log_softmax(-1)
        smoothed = torch.full_like(row, SMOOTHING / len(row))
        smoothed[label] += 1 - SMOOTHING
        softened = (prediction.log() / temperature).softmax(-1)
        likeliest = softened.argsort(descending=True)[:TOP_K]
        kept = (softened[likeliest] / softened[likeliest].sum()).half().double()
        cooled = (row / temperature).log_softmax(-1)[likeliest]
        total -= weight * (1 - WEIGHT) * (smoothed * log_probabilities).sum()
        total -= weight * WEIGHT * temperature**2 * (kept * cooled).sum()
    return total.item() / tokens_in_update


@pytest.mark.parametrize(("side", "temperature"), [("right", 2.0), ("left", 1.0), ("left", 0.5)])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_loss_is_the_plain_formula(
    make_trainer, make_teacher, tokenized, tokenizers, tmp_path, family, side, temperature
):
    size = {"vocab_size": len(tokenizers.source)}
    padded = copy.deepcopy(tokenizers.source)
    padded.padding_side = side
    pair = TokenizerPair(padded, padded)
    student, teacher = (family.tiny_model(seed, **{**family.shared, **size}) for seed in (0, 1))
    names = [str(make_teacher(teacher, pair)), str(make_teacher(tiny.recurrent(**size), pair))]
    options = {
        "teachers": names,
        "teacher_weight": WEIGHT,
        "teacher_temperature": temperature,
        "teacher_top_k": TOP_K,
        "label_smoothing_factor": SMOOTHING,
        **LOSS_ALONE,
    }
    args = TranslationTrainingArguments(
        output_dir=str(tmp_path), bf16=False, report_to="none", **options
    )
    pairs, _ = teach(tokenized["train"].select(range(8)), args, pair, cache=tmp_path)
    pair_weights = np.ones(8, dtype=np.float32)
    if side == "left":
        pair_weights = np.linspace(0.1, 2, 8, dtype=np.float32)
        pairs = pairs.add_column("pair_weight", pair_weights)
    student.generation_config.max_length = 16
    trainer = make_trainer(model=student, train=pairs, **options)
    trainer.data_collator.collate.tokenizer = padded
    batch = next(iter(trainer.get_train_dataloader()))
    is_label = batch["labels"].ne(-100)
    assert not is_label[:, 0 if side == "left" else -1].all(), "the test wants padding"
    labels = batch["labels"][is_label]
    predictions = predictions_in_float64(names, batch)
    student.train()
    precise = copy.deepcopy(student).double()
    of_the_loss = ("teacher", "labels", "pair")
    inputs = {name: batch[name] for name in batch if not name.startswith(of_the_loss)}
    rows = [
        pairs["input_ids"].index(row[row != padded.pad_token_id].tolist())
        for row in batch["input_ids"]
    ]
    weights = torch.tensor(pair_weights[rows]).double().repeat_interleave(is_label.sum(1))
    logits = precise(**inputs).logits[is_label]
    tokens_in_update = 3 * len(labels)
    loss = trainer.compute_loss(student, batch, num_items_in_batch=torch.tensor(tokens_in_update))
    expected = loss_in_float64(logits, labels, predictions, weights, temperature, tokens_in_update)
    assert loss.item() == pytest.approx(expected, rel=5e-5)


@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 1e-3), (True, 0.1)])
def test_all_of_a_small_vocabulary_is_kept(
    teachers, tokenized, tokenizers, tmp_path, bf16, tolerance
):
    args = TranslationTrainingArguments(
        output_dir=str(tmp_path),
        teachers=[str(folder) for folder in teachers],
        teacher_top_k=1000,
        bf16=bf16,
        report_to="none",
    )
    pairs, _ = teach(tokenized["train"].select(range(2)), args, tokenizers, cache=tmp_path)
    labels = torch.tensor([pairs["labels"][1]])
    source = torch.tensor([pairs["input_ids"][1]])
    batch = {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": labels}
    tokens = torch.frombuffer(bytearray(pairs["teacher_tokens"][1]), dtype=torch.int32)
    kept = torch.frombuffer(bytearray(pairs["teacher_probabilities"][1]), dtype=torch.float16)
    shape = (labels.shape[1], len(tokenizers.target))
    expected = predictions_in_float64(teachers, batch).gather(1, tokens.reshape(shape).long())
    torch.testing.assert_close(kept.reshape(shape).double(), expected, rtol=tolerance, atol=1e-6)


def test_sinusoids_teach_texts_of_any_length(make_teacher, tokenized, tokenizers, tmp_path):
    size = {"vocab_size": len(tokenizers.source), "max_position_embeddings": 4}
    model = EnsembleForConditionalGeneration.of([tiny.csan(seed=seed, **size) for seed in (1, 2)])
    args = TranslationTrainingArguments(
        output_dir=str(tmp_path), teachers=[str(make_teacher(model))], report_to="none"
    )
    pairs = tokenized["train"].select(range(2))
    taught, _ = teach(pairs, args, tokenizers, cache=tmp_path)
    assert max(map(len, taught["labels"])) > 4


def test_an_interrupted_run_asks_for_the_rest_alone(
    teachers, tokenized, tokenizers, tmp_path, monkeypatch, capsys
):
    args = TranslationTrainingArguments(
        output_dir=str(tmp_path),
        teachers=[str(folder) for folder in teachers],
        bf16=False,
        report_to="none",
    )
    pairs = tokenized["train"].select(range(25))
    whole, _ = teach(pairs, args, tokenizers, cache=tmp_path / "whole")
    monkeypatch.setattr(module, "_ROWS_IN_PART", 10)
    ask = module._distributions

    def interrupted(rows, **options):
        if rows["labels"][0] == pairs["labels"][10]:
            raise KeyboardInterrupt
        return ask(rows, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_distributions", interrupted)
        with pytest.raises(KeyboardInterrupt):
            teach(pairs, args, tokenizers, cache=tmp_path / "parts")
    capsys.readouterr()
    in_parts, _ = teach(pairs, args, tokenizers, cache=tmp_path / "parts")
    assert in_parts["source"] == whole["source"]
    told = [
        np.frombuffer(b"".join(taught["teacher_probabilities"]), np.float16)
        for taught in (in_parts, whole)
    ]
    np.testing.assert_allclose(*told, rtol=0.01)  # batches differ, and their rounding
    printed = capsys.readouterr().err
    assert "about 25 pairs (1 to 10)" not in printed
    assert "about 25 pairs (11 to 20)" in printed
    assert "about 25 pairs (21 to 25)" in printed
    for file in [path for path in (tmp_path / "parts").rglob("*") if path.is_file()]:
        file.unlink()  # as of a disk whose old files are removed
    with pytest.raises(ValueError, match=r"parts/columns/\w+ is damaged .*: remove it"):
        teach(pairs, args, tokenizers, cache=tmp_path / "parts")


# ---- sources without translations


def make_ending_marian(tokenizers, seed):
    """An untrained model whose translations are short, and not the same for all sources; users
    draw samples from it.
    """
    torch.manual_seed(seed)
    model = tiny_marian(len(tokenizers.target))
    model.generation_config.do_sample = True
    model.final_logits_bias[0, tokenizers.target.eos_token_id] = 5
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "position" not in name:
            weight.data *= 15
    return model


def candidates_of_generate(folders, source, tokenizers):
    """The translations of one source that the library's search finds, with their probabilities."""
    ensemble = EnsembleForConditionalGeneration.from_pretrained(folders)
    ids = tokenizers.source([source], return_tensors="pt")["input_ids"]
    candidates = {}
    options = {"num_beams": N_BEST, "num_return_sequences": N_BEST, "do_sample": False}
    for row in ensemble.generate(ids, **options):
        length = row.tolist().index(tokenizers.target.eos_token_id)
        labels = row[None, 1 : length + 1]
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        probabilities = predictions_in_float64(folders, batch).gather(1, labels.T)
        text = tokenizers.target.decode(labels[0], skip_special_tokens=True).strip()
        candidates[text] = max(candidates.get(text, 0), probabilities.prod().item())
    candidates.pop("", None)
    return candidates


def test_pairs_and_weights_are_those_of_the_library_s_search(
    make_teacher, tokenized, tokenizers, data_arguments, tmp_path
):
    names = [str(make_teacher(make_ending_marian(tokenizers, seed))) for seed in (0, 1)]
    args = TranslationTrainingArguments(
        output_dir=str(tmp_path),
        teachers=names,
        teacher_n_best=N_BEST,
        bf16=False,
        report_to="none",
    )
    labelled = tokenized["train"].select(range(9))
    unlabelled = Unlabelled([*UNLABELLED, TOO_LONG], data_arguments)
    pairs, _ = teach(labelled, args, tokenizers, cache=tmp_path, unlabelled=unlabelled)
    assert pairs["input_ids"][:9] == labelled["input_ids"][:]
    weights = np.array(pairs["pair_weight"])
    of_one = weights[0]
    assert (weights[:9] == of_one).all()
    _, tokens = example_lengths(pairs)
    assert np.average(weights, weights=tokens) == pytest.approx(1), "the loss stays a mean"
    pair_weights = {}
    for pair in pairs.select(range(9, len(pairs))):
        assert pair["input_ids"] == tokenizers.source(pair["source"])["input_ids"]
        assert pair["labels"] == tokenizers.target(text_target=pair["target"])["input_ids"]
        assert len(pair["teacher_tokens"]) == 4 * 16 * len(pair["labels"])
        pair_weights.setdefault(pair["source"], {})[pair["target"]] = pair["pair_weight"]
    expected = {source: candidates_of_generate(names, source, tokenizers) for source in UNLABELLED}
    assert len({tuple(candidates) for candidates in expected.values()}) > 1
    for source, candidates in expected.items():
        unit = of_one / sum(candidates.values())
        weights = {text: unit * probability for text, probability in candidates.items()}
        assert pair_weights.pop(source) == pytest.approx(weights, rel=1e-4)
    assert not pair_weights, "what is too long is left out"


def test_weights_are_shares_of_the_probabilities_of_texts(tokenizers, data_arguments, monkeypatch):
    """Far below the probability of a blank translation."""
    hypotheses = [Translation("", log_probability=-1)]
    for text, probability in (("ein hund", 0.5), ("zwei hunde", 0.25)):
        log_probability = math.log(probability) - 2000
        hypotheses.append(Translation(text, log_probability=log_probability))
    monkeypatch.setattr(TextTranslator, "translate", lambda *_, **options: [hypotheses])
    limits = dataclasses.replace(data_arguments, max_source_length=50, max_target_length=50)
    model = tiny_marian(len(tokenizers.target))
    pairs = translated_pairs({"source": ["a dog"]}, model, tokenizers, n_best=3, limits=limits)
    assert pairs["target"] == ["ein hund", "zwei hunde"]
    assert pairs["pair_weight"] == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize("is_forced", [False, True])
def test_translations_that_have_not_ended_are_left_out(
    make_teacher, tokenized, tokenizers, data_arguments, tmp_path, is_forced
):
    model = tiny_marian(len(tokenizers.target))
    *_, word, end = tokenizers.target(text_target="ein hund")["input_ids"]
    model.final_logits_bias[0, word] = 1e4
    model.generation_config.max_length = 4
    if is_forced:
        model.generation_config.forced_eos_token_id = end
    args = TranslationTrainingArguments(
        output_dir=str(tmp_path), teachers=[str(make_teacher(model))], report_to="none"
    )
    unlabelled = Unlabelled(UNLABELLED, data_arguments)
    with pytest.raises(RecipeError, match="no source gives a training pair"):
        teach(tokenized["train"], args, tokenizers, cache=tmp_path, unlabelled=unlabelled)


# ---- whole runs


@pytest.fixture
def words(make_teacher, tokenizers, tmp_path):
    """The command line of a run with two teachers, whose folders it may lose."""
    tokenizers.save_pretrained(tmp_path / "tokenizer")
    write_lines(tmp_path / "mono.en", UNLABELLED)
    teachers = [make_teacher(make_ending_marian(tokenizers, seed)) for seed in (0, 1)]
    copies = [shutil.move(folder, tmp_path) for folder in teachers]
    names = ",".join(copies)
    return (
        f"{TINY} --output_dir {tmp_path}/run --tokenizer {tmp_path}/tokenizer --teachers {names} "
        f"--cache_dir {tmp_path}/cache --predict_with_generate false --metric_for_best_model loss "
        "--max_steps 8 --generation.max_length 4 --num_beams 1 --average_best false"
    )


@pytest.mark.parametrize("unlabelled", [False, True])
def test_a_resumed_run_ends_alike_without_its_teachers(words, tmp_path, capsys, unlabelled):
    if unlabelled:
        words += f" --unlabelled {tmp_path}/mono.{{lang}} --teacher_n_best 2"
    results = train_from_recipe(parse(words))
    assert "Asking the teachers about 200 pairs" in capsys.readouterr().err
    run = tmp_path / "run"
    names = [path.name for path in tmp_path.glob("teacher*")]
    assert sorted(teacher["name"] for teacher in results["teachers"]) == sorted(names)
    card = (run / "README.md").read_text()
    for teacher in results["teachers"]:
        assert f"{teacher['name']} (SHA-256 `{teacher['sha256'][:16]}`)" in card
    assert not [name for name in public_files(run) if "teacher" in name]
    last = list_checkpoints(run)[-1]
    whole = read_weights(last)

    def cut():
        shutil.rmtree(last)
        (run / "results.json").unlink()

    cut()
    for name in names:
        shutil.move(tmp_path / name, tmp_path / f"moved_{name}")
    if unlabelled:  # of which test sets are left out
        with pytest.raises(RecipeError, match=r"data\.test_size: \d+ there, 9 here"):
            train_from_recipe(parse(f"{words} --test_size 9"))
    assert train_from_recipe(parse(words))["teachers"] == results["teachers"]
    assert "Asking" not in capsys.readouterr().err
    assert_weights(AutoModelForSeq2SeqLM.from_pretrained(last), whole)

    cut()
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(
        RecipeError, match=rf"^training\.teachers: {tmp_path}\S+ cannot teach: There is no folder"
    ):
        train_from_recipe(parse(words))
    for name in names:
        shutil.move(tmp_path / f"moved_{name}", tmp_path / name)
    config = tmp_path / names[0] / "config.json"
    text = config.read_text()
    config.write_text(json.dumps({**json.loads(text), "dropout": 0.7}))
    with pytest.raises(
        RecipeError, match=r"^training\.teachers: .* not those that the run began with"
    ):
        train_from_recipe(parse(words))
    config.write_text(text)
    train_from_recipe(parse(words))
    assert_weights(AutoModelForSeq2SeqLM.from_pretrained(last), whole)


def test_what_teachers_translate_is_recorded_and_kept_for_the_next_student(words, tmp_path, capsys):
    corpus, _ = load_translation_dataset(parse(words).data_arguments())
    known = [corpus[split]["source"][0] for split in ("train", "validation", "test")]
    write_lines(tmp_path / "mono.en", [*UNLABELLED, "", UNLABELLED[0], *known, known[0].upper()])
    words += f" --unlabelled {tmp_path}/mono.en --teacher_n_best 2"
    results = train_from_recipe(parse(words))
    printed = capsys.readouterr().err
    assert "data.unlabelled: 5 of 9 sources" in printed
    assert "The teachers translate 5 sources" in printed
    sha256 = digest_of_lines(UNLABELLED)
    record = {"files": ["mono.en"], "sources": 5, "sha256": sha256}
    assert results["data"]["unlabelled"] == record
    assert results["data"]["training_set"]["pairs"] > 200
    assert (
        f"translations of 5 sources that had none (mono.en, SHA-256 `{sha256[:16]}`)"
        in (tmp_path / "run" / "README.md").read_text()
    )
    train_from_recipe(parse(f"{words} --output_dir {tmp_path}/next --seed 4"))
    printed = capsys.readouterr().err
    assert "data.unlabelled: 5 of 9 sources" in printed
    assert "teachers translate" not in printed
    assert "Asking" not in printed
    assert len([*(tmp_path / "cache" / "corpora").iterdir()]) == 1


CANNOT_BE_TRANSLATED = {
    "without teachers": ([], "--teachers null", r"which training\.teachers make"),
    "missing": ([], "--unlabelled nowhere.txt", "no file for unlabelled .*'nowhere.txt'"),
    "empty": (["", " "], "", "there is no text in"),
    "unknown letters": (["\N{GRINNING FACE}"], "", "no source gives a training pair"),
    "joined": (UNLABELLED, "--join 3", "texts that the corpus has, which join hides"),
    "known": (["KNOWN"], "", "no source gives a training pair"),
    "another column": (["x\ty"], "--unlabelled {}/mono.tsv", "no column 'en' among 'x', 'y'"),
    "stream": (
        UNLABELLED,
        "--dataset null --data.train_size null --data.train x --streaming",
        "has no end",
    ),
}


@pytest.mark.parametrize(
    ("lines", "options", "message"), CANNOT_BE_TRANSLATED.values(), ids=CANNOT_BE_TRANSLATED
)
def test_sources_that_cannot_be_translated_are_refused(words, tmp_path, lines, options, message):
    corpus, _ = load_translation_dataset(parse(words).data_arguments())
    lines = [corpus["train"]["source"][0] if line == "KNOWN" else line for line in lines]
    for name in ("mono.en", "mono.tsv"):
        write_lines(tmp_path / name, [*lines, *lines])
    recipe = parse(f"{words} --unlabelled {tmp_path}/mono.en {options.format(tmp_path)}")
    with pytest.raises(RecipeError, match=message) as error:
        train_from_recipe(recipe)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def of_own_code(folder):
    path = folder / "config.json"
    code = {"AutoConfig": "odd.OddConfig", "AutoModelForSeq2SeqLM": "odd.OddModel"}
    path.write_text(json.dumps({**read_json(path), "model_type": "odd", "auto_map": code}))
    (folder / "odd.py").write_text("raise SystemExit('this must not run')")


def of_few_positions(folder):
    path = folder / "config.json"
    changed = {"max_position_embeddings": 8, "position_embeddings": "learned"}
    path.write_text(json.dumps({**read_json(path), **changed}))
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, ignore_mismatched_sizes=True)
    model.save_pretrained(folder)


CANNOT_TEACH = {
    "missing": (shutil.rmtree, "", "There is no folder"),
    "of code that is not trusted": (of_own_code, "", "a class of its own code"),
    "of few positions": (
        of_few_positions,
        "",
        "it has positions for 8 tokens, and a training text",
    ),
    "of another vocabulary": (
        lambda folder: None,
        "--tokenizer.pretrained null --vocab_size 320",
        "it has other vocabularies than this run",
    ),
}


@pytest.mark.parametrize(("spoil", "options", "message"), CANNOT_TEACH.values(), ids=CANNOT_TEACH)
def test_a_teacher_that_cannot_teach_is_named(words, tmp_path, spoil, options, message):
    recipe = parse(f"{words} {options}")
    folder = recipe.training["teachers"][0]
    spoil(tmp_path / folder)
    with pytest.raises(
        RecipeError, match=rf"^training\.teachers: {folder} cannot teach: .*{message}"
    ) as error:
        train_from_recipe(recipe)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
    if message in ("There is no folder", "a class of its own code"):
        assert not (tmp_path / "cache").exists(), "before the corpus is prepared"
        with pytest.raises(RecipeError, match=message):
            dry_run(recipe)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bpe_dropout 0.1", r"training\.bpe_dropout cuts them anew"),
        ("--dataset null --data.train_size null --data.train x --streaming", "has no end"),
        ("--teacher_temperature 1e-40", "their probabilities are no numbers"),
    ],
)
def test_what_gives_no_distributions_is_refused(words, options, message):
    with pytest.raises(RecipeError, match=rf"training\.teachers:? .*{message}"):
        train_from_recipe(parse(f"{words} {options}"))
