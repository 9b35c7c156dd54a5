# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Bad input to models and configurations: a clear error, or the right answer."""

import dataclasses
import gc
import json
import re
import weakref

import pytest
import tiny
import torch
from families import FAMILIES, sources, training_batch
from safetensors.torch import load_file, save_file
from tiny import gradients
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoModelForTokenClassification,
)

from csan_hf import (
    ConvS2SConfig,
    CsanConfig,
    CsanForConditionalGeneration,
    CsanModel,
    PervasiveAttentionConfig,
    RnnSearchConfig,
)
from csan_hf.hub.public_files import read_json
from csan_hf.models.modeling_csan import CsanEncoder, CsanPreTrainedModel

NAN, INFINITY = float("nan"), float("inf")
MODELS = {
    "csan, plain": lambda: tiny.csan(**tiny.PLAIN),
    "csan, everything": FAMILIES["csan"].tiny_model,
    "pervasive attention": FAMILIES["pervasive attention"].tiny_model,
    "rnnsearch": tiny.recurrent,
    "conv_s2s": tiny.convolutional,
}


@pytest.fixture(params=MODELS.values(), ids=MODELS)
def model(request):
    return request.param()


IDS = sources()["input_ids"]  # [3, 7]
MASK = sources()["attention_mask"]
LABELS = training_batch()["labels"]  # [3, 6]


