# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The trainer: order of predictions, schedule, batches, averaging, ends of runs, smoothed loss."""

import math
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import save_file
from system.training.tiny_runs import LOSS_ALONE, assert_weights, tiny_grid
from torch.nn import functional as F
from transformers import TrainerControl, TrainerState

from csan_hf.data import TokenizerPair, train_tokenizer
from csan_hf.families import FAMILIES
from csan_hf.training import LabelSmoothedCrossEntropy
from csan_hf.training.arguments import TranslationTrainingArguments, device_has_bf16
from csan_hf.training.callbacks import ScoreEarlyStopping
from csan_hf.training.checkpoints import average_weights, list_checkpoints, read_weights
from csan_hf.training.errors import RecipeError
from csan_hf.training.run import choose_weights


def test_predictions_come_back_in_dataset_order(make_trainer, tokenized):
    trainer = make_trainer(per_device_eval_batch_size=5)
    dataset = tokenized["test"]
    lengths = [len(ids) for ids in dataset["input_ids"]]
    assert lengths != sorted(lengths, reverse=True), "the test wants an unsorted set"
    widths = [batch["input_ids"].shape[1] for batch in trainer.get_eval_dataloader()]
    assert widths == sorted(widths, reverse=True), "the longest first"
    output = trainer.predict(dataset)
    together = trainer.decode(output.predictions)
    for row, text in enumerate(together):
        alone = trainer.predict(dataset.select([row])).predictions
        assert trainer.decode(alone) == [text]
    assert trainer.decode(output.label_ids) == [text.strip() for text in dataset["target"]], (
        "-100 is padding"
    )


@pytest.mark.parametrize("bound", [1000, None])
def test_bpe_dropout_cuts_training_sentences_anew_and_no_others(
    make_trainer, tokenizers, tokenized, bound, tmp_path
):
    trainer = make_trainer(bpe_dropout=0.3, max_tokens=bound)
    usual = {tuple(ids) for ids in tokenized["train"]["input_ids"]}
    texts = sorted(map(tokenizers.source.decode, tokenized["train"]["input_ids"]))
    epochs = []
    for _ in range(2):
        batches = [batch["input_ids"] for batch in trainer.get_train_dataloader()]
        rows = [tuple(ids[ids != 0].tolist()) for ids in chain.from_iterable(batches)]
        assert sorted(map(tokenizers.source.decode, rows)) == texts
        assert max(map(len, rows)) <= max(map(len, usual))
        assert len({*rows} - usual) > 200
        epochs.append({*rows})
    assert len(epochs[0] - epochs[1]) > 200
    trainer.train()
    labels = []
    for batch in trainer.get_eval_dataloader():
        labels += [row[row != -100].tolist() for row in batch["labels"]]
    assert sorted(labels) == sorted(tokenized["validation"]["labels"])
    trainer.tokenizers.save_pretrained(tmp_path / "saved")
    assert '"dropout": null' in (tmp_path / "saved" / "tokenizer.json").read_text()


def test_bpe_dropout_needs_bpe(make_trainer, text):
    trainer = make_trainer(bpe_dropout=0.3)
    words = train_tokenizer(text["train"]["source"], 400, kind="symbols")
    trainer.tokenizers = TokenizerPair(trainer.tokenizers.source, words)
    with pytest.raises(RecipeError, match="bpe_dropout is for tokenizers of BPE, not WordLevel"):
        trainer.get_train_dataloader()


@pytest.mark.parametrize("options", [{}, LOSS_ALONE], ids=["with translations", "alone"])
def test_validation_loss_is_plain_and_per_token(options, make_trainer, tokenized, tokenizers):
    ends = {"cross_locality": [{"moving_gaussian": {"ends_within": 1}}] * 2}
    vocabulary = len(tokenizers.source)
    model = tiny.csan(vocab_size=vocabulary, decoder_vocab_size=vocabulary, **ends)
    model.generation_config.max_length = 20
    trainer = make_trainer(
        model=model, per_device_eval_batch_size=7, label_smoothing_factor=0.3, **options
    )
    loss = trainer.evaluate()["eval_loss"]
    trainer.model.eval()
    losses = []
    for row in tokenized["validation"].with_format("torch"):
        labels = row["labels"][None]
        mean = trainer.model(input_ids=row["input_ids"][None], labels=labels).loss.item()
        losses += [mean] * labels.numel()
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_bleu_uses_the_text_not_the_labels(make_trainer, tokenized):
    trainer = make_trainer()
    perfect = tokenized["validation"].map(lambda row: {"target": "kein wort gleicht diesem"})
    trainer.decode = lambda rows: ["kein wort gleicht diesem"] * len(rows)
    assert trainer.evaluate(perfect)["eval_bleu"] == pytest.approx(100.0)
    assert trainer.evaluate()["eval_bleu"] < 10


def test_generation_length_is_never_20_by_accident(make_trainer):
    model = make_trainer().model
    model.generation_config.max_length = None
    with pytest.raises(ValueError, match="20 tokens"):
        make_trainer(model=model)
    model.generation_config.max_length = 33
    trainer = make_trainer(model=model)
    output = trainer.predict(trainer.eval_dataset.select(range(3)))
    assert output.predictions.shape[1] == 33


