# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The translation pipeline of transformers 4, which transformers 5 removed.

A copy of this file travels with every checkpoint, so it imports torch and transformers alone.
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
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Pipeline
from transformers.utils import ModelOutput, cached_file, logging

logger = logging.get_logger(__name__)

TARGET_TOKENIZER_SUBFOLDER = "target_tokenizer"

_TASK_WITH_LANGUAGES = re.compile(r"translation_(.+)_to_(.+)")
# Of models whose decoder begins with the target language; others begin with the end of sentence
_LANGUAGE_STARTS_DECODER = ("MBartTokenizer", "MBartTokenizerFast", "PLBartTokenizer")
_LANGUAGE_ARGUMENTS = ("decoder_start_token_id", "forced_bos_token_id")
_LANGUAGES = ("src_lang", "tgt_lang")
_SOURCE_ARGUMENTS = (*_LANGUAGES, "prefix", "truncation")
_TEXT_ARGUMENTS = ("return_tensors", "clean_up_tokenization_spaces")
_tokenizer_language = (
    threading.RLock()
)  # a tokenizer has one source language at a time, whatever the threads ask for


def check_text(text: Any) -> None:
    """Raises `TypeError` for what is not a string, `ValueError` for half of a surrogate pair."""
    if not isinstance(text, str):
        raise TypeError(
            f"A text to translate must be a string, got {type(text).__name__}: {text!r:.80}"
        )
    if half := re.search(r"[\ud800-\udfff]", text):
        where = f"{half[0]!a} at character {half.start()}, half of a surrogate pair"
        raise ValueError(f"A text to translate holds {where}; replace or remove it: {text!a:.80}")