def masked(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The right mask, but padding is `value`."""
    return MASK.to(dtype).masked_fill(MASK == 0, value)


# What is wrong, what the model is called with beside or instead of a good batch, and what the error
# says.
BAD_CALLS = {
    "an empty batch": (
        {"input_ids": IDS[:0], "attention_mask": MASK[:0], "labels": LABELS[:0]},
        "at least one",
    ),
    "sources of length 0": (
        {"input_ids": IDS[:, :0], "attention_mask": MASK[:, :0]},
        "at least one",
    ),
    "targets of length 0": ({"labels": LABELS[:, :0]}, "at least one"),
    "a source word past the vocabulary": (
        {"input_ids": IDS + 100},
        r"`input_ids` must be tokens.*0 to \d+.*109",
    ),
    "a negative source word": ({"input_ids": IDS - 5}, r"`input_ids` must be tokens .*-5"),
    "a label past the vocabulary": (
        {"labels": LABELS + 200},
        r"`decoder_input_ids` must be tokens.*`labels`",
    ),
    "words as decimals": (
        {"input_ids": IDS.float()},
        r"`input_ids` .*int64 or int32.*got torch.float32",
    ),
    "labels as decimals": (
        {"labels": LABELS.float()},
        r"`labels` .*int64 or int32.*got torch.float32",
    ),
    "a list of words": ({"input_ids": IDS.tolist()}, r"`input_ids` must be a tensor .* got list"),
    "a sentence without a batch": (
        {"input_ids": IDS[0]},
        r"`input_ids` .*\[batch, length\].*got torch.int64 \[7\]",
    ),
    "labels of another batch": (
        {"labels": LABELS[:2]},
        "same number of sentences, got 3 sources and 2 targets",
    ),
    "no source": ({"input_ids": None}, "Exactly one of `input_ids` and `inputs_embeds`"),
    "two sources": (
        {"inputs_embeds": torch.randn(3, 7, 4)},
        "Exactly one of `input_ids` and `inputs_embeds`",
    ),
    "a mask too long": (
        {"attention_mask": torch.ones(3, 8)},
        r"`attention_mask` .* = \[3, 7\], got \[3, 8\]",
    ),
    "a mask of another batch": (
        {"attention_mask": torch.ones(2, 7)},
        r"`attention_mask` .* = \[3, 7\], got \[2, 7\]",
    ),
    "a decoder mask too long": (
        {"decoder_attention_mask": torch.ones(3, 7)},
        r"`decoder_attention_mask` .*\[3, 6\]",
    ),
    "a mask with minus infinity": (
        {"attention_mask": masked(-INFINITY)},
        "must hold 1 .* and 0 .*got -inf",
    ),
    "a mask of weights": ({"attention_mask": masked(0.5)}, r"must hold 1 .* and 0 .*got 0\.5"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_bad_calls_are_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        model(**{"input_ids": IDS, "attention_mask": MASK, "labels": LABELS, **arguments})


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int32, torch.float32, torch.float16, torch.bfloat16]
)
def test_masks_of_ones_and_zeros_may_have_any_type(model, dtype):
    batch = {"input_ids": IDS, "labels": LABELS}
    expected = model(**batch, attention_mask=MASK).logits
    assert torch.equal(model(**batch, attention_mask=MASK.to(dtype)).logits, expected)


@pytest.mark.parametrize(
    "num_items_in_batch", [None, 0, torch.tensor(0)], ids=["none", "zero", "zero tensor"]
)
def test_labels_of_minus_100_only_cost_nothing(model, num_items_in_batch):
    batch = {"input_ids": IDS, "attention_mask": MASK, "labels": torch.full_like(LABELS, -100)}
    loss = model(**batch, num_items_in_batch=num_items_in_batch).loss
    loss.backward()
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in gradients(model).values())


def test_labels_may_be_a_slice_and_a_loss_has_the_precision_of_its_model(model):
    slices = torch.cat([LABELS, LABELS], 1)[:, : LABELS.shape[1]]
    found = model.double()(input_ids=IDS, attention_mask=MASK, labels=slices).loss
    assert found.dtype == torch.float64
    assert torch.equal(found, model(input_ids=IDS, attention_mask=MASK, labels=LABELS).loss)


def test_sources_of_padding_only(model):
    """Nothing is visible: finite logits and loss, and whole sentences can be generated."""
    mask = torch.zeros_like(MASK)
    outputs = model(input_ids=IDS, attention_mask=mask, labels=LABELS)
    assert outputs.logits.isfinite().all()
    outputs.loss.backward()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())
    found = model.generate(input_ids=IDS, attention_mask=mask, max_new_tokens=4, num_beams=2)
    assert found.shape[0] == 3


SINUSOIDS = {
    "csan": lambda size: FAMILIES["csan"].tiny_model(max_position_embeddings=size),
    "pervasive attention": lambda size: tiny.grid(
        position_embeddings="sinusoidal", max_position_embeddings=size
    ),
}
LONG = {"input_ids": torch.full((1, 40), 3), "labels": torch.full((1, 30), 4)}


@pytest.mark.parametrize("make", SINUSOIDS.values(), ids=SINUSOIDS)
def test_sinusoids_extend_past_max_position_embeddings(make):
    short, long = make(8), make(64)
    assert torch.equal(short(**LONG).logits, long(**LONG).logits)
    search = {"max_new_tokens": 20, "min_new_tokens": 20}
    ids = LONG["input_ids"][:, :5]
    assert torch.equal(short.generate(ids, **search), long.generate(ids, **search))


LEARNED = {
    "pervasive attention": lambda size: tiny.grid(
        position_embeddings="learned", max_position_embeddings=size
    ),
    "conv_s2s": lambda size: tiny.convolutional(max_position_embeddings=size),
}


@pytest.mark.parametrize("make", LEARNED.values(), ids=LEARNED)
def test_learned_positions_refuse_what_they_do_not_have(make):
    model = make(8)
    short = LONG["input_ids"][:, :5]
    for call in (
        lambda: model(**LONG),
        lambda: model(input_ids=short, labels=LONG["labels"]),
        lambda: model.generate(short, max_new_tokens=20, min_new_tokens=20),
    ):
        with pytest.raises(
            ValueError, match=r"A sentence of \d+ tokens exceeds max_position_embeddings=8.*shorten"
        ):
            call()
    assert model(input_ids=LONG["input_ids"][:, :8], labels=LONG["labels"][:, :8]).loss.isfinite()


def change_config(folder, **fields) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**read_json(path), **fields}))


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def saved(request, tmp_path):
    """A family and a checkpoint of it."""
    request.param.tiny_model(seed=1).save_pretrained(tmp_path)
    return request.param, tmp_path


@pytest.mark.parametrize("kept", [0, 0.5, 0.999, "<html>404: Not Found</html>"])
def test_damaged_weights_are_refused_by_file(saved, kept):
    family, folder = saved
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(kept.encode() if isinstance(kept, str) else data[: int(kept * len(data))])
    with pytest.raises(OSError, match=rf"A file of weights of '.*{folder.name}' is damaged"):
        family.model_class.from_pretrained(folder)


def change_weights(folder, change) -> None:
    """Change the weights of a checkpoint: `change` gets them by name."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("fields", [{}, {"dropout": 0.3}], ids=["as saved", "a field given"])
def test_a_missing_weight_is_an_error(saved, fields):
    family, folder = saved
    weights = load_file(folder / "model.safetensors")
    missing = next(name for name in sorted(weights) if name.startswith("model."))
    change_weights(folder, lambda weights: weights.pop(missing))
    for load in (family.model_class, AutoModelForSeq2SeqLM, AutoModel):
        name = missing.removeprefix("model.") if load is AutoModel else missing
        with pytest.raises(
            ValueError, match=f"{folder.name}.* lacks {name} .*not the whole model"
        ) as error:
            load.from_pretrained(folder, **fields)
        assert "\n" not in str(error.value)
    _, report = AutoModel.from_pretrained(folder, output_loading_info=True, **fields)
    assert missing.removeprefix("model.") in report["missing_keys"]


ENCODERS = [
    AutoModelForTextEncoding,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
]


@pytest.mark.parametrize("auto", ENCODERS)
def test_a_head_is_new_and_the_encoder_is_not(auto, tmp_path):
    tiny.csan().save_pretrained(tmp_path)
    auto.from_pretrained(tmp_path, num_labels=5).save_pretrained(tmp_path)
    auto.from_pretrained(tmp_path)
    change_weights(tmp_path, lambda weights: weights.pop(max(weights)))
    with pytest.raises(ValueError, match="not the whole model"):
        auto.from_pretrained(tmp_path)
    tiny.csan().save_pretrained(tmp_path)
    lost = "encoder.layers.1.fc1.weight"
    change_weights(tmp_path, lambda weights: weights.pop(f"model.{lost}"))
    with pytest.raises(ValueError, match=f"lacks .*{lost}"):
        auto.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["lm_head.weight", "model.decoder.embed_tokens.weight"])
