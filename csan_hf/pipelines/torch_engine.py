# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Search for translations with any sequence-to-sequence model of transformers, and with ensembles.

On a CPU it is the search of `csan_hf_runtime`, whose arrays share the memory of tensors and which
computes nothing for sentences that are done; elsewhere, and for what that search does not have, the
library's `generate` searches whole batches. Their tokens are the same.

Shapes: B sources; S sentences; K beams of each; R = S · K rows; V vocabulary; T tokens."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from csan_hf_runtime.alignment import Alignment
from csan_hf_runtime.engine import Pair, SourceBatch, grouped, search_batch
from csan_hf_runtime.generation import Generation
from csan_hf_runtime.search import Decoder, Hypothesis
from csan_hf_runtime.texts import SourceReader, warn_once

from ..alignment import align_pairs, check_fast
from ..models.evaluation_view import evaluation_view
from ..models.seq2seq_model import CACHE
from ..models.translation import max_positions
from .ensemble import mean_log_probabilities
from .tokenizer_vocabulary import TokenizerVocabulary

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair

_TRANSLATION_TASK = re.compile(r"translation_.+_to_.+")  # in T5's config.task_specific_params
_LANGUAGE_TOKENS = ("decoder_start_token_id", "forced_bos_token_id")
_GENERATION_FIELDS = {field.name for field in fields(Generation)}


