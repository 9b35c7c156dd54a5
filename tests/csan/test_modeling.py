"""The CSAN models as transformers' users meet them: implementations, caches, embeddings, positions."""

import pytest
import torch
from safetensors.torch import load_file

from csan_hf import CsanConfig, CsanForConditionalGeneration, CsanModel

SIZE = {
    "vocab_size": 40,
    "d_model": 32,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "init_gain": 1.0,
}
SOURCE = torch.tensor([[5, 9, 7, 3, 12, 30, 8, 1], [4, 22, 6, 1, 0, 0, 0, 0]])
MASK = (SOURCE != 0).long()
TARGET = torch.tensor([[7, 8, 9, 10, 11, 1], [12, 13, 1, -100, -100, -100]])
INPUTS = {"input_ids": SOURCE, "attention_mask": MASK, "labels": TARGET}
LOCAL_DECODER = {"local_window": 5, "head_area": 3, "decoder_localness_layers": [0, 1]}


def tiny(**options: object) -> CsanForConditionalGeneration:
    return CsanForConditionalGeneration(CsanConfig(**{**SIZE, **options})).eval()


@pytest.mark.parametrize("options", [{"local_window": None, "head_area": 1}, {}, {"localness_window": "query"}])
@torch.no_grad()
def test_every_implementation_gives_the_same_logits(options: dict) -> None:
    model = tiny(**options)
    expected = model(**INPUTS).logits
    for implementation in ("eager", "blocked", "sdpa"):
        model.set_attn_implementation(implementation)
        torch.testing.assert_close(model(**INPUTS).logits, expected, rtol=1e-5, atol=1e-5)


def test_implementation_is_chosen_at_loading(tmp_path) -> None:
    tiny().save_pretrained(tmp_path)
    model = CsanForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="blocked")
    assert model.config._attn_implementation == "blocked"


def test_local_layers_refuse_an_implementation_that_cannot_run_them() -> None:
    model = tiny()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"flash_attention_2.*cannot run CSAN's local layers"):
        model.model.encoder.layers[0].self_attn(torch.randn(1, 4, 32))


@torch.no_grad()
def test_attentions_are_distributions_over_real_positions() -> None:
    model = tiny(**LOCAL_DECODER)
    model.set_attn_implementation("eager")
    output = model(**INPUTS, output_attentions=True)
    assert len(output.encoder_attentions) == 3
    assert len(output.decoder_attentions) == len(output.cross_attentions) == 2
    for weights in output.encoder_attentions:
        assert weights.shape == (2, 4, 8, 8)
        torch.testing.assert_close(weights.sum(-1)[0], torch.ones(4, 8))
        assert not weights[1, :, :, 4:].any()
    assert not output.encoder_attentions[0][0, :, 0, 3:].any()  # a window of 5 reaches two tokens


@torch.no_grad()
def test_static_cache_equals_dynamic_with_a_local_decoder() -> None:
    model = tiny(**LOCAL_DECODER)
    options = {"attention_mask": MASK, "max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    expected = model.generate(SOURCE, **options)
    static = model.generate(SOURCE, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(static, expected)


@torch.no_grad()
def test_sinusoids_extend_past_their_table() -> None:
    short, long = tiny(max_position_embeddings=4), tiny(max_position_embeddings=64)
    short.load_state_dict(long.state_dict())
    assert torch.equal(short(**INPUTS).logits, long(**INPUTS).logits)


def test_gradient_checkpointing_changes_nothing() -> None:
    model = tiny(**LOCAL_DECODER, localness_window="query", dropout=0.0).train()
    model(**INPUTS).loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(**INPUTS).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], msg=name)


def test_shared_embeddings_are_one_tensor_and_stored_once(tmp_path) -> None:
    model = tiny()
    embeddings = {
        model.model.shared.weight.data_ptr(),
        model.model.encoder.embed_tokens.weight.data_ptr(),
        model.model.decoder.embed_tokens.weight.data_ptr(),
        model.lm_head.weight.data_ptr(),
    }
    assert len(embeddings) == 1
    model.save_pretrained(tmp_path)
    stored = [name for name, tensor in load_file(tmp_path / "model.safetensors").items() if tensor.shape == (40, 32)]
    assert stored == ["model.shared.weight"]


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_separate_vocabularies(tied: bool, tmp_path) -> None:
    model = tiny(decoder_vocab_size=55, share_encoder_decoder_embeddings=False, tie_word_embeddings=tied)
    assert model.model.encoder.embed_tokens.weight.shape == (40, 32)
    assert model.model.decoder.embed_tokens.weight.shape == (55, 32)
    same = model.lm_head.weight.data_ptr() == model.model.decoder.embed_tokens.weight.data_ptr()
    assert same == tied
    logits = model(**INPUTS).logits
    assert logits.shape[-1] == 55
    model.save_pretrained(tmp_path)
    loaded = CsanForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded(**INPUTS).logits, logits)


@torch.no_grad()
def test_resizing_shared_and_separate_vocabularies() -> None:
    model = tiny()
    before = model(**INPUTS).logits
    model.resize_token_embeddings(47)
    after = model(**INPUTS).logits
    assert model.config.vocab_size == model.config.decoder_vocab_size == after.shape[-1] == 47
    torch.testing.assert_close(after[..., :40], before)

    model = tiny(decoder_vocab_size=55, share_encoder_decoder_embeddings=False)
    before = model(**INPUTS).logits
    model.resize_token_embeddings(47)
    model.resize_decoder_token_embeddings(60)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (47, 60)
    torch.testing.assert_close(model(**INPUTS).logits[..., :55], before)


@torch.no_grad()
def test_base_model_derives_decoder_inputs_as_bart_does() -> None:
    model = CsanModel(CsanConfig(**SIZE)).eval()
    assert model(input_ids=SOURCE).last_hidden_state.shape == (2, 8, 32)
    separate = CsanModel(CsanConfig(**SIZE, decoder_vocab_size=50, share_encoder_decoder_embeddings=False))
    with pytest.raises(ValueError, match="decoder_input_ids"):
        separate(input_ids=SOURCE)


def test_exactly_one_kind_of_input() -> None:
    model = tiny()
    with pytest.raises(ValueError, match=r"input_ids.*inputs_embeds"):
        model(attention_mask=MASK, labels=TARGET)
    with pytest.raises(ValueError, match=r"Local layers take a padding mask `attention_mask`.*4D"):
        model(input_ids=SOURCE, attention_mask=torch.ones(2, 1, 8, 8), labels=TARGET)
