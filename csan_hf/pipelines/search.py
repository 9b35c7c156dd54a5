# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Greedy and beam search that computes nothing for sentences that are done:
`generate(custom_generate=search)`.

Tokens are those of transformers' own loops, whose rules these follow (`GenerationMixin._sample` and
`_beam_search`). Shapes: S sentences that are not done, of B; K beams; R = S · K rows; C candidates
of a sentence; V vocabulary; T tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.generation import logits_process as rules
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import BaseModelOutput

from .constraints import LOW, Constraints, Endings, Phrases

# Processors that treat each row alike; those that may count rows are left to the library's loops
_ROW_BY_ROW = (
    rules.ForcedBOSTokenLogitsProcessor,
    rules.ForcedEOSTokenLogitsProcessor,
    rules.InfNanRemoveLogitsProcessor,
    rules.MinLengthLogitsProcessor,
    rules.MinNewTokensLengthLogitsProcessor,
    rules.NoRepeatNGramLogitsProcessor,
    rules.RepetitionPenaltyLogitsProcessor,
    rules.SequenceBiasLogitsProcessor,  # and bad words
    rules.SuppressTokensAtBeginLogitsProcessor,
    rules.SuppressTokensLogitsProcessor,
)
_NEEDED_INPUTS = {"encoder_outputs", "cache", "use_cache"}
_NEEDS_THE_LIBRARY = {"streamer", "tokenizer", "assistant_model", "prompt_lookup_num_tokens"}
_LOOPS = {  # of the library, for what is not covered
    GenerationMode.GREEDY_SEARCH: "_sample",
    GenerationMode.SAMPLE: "_sample",
    GenerationMode.BEAM_SEARCH: "_beam_search",
    GenerationMode.BEAM_SAMPLE: "_beam_search",
}
CHECK_EVERY = {"cpu": 1, "cuda": 8}
"""Steps from one look at what has ended to the next, by device type: to look, the program waits
until a GPU has computed all that it was given.
"""
_MISSING = 1.0e4  # taken off the score of a hypothesis that had to end, for each token it lacks


def search(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    phrases: Sequence[Phrases] | None = None,
    endings: Endings | None = None,
    **inputs: Any,
) -> Any:
    """Decodes for `generate`, which calls this with its prepared inputs; leaves to the library's
    loops what is not covered.

    Covered are greedy and beam search with a cache that can drop rows, that return tokens alone.
    Sampling, scores, attentions, and processors of logits that may count rows are not. On a GPU
    sentences that are done are dropped at every eighth step: until then stopping criteria see them
    go on, which changes no tokens.

    A loop that `generate` is given gets no `streamer`, no `tokenizer` for `stop_strings` and no
    `synced_gpus` (FSDP, ZeRO-3): leave this one out where they are needed.

    Under stopping criteria by row two things differ from the library. In beam search the criteria
    see padding where a sentence is done, and not its beams, which the library still extends. Greedy
    search of a model without an end of sentence gives token 0 there, and not further tokens.

    `phrases` are the tokens of what the hypotheses of each sentence must hold, anywhere and in any
    order, `endings` what may follow these in a word; see `constraints`. A hypothesis that lacks
    some of them, or its end, at its greatest length is returned only where none has all.

    Returns:
        Tokens [B · returned sequences, T], or what the library's loop returns.

    Raises:
        ValueError: The generation config asks for another strategy, such as contrastive or assisted
            search; or phrases are asked for with what is not covered.
    """
    mode = generation_config.get_generation_mode()
    if mode not in _LOOPS:
        raise ValueError(
            f"The loop of csan_hf has no {mode.value}: pass custom_generate=None for the library's."
        )
    if not _is_covered(generation_config, logits_processor, inputs):
        if phrases is not None:
            raise ValueError(
                f"{type(model).__name__} cannot be searched for translations that hold terms: that "
                "takes a single model with a dynamic cache, no samples and no forced prefixes."
            )
        loop = getattr(model, _LOOPS[mode])
        return loop(
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config=generation_config,
            **inputs,
        )
    if phrases is None and hasattr(model, "search"):  # without torch
        return model.search(
            input_ids, logits_processor, stopping_criteria, generation_config, **inputs
        )
    # Beyond its positions a model may fail
    positions = getattr(model.config, "max_position_embeddings", None)
    max_length = generation_config.max_length
    decoder = _Decoder(
        model=model,
        inputs=inputs,
        rules=logits_processor,
        beams=generation_config.num_beams,
        last_length=min(max_length, positions or max_length),
        check_every=1 if phrases is not None else CHECK_EVERY.get(input_ids.device.type, 1),
    )
    if mode == GenerationMode.GREEDY_SEARCH and phrases is None:
        return _greedy(decoder, input_ids, stopping_criteria, generation_config)
    return _beams(decoder, input_ids, stopping_criteria, generation_config, phrases, endings)


