# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The translation pipeline of transformers 4, which transformers 5 removed.

A copy of this file travels with every checkpoint, so it imports torch and transformers alone.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Pipeline, PreTrainedConfig
from transformers.utils import ModelOutput, cached_file, logging

logger = logging.get_logger(__name__)

TARGET_TOKENIZER_SUBFOLDER = "target_tokenizer"

# Of models whose decoder begins with the target language; others begin with the end of sentence
_LANGUAGE_STARTS_DECODER = ("MBartTokenizer", "MBartTokenizerFast", "PLBartTokenizer")
_LANGUAGE_ARGUMENTS = ("decoder_start_token_id", "forced_bos_token_id")
# From an end of a sentence, which is not that of an abbreviation such as Mrs. or p.m., to the first
# letter of the next one
_NEXT_SENTENCE = re.compile(
    r"(?:(?<!\b\w\.)(?<!\b(?:[A-Z]\w|[^\Waeiou]{2})\.)(?<!\b(?:[A-Z]\w\w|[^\Waeiou]{3})\.)"
    r"(?:(?<=[.!?…])|(?<=[.!?…。！？][^\w\s]))\s|(?<=[。！？]))\s*[^\w\s。！？]*([^\W\d_])"
)
_NO_LIMIT = 10**9  # tokens; transformers writes 1e30
# A tokenizer has one source language at a time, whatever the threads ask for
_tokenizer_language = threading.RLock()


def check_text(text: object) -> None:
    """Raises `TypeError` for what is not a string, `ValueError` for half of a surrogate pair."""
    if not isinstance(text, str):
        raise TypeError(
            f"A text to translate must be a string, got {type(text).__name__}: {text!r:.80}"
        )
    if half := re.search(r"[\ud800-\udfff]", text):
        where = f"{half[0]!a} at character {half.start()}, half of a surrogate pair"
        raise ValueError(f"A text to translate holds {where}; replace or remove it: {text!a:.80}")


def max_positions(config: PreTrainedConfig) -> int | None:
    """Tokens of the longest text that a model has positions for; None = any number."""
    of_encoder = getattr(config, "max_encoder_position_embeddings", None)
    positions = getattr(config, "max_position_embeddings", of_encoder)
    return getattr(config, "position_limit", positions)


def languages_of(tokenizer: Any) -> Any:
    """The tokens of the languages of a multilingual tokenizer, by their codes."""
    # NLLB has no table: its codes are special tokens
    return getattr(tokenizer, "lang_code_to_id", None) or {
        token: tokenizer.convert_tokens_to_ids(token)
        for token in tokenizer.all_special_tokens
        if re.fullmatch(r"[a-z]{2,3}_\w{2,4}", token)
    }


def language_id(tokenizer: Any, language: str) -> int:
    """Returns the token of a language in a multilingual tokenizer.

    Raises:
        ValueError: The tokenizer does not know the language.
    """
    codes = languages_of(tokenizer)
    if language in codes:
        return codes[language]
    close = [code for code in codes if code.startswith(language)]
    close = close or difflib.get_close_matches(language, codes, cutoff=0.0)
    raise ValueError(
        f"{type(tokenizer).__name__} has no language {language!r}. Did you mean "
        f"{' or '.join(map(repr, close))}?"
    )


@contextmanager
def source_language(tokenizer: Any, src_lang: Any) -> Iterator[None]:
    """Makes a tokenizer mark sources with `src_lang` in the body, for one thread at a time; None =
    its own.
    """
    with _tokenizer_language:
        default = getattr(tokenizer, "src_lang", src_lang)
        if src_lang in (None, default):
            yield
            return
        language_id(tokenizer, src_lang)
        tokenizer.src_lang = src_lang
        try:
            yield
        finally:
            tokenizer.src_lang = default