@pytest.mark.parametrize("auto", [AutoModel, *ENCODERS])
def test_a_tied_table_is_found_under_its_other_names(auto, name, tmp_path):
    tiny.csan().save_pretrained(tmp_path)
    expected = load_file(tmp_path / "model.safetensors")["model.shared.weight"]
    change_weights(
        tmp_path, lambda weights: weights.update({name: weights.pop("model.shared.weight")})
    )
    model = auto.from_pretrained(tmp_path)
    model.save_pretrained(tmp_path / "again")
    for loaded in (model, auto.from_pretrained(tmp_path / "again")):
        assert torch.equal(loaded.get_input_embeddings().weight, expected)
    saved = load_file(tmp_path / "again" / "model.safetensors")
    assert {"shared.weight", "model.shared.weight"} & saved.keys()


def test_a_table_is_looked_for_with_one_model_in_memory(tmp_path):
    alive = []

    class Counted(CsanModel):
        def __init__(self, config):
            gc.collect()
            alive.append(sum(model() is not None for model in models))
            models.append(weakref.ref(self))
            super().__init__(config)

    models = []
    tiny.csan().save_pretrained(tmp_path)
    change_weights(
        tmp_path,
        lambda weights: weights.update({"lm_head.weight": weights.pop("model.shared.weight")}),
    )
    Counted.from_pretrained(tmp_path)
    assert alive == [0, 0]