@pytest.mark.parametrize(
    ("card", "bf16"), [(7, False), (8, True)]
)  # Turing emulates it, Ampere has it
def test_bf16_is_automatic_only_where_the_device_has_it(card, bf16, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    properties = SimpleNamespace(major=card)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert device_has_bf16(use_cpu=False) == bf16
    # A card that is not used does not matter
    monkeypatch.setattr("csan_hf.training.arguments.cpu_has_bfloat16", lambda: not bf16)
    arguments = TranslationTrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    assert arguments.bf16 != bf16


def test_the_host_does_not_wait_for_copies_to_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    arguments = TranslationTrainingArguments(output_dir=str(tmp_path), bf16=False)
    assert arguments.accelerator_config.non_blocking


def test_batches_follow_the_bound_the_seed_and_the_epoch(make_trainer, tokenized):
    def batches(seed, epoch):
        loader = make_trainer(seed=seed, max_tokens=300).get_train_dataloader()
        loader.set_epoch(epoch)
        return [batch["labels"].tolist() for batch in loader]

    first = batches(1, 0)
    assert first == batches(1, 0)
    assert first not in (batches(1, 1), batches(2, 0))
    assert sum(map(len, first)) == len(tokenized["train"])


@pytest.mark.parametrize("mix_lengths", [None, False])
def test_batches_are_bounded_in_grid_cells(make_trainer, tokenized, mix_lengths):
    """Grid models get batches of mixed lengths, which count real cells, unless told; those of like
    lengths count padding, too.
    """
    trainer = make_trainer(max_cells=5000, max_tokens=10, mix_lengths=mix_lengths)
    trainer.family = FAMILIES["pervasive_attention"]
    batches = list(trainer.get_train_dataloader())
    assert sum(len(batch["labels"]) for batch in batches) == len(tokenized["train"])
    padded = [batch["input_ids"].numel() * batch["labels"].shape[1] for batch in batches]
    real = [batch["attention_mask"].sum(1) @ batch["labels"].ne(-100).sum(1) for batch in batches]
    assert 2500 < max(real) <= 5000
    assert (max(padded) > 5000) == (mix_lengths is None)


def test_final_weights_get_statistics_of_their_own(make_trainer, tokenizers):
    model = tiny_grid(len(tokenizers.source))
    modes = []
    model.register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    make_trainer(model=model, batch_norm_batches=0).refresh_batch_statistics()
    assert modes == []
    mean = model.model.decoder.dense_block.feature_norm.running_mean
    mean.fill_(1000.0)
    make_trainer(model=model, batch_norm_batches=3).refresh_batch_statistics()
    assert modes == [True] * 3
    assert mean.abs().max() < 100, "nothing is left of the statistics before"


def test_training_learns_and_keeps_the_best_checkpoints(make_trainer, tokenized, pictures):
    trainer = make_trainer(
        max_steps=30, eval_steps=5, keep_best=2, learning_rate=2e-2, metric_for_best_model="loss"
    )
    pictures.clear()
    trainer.train()
    assert set(pictures) == {Path(trainer.args.output_dir, "training.png")}
    assert len(pictures) >= 2, "during training and at its end"
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert all(entry["tokens_per_second"] > 0 for entry in entries)
    losses = [entry["loss"] for entry in entries]
    assert np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3])
    assert 2 <= len(list_checkpoints(trainer.args.output_dir)) <= 3
    chosen = choose_weights(trainer, tokenized["validation"])
    folder = Path(trainer.args.output_dir)
    expected = average_weights([folder / f"checkpoint-{step}" for step in chosen["steps"]])
    assert_weights(trainer.model, expected)
    trainer.args.load_best_model_at_end = False
    assert choose_weights(trainer, tokenized["validation"])["steps"] == [30]


def test_average_is_only_taken_where_it_is_better(make_trainer, tokenized):
    trainer = make_trainer(max_steps=12, eval_steps=4, keep_best=3, metric_for_best_model="loss")
    trainer.train()
    # Spoil all but the best: the average must lose, and the single best be loaded.
    best = Path(trainer.args.output_dir, f"checkpoint-{trainer.state.best_global_step}")
    for path in set(list_checkpoints(trainer.args.output_dir)) - {best}:
        noise = {name: t + 5 * torch.randn_like(t) for name, t in read_weights(path).items()}
        save_file(noise, path / "model.safetensors", metadata={"format": "pt"})
    chosen = choose_weights(trainer, tokenized["validation"])
    assert "best checkpoint" in chosen["weights"]
    assert chosen["average_score"] > chosen["best_checkpoint_score"]
    assert_weights(trainer.model, read_weights(best))


