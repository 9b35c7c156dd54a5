# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The classification heads: what they compute, what they take over from a translation checkpoint,
how they train.
"""

import pytest
import torch
import torch.nn.functional as F
from tiny import CSAN_SIZES, ENCODER, PLAIN, gradients, padded_sources
from torch.testing import assert_close

from csan_hf import (
    CsanConfig,
    CsanForConditionalGeneration,
    CsanForSequenceClassification,
    CsanForTokenClassification,
    CsanModel,
)
from csan_hf.models.modeling_csan_classification import masked_mean

HEADS = (CsanForSequenceClassification, CsanForTokenClassification)
LENGTHS = (9, 4, 13, 1)
SIZES = {**CSAN_SIZES, "init_gain": 1.0, "num_labels": 3}
WINDOW = {**ENCODER, "local_window": 5}
EVERYTHING = {**ENCODER, "local_window": 5, "head_area": 3, "localness_window": "query"}
both_heads = pytest.mark.parametrize("head", HEADS)


def tiny(head, **options):
    """A head in eval mode whose biases are not zero and whose norms are not the identity."""
    options = {**SIZES, "decoder_localness_layers": None, "cross_localness_layers": None, **options}
    model = head(CsanConfig(**options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape))
            elif "score" in name:
                parameter.normal_()
    return model.eval()


def labels_for(model, batch, problem_type="single_label_classification"):
    rows, width = batch["input_ids"].shape
    if isinstance(model, CsanForTokenClassification):
        labels = torch.randint(0, model.num_labels, (rows, width))
        return labels.masked_fill(batch["attention_mask"] == 0, -100)
    if problem_type == "single_label_classification":
        return torch.randint(0, model.num_labels, (rows,))
    return (
        torch.rand(rows, model.num_labels).round()
        if "multi" in problem_type
        else torch.randn(rows, 3)
    )


# What they compute


@both_heads
def test_a_class_derived_from_a_head_has_its_loss(head):
    class Derived(head):
        pass

    batch = padded_sources((4, 6))
    model = tiny(head)
    derived = Derived(model.config)
    derived.load_state_dict(model.state_dict())
    labels = labels_for(model, batch)
    loss = derived.eval()(**batch, labels=labels).loss
    assert torch.equal(loss, model(**batch, labels=labels).loss)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("locality", [PLAIN, EVERYTHING])
@both_heads
def test_a_row_of_padding_alone_is_finite(head, locality, implementation):
    model = tiny(head, **locality)
    model.set_attn_implementation(implementation)
    sources = padded_sources((6, 4))
    sources["attention_mask"][1] = 0
    output = model(**sources, labels=labels_for(model, sources))
    output.loss.backward()
    assert output.logits.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())
    if head is CsanForSequenceClassification:
        assert torch.equal(output.logits[1], model.score.bias)


@pytest.mark.parametrize("locality", [PLAIN, EVERYTHING])
@both_heads
@torch.no_grad()
def test_logits_are_scores_of_the_encoders_states(head, locality):
    """Of each token, or of the mean of a sentence's."""
    model = tiny(head, **locality)
    sources = padded_sources(LENGTHS)
    logits = model(**sources).logits
    for row, length in enumerate(LENGTHS):
        ids = sources["input_ids"][row : row + 1, :length]
        states = model.model(ids).last_hidden_state[0]
        if head is CsanForSequenceClassification:
            states = states.mean(0)
            expected = logits[row]
        else:
            expected = logits[row, :length]
        scores = states @ model.score.weight.T + model.score.bias
        assert_close(scores, expected, rtol=0, atol=1e-5)
        # Without a mask every position is real
        assert_close(model(ids).logits[0], expected, rtol=0, atol=1e-5)


@both_heads
def test_dropout_of_the_head(head):
    assert tiny(head, dropout=0.2).dropout.p == 0.2
    assert tiny(head, dropout=0.2, classifier_dropout=0.0).dropout.p == 0.0
    model = tiny(head, classifier_dropout=0.5).train()
    sources = padded_sources(LENGTHS)
    assert not torch.equal(model.train()(**sources).logits, model(**sources).logits)


# Losses


