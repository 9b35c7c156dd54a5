# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The translation pipeline: text in, translations out.

transformers 5 removed its own translation pipeline; this one brings its interface back. The file imports
torch and transformers alone, because a copy of it travels with every shared checkpoint.
"""

from __future__ import annotations

import difflib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    Pipeline,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.utils import ModelOutput, cached_file, logging

logger = logging.get_logger(__name__)

TARGET_TOKENIZER_SUBFOLDER = "target_tokenizer"

_TASK_WITH_LANGUAGES = re.compile(r"translation_(.+)_to_(.+)")
# Their models are given the target language as the first input of the decoder; the other multilingual ones begin with
# the end of sentence and are forced to go on with the language.
_LANGUAGE_STARTS_DECODER = ("MBartTokenizer", "MBartTokenizerFast", "PLBartTokenizer")
_LANGUAGE_ARGUMENTS = ("decoder_start_token_id", "forced_bos_token_id")
_tokenizer_language = threading.RLock()  # a tokenizer has one source language at a time, whatever the threads ask for


def check_text(text: Any) -> None:
    """Refuses what is not text.

    Raises:
        TypeError: It is not a string.
        ValueError: It holds half of a surrogate pair, which no tokenizer takes.
    """
    if not isinstance(text, str):
        raise TypeError(f"A text to translate must be a string, got {type(text).__name__}: {text!r:.80}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"A text to translate holds {text[error.start]!a} at character {error.start}, half of a surrogate pair; "
            f"replace or remove it: {text!a:.80}"
        ) from error


class _RowLengthCriteria(StoppingCriteria):
    """Stops each sentence of a batch at its own length, so that a bound never depends on its neighbours."""

    def __init__(self, limits: torch.Tensor) -> None:
        """Keeps `limits` [B]: the greatest decoder length of each sentence, prompt included."""
        self.limits = limits

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Says for every hypothesis in `input_ids` [B · beams, T] whether it is as long as it may be."""
        beams = input_ids.shape[0] // self.limits.shape[0]
        return input_ids.shape[1] >= self.limits.to(input_ids.device).repeat_interleave(beams)