def load_target_tokenizer(
    name: str, subfolder: str = "", *, trust_remote_code: bool, **options: Any
) -> Any:
    """Returns the target's tokenizer of a checkpoint in a folder of a repository; None where there
    is none.

    Options and errors are those of `AutoTokenizer.from_pretrained`."""
    options["subfolder"] = os.path.join(subfolder, TARGET_TOKENIZER_SUBFOLDER)
    try:
        cached_file(name, "tokenizer_config.json", **options)
    except OSError as error:
        # No connection, for one: whether there is such a file is not known
        if error.__cause__ or error.errno:
            raise
        return None
    # A config, as the folder has none, which a cache does not know offline
    return AutoTokenizer.from_pretrained(
        name, config=PreTrainedConfig(), trust_remote_code=trust_remote_code, **options
    )


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

    A source with more tokens or sentences than 99 % of those in training had
    (`generation_config.usual_source`) gives a warning, too: a model that was trained on single
    sentences translates one of several. csan_hf's pipeline splits it; where csan_hf is imported, a
    checkpoint's copy of this class makes that one.

    **Vocabularies.** A model with separate vocabularies (`config.share_encoder_decoder_embeddings`
    is False) decodes with `target_tokenizer=` or the one in its checkpoint's folder
    `target_tokenizer`.

    **Languages.** `src_lang` and `tgt_lang` choose them where a model has several, in the model's
    own codes: `"de"` of M2M100, `"deu_Latn"` of NLLB, `"de_DE"` of mBART. A Marian model with
    several target languages gets `tgt_lang` as ">>deu<<" before the text. `prefix`, by default
    `config.prefix`, puts any other text there.

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
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_video_processor: Any = False
    _load_feature_extractor: Any = False
    _load_tokenizer: Any = True
    _trusts_target_tokenizer = False
    _splits_texts = False
    for_texts: Any = None  # csan_hf's pipeline, which splits texts
    model: Any
    tokenizer: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Makes csan_hf's pipeline, which splits texts, where a checkpoint's copy of this class is
        called and csan_hf is imported.
        """
        module = sys.modules.get("csan_hf.models.translation")
        original = getattr(module, "TranslationPipeline", cls)
        for_texts = getattr(original, "for_texts", None)
        is_copied = not args and not kwargs
        if is_copied or cls is not TranslationPipeline or cls is original or for_texts is None:
            return super().__new__(cls)
        return for_texts(*args, **kwargs)

    def __init__(self, *args: Any, target_tokenizer: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.tokenizer is None:
            raise ValueError(f"{type(self).__name__} needs a tokenizer: pass tokenizer=.")
        # On the left it would shift the positions of shorter sources
        self.tokenizer.padding_side = "right"
        if target_tokenizer is None:
            target_tokenizer = self._find_target_tokenizer()
        self.target_tokenizer = target_tokenizer

    def _find_target_tokenizer(self) -> Any:
        """Returns the tokenizer of the target language: the joint one, or the checkpoint's second
        one.
        """
        config = self.model.config
        shared = getattr(config, "share_encoder_decoder_embeddings", True)
        # MarianTokenizer with separate vocabularies holds both and decodes with the right one by
        # itself
        if shared or getattr(self.tokenizer, "separate_vocabs", False):
            return self.tokenizer
        places = {self.model.name_or_path: getattr(self.model, "location", {})}
        places.setdefault(self.tokenizer.name_or_path, {})
        places.pop("", None)
        reason = None
        for name, location in places.items():
            try:
                tokenizer = load_target_tokenizer(
                    name, trust_remote_code=self._trusts_target_tokenizer, **location
                )
                if tokenizer is not None:
                    return tokenizer
            # No such repository, no connection, or code of its own
            except (OSError, ValueError) as error:
                reason = error
        if reason is None and config.vocab_size == config.decoder_vocab_size:
            return self.tokenizer  # one vocabulary, with two tables of embeddings
        raise ValueError(
            "The model has separate source and target vocabularies, but no target tokenizer can "
            f"be loaded from the folder {TARGET_TOKENIZER_SUBFOLDER!r} of "
            f"{' or '.join(map(repr, places)) or 'a checkpoint'}: pass it as target_tokenizer=."
        ) from reason

    @property
    def source_limit(self) -> int | None:
        """The tokens of the longest source that the model and its tokenizer take, special ones
        included.
        """
        positions = max_positions(self.model.config) or _NO_LIMIT
        limit = min(positions, self.tokenizer.model_max_length)
        return limit if limit < _NO_LIMIT else None

    def _language_settings(
        self, src_lang: str | None, tgt_lang: str | None
    ) -> tuple[str, dict[str, Any]]:
        """Returns what tells the model its languages: a prefix of the source, and arguments of
        `generate`.
        """
        tokenizer = self.tokenizer
        if hasattr(tokenizer, "src_lang"):  # of a multilingual model
            tgt_lang = tgt_lang or tokenizer.tgt_lang
            if tgt_lang is None:
                return "", {}
            name = "forced_bos_token_id"
            if type(tokenizer).__name__ in _LANGUAGE_STARTS_DECODER:
                name = "decoder_start_token_id"
            return "", {name: language_id(tokenizer, tgt_lang)}
        if tgt_lang is not None:
            mark = f">>{tgt_lang}<<"
            if tokenizer.convert_tokens_to_ids(mark) not in (None, tokenizer.unk_token_id):
                return f"{mark} ", {}
            logger.warning_once(
                f"tgt_lang={tgt_lang!r} has no effect: the model's vocabulary has no {mark}."
            )
        return getattr(self.model.config, "prefix", None) or "", {}

    def _sanitize_parameters(self, **kwargs: Any) -> tuple[dict, dict, dict]:
        """Sorts a call's arguments: what is not the pipeline's own goes to `generate`, which checks
        it.
        """
        languages = _taken(kwargs, "src_lang", "tgt_lang")
        source = _taken(kwargs, "prefix", "truncation")
        text = _taken(kwargs, "return_tensors", "clean_up_tokenization_spaces")
        return {**languages, **source}, {**languages, **kwargs}, text

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
        if not inputs:
            return []
        results = super().__call__(list(inputs), **kwargs)  # of tuples and dataset columns, too
        if all(len(result) == 1 for result in results):
            return [result[0] for result in results]
        return results

    def _tokenize(
        self, text: str, src_lang: str | None = None, tgt_lang: str | None = None, **kwargs: Any
    ) -> Any:
        """Calls the tokenizer with a text as the model is to see it: after its prefix, marked with
        its language.
        """
        prefix = kwargs.pop("prefix", None)
        if prefix is None:
            prefix = self._language_settings(src_lang, tgt_lang)[0]
        with source_language(self.tokenizer, src_lang):
            return self.tokenizer(prefix + text, **kwargs)

    def preprocess(  # type: ignore[override]
        self, text: Any, truncation: bool | str = False, **languages: str
    ) -> dict[str, Any]:
        """Tokenizes a text: `input_ids` [1, J], `attention_mask` [1, J] and `is_empty` [1]."""
        check_text(text)
        limit = self.source_limit if truncation else None
        encoded = self._tokenize(
            text,
            **languages,
            truncation=truncation,
            return_tensors="pt",
            max_length=limit,
        )
        input_ids = encoded["input_ids"]
        attention_mask = encoded["attention_mask"]
        if input_ids.shape[1] == 0:  # an empty text and a tokenizer that adds no end of sentence
            input_ids = torch.full((1, 1), self.tokenizer.pad_token_id or 0)
            attention_mask = torch.ones_like(input_ids)
        positions = max_positions(self.model.config)
        if positions is not None and input_ids.shape[1] > positions:
            logger.warning(
                f"A source has {input_ids.shape[1]} tokens, the model {positions} positions: "
                f"split it into sentences, or pass truncation=True to cut it: {text!r:.80}"
            )
        if not (self._splits_texts or truncation):
            self._warn_of_unusual_source(text, input_ids.shape[1])
        return {
            "input_ids": input_ids.long(),
            "attention_mask": attention_mask,
            "is_empty": torch.tensor([not text.strip()]),
        }

    def _warn_of_unusual_source(self, text: str, length: int) -> None:
        """Warns, once, of a text with more tokens or sentences than nearly all in training."""
        match getattr(self.model.generation_config, "usual_source", None):
            case {"tokens": int(tokens), "sentences": int(sentences)}:
                letters = _NEXT_SENTENCE.findall(text)
                count = 1 + sum(not letter.islower() for letter in letters)
                if length > tokens or count > sentences:
                    logger.warning_once(
                        "A source has more tokens or sentences than 99 % of those in training had "
                        f"(at most {tokens} and {sentences}): part of it may be left out. "
                        "Translate its sentences one by one, or `import csan_hf`, which splits it."
                    )

    def _forward(  # type: ignore[override]
        self,
        model_inputs: Any,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generate_kwargs: Any,
    ) -> Any:
        """Generates `output_ids` [B, R, T] for `input_ids` [B, J], R = `num_return_sequences`."""
        inputs = dict(model_inputs)
        is_empty = inputs.pop("is_empty")
        chosen = self._get_set_generation_params(self._prepare_generate_kwargs(generate_kwargs))
        settings = {}
        for name, value in self._language_settings(src_lang, tgt_lang)[1].items():
            is_chosen = name not in _LANGUAGE_ARGUMENTS and name in chosen
            if name not in generate_kwargs and not is_chosen:
                settings[name] = value
        options = {**chosen, **settings}
        self._check_target_language(options)
        if (options.get("max_new_tokens") or options.get("max_length")) is None:
            limits = self._length_limits(inputs["attention_mask"])
            settings["max_new_tokens"] = int(limits.max())
            generate_kwargs = self._with_limits(generate_kwargs, limits)
        elif options.get("max_new_tokens") and generate_kwargs.get("max_length") is None:
            # Or generate would warn, in every batch, that it is not heeded
            settings["max_length"] = None
        output = self.model.generate(
            **inputs, **self._prepare_generate_kwargs(generate_kwargs, **settings)
        )
        output_ids = output["sequences"] if isinstance(output, ModelOutput) else output
        output_ids = output_ids.reshape(len(is_empty), -1, output_ids.shape[-1])
        if {"max_length", "max_new_tokens"}.isdisjoint(generate_kwargs):  # no length was asked for
            self._warn_of_cut_translations(output_ids[~is_empty.to(output_ids.device)])
        return {"output_ids": output_ids, "is_empty": is_empty}

    def _check_target_language(self, options: dict[str, Any]) -> None:
        """Raises `ValueError` where a multilingual model would choose the language by itself."""
        tokenizer = self.tokenizer
        if not hasattr(tokenizer, "src_lang") or options.get("forced_bos_token_id") is not None:
            return
        no_language = (
            None,
            tokenizer.eos_token_id,
            tokenizer.bos_token_id,
            tokenizer.pad_token_id,
        )
        if options.get("decoder_start_token_id") in no_language:
            raise ValueError(
                f"{type(self.model).__name__} knows several languages: pass tgt_lang= (and "
                "src_lang=)."
            )

    def _length_limits(self, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns how many tokens [B] each translation may have."""
        lengths = attention_mask.sum(-1)
        limits = 2 * lengths + 50
        positions = max_positions(self.model.config)
        if positions is None:
            return limits
        # A model that has extended its positions for the source has done so for the target
        within = limits.clamp(max=max(positions - 1, 1))
        return torch.where(lengths > positions, limits, within)

    def _with_limits(self, generate_kwargs: dict[str, Any], limits: torch.Tensor) -> dict[str, Any]:
        """Adds a criterion that stops each sentence at its own limit, as without neighbours."""
        prompt = generate_kwargs.get("decoder_input_ids")
        lengths = limits + (1 if prompt is None else prompt.shape[-1])

        def at_own_limit(input_ids: torch.Tensor, scores: object, **kwargs: Any) -> torch.Tensor:
            """Whether the hypotheses [B · beams, T] of each sentence are at its limit."""
            beams = input_ids.shape[0] // len(lengths)
            return input_ids.shape[1] >= lengths.repeat_interleave(beams)

        criteria = generate_kwargs.get("stopping_criteria") or []
        return {**generate_kwargs, "stopping_criteria": [*criteria, at_own_limit]}

    def _warn_of_cut_translations(self, output_ids: torch.Tensor) -> None:
        """Warns of translations [B, R, T] that have no end, because they are as long as they may
        be.
        """
        config = self.model.generation_config
        if config.eos_token_id is None:
            return
        ends = torch.tensor(config.eos_token_id).to(output_ids)
        if torch.isin(output_ids[..., 1:], ends).any(-1).all():
            return
        longest = config.max_new_tokens or config.max_length
        bound = "2 · source tokens + 50"
        if longest:
            bound = f"the {longest} tokens of the model's generation config"
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
        sequences = model_outputs["output_ids"][0]
        if model_outputs["is_empty"][0]:
            sequences = sequences[:, :0]
        if return_tensors:
            return [{"translation_token_ids": ids} for ids in sequences]
        results = []
        for ids in sequences:
            text = self.target_tokenizer.decode(
                ids,
                skip_special_tokens=True,
                clean_up_tokenization_spaces=clean_up_tokenization_spaces,
            )
            results.append({"translation_text": text})
        return results

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


def _taken(options: dict[str, Any], *names: str) -> dict[str, Any]:
    """Takes some options out, without those that are None."""
    taken = {name: options.pop(name, None) for name in names}
    return {name: value for name, value in taken.items() if value is not None}


# What `save_pretrained` writes into config.custom_pipelines. Registering a pipeline sets it too,
# but a copy loaded from a checkpoint is never registered, and would leave its own code behind when
# it is saved again.
TranslationPipeline._registered_impl = {  # type: ignore[attr-defined]
    "translation": {"impl": TranslationPipeline, "pt": (AutoModelForSeq2SeqLM,), "type": "text"}
}