CLASSES, VALUES = torch.tensor([0, 2, 1, 1]), torch.tensor([2.0, -1.0, 3.0, 0.0])
SEVERAL = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
PROBLEMS = {
    "single_label_classification": (3, CLASSES, F.cross_entropy),
    "multi_label_classification": (3, SEVERAL, F.binary_cross_entropy_with_logits),
    "regression": (1, VALUES[:, None], F.mse_loss),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_problems_of_sequence_classification(problem, tmp_path):
    """What the labels say is inferred, kept and saved."""
    num_labels, labels, loss = PROBLEMS[problem]
    model = tiny(CsanForSequenceClassification, num_labels=num_labels)
    sources = padded_sources(LENGTHS)
    assert model.config.problem_type is None
    output = model(**sources, labels=labels)
    assert model.config.problem_type == problem
    assert_close(output.loss, loss(output.logits, labels))
    for same in (labels.int(), labels.squeeze(-1), labels[:, None] if labels.ndim == 1 else labels):
        assert_close(model(**sources, labels=same).loss, output.loss)
    model.save_pretrained(tmp_path)
    loaded = CsanForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config.problem_type == problem
    assert torch.equal(loaded(**sources, labels=labels).loss, output.loss)


@both_heads
def test_ignored_labels_have_no_loss(head):
    model = tiny(head, **WINDOW)
    sources = padded_sources(LENGTHS)
    labels = labels_for(model, sources)
    if head is CsanForTokenClassification:
        output = model(**sources, labels=labels)
        kept = labels != -100
        assert kept.sum() == sum(LENGTHS)
        assert_close(output.loss, F.cross_entropy(output.logits[kept], labels[kept]))
    loss = model(**sources, labels=torch.full_like(labels, -100)).loss
    loss.backward()
    assert loss.item() == 0.0
    assert not any(gradient.any() for gradient in gradients(model).values())


@pytest.mark.parametrize("as_tensor", [True, False])
@pytest.mark.parametrize(
    ("head", "problem_type"),
    [
        (CsanForTokenClassification, None),
        *((CsanForSequenceClassification, problem) for problem in PROBLEMS),
    ],
)
def test_accumulated_losses_add_up_to_that_of_the_whole_batch(head, problem_type, as_tensor):
    """The Trainer counts the labels of all accumulated batches and sums what each batch returns."""
    model = tiny(head, problem_type=problem_type)
    sources = padded_sources(LENGTHS)
    labels = labels_for(model, sources, problem_type or "single_label_classification")
    count = labels.ne(-100).sum()
    whole = model(**sources, labels=labels).loss
    losses = []
    for part in (slice(0, 1), slice(1, 4)):
        inputs = {name: tensor[part] for name, tensor in sources.items()}
        items = count if as_tensor else count.item()
        losses.append(model(**inputs, labels=labels[part], num_items_in_batch=items).loss)
    assert_close(sum(losses), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@both_heads
def test_half_precision_is_finite_and_its_loss_float32(head, dtype):
    model = tiny(head, **EVERYTHING).to(dtype)
    sources = padded_sources(LENGTHS)
    output = model(**sources, labels=labels_for(model, sources))
    assert output.logits.dtype == dtype
    assert output.loss.dtype == torch.float32
    assert output.loss.isfinite()


def test_the_mean_does_not_overflow_in_half_precision():
    states = torch.full((1, 200, 2), 1000.0, dtype=torch.float16)
    assert torch.equal(masked_mean(states, torch.ones(1, 200)), states[:, 0])
    states[:, 100:] = float("nan")
    assert torch.equal(masked_mean(states, (torch.arange(200) < 100)[None]), states[:, 0])


# What a checkpoint gives and takes


@pytest.mark.parametrize(
    "vocabularies",
    [{}, {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 60}],
    ids=["shared", "separate"],
)
@pytest.mark.parametrize("original", [CsanForConditionalGeneration, CsanModel])
@both_heads
@torch.no_grad()
def test_takes_the_encoder_of_a_translation_checkpoint(
    head, original, vocabularies, tmp_path, caplog
):
    translator = original(CsanConfig(**SIZES, **EVERYTHING, **vocabularies)).eval()
    translator.save_pretrained(tmp_path)
    model, report = head.from_pretrained(tmp_path, num_labels=5, output_loading_info=True)
    assert report["missing_keys"] == {"score.weight", "score.bias"}
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    assert "decoder" not in caplog.text
    sources = padded_sources(LENGTHS)
    encoder = getattr(translator, "model", translator).encoder
    assert torch.equal(
        model.model(**sources).last_hidden_state, encoder(**sources).last_hidden_state
    )
    assert model(**sources).logits.shape[-1] == 5
    assert not any("decoder" in name for name in model.state_dict())


# Bad input


@pytest.mark.parametrize(
    ("head", "options", "labels", "message"),
    [
        (
            CsanForSequenceClassification,
            {},
            torch.zeros(4, 3).long(),
            r"shape \[4\].*\[4, 3\].*multi_label",
        ),
        (
            CsanForSequenceClassification,
            {},
            torch.zeros(4, 2),
            r"shape \[4, 3\], got.*\[4, 2\].*multi_label",
        ),
        (
            CsanForSequenceClassification,
            {"num_labels": 1},
            torch.zeros(3),
            r"shape \[4\], got.*\[3\]",
        ),
        (CsanForTokenClassification, {}, torch.zeros(4, 12).long(), r"shape \[4, 13\].*\[4, 12\]"),
        (CsanForTokenClassification, {}, torch.zeros(4, 13), r"`labels` must be integers.*float32"),
    ],
)
def test_labels_that_do_not_fit_are_refused(head, options, labels, message):
    with pytest.raises(ValueError, match=message):
        tiny(head, **options)(**padded_sources(LENGTHS), labels=labels)