class WiderModel(CsanModel):
    """A user's class, with a layer of its own."""

    def __init__(self, config):
        super().__init__(config)
        self.adapter = torch.nn.Linear(config.d_model, config.d_model)
        self.post_init()


@pytest.mark.parametrize(
    ("load", "fields", "new"),
    [
        (AutoModelForSeq2SeqLM, {"localness_window": "query"}, ".localness."),
        (AutoModelForSeq2SeqLM, {"encoder_layers": 3}, "encoder.layers.2."),
        (AutoModelForSeq2SeqLM, {"tie_word_embeddings": False}, "lm_head."),
        (CsanForConditionalGeneration, {"localness_window": "query"}, ".localness."),
        (WiderModel, {}, "adapter."),
    ],
)
def test_what_is_new_by_intention_is_not_missing(load, fields, new, tmp_path, caplog):
    tiny.csan(**tiny.PLAIN).save_pretrained(tmp_path)
    changed = load.from_pretrained(tmp_path, **fields)
    assert any(new in name for name in changed.state_dict())
    assert "MISSING" in caplog.text
    if fields:
        changed.config.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=f"lacks .*{re.escape(new)}"):
            load.from_pretrained(tmp_path)


class WordTagger(CsanPreTrainedModel):
    """A user's class whose head, of a size given to it, has a name of the family's."""

    def __init__(self, config, labels):
        super().__init__(config)
        self.model = CsanModel(config)
        self.lm_head = torch.nn.Linear(config.d_model, labels)
        self.post_init()


class EncoderTagger(CsanPreTrainedModel):
    """A user's class of an encoder and a head."""

    def __init__(self, config):
        super().__init__(config)
        self.encoder = CsanEncoder(config)
        self.head = torch.nn.Linear(config.d_model, 5)
        self.post_init()


@pytest.mark.parametrize(("kind", "arguments"), [(WordTagger, [5]), (EncoderTagger, [])])
def test_a_users_class_adds_a_head_and_keeps_it(kind, arguments, tmp_path):
    tiny.csan(share_encoder_decoder_embeddings=False).save_pretrained(tmp_path)
    kind.from_pretrained(tmp_path, *arguments).save_pretrained(tmp_path / "tagger")
    kind.from_pretrained(tmp_path / "tagger", *arguments)
    for folder, lost in (("tagger", "head.bias"), (".", "encoder.layers.1.fc1.weight")):
        weights = load_file(tmp_path / folder / "model.safetensors")
        [name] = [name for name in weights if name.endswith(lost)]
        change_weights(tmp_path / folder, lambda weights, name=name: weights.pop(name))
        with pytest.raises(ValueError, match=f"lacks .*{lost} .in all 1"):
            kind.from_pretrained(tmp_path / folder, *arguments)


def test_a_users_encoder_alone_lacks_a_shared_table(tmp_path):
    tiny.csan().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"lacks encoder.embed_tokens.weight .in all 1"):
        EncoderTagger.from_pretrained(tmp_path)


def test_a_config_from_a_newer_version_loads_and_keeps_what_it_does_not_know(saved, tmp_path):
    family, folder = saved
    fields = {"rotary_base": 500, "new_part": {"size": 3, "names": ["a", "b"]}}
    change_config(folder, transformers_version="9.0.0", **fields)
    model = family.model_class.from_pretrained(folder)
    assert model(**training_batch()).loss.isfinite()
    model.save_pretrained(folder / "again")
    written = read_json(folder / "again" / "config.json")
    assert {name: written[name] for name in fields} == fields


# --- configurations
# --------------------------------------------------------------------------------------------------