def _is_covered(
    config: GenerationConfig, rules: LogitsProcessorList, inputs: dict[str, Any]
) -> bool:
    """Whether this search gives what is asked for."""
    if config.do_sample or config.return_dict_in_generate:
        return False
    set_inputs = {name for name, value in inputs.items() if value is not None}
    return (
        set_inputs - {"attention_mask"} == _NEEDED_INPUTS
        and inputs["use_cache"]
        and _can_drop_rows(inputs["cache"])
        and all(isinstance(rule, _ROW_BY_ROW) for rule in rules)
    )


def search_by_default(options: dict[str, Any]) -> dict[str, Any]:
    """Options of `generate` with `search`, unless they name another loop or need the library's."""
    if options.keys() & _NEEDS_THE_LIBRARY:
        return options
    return {"custom_generate": search, **options}


def _can_drop_rows(cache: Any) -> bool:
    return hasattr(cache, "keep_rows") or (
        isinstance(cache, EncoderDecoderCache) and not cache.is_compileable
    )


@dataclass
class _Decoder:
    """The model with its inputs for the rows that are left.

    Attributes:
        model: The model.
        inputs: `encoder_outputs`, `cache` and perhaps `attention_mask`.
        rules: Processors of logits.
        beams: K.
        last_length: Tokens of a hypothesis, with its prompt, from which on every step is looked at.
        check_every: Steps from one look at what has ended to the next.
        steps: Steps that were computed.
    """

    model: Any
    inputs: dict[str, Any]
    rules: Any
    beams: int
    last_length: int
    check_every: int

    steps: int = 0

    def __post_init__(self) -> None:
        if self._shares_source:
            self._select_source(slice(None, None, self.beams))

    @property
    def _shares_source(self) -> bool:
        """Whether the beams of a sentence have its source in common."""
        return hasattr(self.inputs["cache"], "keep_rows")

    def step(self, tokens: Tensor, *, normalised: bool) -> Tensor:
        """Scores [R, V] of the tokens that may follow [R, T], logits or log-probabilities."""
        step_inputs = self.model.prepare_inputs_for_generation(
            tokens, next_sequence_length=1 if self.steps else None, **self.inputs
        )
        outputs = self.model(**step_inputs, return_dict=True)
        self.steps += 1
        self.inputs["cache"] = outputs.cache
        scores = outputs.logits[:, -1].float()
        if normalised:
            scores = scores.log_softmax(dim=-1)
        return self.rules(tokens, scores)

    def check_ends(self, length: int) -> bool:
        """Whether to look, after this step, at which hypotheses of `length` tokens have ended."""
        return self.steps % self.check_every == 0 or length >= self.last_length

    def keep(self, rows: Tensor, sentences: Tensor | None) -> None:
        """Goes on with some `rows`, in this order, of these `sentences`; None = of all."""
        cache: Any = self.inputs["cache"]
        if self._shares_source:
            cache.keep_rows(rows.numpy(), None if sentences is None else sentences.numpy())
        elif sentences is None:
            cache.reorder_cache(rows)
        else:
            cache.batch_select_indices(rows)
        if sentences is not None:
            self._select_source(sentences if self._shares_source else rows)

    def _select_source(self, rows: Tensor | slice) -> None:
        states = self.inputs["encoder_outputs"][0][rows]
        self.inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)
        if self.inputs.get("attention_mask") is not None:
            self.inputs["attention_mask"] = self.inputs["attention_mask"][rows]


