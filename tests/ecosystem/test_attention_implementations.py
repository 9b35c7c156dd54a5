# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""attn_implementation: what runs computes the same, what cannot run says what to use instead."""

import pytest
import tiny
import torch
from families import FAMILIES, LOCAL, sources, targets
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM
from transformers import modeling_flash_attention_utils as flash
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

CSAN, PERVASIVE = FAMILIES.values()
LOCALITIES = {"plain": tiny.PLAIN, "everything": LOCAL, "encoder area": tiny.LOCALITIES["encoder area"]}


def logits_of(model) -> torch.Tensor:
    with torch.no_grad():
        return model(**sources(), decoder_input_ids=targets(3, 5), use_cache=False).logits


@pytest.mark.parametrize(
    ("locality", "implementation"),
    [
        pytest.param(options, implementation, id=f"{implementation}-{name}")
        for name, options in LOCALITIES.items()
        for implementation in ("eager", "sdpa", "flex_attention", "blocked")
        if (name, implementation) != ("plain", "flex_attention")  # slow to compile; others have plain layers, too
    ],
)
def test_csan_is_the_same_under_each(locality, implementation, tmp_path):
    model = tiny.csan(seed=1, attn_implementation="eager", **locality)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation=implementation)
    assert loaded.config._attn_implementation == implementation
    torch.testing.assert_close(logits_of(loaded), logits_of(model), rtol=0, atol=1e-5)
    model.set_attn_implementation(implementation)
    assert torch.equal(logits_of(model), logits_of(loaded))


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flash_attention_3"])
def test_flash_attention_with_local_layers_says_what_to_use(implementation, tmp_path):
    """Refused when it is chosen, whether or not the package is installed."""
    message = rf"'{implementation}' cannot run CSAN's local layers.*head_area; use one of \['eager', 'sdpa', 'blocked'"
    model = tiny.csan(**LOCALITIES["encoder area"])
    with pytest.raises(ValueError, match=message):
        model.set_attn_implementation(implementation)
    assert model.config._attn_implementation == "sdpa"
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation=implementation)


def flash_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """FlashAttention's interface: no mask or a padding mask [B, J]; causality is the module's."""
    assert attention_mask is None or attention_mask.dim() == 2
    visible = None if attention_mask is None else attention_mask[:, None, None, :].bool()
    if module.is_causal:
        causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(key.shape[2] - query.shape[2])
        visible = causal if visible is None else visible & causal
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scaling)
    return output.transpose(1, 2), None


def test_a_plain_csan_gives_flash_attention_what_it_takes(monkeypatch):
    """The kernel needs a GPU; here its interface is played by the definition."""
    model = tiny.csan(seed=1, **tiny.PLAIN)
    expected = logits_of(model)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "flash_attention_2", flash_attention)
    model.config._attn_implementation_internal = "flash_attention_2"
    torch.testing.assert_close(logits_of(model), expected, rtol=0, atol=1e-5)
    assert_same_generation(model)


@pytest.fixture
def kernel_windows(monkeypatch):
    """FlashAttention's kernels played by the definition, behind the library's own code, and the windows they get."""
    windows = []

    def attend(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1)):
        """[B, T, H, D]; `window_size`: tokens to the left and to the right, -1 = all, the last positions aligned."""
        windows.append(window_size)
        distance = torch.arange(k.shape[1])[None, :] - torch.arange(k.shape[1] - q.shape[1], k.shape[1])[:, None]
        left, right = window_size
        visible = (distance >= -left) | (left < 0)
        visible &= (distance <= 0) if causal else (distance <= right) | (right < 0)
        states = (states.transpose(1, 2) for states in (q, k, v))
        return F.scaled_dot_product_attention(*states, attn_mask=visible, scale=softmax_scale).transpose(1, 2)

    def attend_variable(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False,
        window_size=(-1, -1), dropout_p=0.0,
    ):  # fmt: skip
        """[tokens, H, D], the sentences behind each other."""
        lengths = [cu_seqlens.diff().tolist() for cu_seqlens in (cu_seqlens_q, cu_seqlens_k, cu_seqlens_k)]
        parts = [states[None].split(sizes, dim=1) for states, sizes in zip((q, k, v), lengths, strict=True)]
        options = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size}
        return torch.cat([attend(*sentence, **options)[0] for sentence in zip(*parts, strict=True)])

    monkeypatch.setattr(flash, "_loaded_implementation", "flash_attention_2")
    monkeypatch.setattr(flash, "_flash_fn", attend)
    monkeypatch.setattr(flash, "_flash_varlen_fn", attend_variable)
    monkeypatch.setattr(flash, "_pad_fn", flash._pad_input)
    monkeypatch.setattr(flash, "_unpad_fn", flash._unpad_input)
    monkeypatch.setattr(flash, "_process_flash_kwargs_fn", flash._lazy_define_process_function(attend_variable))
    monkeypatch.setattr(flash, "_flash_with_kvcache_fn", None)
    monkeypatch.setattr(flash, "_process_with_kvcache_kwargs_fn", dict)
    return windows


@pytest.mark.filterwarnings("ignore:Casting fp32 inputs")
def test_flash_attention_runs_the_windows(kernel_windows):
    """Windows of 5 and 3 tokens, two and one on either side, with padding and in decoding.

    (Cross-attention is the library's affair, which takes the padding of the sources for that of the targets unless the
    target is one token; so the sources of the whole model have none.)
    """
    windows = {"encoder_locality": [{"window": 5}, None], "decoder_locality": [None, {"window": 3}]}
    model = tiny.csan(seed=1, **tiny.PLAIN, **windows)
    padded, whole = sources(), {"input_ids": sources((6, 6))["input_ids"]}
    search = {"max_new_tokens": 6, "min_new_tokens": 6, "no_repeat_ngram_size": 1}

    def everything():
        states = model.get_encoder()(**padded).last_hidden_state[padded["attention_mask"].bool()]
        logits = model(**whole, decoder_input_ids=targets(2, 5), use_cache=False).logits
        return states, logits, model.generate(**padded, **search)

    with torch.no_grad():
        expected = everything()
        model.config._attn_implementation_internal = "flash_attention_2"
        for one, other in zip(everything(), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert set(kernel_windows) == {(-1, -1), (2, 2), (1, 1)}
    assert kernel_windows[:3] == [(2, 2)] * 3, "the first layer, sentence by sentence"


def assert_same_generation(model) -> None:
    search = {"max_new_tokens": 8, "min_new_tokens": 8, "no_repeat_ngram_size": 1}
    found = model.generate(**sources(), **search)
    model.config._attn_implementation_internal = "eager"
    assert torch.equal(model.generate(**sources(), **search), found)


@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention", "flash_attention_2", "blocked"])
def test_pervasive_attention_has_nothing_to_choose(implementation, tmp_path):
    message = f"no attention modules, so attn_implementation='{implementation}'.*leave `attn_implementation` unset"
    model = PERVASIVE.tiny_model()
    with pytest.raises(ValueError, match=message):
        model.set_attn_implementation(implementation)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation=implementation)


def test_pervasive_attention_takes_the_librarys_neutral_choice(tmp_path):
    model = PERVASIVE.tiny_model()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert torch.equal(logits_of(loaded), logits_of(model))


def test_flex_attention_on_a_cpu_says_that_it_does_not_train():
    model = CSAN.tiny_model(attn_implementation="flex_attention").train()
    with pytest.raises(ValueError, match="no backward on CPU; use 'blocked', 'sdpa' or 'eager'"):
        model(**sources(), decoder_input_ids=targets(3, 5))
