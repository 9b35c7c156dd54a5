# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What `generate` offers: each option does what it says, for every family. That a cache changes
nothing is held in contract/.
"""

import pytest
import tiny
import torch
from families import every_family, sources

LENGTHS = (7, 4, 6)
STEPS = 10
VARIED = {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "no_repeat_ngram_size": 2}


@every_family
def test_returned_sequences_differ_and_are_sorted(family):
    """By scores that are those of the target's vocabulary, of another size than the source's."""
    model = family.tiny_model(seed=1, **family.separate)
    outputs = model.generate(
        **sources(LENGTHS),
        **VARIED,
        num_beams=4,
        num_return_sequences=4,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for row in range(len(LENGTHS)):
        part = slice(4 * row, 4 * row + 4)
        assert len({tuple(sequence) for sequence in outputs.sequences[part].tolist()}) == 4
        scores = outputs.sequences_scores[part]
        assert torch.equal(scores, scores.sort(descending=True).values)
    transitions = model.compute_transition_scores(
        outputs.sequences, outputs.scores, outputs.beam_indices
    )
    torch.testing.assert_close(
        transitions.sum(1) / STEPS, outputs.sequences_scores, rtol=1e-4, atol=1e-4
    )


# min_new_tokens, not n-grams: an assistant's own candidates must obey the same rules
ASSISTED = {"max_new_tokens": STEPS, "min_new_tokens": STEPS}


@every_family
@pytest.mark.parametrize("helper", ["itself", "a stranger", "prompt lookup"])
def test_assisted_generation_equals_greedy(family, helper):
    model = family.tiny_model(seed=1)
    batch = sources((5,))
    helps = {"prompt_lookup_num_tokens": 3}
    if helper != "prompt lookup":
        helps = {"assistant_model": family.tiny_model(seed=1 if helper == "itself" else 3)}
    expected = model.generate(**batch, **ASSISTED)
    assert model.generate(**batch, **ASSISTED, **helps).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", [3, 4])
def test_drafts_of_which_none_is_right_leave_the_centre_where_it_was(seed):
    moving = {**tiny.PLAIN, "cross_locality": [{"moving_gaussian": {"gain": 0.1}}] * 2}
    model, stranger = (tiny.csan(number, **moving) for number in (1, seed))
    batch = sources((5,))
    expected = model.generate(**batch, **ASSISTED)
    assisted = model.generate(**batch, **ASSISTED, assistant_model=stranger)
    assert assisted.tolist() == expected.tolist()


@every_family
@pytest.mark.parametrize("num_beams", [1, 3])
def test_other_ways_to_give_the_source(family, num_beams):
    model = family.tiny_model(seed=1)
    batch = sources(LENGTHS)
    search = {**VARIED, "num_beams": num_beams}
    expected = model.generate(**batch, **search).tolist()
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    mask = batch["attention_mask"]
    encoded = model.get_encoder()(**batch)
    for source in ({"inputs_embeds": embeddings}, {"encoder_outputs": encoded}):
        translations = model.generate(**source, attention_mask=mask, **search)
        assert translations.tolist() == expected


@every_family
@pytest.mark.parametrize("num_beams", [1, 3])
def test_outputs_of_every_step(family, num_beams):
    model = family.tiny_model(seed=1)
    model.set_attn_implementation("eager")
    outputs = model.generate(
        **sources(LENGTHS),
        **VARIED,
        num_beams=num_beams,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_attentions=True,
        output_hidden_states=True,
    )
    for name in ("scores", "logits", "cross_attentions", "decoder_hidden_states"):
        assert len(outputs[name]) == STEPS, name
    for *_, weights in outputs.cross_attentions:
        assert weights.shape[0] == len(LENGTHS) * num_beams
        assert weights.shape[-1] == max(LENGTHS)
        assert weights.isfinite().all()
