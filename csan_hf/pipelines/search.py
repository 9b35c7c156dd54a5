# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The search of `csan_hf_runtime` for `generate(custom_generate=search)`.

Tokens are those of transformers' own loops (`GenerationMixin._sample` and `_beam_search`), and
nothing is computed for sentences that are done. Shapes: B sentences, S of them not done; K beams of
each; R = S · K rows; V vocabulary; T tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    EncoderDecoderCache,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.generation import logits_process as rules
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import BaseModelOutput

from csan_hf_runtime.constraints import Constraints, Endings, Phrases
from csan_hf_runtime.search import (
    Beams,
    Hypothesis,
    Rule,
    Stop,
    beam_search,
    greedy,
    token_by_token,
)

from ..models.seq2seq_model import CACHE

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
_NEEDED_INPUTS = {"encoder_outputs", CACHE, "use_cache"}
_NEEDS_THE_LIBRARY = {"streamer", "tokenizer", "assistant_model", "prompt_lookup_num_tokens"}
_LOOPS = {  # of the library, for what is not covered
    GenerationMode.GREEDY_SEARCH: "_sample",
    GenerationMode.SAMPLE: "_sample",
    GenerationMode.BEAM_SEARCH: "_beam_search",
    GenerationMode.BEAM_SAMPLE: "_beam_search",
}


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
    loops what is not covered. It is for models on a CPU: of those on another device it copies the
    logits of each step to the CPU.

    Covered are greedy and beam search with a cache that can drop rows, that return tokens alone.
    Sampling, scores, attentions, and processors of logits that may count rows are not.

    A loop that `generate` is given gets no `streamer`, no `tokenizer` for `stop_strings` and no
    `synced_gpus` (FSDP, ZeRO-3): leave this one out where they are needed.

    Under stopping criteria by row two things differ from the library. In beam search the criteria
    see padding where a sentence is done, and not its beams, which the library still extends. Greedy
    search of a model without an end of sentence gives token 0 there, and not further tokens.

    `phrases` are the tokens of what the hypotheses of each sentence must hold, anywhere and in any
    order, `endings` what may follow these in a word; see `csan_hf_runtime.search.beam_search`.

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
    beams = generation_config.num_beams
    prompts = input_ids[::beams].cpu()
    decoder = TorchDecoder(model, inputs, beams)
    device = input_ids.device
    changes = [_rule(logits_processor, device)] if logits_processor else []
    fill = _fill(generation_config, stopping_criteria)
    stop = _stop(stopping_criteria, device, batch=len(prompts), fill=fill)
    if mode == GenerationMode.GREEDY_SEARCH and phrases is None:
        hypotheses = token_by_token(
            decoder, prompts.numpy(), choose=greedy, stop=stop, rules=changes, with_scores=False
        )
        best = [[hypothesis] for hypothesis in hypotheses]
    else:
        constraints = None
        if phrases is not None:
            ends = _ends(generation_config)
            constraints = Constraints(phrases, beams, ends, endings)
        best = _beams(decoder, prompts.numpy(), generation_config, stop, changes, constraints)
    rows = [torch.from_numpy(hypothesis.tokens) for several in best for hypothesis in several]
    tokens = pad_sequence(rows, batch_first=True, padding_value=fill)
    prompts = prompts.repeat_interleave(len(best[0]), dim=0)
    return torch.cat([prompts, tokens], dim=1).to(device)


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
        and _can_drop_rows(inputs[CACHE])
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


class TorchDecoder:
    """The decoder of a model of transformers, for the search of `csan_hf_runtime`.

    Args:
        model: The model.
        inputs: `encoder_outputs`, the cache and perhaps `attention_mask`, for R rows.
        beams: K.
    """

    def __init__(self, model: Any, inputs: dict[str, Any], beams: int) -> None:
        self._model = model
        self._inputs = dict(inputs)
        self._steps = 0
        # Whether the beams of a sentence have its source in common
        self._shares_source = hasattr(inputs[CACHE], "keep_rows")
        if self._shares_source:
            self._select_source(slice(None, None, beams))

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [R, V] of what follows [R, T]."""
        step_inputs = self._model.prepare_inputs_for_generation(
            torch.from_numpy(tokens).to(self._model.device),
            next_sequence_length=1 if self._steps else None,
            **self._inputs,
        )
        outputs = self._model(**step_inputs, return_dict=True)
        self._steps += 1
        self._inputs[CACHE] = outputs.cache
        return outputs.logits[:, -1].float().cpu().numpy()

    def keep(self, rows: np.ndarray, sentences: np.ndarray | None) -> None:
        """Goes on with some rows, in this order, of some sentences; None = of all."""
        cache: Any = self._inputs[CACHE]
        if self._shares_source:
            cache.keep_rows(rows, sentences)
            if sentences is not None:
                self._select_source(torch.from_numpy(sentences))
            return
        row_numbers = torch.from_numpy(rows).to(self._model.device)
        if sentences is None:
            cache.reorder_cache(row_numbers)
        else:
            cache.batch_select_indices(row_numbers)
            self._select_source(row_numbers)

    def _select_source(self, rows: Tensor | slice) -> None:
        states = self._inputs["encoder_outputs"][0][rows]
        self._inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)
        if self._inputs.get("attention_mask") is not None:
            self._inputs["attention_mask"] = self._inputs["attention_mask"][rows]


def _beams(
    decoder: TorchDecoder,
    prompts: np.ndarray,
    config: GenerationConfig,
    stop: Stop,
    changes: Sequence[Rule],
    constraints: Constraints | None,
) -> list[list[Hypothesis]]:
    """The best hypotheses of each of the prompts [B, T]."""
    return beam_search(
        decoder,
        prompts,
        beams=Beams(
            count=config.num_beams,
            returned=config.num_return_sequences,
            ends=len(_ends(config)),
            length_penalty=config.length_penalty,
            early_stopping=config.early_stopping,
        ),
        limits=np.full(len(prompts), config.max_length),
        stop=stop,
        rules=changes,
        constraints=constraints,
    )


def _ends(config: GenerationConfig) -> list[int]:
    """The tokens that end a sentence."""
    end = config._eos_token_tensor
    return [] if end is None else end.tolist()


def _fill(config: GenerationConfig, criteria: StoppingCriteriaList) -> int:
    """The token after the end of a sentence, as in the library's loops."""
    padding: Any = config._pad_token_tensor
    if config.num_beams > 1:
        ends = _ends(config)
        return int(padding or ends[0]) if ends else -1
    has_ends = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
    return int(padding) if has_ends else 0


def _rule(processors: LogitsProcessorList, device: torch.device) -> Rule:
    """Processors of the library as a rule of the search."""

    def change(tokens: np.ndarray, scores: np.ndarray, sentences: np.ndarray) -> None:
        ids: Any = torch.from_numpy(tokens).to(device)
        changed: Any = torch.from_numpy(scores).to(device)
        scores[:] = processors(ids, changed).cpu().numpy()

    return change


def _stop(criteria: StoppingCriteriaList, device: torch.device, *, batch: int, fill: int) -> Stop:
    """Criteria of the library for the search; they may know sentences by their place."""

    def has_ended(tokens: np.ndarray, sentences: np.ndarray) -> np.ndarray:
        whole = np.full((batch, *tokens.shape[1:]), fill)
        whole[sentences] = tokens
        rows: Any = torch.from_numpy(whole).flatten(0, 1).to(device)
        return criteria(rows, None).view(batch, -1).cpu().numpy()[sentences]

    return has_ended