class TranslationPipeline(Pipeline):
    """Translates text with any encoder-decoder model of transformers.

    ```python
    translator = TranslationPipeline(model=model, tokenizer=tokenizer)
    translator("Guten Morgen.")                      # [{"translation_text": "Good morning."}]
    translator(["Guten Morgen.", "Danke."], batch_size=2, num_beams=5)
    ```

    A string gives a list of `num_return_sequences` dicts `{"translation_text": str}`; a list one
    dict per sentence, in order, or with `num_return_sequences > 1` one list of dicts; a generator
    or a torch `Dataset` an iterator of these lists. A sentence of white space alone has an empty
    translation.

    **Length.** Where neither the call nor the model's generation config sets `max_new_tokens` or
    `max_length`, each translation may have `2 · source tokens + 50` tokens, within the model's
    `max_position_embeddings`. One that is cut at a bound that the call did not set gives a warning.

    **Vocabularies.** A model with separate vocabularies (`config.share_encoder_decoder_embeddings`,
    or else sizes that differ) decodes with `target_tokenizer=` or the one in its checkpoint's
    folder `target_tokenizer`.

    **Languages.** `src_lang` and `tgt_lang` choose them where a model has several, in the model's
    own codes: `"de"` of M2M100, `"deu_Latn"` of NLLB, `"de_DE"` of mBART, and of T5 the codes in
    its tasks (`translation_en_to_de` in `config.task_specific_params`, with prefix and generation
    settings). A Marian model with several target languages gets `tgt_lang` as ">>deu<<" before the
    text. `prefix`, by default `config.prefix`, puts any other text there.

    `pipeline("translation", model=NAME, trust_remote_code=True)` builds it where the checkpoint
    brings this file, and `pipeline("csan-translation", model=NAME)` where csan_hf is imported.

    Args:
        target_tokenizer (`PreTrainedTokenizerBase`, *optional*): Decodes translations into a
            vocabulary of its own.
        *args, **kwargs: Passed to `Pipeline`. Arguments of `generate` given here are defaults of
            every call.

    Raises:
        ValueError: There is no tokenizer, or a model with separate vocabularies has none for the
            target.
    """

    _pipeline_calls_generate = True
    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = (
        False  # type: ignore
    )
    _load_tokenizer: Any = True
    model: Any
    tokenizer: Any

    def __init__(self, *args: Any, target_tokenizer: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.tokenizer is None:
            raise ValueError(f"{type(self).__name__} needs a tokenizer: pass tokenizer=.")
        self.tokenizer.padding_side = (
            "right"  # on the left it would shift the positions of shorter sources
        )
        if task := _TASK_WITH_LANGUAGES.fullmatch(self.task or ""):
            languages = {"src_lang": task[1], "tgt_lang": task[2]}
            self._preprocess_params = {**languages, **self._preprocess_params}
            self._forward_params = {**languages, **self._forward_params}
        self.target_tokenizer = (
            target_tokenizer if target_tokenizer is not None else self._find_target_tokenizer()
        )

    def _find_target_tokenizer(self) -> Any:
        """Returns the tokenizer of the target language: the joint one, or the checkpoint's second
        one.
        """
        config, name = self.model.config, self.model.name_or_path
        sizes = getattr(config, "vocab_size", None), getattr(config, "decoder_vocab_size", None)
        if (shared := getattr(config, "share_encoder_decoder_embeddings", None)) is None:
            shared = sizes[1] in (None, sizes[0])
        # MarianTokenizer with separate vocabularies holds both and decodes with the right one by
        # itself
        if shared or getattr(self.tokenizer, "separate_vocabs", False):
            return self.tokenizer
        places = [
            place
            for place in dict.fromkeys([name, getattr(self.tokenizer, "name_or_path", "")])
            if place
        ]
        commit = os.path.basename(
            os.path.dirname(__file__)
        )  # of the Hub: a folder of its name holds this file
        where = {
            "subfolder": TARGET_TOKENIZER_SUBFOLDER,
            "revision": commit if len(commit) == 40 else "main",
        }
        file, reason = "tokenizer_config.json", None
        for place in places:
            try:
                if (
                    cached_file(place, file, _raise_exceptions_for_missing_entries=False, **where)
                    is not None
                ):
                    return AutoTokenizer.from_pretrained(place, trust_remote_code=False, **where)
            except (
                OSError,
                ValueError,
            ) as error:  # no such folder or repository, no connection, or code of its own
                reason = error
        if reason is None and sizes[0] == sizes[1]:
            return (
                self.tokenizer
            )  # one vocabulary, of which source and target have embeddings of their own
        raise ValueError(
            "The model has separate source and target vocabularies, but no target tokenizer can "
            f"be loaded from the folder {TARGET_TOKENIZER_SUBFOLDER!r} of "
            f"{' or '.join(map(repr, places)) or 'a checkpoint'}: pass it as target_tokenizer=."
        ) from reason

    @property
    def _positions(self) -> int | None:
        if (
            getattr(self.model.config, "sinusoids", "") is None
        ):  # a CSAN without absolute positions takes any length
            return None
        config = self.model.config
        return getattr(
            config,
            "max_position_embeddings",
            getattr(config, "max_encoder_position_embeddings", None),
        )

    @property
    def source_limit(self) -> int | None:
        """The tokens of the longest source that the model and its tokenizer take, special ones
        included.
        """
        limit = min(self._positions or 10**9, self.tokenizer.model_max_length)
        return None if limit >= 10**9 else limit  # transformers writes 1e30 for "none"

    def _language_settings(
        self, src_lang: str | None, tgt_lang: str | None
    ) -> tuple[str, dict[str, Any]]:
        """Returns what tells the model its languages: a prefix of the source, and arguments of
        `generate`.
        """
        tokenizer, config = self.tokenizer, self.model.config
        if hasattr(tokenizer, "src_lang"):  # of a multilingual model
            if (tgt_lang := tgt_lang or tokenizer.tgt_lang) is None:
                return "", {}
            starts = type(tokenizer).__name__ in _LANGUAGE_STARTS_DECODER
            return "", {
                "decoder_start_token_id" if starts else "forced_bos_token_id": self._language_id(
                    tgt_lang
                )
            }
        tasks = getattr(config, "task_specific_params", None) or {}
        translations = [name for name in tasks if _TASK_WITH_LANGUAGES.fullmatch(name)]
        if (task := f"translation_{src_lang}_to_{tgt_lang}") in translations:
            settings = dict(tasks[task])
            return settings.pop("prefix", ""), settings
        mark = f">>{tgt_lang}<<"
        if tgt_lang is not None and tokenizer.convert_tokens_to_ids(mark) not in (
            None,
            tokenizer.unk_token_id,
        ):
            return f"{mark} ", {}
        prefix = getattr(config, "prefix", None) or ""
        if translations and not prefix:
            logger.warning_once(
                "Pass src_lang and tgt_lang, or prefix: this model knows "
                f"{', '.join(translations)}."
            )
        elif tgt_lang is not None and not _TASK_WITH_LANGUAGES.fullmatch(self.task or ""):
            logger.warning_once(
                f"tgt_lang={tgt_lang!r} has no effect: the model's vocabulary names no languages."
            )
        return prefix, {}

    @contextmanager
    def source_language(self, src_lang: str | None) -> Iterator[None]:
        """Makes the tokenizer mark sources with `src_lang` in the body, for one thread at a time;
        None = its own.
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

    def _language_id(self, language: str) -> int:
        tokenizer = self.tokenizer
        known = getattr(
            tokenizer, "lang_code_to_id", None
        ) or {  # NLLB has no table: its codes are special tokens
            token: tokenizer.convert_tokens_to_ids(token)
            for token in tokenizer.all_special_tokens
            if re.fullmatch(r"[a-z]{2,3}_\w{2,4}", token)
        }
        if language in known:
            return known[language]
        close = [code for code in known if code.startswith(language)] or difflib.get_close_matches(
            language, known
        )
        hint = (
            f"Did you mean {' or '.join(map(repr, close))}?"
            if close
            else f"It knows {', '.join(known)}."
        )
        raise ValueError(f"{type(tokenizer).__name__} has no language {language!r}. {hint}")

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict, dict, dict]:
        """Sorts a call's arguments: what is not the pipeline's own goes to `generate`, which checks
        it.
        """
        before, languages, after = (
            {name: value for name in names if (value := kwargs.get(name)) is not None}
            for names in (_SOURCE_ARGUMENTS, _LANGUAGES, _TEXT_ARGUMENTS)
        )
        rest = {
            name: value
            for name, value in kwargs.items()
            if name not in (*_SOURCE_ARGUMENTS, *_TEXT_ARGUMENTS)
        }
        return before, {**languages, **rest}, after

    def __call__(  # type: ignore[override]
        self, inputs: str | Sequence[str] | Iterable[str], **kwargs: Any
    ) -> Any:
        """Translates one text or many; the description of the class says what comes back.

        Args:
            inputs (`str`, sequence of `str`, generator or torch `Dataset` of `str`): What to
                translate.
            src_lang (`str`, *optional*): Language of the texts, for a model of several; default:
                the tokenizer's.
            tgt_lang (`str`, *optional*): Language of the translations, for a model of several.
            prefix (`str`, *optional*): What to put before every text.
            truncation (`bool`, *optional*, defaults to `False`): Cut sources longer than
                `source_limit`.
            return_tensors (`bool`, *optional*, defaults to `False`): Return
                `{"translation_token_ids": LongTensor}`.
            clean_up_tokenization_spaces (`bool`, *optional*, defaults to `False`): No spaces before
                punctuation.
            batch_size (`int`, *optional*, defaults to 1): Sentences translated at once.
            **kwargs: Any argument of `generate`: `num_beams`, `max_new_tokens`,
                `prefix_allowed_tokens_fn`...

        Raises:
            TypeError: An input is not a string.
            ValueError: `generate` refuses an argument, or a language is missing or unknown to the
                tokenizer.
        """
        if not isinstance(inputs, Sequence) or isinstance(inputs, str):
            return super().__call__(inputs, **kwargs)
        results = (
            super().__call__(list(inputs), **kwargs) if inputs else []
        )  # of tuples and dataset columns too
        return (
            [result[0] for result in results]
            if all(len(result) == 1 for result in results)
            else results
        )

    def _tokenize(
        self, text: str, src_lang: str | None = None, tgt_lang: str | None = None, **kwargs: Any
    ) -> Any:
        """Calls the tokenizer with a text as the model is to see it: after its prefix, marked with
        its language.
        """
        if (prefix := kwargs.pop("prefix", None)) is None:
            prefix = self._language_settings(src_lang, tgt_lang)[0]
        with self.source_language(src_lang):
            return self.tokenizer(prefix + text, **kwargs)

    def preprocess(  # type: ignore[override]
        self, text: Any, truncation: bool | str = False, **languages: str
    ) -> dict[str, Any]:
        """Tokenizes a text: `input_ids` [1, J], `attention_mask` [1, J] and `is_empty` [1]."""
        check_text(text)
        limit: dict[str, Any] = (
            {"max_length": self.source_limit} if truncation and self.source_limit else {}
        )
        encoded = self._tokenize(
            text, **languages, truncation=truncation, return_tensors="pt", **limit
        )
        input_ids, attention_mask = encoded["input_ids"], encoded["attention_mask"]
        if input_ids.shape[1] == 0:  # an empty text and a tokenizer that adds no end of sentence
            input_ids = torch.full((1, 1), self.tokenizer.pad_token_id or 0)
            attention_mask = torch.ones_like(input_ids)
        if self._positions is not None and input_ids.shape[1] > self._positions:
            logger.warning(
                f"A source has {input_ids.shape[1]} tokens, the model {self._positions} positions: "
                f"split it into sentences, or pass truncation=True to cut it: {text!r:.80}"
            )
        is_empty = torch.tensor([not text.strip()])
        return {
            "input_ids": input_ids.long(),
            "attention_mask": attention_mask,
            "is_empty": is_empty,
        }

    def _forward(  # type: ignore[override]
        self,
        model_inputs: Any,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generate_kwargs: Any,
    ) -> Any:
        """Generates `output_ids` [B, R, T] for `input_ids` [B, J], R = `num_return_sequences`."""
        model_inputs = dict(model_inputs)
        is_empty = model_inputs.pop("is_empty")
        chosen = self._get_set_generation_params(self._prepare_generate_kwargs(generate_kwargs))
        settings = {
            name: value
            for name, value in self._language_settings(src_lang, tgt_lang)[1].items()
            if name not in generate_kwargs and (name in _LANGUAGE_ARGUMENTS or name not in chosen)
        }
        asked = {**chosen, **settings}
        free = asked.get("forced_bos_token_id") is None and hasattr(self.tokenizer, "src_lang")
        special = (
            self.tokenizer.eos_token_id,
            self.tokenizer.bos_token_id,
            self.tokenizer.pad_token_id,
            None,
        )
        if (
            free and asked.get("decoder_start_token_id") in special
        ):  # the model would choose a language by itself
            raise ValueError(
                f"{type(self.model).__name__} knows several languages: pass tgt_lang= (and "
                "src_lang=)."
            )
        if (asked.get("max_new_tokens") or asked.get("max_length")) is None:
            lengths, positions = model_inputs["attention_mask"].sum(-1), self._positions or 10**9
            bounds = (
                2 * lengths + 50
            )  # within the positions, unless the model has extended them for the source
            bounds = torch.where(
                lengths > positions, bounds, bounds.clamp(max=max(positions - 1, 1))
            )
            prompt = generate_kwargs.get("decoder_input_ids")
            limits = bounds + (1 if prompt is None else prompt.shape[-1])

            def at_own_limit(input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
                """Stops the hypotheses [B · beams, T] of each sentence at its own length, as
                without neighbours.
                """
                return input_ids.shape[1] >= limits.repeat_interleave(
                    input_ids.shape[0] // len(limits)
                )

            settings["max_new_tokens"] = int(bounds.max())
            others = generate_kwargs.get("stopping_criteria") or []
            generate_kwargs = {**generate_kwargs, "stopping_criteria": [*others, at_own_limit]}
        elif asked.get("max_new_tokens") and generate_kwargs.get("max_length") is None:
            settings["max_length"] = (
                None  # or generate would warn, in every batch, that it is not heeded
            )
        output = self.model.generate(
            **model_inputs, **self._prepare_generate_kwargs(generate_kwargs, **settings)
        )
        output_ids = output["sequences"] if isinstance(output, ModelOutput) else output
        output_ids = output_ids.reshape(len(is_empty), -1, output_ids.shape[-1])
        if {"max_length", "max_new_tokens"}.isdisjoint(generate_kwargs):  # no length was asked for
            self._warn_of_cut_translations(output_ids[~is_empty.to(output_ids.device)])
        return {"output_ids": output_ids, "is_empty": is_empty}

    def _warn_of_cut_translations(self, output_ids: torch.Tensor) -> None:
        """Warns of translations [B, R, T] that have no end, because they are as long as they may
        be.
        """
        config = self.model.generation_config
        eos = config.eos_token_id
        if (
            eos is None
            or torch.isin(output_ids[..., 1:], torch.tensor(eos).to(output_ids)).any(-1).all()
        ):
            return
        longest = config.max_new_tokens or config.max_length
        bound = (
            f"the {longest} tokens of the model's generation config"
            if longest
            else "2 · source tokens + 50"
        )
        logger.warning_once(
            f"A translation had not ended at {bound} and is cut there; pass a larger max_length."
        )

    def postprocess(  # type: ignore[override]
        self,
        model_outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        clean_up_tokenization_spaces: bool = False,
    ) -> list[dict[str, Any]]:
        """Decodes one sentence's `output_ids` [1, R, T] into R dicts."""
        sequences, is_empty = model_outputs["output_ids"][0], bool(model_outputs["is_empty"][0])
        if return_tensors:
            return [{"translation_token_ids": ids[:0] if is_empty else ids} for ids in sequences]
        how = {
            "skip_special_tokens": True,
            "clean_up_tokenization_spaces": clean_up_tokenization_spaces,
        }
        texts = ["" if is_empty else self.target_tokenizer.decode(ids, **how) for ids in sequences]
        return [{"translation_text": text} for text in texts]

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any) -> None:
        """Saves model, tokenizers and this code, so that the pipeline loads with
        `trust_remote_code=True`.
        """
        # First: saving a model warns where its second tokenizer is missing
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(
                os.path.join(save_directory, TARGET_TOKENIZER_SUBFOLDER)
            )
        super().save_pretrained(save_directory, **kwargs)


# What `save_pretrained` writes into config.custom_pipelines. Registering a pipeline sets it too,
# but a copy loaded from a checkpoint is never registered, and would leave its own code behind when
# it is saved again.
TranslationPipeline._registered_impl = {  # type: ignore[attr-defined]
    "translation": {"impl": TranslationPipeline, "pt": (AutoModelForSeq2SeqLM,), "type": "text"}
}