class TorchEngine:
    """A model of transformers, see `csan_hf_runtime.engine.Engine`.

    Args:
        model: The model; it translates in evaluation mode, and is left in the mode that it has.
        source: The source's vocabulary.
        target: The target's.
        **arguments: Of `generate`, for every search.

    Attributes:
        model: The model in evaluation mode.

    Raises:
        ValueError: A setting of the search is impossible.
    """

    extends_positions = True
    dictionary = None

    def __init__(
        self,
        model: Any,
        source: TokenizerVocabulary,
        target: TokenizerVocabulary,
        **arguments: Any,
    ) -> None:
        is_training = any(module.training for module in model.modules())
        self.model = evaluation_view(model) if is_training else model
        self.source = source
        self.target = target
        self.positions = max_positions(model.config)
        line_tokens = {_line_token(member) for member in _members_of(model)}
        self.line_token = line_tokens.pop() if len(line_tokens) == 1 else None
        self._arguments = {name: value for name, value in arguments.items() if value is not None}
        settings = model.generation_config.to_diff_dict()
        settings_of_call = {}
        if (config := self._arguments.get("generation_config")) is not None:
            settings_of_call = config.to_diff_dict()
        names = self._arguments.keys() & vars(GenerationConfig()).keys()
        settings_of_call |= {name: self._arguments[name] for name in names}
        Generation.from_dict(_known(settings_of_call))  # whose errors name no file
        settings |= settings_of_call
        # Arguments that are no settings, such as a streamer, are the library's
        others = self._arguments.keys() - names - {"generation_config"}
        self._of_library = sorted(Generation.unknown_settings(settings).keys() | others)
        if type(model).generate is not GenerationMixin.generate:
            self._of_library.append("the model's own generate")
        if settings.get("decoder_start_token_id") is None:
            settings["decoder_start_token_id"] = settings.get("bos_token_id")
        self._generation = Generation.from_dict(_known(settings), "generation_config.json: ")

    def defaults(self, source_lang: str | None, target_lang: str | None) -> tuple[str, Generation]:
        """See `Engine`; T5 has prefix and settings for each pair of languages."""
        config = self.model.config
        prefix = getattr(config, "prefix", None) or ""
        tasks = translation_tasks(config)
        settings = tasks.get(task_name(source_lang, target_lang))
        if settings is not None:
            of_task = {n: v for n, v in settings.items() if n not in self._arguments}
            prefix = of_task.pop("prefix", prefix)
            return prefix, self._generation.replaced(**_known(of_task))
        if tasks and not prefix:
            warn_once(
                f"Pass src_lang and tgt_lang, or prefix: this model knows {', '.join(tasks)}."
            )
        return prefix, self._generation

    @torch.inference_mode()
    def search(self, batch: SourceBatch) -> list[list[Hypothesis]]:
        """See `Engine`."""
        tokens = {name: self._arguments[name] for name in _LANGUAGE_TOKENS & self._arguments.keys()}
        batch = replace(batch, generation=batch.generation.replaced(**tokens))
        is_library_drawing = batch.generation.do_sample and batch.generator is None
        is_bound = bool(batch.prefixes or batch.phrases)
        is_elsewhere = self.model.device.type != "cpu" and not is_bound
        if not (self._of_library or is_library_drawing or is_elsewhere):
            return search_batch(batch, self._decoder(batch))
        if is_bound:
            names = ", ".join(self._of_library) or "do_sample"
            raise ValueError(
                f"Terms and prefixes cannot be searched for with all of {names}: leave out what "
                "only the library's search has."
            )
        return self._generated(batch)

    def _decoder(self, batch: SourceBatch) -> Decoder:
        decoders = [TorchDecoder(member, batch) for member in _members_of(self.model)]
        return decoders[0] if len(decoders) == 1 else EnsembleDecoder(decoders)

    def _generated(self, batch: SourceBatch) -> list[list[Hypothesis]]:
        """The hypotheses that the library's `generate` finds."""
        device = self.model.device
        ids = torch.from_numpy(batch.ids).to(device)
        mask = torch.from_numpy(batch.mask).to(device)
        limits = torch.from_numpy(batch.limits).to(device)
        if (prompt := self._arguments.get("decoder_input_ids")) is not None:
            limits = limits + prompt.shape[-1] - 1
        if batch.generator is not None:
            torch.manual_seed(int(batch.generator.integers(2**62)))
        options = self._options(batch, limits)
        if (config := copy.deepcopy(options.pop("generation_config", None))) is not None:
            # Which the library does not want beside settings
            options = {**config.update(**options), "generation_config": config}
        model: Any = self.model
        output = model.generate(ids, attention_mask=mask, **options)
        tokens = output["sequences"] if isinstance(output, ModelOutput) else output
        values = torch.zeros(tokens[:, 1:].shape)
        if batch.with_scores:
            values = self._log_probabilities(ids, mask, tokens)
        most = limits.repeat_interleave(batch.returned).tolist()
        hypotheses = []
        for row, row_values, limit in zip(tokens.cpu().numpy(), values.numpy(), most, strict=True):
            generated = row[1:limit]
            ends = np.isin(generated, batch.generation.ends).nonzero()[0]
            length = ends[0] + 1 if len(ends) else len(generated)
            hypotheses.append(Hypothesis(generated[:length], row_values[:length]))
        return grouped(hypotheses, batch.returned)

    def _options(self, batch: SourceBatch, limits: Tensor) -> dict[str, Any]:
        """The arguments of `generate` for sources whose translations may have `limits` tokens [B],
        the first included.
        """

        def at_own_limit(tokens: Tensor, scores: object, **kwargs: Any) -> Tensor:
            """Whether the rows [B · K, T] of each source are at its limit."""
            return tokens.shape[1] >= limits.repeat_interleave(len(tokens) // len(limits))

        options = dict(self._arguments)
        for name in _GENERATION_FIELDS:
            value = getattr(batch.generation, name)
            if value != getattr(self._generation, name):
                options[name] = value
        criteria = options.get("stopping_criteria", ())
        return options | {
            "max_length": None,
            "max_new_tokens": int(batch.limits.max()) - 1,
            "num_return_sequences": batch.returned,
            "stopping_criteria": [*criteria, at_own_limit],
        }

    def _log_probabilities(self, ids: Tensor, mask: Tensor, tokens: Tensor) -> Tensor:
        """Those of the tokens but the first [R, T - 1] for sources [B, J], from one pass."""
        copies = len(tokens) // len(ids)
        logits = self.model(
            input_ids=ids.repeat_interleave(copies, 0),
            attention_mask=mask.repeat_interleave(copies, 0),
            decoder_input_ids=tokens[:, :-1],
            use_cache=False,
        ).logits
        chosen = logits.float().log_softmax(-1).gather(-1, tokens[:, 1:, None])
        return chosen[..., 0].cpu()

    @property
    def gives_attention(self) -> bool:
        """Whether the model gives the weights that alignments are read from."""
        return getattr(self.model, "gives_attention", True)

    def check_attention(self, needed_for: str) -> None:
        """See `Engine`."""
        if not self.gives_attention:
            raise ValueError(
                f"{needed_for}: attention weights are needed, which "
                f"{type(self.model).__name__} does not give; take a single torch model."
            )
        check_fast(self.source.tokenizer, self.target.tokenizer)

    def align(
        self, pairs: Sequence[Pair], read: SourceReader, source_lang: str | None
    ) -> list[Alignment]:
        """See `Engine`."""
        alignments = align_pairs(
            self.model,
            self.tokenizers(source_lang, read.target_lang),
            pairs,
            batch_size=max(len(pairs), 1),
            read=read,
        )
        return list(alignments)

    def tokenizers(self, source_lang: str | None, target_lang: str | None) -> TokenizerPair:
        """The tokenizers of both sides; multilingual ones mark texts with these languages."""
        from csan_hf.data import TokenizerPair  # slow to import, and few calls need it

        pair = TokenizerPair(self.source.tokenizer, self.target.tokenizer)
        return pair.with_languages(source_lang, target_lang) if self.source.languages else pair


def torch_engine(
    model: PreTrainedModel,
    tokenizers: TokenizerPair,
    *,
    clean_up_tokenization_spaces: bool = False,
    **arguments: Any,
) -> TorchEngine:
    """Returns a model with its tokenizers as an engine; arguments are those of `generate`."""
    cleans_up = clean_up_tokenization_spaces
    return TorchEngine(
        model,
        TokenizerVocabulary(tokenizers.source, is_target=False),
        TokenizerVocabulary(tokenizers.target, is_target=True, cleans_up=cleans_up),
        **arguments,
    )


def translation_tasks(config: PreTrainedConfig) -> dict[str, dict[str, Any]]:
    """The prefix and settings of generation that T5 has for pairs of languages, by `task_name`."""
    tasks = getattr(config, "task_specific_params", None) or {}
    return {name: tasks[name] for name in filter(_TRANSLATION_TASK.fullmatch, tasks)}


def task_name(source_lang: str | None, target_lang: str | None) -> str:
    """The name that T5 has for a pair of languages."""
    return f"translation_{source_lang}_to_{target_lang}"


def _known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the search of `csan_hf_runtime` has."""
    return {name: value for name, value in settings.items() if name in _GENERATION_FIELDS}


def _members_of(model: Any) -> Iterable[Any]:
    """The members of an ensemble; of another model, the model alone."""
    return getattr(model, "members", [model])


def _line_token(model: Any) -> int | None:
    """The token that ends a line, of a model that translates line by line."""
    has_lines = getattr(model.config, "line_method", None) is not None
    return model.config.line_token_id if has_lines else None


class TorchDecoder:
    """The decoder of a model of transformers, for the search of `csan_hf_runtime`.

    Args:
        model: The model.
        batch: The sources.
    """

    def __init__(self, model: Any, batch: SourceBatch) -> None:
        self._model = model
        ids = torch.from_numpy(batch.ids).to(model.device)
        mask = torch.from_numpy(batch.mask).to(model.device)
        encode = model.get_encoder()
        self._encoded = encode(input_ids=ids, attention_mask=mask, return_dict=True)
        make_cache = getattr(model, "make_cache", None)  # of csan_hf's own families
        self._cache: Any = None if make_cache is None else make_cache(batch.beams)
        rows = batch.copies * batch.beams
        for name, tensor in _of_sentences(self._encoded).items():
            self._encoded[name] = tensor.repeat_interleave(rows, 0)
        self._mask = mask.repeat_interleave(rows, 0)
        self._steps = 0

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [R, V] of what follows [R, T]."""
        inputs = self._model.prepare_inputs_for_generation(
            torch.from_numpy(tokens).to(self._model.device),
            next_sequence_length=1 if self._steps and self._cache is not None else None,
            encoder_outputs=self._encoded,
            attention_mask=self._mask,
            use_cache=True,
            **{CACHE: self._cache},
        )
        outputs = self._model(**inputs, return_dict=True)
        self._steps += 1
        self._cache = outputs.get(CACHE)
        return outputs.logits[:, -1].float().cpu().numpy()

    def keep(self, rows: np.ndarray, sentences: np.ndarray | None) -> None:
        """Goes on with some rows, in this order, of some sentences; None = of all."""
        kept = torch.from_numpy(rows).to(self._model.device)
        if self._cache is not None and sentences is None:
            self._cache.reorder_cache(kept)
        elif self._cache is not None:
            self._cache.batch_select_indices(kept)
        if sentences is not None:
            for name, tensor in _of_sentences(self._encoded).items():
                self._encoded[name] = tensor[kept]
            self._mask = self._mask[kept]


def _of_sentences(outputs: ModelOutput) -> dict[str, Tensor]:
    """The outputs of an encoder that have a row for each sentence, such as its states [B, J, d]."""
    return {name: value for name, value in outputs.items() if isinstance(value, Tensor)}


class EnsembleDecoder:
    """Several decoders as one, whose probabilities are the mean of theirs."""

    def __init__(self, members: Sequence[Decoder]) -> None:
        self._members = members

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [R, V] of what follows [R, T]."""
        logits = (torch.from_numpy(member.step(tokens)) for member in self._members)
        return mean_log_probabilities(logits).numpy()

    def keep(self, rows: np.ndarray, sentences: np.ndarray | None) -> None:
        """Goes on with some rows, in this order, of some sentences; None = of all."""
        for member in self._members:
            member.keep(rows, sentences)
