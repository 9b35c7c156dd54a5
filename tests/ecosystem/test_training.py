# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What every training relies on: all parameters learn, and transformers' own Trainer smooths labels."""

import pytest
import tiny
import torch
import torch.nn.functional as F
from families import both_families, training_batch
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

MODELS = {
    f"csan, {name}": lambda name=name: tiny.csan(**tiny.LOCALITIES[f"everything, {name}"]) for name in tiny.STRATEGIES
}
MODELS |= {f"grid, {name}": lambda name=name: tiny.grid(aggregation=name) for name in tiny.AGGREGATIONS}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_every_parameter_learns(make):
    model = make().train()
    model(**training_batch()).loss.backward()
    for name, parameter in model.named_parameters():
        # A softmax does not notice what is added to all its energies
        if parameter.requires_grad and not name.endswith(("k_proj.bias", "aggregation.attention.bias")):
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


@both_families
def test_labels_are_smoothed(family, tmp_path):
    """The Trainer takes the labels away; the model still gets the decoder's inputs, and the loss is torch's."""
    model = family.tiny_model(**family.shared)
    rows = [{"input_ids": [3, 4, 5, 1], "labels": [6, 7, 1]}, {"input_ids": [8, 1], "labels": [9, 3, 2, 4, 1]}]
    collate = DataCollatorForSeq2Seq(tiny.tokenizer(("a",)), model=model)
    arguments = Seq2SeqTrainingArguments(str(tmp_path), label_smoothing_factor=0.1, use_cpu=True, report_to=[])
    trainer = Seq2SeqTrainer(model, arguments, data_collator=collate, train_dataset=rows)
    batch = collate(rows)
    expected = F.cross_entropy(model(**batch).logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(trainer.compute_loss(model, dict(batch)), expected)