def _greedy(decoder: _Decoder, tokens: Tensor, stop: StoppingCriteriaList, config: Any) -> Tensor:
    """See `search`; a sentence's tokens after its end are padding."""
    padding = tokens.new_zeros(())
    if any(hasattr(criterion, "eos_token_id") for criterion in stop):
        padding = config._pad_token_tensor.to(tokens.device)
    left = torch.arange(len(tokens), device=tokens.device)
    goes_on = torch.ones_like(left, dtype=torch.bool)
    length = torch.full_like(padding, tokens.shape[1])  # with the last token that is not padding
    while True:
        chosen = decoder.step(tokens[left], normalised=False).argmax(dim=-1)
        length = length + goes_on.any()
        following = padding.repeat(len(tokens))
        following[left] = torch.where(goes_on, chosen, padding)
        tokens = torch.cat([tokens, following[:, None]], dim=-1)
        goes_on = goes_on & ~stop(tokens, None)[left]
        if not decoder.check_ends(tokens.shape[1]):
            continue
        if not goes_on.any():
            return tokens[:, : int(length)]
        if not goes_on.all():
            rows = goes_on.nonzero()[:, 0]
            left = left[rows]
            goes_on = goes_on[rows]
            decoder.keep(rows, rows)


@dataclass
class _Hypotheses:
    """The best K hypotheses of every sentence that have ended.

    Attributes:
        tokens: [S, K, T].
        scores: [S, K], divided by the length penalty; `LOW` where there is none.
        lengths: [S, K], tokens after the prompt.
    """

    tokens: Tensor
    scores: Tensor
    lengths: Tensor

    def add(self, tokens: Tensor, scores: Tensor, length: int, fill: int) -> None:
        """Takes in candidates [S, C, T + 1] and their scores."""
        kept = F.pad(self.tokens, (0, 1), value=fill)
        candidate_lengths = torch.full_like(scores, length, dtype=torch.long)
        lengths = torch.cat([self.lengths, candidate_lengths], dim=1)
        beams = self.scores.shape[1]
        self.scores, best = torch.cat([self.scores, scores], dim=1).topk(beams)
        self.tokens = _take(torch.cat([kept, tokens], dim=1), best)
        self.lengths = lengths.gather(1, best)

    def select(self, rows: Tensor) -> _Hypotheses:
        """Those of some sentences."""
        return _Hypotheses(self.tokens[rows], self.scores[rows], self.lengths[rows])


def _take(rows: Tensor, places: Tensor) -> Tensor:
    """Rows [S, N, T] at `places` [S, M] -> [S, M, T]."""
    return rows.gather(1, places[..., None].expand(-1, -1, rows.shape[-1]))


