# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""LoRA (Hu et al., 2021) through the peft library: trains, saves, loads and merges; impossible
targets are refused.
"""

import copy

import pytest
import torch
from families import FAMILIES, assert_same, every_family, logits_of, sources, training_batch
from peft import LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import AutoModelForSeq2SeqLM

CSAN, PERVASIVE, RECURRENT, CONVOLUTIONAL = (
    FAMILIES[name] for name in ("csan", "pervasive attention", "rnnsearch", "conv_s2s")
)
# Separate, untied embeddings: merged into a tied table, an adapter of one use would change the
# other
UNTIED = {"tie_word_embeddings": False}
CASES = {
    "csan, all linear layers": (CSAN, "all-linear", {}),
    "csan, separate vocabularies": (CSAN, ["q_proj", "v_proj"], CSAN.separate),
    "csan, steps of moving Gaussians": (
        CSAN,
        ["step_proj"],
        {
            "cross_localness_layers": None,
            "cross_locality": [{"moving_gaussian": {"gain": 0.1}}] * 2,
        },
    ),
    "pervasive attention, one vocabulary": (PERVASIVE, ["output_projection"], PERVASIVE.shared),
    "pervasive attention, 1×1 convolutions": (PERVASIVE, ["conv1"], {}),
    "pervasive attention, the aggregation's attention": (
        PERVASIVE,
        ["attention"],
        {"aggregation": "attention"},
    ),
    "rnnsearch, the attentional state": (RECURRENT, ["output_projection"], RECURRENT.shared),
    "rnnsearch, all linear layers": (RECURRENT, "all-linear", {"hidden_size": 20}),
    "rnnsearch, additive attention": (
        RECURRENT,
        ["key_projection", "query_projection"],
        {"attention": "additive"},
    ),
}
for name, family in FAMILIES.items():
    CASES[f"{name}, output"] = (family, ["lm_head"], UNTIED)
    CASES[f"{name}, embeddings"] = (family, ["embed_tokens"], {**UNTIED, **family.separate})
every_case = pytest.mark.parametrize(("family", "modules", "options"), CASES.values(), ids=CASES)


def adapted(model, modules, **options) -> PeftModel:
    config = LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, target_modules=modules, **options)
    return get_peft_model(model, config)


def train(model, steps: int = 8) -> list[float]:
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.02)
    losses = []
    for _ in range(steps):
        loss = model(**training_batch()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    return losses


@every_case
def test_trains_saves_loads_and_merges(family, modules, options, tmp_path):
    base = family.tiny_model(seed=1, **options)
    before = logits_of(base)
    frozen = copy.deepcopy(base.state_dict())
    model = adapted(base, modules)
    assert_close(logits_of(model), before, rtol=0, atol=1e-5)  # adapters start as the identity
    losses = train(model)
    assert losses[-1] < losses[0]
    assert (logits_of(model) - before).abs().max() > 1e-2
    for name, tensor in model.get_base_model().state_dict().items():
        if "lora_" not in name:
            assert torch.equal(tensor, frozen[name.replace(".base_layer", "")]), name
    model.save_pretrained(tmp_path)
    assert_same(
        PeftModel.from_pretrained(family.tiny_model(seed=1, **options), tmp_path).eval(), model
    )
    after = logits_of(model)
    search = {"num_beams": 3, "max_new_tokens": 6}
    expected = model.generate(**sources(), **search)
    merged = model.merge_and_unload()
    assert type(merged) is family.model_class
    assert_close(logits_of(merged), after, rtol=1e-4, atol=1e-4)
    assert torch.equal(merged.generate(**sources(), **search), expected)
    merged.save_pretrained(tmp_path / "merged")
    assert_same(family.model_class.from_pretrained(tmp_path / "merged"), merged)


@pytest.mark.parametrize("load", [CSAN.model_class, AutoModelForSeq2SeqLM])
def test_a_missing_weight_of_adapter_or_model_is_an_error(load, tmp_path):
    CSAN.tiny_model(seed=1).save_pretrained(tmp_path)
    model = adapted(CSAN.model_class.from_pretrained(tmp_path), ["q_proj", "v_proj"])
    model.save_pretrained(tmp_path / "adapter")
    assert_same(load.from_pretrained(tmp_path / "adapter"), model.get_base_model().eval())
    for file, lost in (
        ("model", "encoder.layers.0.fc1.weight"),
        ("adapter/adapter_model", "lora_A"),
    ):
        path = tmp_path / f"{file}.safetensors"
        weights = load_file(path)
        kept = {name: tensor for name, tensor in weights.items() if lost not in name}
        save_file(kept, path, metadata={"format": "pt"})
        with pytest.raises(ValueError, match=f"lacks .*{lost}"):
            # Whose report is of the adapter alone
            load.from_pretrained(tmp_path / "adapter", output_loading_info=file == "model")
        save_file(weights, path, metadata={"format": "pt"})


@every_family
@pytest.mark.parametrize("vocabularies", ["shared", "separate"])
def test_embeddings_trained_whole_are_merged_and_saved(family, vocabularies, tmp_path):
    """Copies of each use of a tied table, which differ after training."""
    model = adapted(
        family.tiny_model(seed=1, **getattr(family, vocabularies)),
        ["lm_head"],
        modules_to_save=["embed_tokens"],
    )
    train(model, steps=3)
    after = logits_of(model)
    merged = model.merge_and_unload()
    assert_close(logits_of(merged), after, rtol=1e-4, atol=1e-4)
    for name in ("merged", "again"):
        merged.save_pretrained(tmp_path / name)
        loaded = family.model_class.from_pretrained(tmp_path / name)
        assert_same(loaded, merged)
        merged = loaded


@pytest.mark.parametrize("modules", ["query_projection", "convolution.convolution"])
def test_weight_normalised_layers_take_no_adapter(modules):
    """Their weights are computed, of magnitudes and directions: what peft merged into them would be
    lost.
    """
    with pytest.raises(ValueError, match="is not supported"):
        adapted(CONVOLUTIONAL.tiny_model(), [modules])


@pytest.mark.parametrize("family", [PERVASIVE, RECURRENT, CONVOLUTIONAL])
def test_prefix_tuning_is_for_models_with_keys_and_values(family):
    prefix = PrefixTuningConfig(
        task_type="SEQ_2_SEQ_LM",
        num_virtual_tokens=3,
        num_attention_heads=2,
        token_dim=16,
        num_layers=2,
    )
    model = get_peft_model(family.tiny_model(), prefix)
    with pytest.raises(ValueError, match="Prefix tuning, whose prefix is keys and values, is for"):
        model(**training_batch())


@pytest.mark.parametrize(
    ("modules", "options"),
    [
        ("conv1", {"bias": "all"}),
        ("output_projection", {"modules_to_save": ["final_norm", "dense_block"]}),
    ],
    ids=["biases of norms without their statistics", "norms saved whole, with their statistics"],
)
def test_what_of_the_grids_norms_is_saved(modules, options, tmp_path):
    model = adapted(PERVASIVE.tiny_model(seed=1), [modules], **options)
    before = logits_of(model)
    train(model, steps=3)
    assert (logits_of(model) - before).abs().max() > 1e-3
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(PERVASIVE.tiny_model(seed=1), tmp_path).eval()
    assert torch.equal(logits_of(loaded), logits_of(model))
