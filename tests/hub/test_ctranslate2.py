# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What is exported to CTranslate2 scores as the model does; what it cannot express is refused by
name.
"""

import re

import ctranslate2
import pytest
import tiny
import torch

from csan_hf.data.tokenization import TokenizerPair
from csan_hf.hub import save_self_contained
from csan_hf.hub.ctranslate2 import export_ctranslate2
from csan_hf_cli import main

RELATIVE = {"relative_positions": 3}
KINDS = {
    "plain": {},
    "pre-norm, sinusoids of M2M100": {"sinusoids": "m2m_100", "normalize_before": True},
    "learned positions": {"sinusoids": "bart"},
    "relative positions": {
        "sinusoids": None,
        "encoder_locality": [RELATIVE] * 2,
        "decoder_locality": [RELATIVE] * 2,
    },
}
REFUSED = {
    "no `window` (encoder layer 1)": {"encoder_locality": [None, {"window": 3}]},
    "no `gaussian` (cross layer 0)": {"cross_locality": [{"gaussian": {"width": "fixed"}}, None]},
    "no `relative_positions` of each head (decoder layer 0)": {
        "decoder_locality": [{"relative_positions": {"max_distance": 3, "per_head": True}}] * 2
    },
    "alike and without sinusoids": {**KINDS["relative positions"], "sinusoids": "marian"},
    "in all layers": {**KINDS["relative positions"], "decoder_locality": [RELATIVE, None]},
    "no Transformer without positions": {"sinusoids": None},
    "no `activation_function` 'tanh'": {"activation_function": "tanh"},
}
SOURCES = ["w3 w4 w5 w6", "w9", "w1 w2 w1 w2 w1 w12"]
TARGETS = ["w1 w2 <unk> w7", "w5", "w1 w3 w4 w5 w1 w2 w1 w1 w1 w11"]


def made(**options):
    """A plain model with the tokenizers of source and target, which differ."""
    source, target = (
        tiny.tokenizer([f"w{number}" for number in range(count)]) for count in (16, 14)
    )
    sizes = {
        "vocab_size": len(source),
        "decoder_vocab_size": len(target) + 2,
        "share_encoder_decoder_embeddings": False,
    }
    ids = {"pad_token_id": target.pad_token_id, "eos_token_id": target.eos_token_id}
    options = {
        **tiny.PLAIN,
        **sizes,
        **ids,
        "decoder_start_token_id": target.pad_token_id,
        **options,
    }
    model = tiny.csan(seed=3, **options)
    model.generation_config.bad_words_ids = [[target.pad_token_id]]
    return model, TokenizerPair(source, target)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_same_scores_and_tokens(kind, tmp_path):
    model, tokenizers = made(**KINDS[kind])
    export_ctranslate2(model, tmp_path / "ct2", tokenizers=tokenizers)
    translator = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1)
    source, target = tokenizers.source, tokenizers.target
    tokens = [source.convert_ids_to_tokens(source(text)["input_ids"]) for text in SOURCES]
    batch = source(SOURCES, padding=True, return_tensors="pt")
    for row, found in enumerate(translator.score_batch(tokens, [text.split() for text in TARGETS])):
        labels = target(TARGETS[row], return_tensors="pt")["input_ids"]
        logits = model(
            **{name: each[row : row + 1] for name, each in batch.items()}, labels=labels
        ).logits.clone()
        logits[..., target.pad_token_id] = -torch.inf
        expected = logits.log_softmax(dim=-1).gather(-1, labels[..., None])[0, :, 0]
        torch.testing.assert_close(torch.tensor(found.log_probs), expected, rtol=1e-5, atol=1e-5)
    # CTranslate2 never ends at once
    expected = model.generate(**batch, max_new_tokens=12, min_new_tokens=1, num_beams=1).tolist()
    found = translator.translate_batch(tokens, beam_size=1, max_decoding_length=12)
    ended = {target.pad_token_id, target.eos_token_id}
    names = [
        [
            target.convert_ids_to_tokens(each) or f"<unused {each}>"
            for each in row
            if each not in ended
        ]
        for row in expected
    ]
    assert [each.hypotheses[0] for each in found] == names
    assert len({len(row) for row in names}) > 1 or len({*map(tuple, names)}) > 1


@pytest.mark.parametrize("message", REFUSED)
def test_what_it_cannot_express_is_refused(message, tmp_path):
    model, tokenizers = made(**REFUSED[message])
    with pytest.raises(ValueError, match=re.escape(message)):
        export_ctranslate2(model, tmp_path / "ct2", tokenizers=tokenizers)
    assert not any(tmp_path.iterdir())


def test_other_families_and_full_folders_are_refused(tmp_path):
    _, tokenizers = made()
    with pytest.raises(ValueError, match="no PervasiveAttentionForConditionalGeneration, only"):
        export_ctranslate2(tiny.grid(), tmp_path / "ct2", tokenizers=tokenizers)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not empty"):
        export_ctranslate2(made()[0], tmp_path, tokenizers=tokenizers)


def test_the_model_stays_as_it_is(tmp_path):
    model, tokenizers = made()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export_ctranslate2(model, tmp_path / "ct2", tokenizers=tokenizers, quantization="int8")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_command(tmp_path, capsys):
    save_self_contained(*made(), tmp_path / "model")
    assert (
        main(["export-ct2", f"{tmp_path}/model", f"{tmp_path}/ct2", "--quantization", "int8"]) == 0
    )
    assert "CsanForConditionalGeneration for CTranslate2, int8" in capsys.readouterr().out
    assert ctranslate2.Translator(str(tmp_path / "ct2")).compute_type.startswith("int8")
    assert (
        TokenizerPair.from_pretrained(tmp_path / "ct2").target.get_vocab()
        == made()[1].target.get_vocab()
    )