def _beams(
    decoder: _Decoder,
    flat: Tensor,
    stop: StoppingCriteriaList,
    config: GenerationConfig,
    phrases: Sequence[Phrases] | None,
    endings: Endings | None,
) -> Tensor:
    """See `search`: the best hypotheses of all sentences, padded."""
    beams = config.num_beams
    prompt = flat.shape[1]
    end = config._eos_token_tensor
    ends = 0 if end is None else len(end)
    fill = -1 if end is None else int(config._pad_token_tensor or end[0])
    tokens = flat.view(-1, beams, prompt)
    batch = len(tokens)
    kept = beams * max(2, 1 + ends)
    # At first all beams of a sentence are alike: only one may go on
    scores = torch.full((batch, beams), LOW, device=flat.device)
    scores[:, 0] = 0.0
    ended = _Hypotheses(
        tokens=tokens,
        scores=torch.full_like(scores, LOW),
        lengths=torch.zeros_like(scores, dtype=torch.long),
    )
    left = torch.arange(batch, device=flat.device)
    is_done = torch.zeros_like(left, dtype=torch.bool)
    is_best = torch.arange(kept, device=flat.device) < beams
    constraints = None
    if phrases is not None:
        ends = [] if end is None else end.tolist()
        constraints = Constraints(phrases, beams, ends, endings)
    done: list[tuple[Tensor, _Hypotheses]] = []
    while len(left):
        # The best continuations of all beams
        steps = decoder.step(tokens.flatten(0, 1), normalised=True)
        total = steps.view(len(left), beams, -1) + scores[..., None]
        vocabulary = total.shape[-1]
        penalty: Tensor | float = 0.0
        if constraints is None:
            best, places = total.flatten(1).topk(kept)
        else:
            best, places, missing = constraints.candidates(total, kept)
            # Among those that lack at most the end
            is_best = (missing <= 1).cumsum(dim=1) <= beams
            penalty = missing * _MISSING
        origins = places // vocabulary
        chosen = places % vocabulary
        candidates = torch.cat([_take(tokens, origins), chosen[..., None]], dim=-1)
        length = candidates.shape[-1]
        # Criteria may know sentences by their place
        whole = candidates.new_full((batch, *candidates.shape[1:]), fill)
        whole[left] = candidates
        stops = stop(whole.flatten(0, 1), None).view(batch, -1)[left]
        # Those that go on, and those that have ended
        continued = best + stops.float() * LOW
        if constraints is None:
            scores, onward = continued.topk(beams)
        else:
            scores, onward = constraints.choose(continued)
        tokens = _take(candidates, onward)
        normalised = best / (length - prompt) ** config.length_penalty - penalty
        final = normalised + (~(stops & is_best)).float() * LOW
        final = final.masked_fill(is_done[:, None], -math.inf)
        ended.add(candidates, final, length - prompt, fill)
        is_done |= stops.all(1)
        is_done |= _is_done(
            scores,
            ended.scores,
            config,
            length=length - prompt,
            limit=config.max_length - prompt,
        )
        first_rows = torch.arange(len(left), device=flat.device)[:, None] * beams
        rows = origins.gather(1, onward) + first_rows
        if not decoder.check_ends(length) or not is_done.any():
            decoder.keep(rows.flatten(), None)
            continue
        done.append((left[is_done], ended.select(is_done)))
        goes_on = (~is_done).nonzero()[:, 0]
        left = left[goes_on]
        is_done = is_done[goes_on]
        tokens = tokens[goes_on]
        scores = scores[goes_on]
        ended = ended.select(goes_on)
        if constraints is not None:
            constraints.select(goes_on)
        if len(left):
            decoder.keep(rows[goes_on].flatten(), goes_on)
    return _joined(done, config.num_return_sequences, prompt, fill)


def _is_done(
    scores: Tensor, ended: Tensor, config: GenerationConfig, length: int, limit: int
) -> Tensor:
    """Of which sentences [S] no open beam can still be among the best; see the library's
    `early_stopping`.
    """
    if config.early_stopping is True:
        return (ended > LOW / 2).all(dim=1)
    reached = limit if config.early_stopping == "never" and config.length_penalty > 0 else length
    return scores[:, 0] / reached**config.length_penalty <= ended.min(dim=1).values


def _joined(
    done: list[tuple[Tensor, _Hypotheses]], returned: int, prompt: int, fill: int
) -> Tensor:
    """The best hypotheses [B · returned, T] in the order of their sentences."""
    lengths = [int(hypotheses.lengths[:, :returned].max()) for _, hypotheses in done]
    longest = prompt + max(lengths)
    best = []
    for _, hypotheses in done:
        missing = max(longest - hypotheses.tokens.shape[-1], 0)
        padded = F.pad(hypotheses.tokens, (0, missing), value=fill)
        best.append(padded[:, :returned, :longest])
    order = torch.cat([places for places, _ in done]).argsort()
    return torch.cat(best)[order].flatten(0, 1)
