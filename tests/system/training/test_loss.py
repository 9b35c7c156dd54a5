# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The loss in pieces is the whole one: of every family, smoothed, with teachers, wherever padding
stands; adapters, compiled programs and library models, too.
"""

import copy

import pytest
import tiny
import torch
from contract.families import FAMILIES, every_family, sources, targets
from peft import LoraConfig, get_peft_model
from system.training.tiny_runs import LOSS_ALONE
from tiny import gradients
from torch.testing import assert_close

from csan_hf.training import LabelSmoothedCrossEntropy, loss
from csan_hf.training.loss import TaughtLabels, TrainingLoss

SMOOTHING = 0.2
WEIGHT = 0.3
TEMPERATURE = 2.0
LABELS = 13
ROWS = 3
KNOWN = 4
LOGITS = 120  # in a piece: two or a few positions
EXACT = {"rtol": 1e-12, "atol": 1e-14}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(loss, "PIECE_ON_CPU", LOGITS)


def random_labels(vocabulary, side, with_teachers, seed=0):
    """Labels with padding on one side and a gap, and what teachers say of them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, vocabulary, (ROWS, LABELS), generator=generator)
    for row, padding in enumerate((0, 5, 9)):
        labels[row, slice(padding) if side == "left" else slice(LABELS - padding, None)] = -100
    labels[0, 6] = -100
    if not with_teachers:
        return TaughtLabels(labels)
    shape = (ROWS, LABELS, KNOWN)
    probabilities = torch.rand(shape, generator=generator).double().softmax(-1)
    probabilities[labels == -100] = 0
    return TaughtLabels(
        labels,
        tokens=torch.randint(vocabulary, shape, generator=generator),
        probabilities=probabilities,
        weights=torch.rand((ROWS, 1), generator=generator).expand_as(labels),
    )


def whole_loss(logits, taught):
    """The formula, position by position."""
    total = 0.0
    real = taught.labels != -100
    for number, (row, label) in enumerate(zip(logits[real], taught.labels[real], strict=True)):
        log_probabilities = row.log_softmax(-1)
        smoothed = torch.full_like(row, SMOOTHING / len(row))
        smoothed[label] += 1 - SMOOTHING
        on_label = -(smoothed * log_probabilities).sum()
        if taught.tokens is None:
            total += on_label
            continue
        cooled = (row / TEMPERATURE).log_softmax(-1)[taught.tokens[real][number]]
        on_teachers = -(cooled * taught.probabilities[real][number]).sum() * TEMPERATURE**2
        of_both = (1 - WEIGHT) * on_label + WEIGHT * on_teachers
        total += of_both * taught.weights[real][number]
    return total / real.sum()


def criterion():
    return LabelSmoothedCrossEntropy(
        SMOOTHING, teacher_weight=WEIGHT, teacher_temperature=TEMPERATURE
    )


def batch():
    return {**sources((7, 4, 6)), "decoder_input_ids": targets(ROWS, LABELS), "use_cache": False}


def logits_at_once(model):
    """A list that grows by the number of logits of each call of the output layer in training."""
    counts = []

    def count(module, inputs, logits):
        if module.training:
            counts.append(logits.numel())

    model.get_output_embeddings().register_forward_hook(count)
    return counts


@every_family
@pytest.mark.parametrize("form", ["shared", "separate"])
@pytest.mark.parametrize("with_teachers", [False, True], ids=["labels", "teachers"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_loss_and_gradients_are_those_of_the_whole(family, form, with_teachers, side):
    model = family.tiny_model(**getattr(family, form)).double().train()
    vocabulary = model.config.decoder_vocab_size
    taught = random_labels(vocabulary, side, with_teachers)
    twin = copy.deepcopy(model)
    expected = whole_loss(model(**batch()).logits, taught)
    expected.backward()
    counts = logits_at_once(twin)
    outputs = twin(**batch(), training_loss=TrainingLoss(criterion(), taught, None))
    (3 * outputs.loss).backward()
    assert outputs.logits is None
    assert max(counts) <= LOGITS
    assert sum(counts) == taught.labels.ne(-100).sum() * vocabulary, "each once, padding never"
    assert_close(outputs.loss, expected, **EXACT)
    tripled = {name: 3 * gradient for name, gradient in gradients(model).items()}
    assert_close(gradients(twin), tripled, **EXACT)


@every_family
def test_without_labels_the_loss_is_zero_and_so_are_gradients(family):
    model = family.tiny_model(**family.shared).train()
    taught = TaughtLabels(torch.full((ROWS, LABELS), -100))
    value = model(**batch(), training_loss=TrainingLoss(criterion(), taught, None)).loss
    value.backward()
    assert value == 0
    assert not any(gradient.any() for gradient in gradients(model).values())


@pytest.mark.parametrize("with_teachers", [False, True], ids=["labels", "teachers"])
def test_logits_of_other_models_are_taken_in_pieces(with_teachers):
    taught = random_labels(tiny.VOCABULARY, "right", with_teachers)
    logits = torch.randn(ROWS, LABELS, tiny.VOCABULARY, dtype=torch.float64, requires_grad=True)
    values = [criterion()({"logits": logits}, taught), whole_loss(logits, taught)]
    assert_close(*values, **EXACT)
    assert_close(*(torch.autograd.grad(value, logits) for value in values), **EXACT)


def test_adapters_of_the_output_layer_learn():
    model = tiny.csan(tie_word_embeddings=False).double()
    adapted = get_peft_model(model, LoraConfig(target_modules=["lm_head"], init_lora_weights=False))
    adapted.double().train()
    taught = random_labels(tiny.VOCABULARY, "right", with_teachers=False)
    whole_loss(adapted(**batch()).logits, taught).backward()
    expected = {name: gradient.clone() for name, gradient in gradients(adapted).items()}
    adapted.zero_grad()
    adapted(**batch(), training_loss=TrainingLoss(criterion(), taught, None)).loss.backward()
    assert any(gradient.any() for gradient in expected.values())
    assert_close(gradients(adapted), expected, **EXACT)


def test_compiled_training_steps_are_those_of_the_whole():
    model = FAMILIES["conv_s2s"].tiny_model(encoder_layers=1, decoder_layers=1).double().train()
    taught = random_labels(model.config.decoder_vocab_size, "right", with_teachers=True)
    twin = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(twin, backend="aot_eager")
    training_loss = TrainingLoss(criterion(), taught, None)
    expected = whole_loss(model(**batch()).logits, taught)
    value = compiled(**batch(), training_loss=training_loss).loss
    for result in (expected, value):
        result.backward()
    assert_close(value, expected, **EXACT)
    assert_close(gradients(twin), gradients(model), **EXACT)


@pytest.mark.parametrize("kind", ["csan", "marian"])
def test_a_trainer_has_few_logits_in_memory_and_learns_the_same(make_trainer, monkeypatch, kind):
    weights = []
    for logits in (2**30, 2_000):
        monkeypatch.setattr(loss, "PIECE_ON_CPU", logits)
        options = {
            "label_smoothing_factor": SMOOTHING,
            "gradient_accumulation_steps": 2,
            "optim": "sgd",  # Adam would make steps of gradients that are zero but for rounding
        }
        model = tiny.csan(vocab_size=400) if kind == "csan" else None
        trainer = make_trainer(model=model, folder=str(logits), **options, **LOSS_ALONE)
        counts = logits_at_once(trainer.model)
        trainer.train()
        assert max(counts) <= logits or kind == "marian"
        weights.append(trainer.model.state_dict())
    assert_close(*weights, rtol=1e-4, atol=1e-5)
