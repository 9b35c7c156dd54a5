# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""No call changes what other threads see of a model: neither a configuration nor an attribute of
any module.
"""

import pytest
from families import every_family, sources, targets

from csan_hf.evaluation import align, translate

CALLS = {
    "forward": {},
    "greedy": {"num_beams": 1},
    "beam search": {"num_beams": 3},
    "sampling": {"do_sample": True},
}


@pytest.fixture
def attribute_writes(monkeypatch):
    """A function that makes a model's modules and configurations list all that is written to them
    from then on.
    """

    def watch(model):
        watched = {
            id(part): part for part in (model.config, model.generation_config, *model.modules())
        }
        written = []
        for kind in {type(part) for part in watched.values()}:

            def set_attribute(self, name, value, original=kind.__setattr__):
                if id(self) in watched:
                    written.append(f"{type(self).__name__}.{name}")
                original(self, name, value)

            monkeypatch.setattr(kind, "__setattr__", set_attribute)
        return written

    return watch


@every_family
@pytest.mark.parametrize("call", CALLS)
def test_inference_writes_nothing(family, call, attribute_writes):
    model = family.tiny_model(**family.separate)
    batch = {**sources(), "decoder_input_ids": targets(3, 5)}
    model(**batch)  # transformers notes at a first call what a model can give out
    written = attribute_writes(model)
    if call == "forward":
        model(**batch)
    else:
        model.generate(**sources(), max_new_tokens=4, **CALLS[call])
    assert written == []


@every_family
@pytest.mark.parametrize("function", ["align", "translate"])
def test_helpers_leave_a_model_in_training_as_it_is(family, function, attribute_writes, tokenizers):
    model = family.tiny_model(**family.shared)
    model.resize_token_embeddings(len(tokenizers.source))
    arguments = (tokenizers, ["one two three", "two"])
    expected = translate(model, *arguments, max_new_tokens=4)
    model.train()
    written = attribute_writes(model)
    if function == "align":
        translations = [pair.target.text for pair in align(model, *arguments, max_new_tokens=4)]
    else:
        translations = translate(model, *arguments, max_new_tokens=4)
    assert translations == expected
    assert written == []
    assert all(module.training for module in model.modules())