class TranslationPipeline(Pipeline):
    """Translates text with any encoder-decoder model of transformers.

    ```python
    translator = TranslationPipeline(model=model, tokenizer=tokenizer)
    translator("Guten Morgen.")                      # [{"translation_text": "Good morning."}]
    translator(["Guten Morgen.", "Danke."], batch_size=2, num_beams=5)
    ```

    What comes back, as from the pipeline of transformers 4:

    - a string gives a list of `num_return_sequences` dicts `{"translation_text": str}`;
    - a list gives one dict per sentence, in order; with `num_return_sequences > 1` one list of dicts per
      sentence;
    - a generator or a torch `Dataset` gives an iterator with one list of dicts per sentence.

    An empty sentence, or one of white space alone, has an empty translation.

    **Length.** Where neither the call nor the model's generation config sets `max_new_tokens` or
    `max_length`, a translation may have `2 · source tokens + 50` tokens, within the model's
    `max_position_embeddings`, rather than the 20 tokens at which generation stops by default. Each sentence
    has its own bound, whatever it is batched with. A translation that is cut at a bound that the call did not set
    gives a warning.

    **Vocabularies.** A model with separate vocabularies (`config.share_encoder_decoder_embeddings` is False,
    or, where a config lacks that field, `decoder_vocab_size` differs from `vocab_size`) decodes with the
    tokenizer in the folder `target_tokenizer` of its checkpoint, or with the one passed as
    `target_tokenizer=`; without either, two vocabularies of the same size are taken to have one tokenizer.

    **Languages.** `src_lang` and `tgt_lang` choose them where a model has several, in the model's own codes: `"de"` of
    M2M100, `"deu_Latn"` of NLLB, `"de_DE"` of mBART, and of T5 the codes in its tasks (`translation_en_to_de` in
    `config.task_specific_params`, whose prefix and generation settings are used). A Marian model with several target
    languages gets `tgt_lang` as ">>deu<<" before the text. `prefix` puts any other text there; it defaults to
    `config.prefix`.

    **From `transformers.pipeline`.** `pipeline("translation", model=NAME, trust_remote_code=True)` where the
    checkpoint brings this file, and `pipeline("csan-translation", model=NAME)` where csan_hf is imported.

    Args:
        *args: Passed to `Pipeline`, as is `model=`, `tokenizer=`, `device=`, `batch_size=`.
        target_tokenizer (`PreTrainedTokenizerBase`, *optional*):
            Decodes the translations, where the target language has a vocabulary of its own.
        **kwargs: Passed to `Pipeline`. Arguments of `generate` given here are defaults of every call.

    Raises:
        ValueError: There is no tokenizer, or a model with separate vocabularies has none for the target.
    """

    _pipeline_calls_generate = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False
    _load_tokenizer: Any = True

    model: Any
    tokenizer: Any

    def __init__(self, *args: Any, target_tokenizer: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.tokenizer is None:
            raise ValueError(f"{type(self).__name__} needs a tokenizer: pass tokenizer=.")
        # On the left it would shift the positions of the shorter sources in a batch
        self.tokenizer.padding_side = "right"
        if task := _TASK_WITH_LANGUAGES.fullmatch(self.task or ""):
            languages = {"src_lang": task[1], "tgt_lang": task[2]}
            self._preprocess_params = {**languages, **self._preprocess_params}
            self._forward_params = {**languages, **self._forward_params}
        self.target_tokenizer = target_tokenizer if target_tokenizer is not None else self._find_target_tokenizer()

    def _find_target_tokenizer(self) -> Any:
        """Returns the tokenizer of the target language: the joint one, or the checkpoint's second one."""
        config = self.model.config
        shared = getattr(config, "share_encoder_decoder_embeddings", None)
        if shared is None:
            vocab_size = getattr(config, "vocab_size", None)
            shared = getattr(config, "decoder_vocab_size", None) in (None, vocab_size)
        # MarianTokenizer with separate vocabularies holds both and decodes with the right one by itself
        if shared or getattr(self.tokenizer, "separate_vocabs", False):
            return self.tokenizer
        places = [self.model.name_or_path, getattr(self.tokenizer, "name_or_path", "")]
        places = [place for place in dict.fromkeys(places) if place]
        reason = None
        for place in places:
            try:
                if (tokenizer := self._load_target_tokenizer(place)) is not None:
                    return tokenizer
            except OSError as error:  # no such directory or repository, or no connection
                reason = error
        if reason is None and getattr(config, "decoder_vocab_size", None) == getattr(config, "vocab_size", 0):
            return self.tokenizer  # one vocabulary, of which source and target have embeddings of their own
        raise ValueError(
            "The model has separate source and target vocabularies, but there is no target tokenizer in the "
            f"folder {TARGET_TOKENIZER_SUBFOLDER!r} of {' or '.join(map(repr, places)) or 'a checkpoint'}. "
            "Pass it as target_tokenizer=; if one tokenizer serves both languages, pass that one."
        ) from reason

    def _load_target_tokenizer(self, place: str) -> Any | None:
        """Loads the second tokenizer of a directory or Hub repository, or None where it has none."""
        revision = getattr(self.model.config, "_commit_hash", None) if place == self.model.name_or_path else None
        where = {"subfolder": TARGET_TOKENIZER_SUBFOLDER, **({} if revision is None else {"revision": revision})}
        file = "tokenizer_config.json"
        if cached_file(place, file, _raise_exceptions_for_missing_entries=False, **where) is None:
            return None
        return AutoTokenizer.from_pretrained(place, **where)

    @property
    def source_limit(self) -> int | None:
        """The tokens of the longest source that the model and its tokenizer take, special ones included."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        limit = min(positions or 10**9, self.tokenizer.model_max_length)
        return None if limit >= 10**9 else limit  # transformers writes 1e30 for "none"

    def _language_settings(self, src_lang: str | None, tgt_lang: str | None) -> tuple[str, dict[str, Any]]:
        """Returns what tells the model its languages: a prefix of the source, and arguments of `generate`.

        Raises:
            ValueError: The tokenizer does not know a language.
        """
        if hasattr(self.tokenizer, "src_lang"):  # of a multilingual model
            return "", self._language_tokens(tgt_lang)
        config = self.model.config
        tasks = getattr(config, "task_specific_params", None) or {}
        translations = [name for name in tasks if _TASK_WITH_LANGUAGES.fullmatch(name)]
        if (task := f"translation_{src_lang}_to_{tgt_lang}") in translations:
            settings = dict(tasks[task])
            return settings.pop("prefix", ""), settings
        if tgt_lang is not None and self._is_token(f">>{tgt_lang}<<"):
            return f">>{tgt_lang}<< ", {}
        prefix = getattr(config, "prefix", None) or ""
        if translations and not prefix:
            known = ", ".join(translations)
            logger.warning_once(f"Pass src_lang and tgt_lang, or a prefix: this model knows {known}.")
        elif tgt_lang is not None and not _TASK_WITH_LANGUAGES.fullmatch(self.task or ""):
            logger.warning_once(f"tgt_lang={tgt_lang!r} has no effect: the model's vocabulary names no languages.")
        return prefix, {}

    def _is_token(self, text: str) -> bool:
        """Whether the vocabulary has this token; asked for every sentence, so the vocabulary is not copied."""
        return self.tokenizer.convert_tokens_to_ids(text) not in (None, self.tokenizer.unk_token_id)

    @contextmanager
    def source_language(self, src_lang: str | None) -> Iterator[None]:
        """Makes the tokenizer mark sources with `src_lang` in the body, for one thread at a time; None = its own.

        Raises:
            ValueError: The tokenizer does not know the language.
        """
        tokenizer = self.tokenizer
        with _tokenizer_language:
            own = getattr(tokenizer, "src_lang", None)
            if src_lang is None or src_lang == own or not hasattr(tokenizer, "src_lang"):
                yield
                return
            self._language_id(src_lang)
            tokenizer.src_lang = src_lang
            try:
                yield
            finally:
                tokenizer.src_lang = own

    def _language_tokens(self, tgt_lang: str | None) -> dict[str, int]:
        """Returns what makes `generate` begin with `tgt_lang`."""
        tokenizer = self.tokenizer
        tgt_lang = tgt_lang or tokenizer.tgt_lang
        if tgt_lang is None:
            return {}
        starts = type(tokenizer).__name__ in _LANGUAGE_STARTS_DECODER
        return {"decoder_start_token_id" if starts else "forced_bos_token_id": self._language_id(tgt_lang)}

    def _language_id(self, language: str) -> int:
        tokenizer = self.tokenizer
        known = getattr(tokenizer, "lang_code_to_id", None)
        if known is None:  # NLLB keeps no table; its codes are special tokens
            codes = [token for token in tokenizer.all_special_tokens if re.fullmatch(r"[a-z]{2,3}_\w{2,4}", token)]
            known = dict(zip(codes, tokenizer.convert_tokens_to_ids(codes), strict=True))
        if language in known:
            return known[language]
        close = [code for code in known if code.startswith(language)] or difflib.get_close_matches(language, known)
        hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else f"It knows {', '.join(known)}."
        raise ValueError(f"{type(tokenizer).__name__} has no language {language!r}. {hint}")

    def _check_target_language(self, settings: dict[str, Any]) -> None:
        """Refuses to let a multilingual model choose the language by itself."""
        if not hasattr(self.tokenizer, "src_lang"):
            return
        start = settings.get("decoder_start_token_id")
        special = {self.tokenizer.eos_token_id, self.tokenizer.bos_token_id, self.tokenizer.pad_token_id, None}
        if settings.get("forced_bos_token_id") is None and start in special:
            raise ValueError(
                f"{type(self.model).__name__} translates into several languages: pass tgt_lang= (and src_lang=)."
            )

    def _sanitize_parameters(
        self,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        prefix: str | None = None,
        truncation: bool | str | None = None,
        return_tensors: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict, dict, dict]:
        """Sorts a call's arguments: what is not the pipeline's own goes to `generate`, which checks it."""
        languages = {"src_lang": src_lang, "tgt_lang": tgt_lang}
        groups = (
            {**languages, "prefix": prefix, "truncation": truncation},
            languages,
            {"return_tensors": return_tensors, "clean_up_tokenization_spaces": clean_up_tokenization_spaces},
        )
        given = [{name: value for name, value in group.items() if value is not None} for group in groups]
        return given[0], {**given[1], **generate_kwargs}, given[2]

    def __call__(  # type: ignore[override]
        self, inputs: str | Sequence[str] | Iterable[str], **kwargs: Any
    ) -> Any:
        """Translates one text or many.

        Args:
            inputs (`str`, sequence of `str`, generator or torch `Dataset` of `str`): What to translate.
            src_lang (`str`, *optional*): Language of the texts, for a model of several; default: the tokenizer's.
            tgt_lang (`str`, *optional*): Language of the translations, for a model of several.
            prefix (`str`, *optional*): What to put before every text; see the description of the class.
            truncation (`bool`, *optional*, defaults to `False`):
                Cut sources that are longer than the model's `max_position_embeddings` or the tokenizer's
                `model_max_length`. Without it they only cause a warning, and an error in a model whose
                positions end there.
            return_tensors (`bool`, *optional*, defaults to `False`):
                Return `{"translation_token_ids": LongTensor}` instead of texts.
            clean_up_tokenization_spaces (`bool`, *optional*, defaults to `False`):
                Remove the spaces before punctuation that some tokenizers leave.
            batch_size (`int`, *optional*, defaults to 1): Sentences translated at once.
            **kwargs: Any argument of `generate`: `num_beams`, `max_new_tokens`, `prefix_allowed_tokens_fn`...

        Returns:
            A list, or an iterator, as the description of the class says.

        Raises:
            TypeError: An input is not a string.
            ValueError: `generate` refuses an argument, the tokenizer does not know a language, or a model of several
                languages is not told the one to translate into.
        """
        if isinstance(inputs, Sequence) and not isinstance(inputs, str):
            inputs = list(inputs)  # tuples and dataset columns too
            if not inputs:
                return []
            results = super().__call__(inputs, **kwargs)
            one_each = all(len(result) == 1 for result in results)
            return [result[0] for result in results] if one_each else results
        return super().__call__(inputs, **kwargs)

    def _tokenize(
        self,
        text: str,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        prefix: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Calls the tokenizer with a text as the model is to see it: after its prefix, marked with its language."""
        default_prefix = self._language_settings(src_lang, tgt_lang)[0] if prefix is None else prefix
        with self.source_language(src_lang):
            return self.tokenizer(default_prefix + text, **kwargs)

    def preprocess(  # type: ignore[override]
        self, text: Any, truncation: bool | str = False, **languages: str
    ) -> dict[str, Any]:
        """Tokenizes one text: `input_ids` [1, J], `attention_mask` [1, J] and `is_empty` [1]."""
        check_text(text)
        positions = getattr(self.model.config, "max_position_embeddings", None)
        limit: dict[str, Any] = {"max_length": self.source_limit} if truncation and self.source_limit else {}
        encoded = self._tokenize(text, **languages, truncation=truncation, return_tensors="pt", **limit)
        input_ids, attention_mask = encoded["input_ids"], encoded["attention_mask"]
        if input_ids.shape[1] == 0:  # an empty text and a tokenizer that adds no end of sentence
            input_ids = torch.full((1, 1), self.tokenizer.pad_token_id or 0)
            attention_mask = torch.ones_like(input_ids)
        if positions is not None and input_ids.shape[1] > positions:
            logger.warning(
                f"A source has {input_ids.shape[1]} tokens, beyond the model's max_position_embeddings of "
                f"{positions}: split it into sentences, or pass truncation=True to cut it: {text!r:.80}"
            )
        is_empty = torch.tensor([not text.strip()])
        return {"input_ids": input_ids.long(), "attention_mask": attention_mask, "is_empty": is_empty}

    def check_inputs(self, input_length: int, min_length: int, max_length: int) -> bool:
        """Warns where a length looks wrong for the input, as the pipeline of transformers 4 did.

        Args:
            input_length: Tokens of the longest source in the batch.
            min_length: The least length of a translation, in tokens.
            max_length: The greatest length of a translation, in tokens.

        Returns:
            Whether nothing looked wrong.
        """
        if max_length < min_length:
            logger.warning(f"Your min_length={min_length} must not exceed your max_length={max_length}.")
        elif input_length > 0.9 * max_length:
            logger.warning(
                f"Your input_length: {input_length} is bigger than 0.9 * max_length: {max_length}. You might "
                "consider increasing your max_length manually, e.g. translator('...', max_length=400)"
            )
        else:
            return True
        return False

    def _length_bounds(self, chosen: dict[str, Any], source_lengths: torch.Tensor) -> torch.Tensor | None:
        """Finds a length bound for each translation where none was set, and else checks that one.

        Args:
            chosen: What the call, the pipeline, the languages and the model's generation config set.
            source_lengths: [B], the real tokens of each source.

        Returns:
            The most new tokens of each translation [B], or None where a length was set.
        """
        max_length = chosen.get("max_new_tokens") or chosen.get("max_length")
        if max_length is not None:
            min_length = chosen.get("min_new_tokens") or chosen.get("min_length") or 0
            self.check_inputs(int(source_lengths.max()), min_length, max_length)
            return None
        bounds = 2 * source_lengths + 50
        positions = getattr(self.model.config, "max_position_embeddings", None)
        if positions is None:
            return bounds
        # A model that extends its positions for a source does so for the translation
        return torch.where(source_lengths > positions, bounds, bounds.clamp(max=max(positions - 1, 1)))

    def _forward(  # type: ignore[override]
        self, model_inputs: Any, src_lang: str | None = None, tgt_lang: str | None = None, **generate_kwargs: Any
    ) -> Any:
        """Generates `output_ids` [B, R, T] for `input_ids` [B, J], R = `num_return_sequences`."""
        model_inputs = dict(model_inputs)
        is_empty = model_inputs.pop("is_empty")
        batch_size = is_empty.shape[0]
        chosen = self._get_set_generation_params(self._prepare_generate_kwargs(generate_kwargs))
        settings = {
            name: value
            for name, value in self._language_settings(src_lang, tgt_lang)[1].items()
            if name not in generate_kwargs and (name in _LANGUAGE_ARGUMENTS or name not in chosen)
        }
        self._check_target_language({**chosen, **settings})
        bounds = self._length_bounds({**chosen, **settings}, model_inputs["attention_mask"].sum(-1))
        if bounds is not None:
            settings["max_new_tokens"] = int(bounds.max())
            prompt = generate_kwargs.get("decoder_input_ids")
            own = _RowLengthCriteria(bounds + (1 if prompt is None else prompt.shape[-1]))
            others = generate_kwargs.get("stopping_criteria") or []
            generate_kwargs = {**generate_kwargs, "stopping_criteria": StoppingCriteriaList([*others, own])}
        output = self.model.generate(**model_inputs, **self._prepare_generate_kwargs(generate_kwargs, **settings))
        output_ids = output["sequences"] if isinstance(output, ModelOutput) else output
        output_ids = output_ids.reshape(batch_size, -1, output_ids.shape[-1])
        if {"max_length", "max_new_tokens"}.isdisjoint(generate_kwargs):  # no length was asked for
            self._warn_of_cut_translations(output_ids[~is_empty.to(output_ids.device)])
        return {"output_ids": output_ids, "is_empty": is_empty}

    def _warn_of_cut_translations(self, output_ids: torch.Tensor) -> None:
        """Warns of translations [B, R, T] that have no end, because they are as long as they may be."""
        eos = self.model.generation_config.eos_token_id
        if eos is None or torch.isin(output_ids[..., 1:], torch.tensor(eos).to(output_ids)).any(-1).all():
            return
        longest = self.model.generation_config.max_new_tokens or self.model.generation_config.max_length
        bound = f"the {longest} tokens of the model's generation config" if longest else "2 · source tokens + 50"
        logger.warning_once(f"A translation had not ended at {bound} and is cut there; pass a larger max_length.")

    def postprocess(  # type: ignore[override]
        self,
        model_outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """Decodes one sentence's `output_ids` [1, R, T] into R dicts."""
        sequences = model_outputs["output_ids"][0]
        is_empty = bool(model_outputs["is_empty"][0])
        if return_tensors:
            return [{"translation_token_ids": ids[:0] if is_empty else ids} for ids in sequences]
        return [
            {"translation_text": "" if is_empty else self._decode(ids, clean_up_tokenization_spaces)}
            for ids in sequences
        ]

    def _decode(self, ids: torch.Tensor, clean_up: bool) -> str:
        return self.target_tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up)

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Saves model, tokenizers and this code, so that the pipeline loads with `trust_remote_code=True`."""
        # First: saving a model warns where its second tokenizer is missing
        if self.target_tokenizer is not self.tokenizer and not os.path.isfile(save_directory):
            self.target_tokenizer.save_pretrained(os.path.join(save_directory, TARGET_TOKENIZER_SUBFOLDER))
        super().save_pretrained(save_directory, **kwargs)


# What `save_pretrained` writes into config.custom_pipelines. Registering a pipeline sets it too, but a copy
# loaded from a checkpoint is never registered, and would leave its own code behind when it is saved again.
TranslationPipeline._registered_impl = {  # type: ignore[attr-defined]
    "translation": {"impl": TranslationPipeline, "pt": (AutoModelForSeq2SeqLM,), "type": "text"}
}