NO_SIZES = [None, 0, 1.5, NAN, "x", [1], True]
NO_DEPTHS = [10**7, *NO_SIZES]
NO_PROBABILITIES = [None, -0.1, 1.5, NAN, "x", True]
NO_POSITIVE_NUMBERS = [None, -1, 0, NAN, INFINITY, "x", True]
NO_FLAGS = [None, 1, "true"]
NO_TOKENS = [[], -1, 10**6, 1.5, "x", True, [-1]]
NO_NAMES = [None, "x", 3]
NO_LAYERS = [[9], [-1], [0, 0], ["x"], [0.0], [True], 1, 0, True, "0", {}, NAN]
NO_LOCALITY = [
    [],
    [None] * 9,
    ["window"],
    [{"windw": 3}],
    [{"gaussian": "x"}],
    [{1: 2}],
    1,
    0,
    True,
    "x",
    {},
    NAN,
]


def each(fields: str, values: list) -> dict[str, list]:
    """The same bad values for several fields."""
    return dict.fromkeys(fields.split(), values)


COMMON = {
    "vocab_size": NO_SIZES,
    "decoder_vocab_size": NO_SIZES[1:],
    **each("share_encoder_decoder_embeddings tie_word_embeddings use_cache", NO_FLAGS),
    **each("pad_token_id decoder_start_token_id", [None, *NO_TOKENS]),
    **each("eos_token_id bos_token_id forced_eos_token_id", NO_TOKENS),
}
BAD_FIELDS: dict[type, dict[str, list]] = {
    CsanConfig: {
        **COMMON,
        **each("d_model encoder_attention_heads decoder_attention_heads", NO_SIZES),
        **each("encoder_ffn_dim decoder_ffn_dim max_position_embeddings", NO_SIZES),
        **each("encoder_layers decoder_layers", NO_DEPTHS),
        **each(
            "dropout attention_dropout activation_dropout encoder_layerdrop decoder_layerdrop",
            NO_PROBABILITIES,
        ),
        "classifier_dropout": NO_PROBABILITIES[1:],
        **each("init_gain init_std localness_window_size", NO_POSITIVE_NUMBERS),
        **each("normalize_before scale_embedding", NO_FLAGS),
        **each("activation_function initialization head_boundary", NO_NAMES),
        "position_embeddings": NO_NAMES[1:],
        "localness_window": NO_NAMES[1:],
        "local_window": [0, -3, 4, 2.0, "5", [5], True, NAN],
        "head_area": [None, 0, 2, -1, 99, 1.0, "3", True, NAN],
        **each("localness_layers decoder_localness_layers cross_localness_layers", NO_LAYERS),
        **each("encoder_locality decoder_locality cross_locality", NO_LOCALITY),
    },
    PervasiveAttentionConfig: {
        **COMMON,
        **each("source_embed_dim target_embed_dim growth_rate", NO_SIZES),
        **each("bottleneck_factor max_position_embeddings ffn_dim", NO_SIZES),
        "num_layers": NO_DEPTHS,
        "kernel_size": [2, 10, *NO_SIZES],
        **each("dropout embedding_dropout", [1.0, *NO_PROBABILITIES]),
        "batch_norm_eps": NO_POSITIVE_NUMBERS,
        "batch_norm_momentum": NO_PROBABILITIES,
        "init_std": NO_POSITIVE_NUMBERS[1:],
        **each("gated scale_embedding", NO_FLAGS),
        **each("aggregation block", NO_NAMES),
        "position_embeddings": NO_NAMES[1:],
    },
    RnnSearchConfig: {
        **COMMON,
        **each("source_embed_dim target_embed_dim", NO_SIZES),
        "hidden_size": [1, 5, *NO_SIZES],
        "dropout": [1.0, *NO_PROBABILITIES],
        "init_std": NO_POSITIVE_NUMBERS[1:],
        "input_feeding": NO_FLAGS,
        "attention": NO_NAMES,
    },
    ConvS2SConfig: {
        **COMMON,
        **each("embed_dim hidden_size max_position_embeddings", NO_SIZES),
        **each("encoder_layers decoder_layers", NO_DEPTHS),
        "kernel_size": [2, 10, *NO_SIZES],
        "dropout": [1.0, *NO_PROBABILITIES],
    },
}
GOOD = {
    CsanConfig: {
        "vocab_size": 50,
        "d_model": 32,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    },
    PervasiveAttentionConfig: tiny.SIZES,
    RnnSearchConfig: tiny.RECURRENT_SIZES,
    ConvS2SConfig: tiny.CONVOLUTIONAL_SIZES,
}
BAD_CONFIGS = [
    (config, field, value)
    for config, fields in BAD_FIELDS.items()
    for field, values in fields.items()
    for value in values
]
SEPARATE = {"share_encoder_decoder_embeddings": False}
ONE_VOCABULARY = {"share_encoder_decoder_embeddings": True}
# Fields that are fine alone and impossible together, and the one that the message names
BAD_PAIRS = [
    (CsanConfig, {"d_model": 30}, "d_model"),
    (CsanConfig, {"decoder_vocab_size": 40}, "decoder_vocab_size"),
    (CsanConfig, {"head_area": 9}, "head_area"),
    (CsanConfig, {"head_area": 5, "head_boundary": "circular"}, "head_area"),
    (CsanConfig, {"cross_localness_layers": [0]}, "cross_localness_layers"),
    (CsanConfig, {"encoder_layers": 2, "localness_layers": [2]}, "localness_layers"),
    (CsanConfig, {**SEPARATE, "decoder_vocab_size": 30, "pad_token_id": 40}, "pad_token_id"),
    (CsanConfig, {"decoder_attention_heads": 1, "decoder_localness_layers": [0]}, "head_area"),
    (PervasiveAttentionConfig, {"source_embed_dim": 5}, "source_embed_dim"),
    (PervasiveAttentionConfig, {"share_encoder_decoder_embeddings": True}, "decoder_vocab_size"),
    (PervasiveAttentionConfig, {**tiny.SHARED, "target_embed_dim": 6}, "target_embed_dim"),
    (PervasiveAttentionConfig, {"pad_token_id": 12}, "pad_token_id"),
    (PervasiveAttentionConfig, {"decoder_vocab_size": 20, "pad_token_id": 15}, "pad_token_id"),
    (RnnSearchConfig, {**ONE_VOCABULARY, "target_embed_dim": 8}, "target_embed_dim"),
    (RnnSearchConfig, {**ONE_VOCABULARY, "decoder_vocab_size": 40}, "decoder_vocab_size"),
    (RnnSearchConfig, {"decoder_vocab_size": 30, "eos_token_id": 40}, "eos_token_id"),
    (ConvS2SConfig, {**ONE_VOCABULARY, "decoder_vocab_size": 40}, "decoder_vocab_size"),
    (
        ConvS2SConfig,
        {"decoder_vocab_size": 30, "decoder_start_token_id": 40},
        "decoder_start_token_id",
    ),
]


def name_of(case: tuple) -> str:
    return "-".join([case[0].__name__, *map(str, case[1:])])


@pytest.mark.parametrize(("config", "field", "value"), BAD_CONFIGS, ids=map(name_of, BAD_CONFIGS))
def test_bad_fields_are_refused_by_name(config, field, value):
    with pytest.raises(ValueError, match=f"{field}`"):
        config(**{**GOOD[config], field: value})


@pytest.mark.parametrize(("config", "fields", "named"), BAD_PAIRS, ids=map(name_of, BAD_PAIRS))
def test_fields_that_do_not_go_together_are_refused_by_name(config, fields, named):
    with pytest.raises(ValueError, match=f"{named}`"):
        config(**{**GOOD[config], **fields})


@pytest.mark.parametrize("config", GOOD, ids=lambda config: config.__name__)
def test_every_field_was_tried(config):
    own = config.__annotations__.keys() & {field.name for field in dataclasses.fields(config)}
    own -= {"is_encoder_decoder", "is_decoder"}
    assert own <= set(BAD_FIELDS[config]), own - set(BAD_FIELDS[config])
