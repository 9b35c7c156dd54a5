# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Attention line by line, against a loop over lines, queries and layers."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.models.csan_attention import CsanAttention

MARK = 2
END = 1
PLAIN = {"line": True}
MOVING = {"line": True, "moving_gaussian": {"gain": 0.2, "width": 3.0}}
STEPS = {"line": True, "moving_gaussian": {"width": 3.0}}


def make_model(cross: dict, **fields) -> CsanForConditionalGeneration:
    torch.manual_seed(3)
    config = CsanConfig.preset(
        "lines",
        vocab_size=40,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        dropout=0.0,
        init_gain=2.0,
        line_token_id=MARK,
        **{"local_window": 5, "cross_locality": [cross] * 2, **fields},
    )
    return CsanForConditionalGeneration(config).double().eval()


def lines_of(tokens: list[int]) -> list[int]:
    """The number of marks before each token."""
    return [tokens[:place].count(MARK) for place in range(len(tokens))]


@dataclass
class LoopedAttention:
    """Cross-attention of one query at a time to the states of its own line alone."""

    attention: CsanAttention
    source: list[int]  # tokens, without padding
    target: list[int]

    def __call__(self, hidden_states: Tensor, key_value_states: Tensor, **kwargs: Any):
        return self.attend(hidden_states[0], key_value_states[0])[None], None

    def attend(self, queries: Tensor, states: Tensor) -> Tensor:
        attention = self.attention
        source = self.source
        target = self.target
        moving = getattr(attention, "moving_gaussian", None)
        last = source.count(MARK)
        line_before = None
        outputs = []
        for place, query in enumerate(attention.q_proj(queries)):
            line = min(target[: place + 1].count(MARK), last)
            positions = [j for j, number in enumerate(lines_of(source)) if number == line]
            keys = attention.k_proj(states[positions]).unflatten(-1, (attention.num_heads, -1))
            values = attention.v_proj(states[positions]).unflatten(-1, (attention.num_heads, -1))
            heads = query.unflatten(-1, (attention.num_heads, -1))
            energies = torch.einsum("hd,jhd->hj", heads, keys) * attention.scaling
            if moving is not None:
                if line != line_before:
                    center = torch.full((1,), -1.0).double()
                hidden = torch.tanh(moving.query_proj(query))
                step = nn.functional.softplus(moving.step_proj(hidden))
                center = center + step
                distance = torch.arange(len(positions)) - center[:, None]
                width = moving.log_width.exp()[:, None]
                energies = energies - 2 * (distance / width) ** 2
                weights = energies.softmax(-1)
                if hasattr(moving, "gain_logit"):
                    offset = (weights * distance).sum(-1).mean()
                    gain = moving.gain_logit.sigmoid()
                    center = center + torch.maximum(gain * offset, -step / 2)
            line_before = line
            output = torch.einsum("hj,jhd->hd", energies.softmax(-1), values)
            outputs.append(attention.out_proj(output.flatten()))
        return torch.stack(outputs)


