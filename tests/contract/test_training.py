# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What every training relies on: all parameters learn, labels are smoothed, activations may be
computed twice.
"""

import pytest
import tiny
import torch
import torch.nn.functional as F
from families import (
    FAMILIES,
    PAD,
    START,
    checkpointed_families,
    every_family,
    training_batch,
)
from tiny import gradients, recompute_activations
from torch.testing import assert_close
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

FED = {"input_feeding": True, "hidden_size": 12}
MODELS = [
    *((tiny.csan, tiny.LOCALITIES[f"everything, {name}"]) for name in tiny.STRATEGIES),
    *((tiny.grid, {"aggregation": name}) for name in tiny.AGGREGATIONS),
    *((tiny.recurrent, {"attention": name, **FED}) for name in ("dot", "general", "additive")),
    (tiny.convolutional, {}),
]


@pytest.mark.parametrize(("make", "options"), MODELS)
def test_every_parameter_learns(make, options):
    model = make(**options).train()
    model(**training_batch()).loss.backward()
    for name, parameter in model.named_parameters():
        # A softmax does not notice what is added to all its energies
        if parameter.requires_grad and not name.endswith(
            ("k_proj.bias", "aggregation.attention.bias")
        ):
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


def smoothing_trainer(model, rows: list[dict], folder) -> tuple[Seq2SeqTrainer, dict, torch.Tensor]:
    """The library's Trainer with label smoothing, a batch of all rows and torch's loss of it."""
    collate = DataCollatorForSeq2Seq(tiny.tokenizer(("a",)), model=model)
    arguments = Seq2SeqTrainingArguments(
        str(folder), label_smoothing_factor=0.1, use_cpu=True, report_to=[]
    )
    trainer = Seq2SeqTrainer(
        model, arguments, data_collator=collate, train_dataset=rows, eval_dataset=rows
    )
    batch = collate(rows)
    loss = F.cross_entropy(
        model(**batch).logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1
    )
    return trainer, batch, loss


@every_family
def test_labels_are_smoothed(family, tmp_path):
    """The Trainer takes the labels away; the model still gets the decoder's inputs, and the loss is
    torch's.
    """
    model = family.tiny_model(**family.shared)
    rows = [
        {"input_ids": [3, 4, 5, 1], "labels": [6, 7, 1]},
        {"input_ids": [8, 1], "labels": [9, 3, 2, 4, 1]},
    ]
    trainer, batch, expected = smoothing_trainer(model, rows, tmp_path)
    assert_close(trainer.compute_loss(model, dict(batch)), expected)


@pytest.mark.parametrize("method", [{"line": True}, {"moving_gaussian": {"ends_within": 1}}])
@torch.no_grad()
def test_a_trainer_that_smooths_labels_scores_logits_as_they_are(method, tmp_path):
    """Those of generation have penalties."""
    model = tiny.csan(**tiny.PLAIN, line_token_id=7, cross_locality=[method] * 2)
    rows = [{"input_ids": [3, 4, 5, 8, 9, 1], "labels": [6, 7, 4, 1]}]
    trainer, _, expected = smoothing_trainer(model, rows, tmp_path)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), abs=1e-5)


@every_family
def test_the_loss_is_torchs_cross_entropy(family):
    """Labels of -100 do not count, and labels are not shifted a second time."""
    model = family.tiny_model(**family.shared)
    batch = training_batch()
    labels = batch.pop("labels")
    outputs = model(**batch, labels=labels)
    expected = F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert_close(outputs.loss, expected)
    shifted = F.pad(labels[:, :-1], (1, 0), value=START)
    shifted = shifted.masked_fill(shifted == -100, PAD)
    explicit = model(**batch, decoder_input_ids=shifted).logits
    real = labels != -100
    assert_close(outputs.logits[real], explicit[real], rtol=0, atol=1e-5)
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels), shifted)
    # Accumulated batches, divided by the labels of all
    total = 0
    for rows in (slice(0, 1), slice(1, 3)):
        part = {name: tensor[rows] for name, tensor in {**batch, "labels": labels}.items()}
        total += model(**part, num_items_in_batch=real.sum()).loss
    assert_close(total, outputs.loss)


# ---- activation checkpointing changes no gradient

REENTRANT = {"kwargs": {"use_reentrant": True}}
WAYS = {"every layer": {}, "every second layer": {"every_n_layers": 2}, "reentrant": REENTRANT}


@checkpointed_families
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_the_same(family, way, dropout):
    """With dropout, too: the second computation must drop what the first one dropped."""
    drops = {"dropout": dropout}
    if family is FAMILIES["csan"]:
        drops["attention_dropout"] = dropout
    model = family.tiny_model(**drops).train()
    torch.manual_seed(0)
    expected_loss = model(**training_batch()).loss
    expected_loss.backward()
    expected = gradients(model)
    model = family.tiny_model(**drops).train()
    recompute_activations(model, **WAYS[way])
    assert model.is_gradient_checkpointing
    torch.manual_seed(0)
    loss = model(**training_batch()).loss
    loss.backward()
    assert_close(loss, expected_loss, rtol=0, atol=1e-6)
    assert_close(gradients(model), expected, rtol=1e-4, atol=1e-5)
