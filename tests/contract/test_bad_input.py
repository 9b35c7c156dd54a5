# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Bad input to models and configurations: a clear error, or the right answer."""

import dataclasses
import gc
import itertools
import json
import re
import weakref
from functools import partial
from pathlib import Path

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

from csan_hf import CsanForConditionalGeneration, CsanModel
from csan_hf.hub.public_files import read_json
from csan_hf.models.modeling_csan import CsanEncoder, CsanPreTrainedModel
from csan_hf_runtime.yaml_text import load_yaml

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
    "smoothed labels alone": (
        {"labels": None, "num_items_in_batch": 9},
        r"need `decoder_input_ids`: DataCollatorForSeq2Seq\(model=model\)",
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
        {"attention_mask": masked(-torch.inf)},
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
    loss = model.double()(input_ids=IDS, attention_mask=MASK, labels=slices).loss
    assert loss.dtype == torch.float64
    assert torch.equal(loss, model(input_ids=IDS, attention_mask=MASK, labels=LABELS).loss)


LONG = {"input_ids": torch.full((1, 40), 3), "labels": torch.full((1, 30), 4)}


@pytest.mark.parametrize(
    ("family", "positions"), [("csan", "sinusoidal"), ("pervasive attention", "sinusoidal")]
)
def test_sinusoids_extend_past_max_position_embeddings(family, positions):
    make = partial(FAMILIES[family].tiny_model, position_embeddings=positions)
    short, long = make(max_position_embeddings=8), make(max_position_embeddings=64)
    assert torch.equal(short(**LONG).logits, long(**LONG).logits)
    search = {"max_new_tokens": 20, "min_new_tokens": 20}
    ids = LONG["input_ids"][:, :5]
    assert torch.equal(short.generate(ids, **search), long.generate(ids, **search))


@pytest.mark.parametrize(
    ("make", "options"), [(tiny.grid, {"position_embeddings": "learned"}), (tiny.convolutional, {})]
)
def test_learned_positions_refuse_what_they_do_not_have(make, options):
    model = make(max_position_embeddings=8, **options)
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


def test_learned_positions_are_as_many_as_the_config_says():
    model = tiny.csan(position_embeddings="learned", max_position_embeddings=16_500)
    assert model.get_encoder().embed_positions.weight.shape[0] == 16_500


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

CONFIGS = load_yaml(Path(__file__).with_name("bad_configs.yaml").read_text())
GOOD = {
    "csan": {
        "vocab_size": 50,
        "d_model": 32,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
    },
    "pervasive attention": tiny.SIZES,
    "rnnsearch": tiny.RECURRENT_SIZES,
    "conv_s2s": tiny.CONVOLUTIONAL_SIZES,
}


def bad_configs():
    """Yields a family, the field that an error names, and the fields that are bad."""
    for family, values_by_names in CONFIGS["fields"].items():
        for names, values in values_by_names.items():
            for name, value in itertools.product(names.split(), values):
                yield family, name, {name: value}
    for family, cases in CONFIGS["together"].items():
        for name, fields in cases:
            yield family, name, fields


@pytest.mark.parametrize(("family", "name", "fields"), [*bad_configs()], ids=str)
def test_bad_fields_are_refused_by_name(family, name, fields):
    with pytest.raises(ValueError, match=f"{name}`"):
        FAMILIES[family].config_class(**{**GOOD[family], **fields})


@pytest.mark.parametrize("family", GOOD)
def test_every_field_was_tried(family):
    config = FAMILIES[family].config_class
    fields = {field.name for field in dataclasses.fields(config)}
    declared = config.__annotations__.keys() & fields
    tried = " ".join(CONFIGS["fields"][family]).split()
    assert declared - {"is_encoder_decoder", "is_decoder"} <= {*tried}