def random_batch(seed: int, lines: int, side: str) -> dict[str, Tensor]:
    """Two sentences of several lines; the second is shorter, and padded on a side."""
    generator = torch.Generator().manual_seed(seed)
    sentences = []
    for count in (lines, max(1, lines - 1)):
        tokens: list[int] = []
        for _ in range(count):
            length = int(torch.randint(0, 6, (1,), generator=generator))
            tokens += torch.randint(5, 40, (length,), generator=generator).tolist()
            tokens.append(MARK)
        sentences.append([*tokens[:-1], END])
    width = max(map(len, sentences))
    ids = torch.zeros(2, width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(sentences):
        place = 0 if side == "right" else width - len(tokens)
        ids[row, place : place + len(tokens)] = torch.tensor(tokens)
        mask[row, place : place + len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def targets_of(seed: int, length: int) -> Tensor:
    """Targets with marks, which need not be as many as the source's."""
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(5, 40, (2, length), generator=generator)
    is_mark = torch.rand(targets.shape, generator=generator) < 0.25
    targets[is_mark] = MARK
    targets[:, 0] = 0
    return targets


def run_loop(model: CsanForConditionalGeneration, batch: dict[str, Tensor], targets: Tensor):
    """Logits of the loop, sentence by sentence without padding."""
    logits = []
    for row, target in enumerate(targets):
        source = batch["input_ids"][row][batch["attention_mask"][row].bool()]
        for layer in model.model.decoder.layers:
            attention = layer.encoder_attn
            attention.forward = LoopedAttention(attention, source.tolist(), target.tolist())
        logits.append(
            model(source[None], decoder_input_ids=target[None], labels=target[None]).logits
        )
    return torch.cat(logits)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("cross", [PLAIN, STEPS, MOVING], ids=["line", "steps", "moving"])
@pytest.mark.parametrize("lines", [1, 4, 10])
def test_lines_equal_a_loop(cross, lines, side):
    model = make_model(cross)
    batch = random_batch(lines, lines, side)
    targets = targets_of(lines, 25)
    labels = torch.randint(5, 40, targets.shape)
    output = model(**batch, decoder_input_ids=targets, labels=labels)
    output.loss.backward()
    loop = copy.deepcopy(model)
    loop.zero_grad()
    expected = run_loop(loop, batch, targets)
    torch.testing.assert_close(output.logits, expected)
    nn.functional.cross_entropy(expected.transpose(1, 2), labels).backward()
    for (name, parameter), looped in zip(model.named_parameters(), loop.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, looped.grad, msg=name)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("cross", [PLAIN, MOVING], ids=["line", "moving"])
def test_a_cache_changes_nothing(cross, chunk, side):
    """Steps compute the keys of their own lines alone."""
    model = make_model(cross)
    batch = random_batch(7, 6, side)
    targets = targets_of(7, 30)
    mask = torch.ones_like(targets)
    mask[1, :2] = 0  # a prompt that is padded on the left
    expected = model(**batch, decoder_input_ids=targets, decoder_attention_mask=mask).logits
    encoded = model.get_encoder()(**batch)
    cache = None
    logits = []
    with torch.no_grad():
        for start in range(0, 30, chunk):
            output = model(
                encoder_outputs=encoded,
                attention_mask=batch["attention_mask"],
                decoder_input_ids=targets[:, start : start + chunk],
                decoder_attention_mask=mask[:, : start + chunk],
                cache=cache,
                use_cache=True,
            )
            cache = output.cache
            logits.append(output.logits)
    real = mask.bool()
    torch.testing.assert_close(torch.cat(logits, dim=1)[real], expected[real])


def test_weights_are_of_all_source_tokens():
    model = make_model(MOVING)
    model.set_attn_implementation("eager")
    batch = random_batch(7, 6, "right")
    targets = targets_of(7, 12)
    expected = model(**batch, decoder_input_ids=targets, output_attentions=True).cross_attentions
    cache = model(**batch, decoder_input_ids=targets[:, :11]).cache
    step = model(**batch, decoder_input_ids=targets[:, 11:], cache=cache, output_attentions=True)
    for weights, of_step in zip(expected, step.cross_attentions, strict=True):
        torch.testing.assert_close(of_step, weights[:, :, 11:])


def test_a_step_reads_the_keys_of_its_line(monkeypatch):
    """One line of a hundred has few keys, however many there are."""
    model = make_model(MOVING)
    source = torch.randint(5, 40, (1, 1000))
    source[:, 9::10] = MARK
    sizes = []
    attend = CsanAttention._attend

    def count_keys(self, query, key, value, masks, *args):
        if self.part == "cross":
            sizes.append(masks.lines.take(key).shape[2])
        return attend(self, query, key, value, masks, *args)

    monkeypatch.setattr(CsanAttention, "_attend", count_keys)
    model.generate(source, max_new_tokens=200, num_beams=1)
    assert max(sizes) == 10


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 1},
        {"num_beams": 3, "num_return_sequences": 3},
        {"do_sample": True, "num_return_sequences": 2},
        {"max_new_tokens": 260, "use_cache": False},
        {"cache_implementation": "static"},
    ],
    ids=["greedy", "beams", "samples", "no_cache", "static"],
)
def test_translations_have_the_lines_of_their_sources(options):
    model = make_model(MOVING).float()
    batch = random_batch(5, 3, "right")
    # A model that would rather end, or go on for ever
    model.final_logits_bias[0, END] = 5.0
    options = {"max_new_tokens": 900, **options}
    ends = model.generate(**batch, **options)
    model.final_logits_bias[0, END] = -50.0
    model.final_logits_bias[0, MARK] = -50.0
    loops = model.generate(**batch, **options)
    copies = options.get("num_return_sequences", 1)
    factor, constant = 2, 50
    for number, tokens in enumerate([*ends, *loops]):
        source = batch["input_ids"][number // copies % 2].tolist()
        generated = tokens[1:].tolist()
        generated = generated[: generated.index(END) + 1]
        assert generated.count(MARK) == source.count(MARK)
        for line in range(source.count(MARK) + 1):
            length = lines_of(source[: source.index(END) + 1]).count(line)
            assert lines_of(generated).count(line) <= factor * length + constant + 1


@pytest.mark.parametrize("lines", [10, 100, 1000])
def test_each_line_is_translated_as_if_alone(lines):
    """Where no window reaches into the lines before."""
    model = make_model(MOVING, local_window=1)
    generator = torch.Generator().manual_seed(lines)
    sources = torch.randint(5, 40, (lines, 4), generator=generator)
    sources[:, -1] = MARK
    targets = torch.randint(5, 40, (lines, 3), generator=generator)
    targets[:, 0] = MARK
    targets[0, 0] = 0
    whole = {"decoder_input_ids": targets.view(1, -1), "labels": targets.view(1, -1)}
    together = model(sources.view(1, -1), **whole).logits
    alone = model(sources, decoder_input_ids=targets, labels=targets).logits
    torch.testing.assert_close(together[0], alone.flatten(0, 1))


def test_lines_can_be_given():
    """With embeddings there are no marks to count."""
    model = make_model(MOVING)
    batch = random_batch(2, 4, "left")
    targets = targets_of(2, 12)
    ids = batch.pop("input_ids")
    expected = model(ids, **batch, decoder_input_ids=targets).logits
    marks = (targets == MARK).long().cumsum(-1)
    embedded = {
        "inputs_embeds": model.get_input_embeddings()(ids),
        "line_ids": torch.tensor([lines_of(row) for row in ids.tolist()]),
        "decoder_inputs_embeds": model.get_input_embeddings()(targets),
        "decoder_line_ids": marks,
    }
    torch.testing.assert_close(model(**batch, **embedded).logits, expected)
    del embedded["line_ids"]
    with pytest.raises(ValueError, match=r"line by line.*line_ids"):
        model(**batch, **embedded)


@torch.no_grad()
def test_a_cache_takes_sources_of_padding_alone():
    model = make_model(MOVING)
    masked = {"input_ids": torch.full((2, 4), 5), "attention_mask": torch.zeros(2, 4)}
    targets = targets_of(2, 3)
    expected = model(**masked, decoder_input_ids=targets, use_cache=False).logits
    torch.testing.assert_close(model(**masked, decoder_input_ids=targets).logits, expected)


def test_labels_are_scored_as_they_are():
    """Losses and the logits of labels know no forbidden tokens."""
    model = make_model(MOVING)
    batch = random_batch(3, 3, "right")
    labels = targets_of(3, 9)
    output = model(**batch, labels=labels)
    assert output.logits.isfinite().all()
    assert model(**batch, decoder_input_ids=labels).logits.isinf().any()


def test_configs_refuse_lines_without_meaning():
    with pytest.raises(ValueError, match=r"cross_locality.*line.*gaussian.*whole source"):
        make_model({"line": True, "gaussian": "query"})
    with pytest.raises(ValueError, match=r"encoder_locality.*line.*has no meaning"):
        make_model(PLAIN, encoder_locality=[{"line": True}, None])
    with pytest.raises(ValueError, match=r"line_token_id.*0.*padding"):
        CsanConfig.preset("lines", line_token_id=0)
    for mark in (END, 40_000):
        with pytest.raises(ValueError, match="line_token_id"):
            CsanConfig.preset("lines", line_token_id=mark)