def test_average_leaves_out_what_is_far_from_the_best(make_trainer, tokenized):
    trainer = make_trainer(max_steps=6, eval_steps=2, keep_best=3, logging_steps=50)
    trainer.train()
    assert trainer.state.log_history[-1]["tokens_per_second"] > 0, (
        "of a run that is shorter than logging_steps"
    )
    # Scores below that of any average, and losses above
    trainer.state.log_history = [
        {"step": step, "eval_bleu": -step, "eval_loss": loss}
        for step, loss in ((2, 100.0), (4, 120.0), (6, 109.0))
    ]
    chosen = choose_weights(trainer, tokenized["validation"])
    assert (chosen["weights"], chosen["steps"]) == ("the average of 2 checkpoints", [2, 6])


@pytest.mark.parametrize(
    ("metric", "scores", "count"),
    [
        ("bleu", [1, 2, 3], 0),
        ("bleu", [5, 4, 3], 2),
        ("bleu", [5, 4, 6, 6], 1),
        ("bleu", [], 0),
        ("wer", [9, 8, 7], 0),
        ("wer", [7, 8, 9], 2),
    ],
)
def test_early_stopping_counts_across_a_resumption(make_trainer, metric, scores, count):
    args = make_trainer(metrics=[metric], metric_for_best_model=metric).args
    callback = ScoreEarlyStopping(3)
    callback.check_metric_value(args, _state(scores, metric), TrainerControl(), 0.0)
    assert callback.early_stopping_patience_counter == count


def test_early_stopping_names_the_best_as_they_are_ranked(make_trainer, capsys):
    args = make_trainer(early_stopping_patience=1).args
    state = _state([5, 5])
    state.log_history[0]["eval_loss"], state.log_history[1]["eval_loss"] = 0.2, 0.1
    ScoreEarlyStopping(1).on_evaluate(args, state, TrainerControl(), {"eval_bleu": 5.0})
    assert "(best 5.00 at step 2)" in capsys.readouterr().err


def _state(scores, metric="bleu"):
    log = [{"step": step, f"eval_{metric}": score} for step, score in enumerate(scores, 1)]
    return TrainerState(log_history=log)


def test_finished_runs_are_recognised(make_trainer):
    trainer = make_trainer(early_stopping_patience=2, max_steps=10)
    state = _state([1, 2, 3])
    for step in (0, 10, 12):  # the number asked for may be smaller than what was done
        state.global_step = step
        assert trainer.is_finished(state) == (step >= 10)
    assert trainer.is_finished(_state([3, 2, 1]))
    trainer.args.early_stopping_patience = None
    trainer.args.max_steps = -1
    assert not trainer.is_finished(state)


@pytest.mark.parametrize("epochs", [1.5, 2])
def test_the_end_of_an_epoch_or_within_one_is_recognised(make_trainer, epochs):
    trainer = make_trainer(max_steps=-1, num_train_epochs=epochs, max_tokens=3000)
    length = len(trainer.get_train_dataloader())
    assert length % 2  # so that the end is no whole update
    last = math.ceil(epochs * length)
    for step in (last - 1, last):
        state = TrainerState(global_step=step, epoch=step / length, max_steps=last)
        assert trainer.is_finished(state) == (step == last)
    # with another number of processes, an epoch has another number of updates
    assert trainer.is_finished(TrainerState(global_step=2, epoch=epochs, max_steps=2))
    trainer.args.num_train_epochs = 3
    assert not trainer.is_finished(state)


# ---- the smoothed loss


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
def test_the_smoothed_loss_is_torchs(epsilon):
    logits = torch.randn(3, 5, 11, requires_grad=True)
    labels = torch.randint(0, 11, (3, 5))
    labels[0, 3:] = labels[2, 1:] = -100
    loss = LabelSmoothedCrossEntropy(epsilon)({"logits": logits}, labels)
    kept = labels.ne(-100)
    expected = F.cross_entropy(logits[kept], labels[kept], label_smoothing=epsilon)
    torch.testing.assert_close(loss, expected)
    gradients = [
        torch.autograd.grad(value, logits, retain_graph=True) for value in (loss, expected)
    ]
    torch.testing.assert_close(*gradients)
    nothing = LabelSmoothedCrossEntropy(epsilon)({"logits": logits}, torch.full_like(labels, -100))
    assert nothing == 0
    assert not torch.autograd.grad(nothing, logits)[0].any()


def test_a_saved_model_has_both_tokenizers_and_weights_that_others_may_read(
    make_trainer, text, tmp_path
):
    trainer = make_trainer()
    words = train_tokenizer(text["train"]["target"], 400, kind="symbols")
    trainer.tokenizers = TokenizerPair(trainer.tokenizers.source, words)
    folder = tmp_path / "saved"
    trainer.save_model(str(folder))
    assert TokenizerPair.from_pretrained(folder).target.get_vocab() == words.get_vocab()
    modes = {(folder / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


def test_a_trainer_pushes_public_files_alone(hub_here, make_trainer, tmp_path):
    trainer = make_trainer(hub_model_id="tester/trained")
    (tmp_path / "run" / "notes.md").write_text("private")
    trainer.push_to_hub()
    files = set(hub_here.repositories["tester/trained"].files)
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= files
    assert not files & {"notes.md", "training_args.bin"}
