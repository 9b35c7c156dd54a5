# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Several models as one: `generate`, beam search and the pipelines take the mean of their
probabilities.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForSeq2SeqLM
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation import GenerationConfig, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.models.marian.modeling_marian import shift_tokens_right
from transformers.utils import can_return_tuple

from ..models.seq2seq_model import (
    CACHE,
    LOCATION_OPTIONS,
    Seq2SeqPreTrained,
    known_keywords,
    label_loss,
    passed_cache,
    takes_past_key_values,
)
from ..models.translation import max_positions

if TYPE_CHECKING:
    from csan_hf.data import TokenizerPair

_TOKENS = ("pad_token_id", "eos_token_id", "decoder_start_token_id")


class EnsembleConfig(PreTrainedConfig):
    """Configuration of an `EnsembleForConditionalGeneration`.

    Args:
        members: The members' configurations, as dicts. Generation and pipelines see the tokens and
            target vocabulary of the first, and the fewest positions of all.
    """

    model_type = "ensemble"
    has_no_defaults_at_init = True

    members: list[dict[str, Any]] | None = None
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        """Take from the members what others look for in a config."""
        super().__post_init__(**kwargs)
        configs = self.member_configs()
        if not configs:
            return
        for name in _TOKENS:
            setattr(self, name, getattr(configs[0], name, None))
        self.share_encoder_decoder_embeddings = getattr(
            configs[0], "share_encoder_decoder_embeddings", True
        )
        self.vocab_size = target_size(configs[0])
        limits = [max_positions(config) for config in configs]
        self.max_position_embeddings = min(
            (limit for limit in limits if limit is not None), default=None
        )

    def member_configs(self) -> list[PreTrainedConfig]:
        """The members' configurations."""
        return [AutoConfig.for_model(**copy.deepcopy(member)) for member in self.members or ()]


def target_size(config: PreTrainedConfig) -> int:
    """Entries of a config's target vocabulary."""
    size = getattr(config, "decoder_vocab_size", None)
    return config.vocab_size if size is None else size


class EnsembleCache(Cache):
    """The members' caches side by side."""

    is_compileable = False

    def __init__(self, caches: Sequence[Any]) -> None:
        super().__init__(layers=[])
        self.caches = caches

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Target positions that are kept."""
        return self.caches[0].get_seq_length(layer_idx)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take the beams `beam_idx` [B · beams]."""
        for cache in self.caches:
            cache.reorder_cache(beam_idx)

    def activate_past_recording(self) -> None:
        """Keep in every member's cache what `crop` needs."""
        for cache in self.caches:
            cache.activate_past_recording()

    def crop(self, *args: Any) -> None:
        """Forget the last positions, in every member's cache."""
        for cache in self.caches:
            cache.crop(*args)


class _Encoders(nn.Module):
    """The members' encoders: `last_hidden_state` of the first, `member_1` of the second and so on,
    each [B, J, d], and the `line_ids` [B, J] of members that need them.
    """

    main_input_name = "input_ids"

    def __init__(self, members: Sequence[Any]) -> None:
        super().__init__()
        self.members = tuple(members)  # not registered: their weights are the ensemble's

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        output_attentions: bool | None = None,  # these two are not returned
        output_hidden_states: bool | None = None,
        return_dict: bool = True,
    ) -> BaseModelOutput:
        outputs = BaseModelOutput()
        line_ids = None
        for number, member in enumerate(self.members):
            encoded = member.get_encoder()(
                input_ids.to(member.device),
                attention_mask=_on_device(attention_mask, member.device),
                return_dict=True,
            )
            name = "last_hidden_state" if number == 0 else f"member_{number}"
            outputs[name] = encoded[0]
            line_ids = encoded.get("line_ids", line_ids)  # the same of all members that have them
        if line_ids is not None:
            outputs["line_ids"] = line_ids
        return outputs


class EnsembleForConditionalGeneration(Seq2SeqPreTrained, GenerationMixin):
    """Sequence-to-sequence models over the same vocabularies, as one model that averages their
    probabilities.

    Members may be of any family and on any device (`ensemble.members[1].to("cuda:1")`).

    ```python
    ensemble = EnsembleForConditionalGeneration.from_pretrained(["runs/seed_1", "runs/seed_2"])
    tokenizer = AutoTokenizer.from_pretrained("runs/seed_1")
    translation_pipeline(ensemble, tokenizer=tokenizer)("Guten Morgen.")
    ensemble.save_pretrained("ensemble")  # one checkpoint, which the Auto class loads, too
    ```

    Raises:
        ValueError: The members differ in their vocabularies, or in padding, end or start token.
    """

    config_class = EnsembleConfig  # type: ignore[assignment]
    config: EnsembleConfig  # type: ignore[assignment]
    main_input_name = "input_ids"
    gives_attention = False

    def __init__(
        self, config: EnsembleConfig, members: Sequence[PreTrainedModel] | None = None
    ) -> None:
        super().__init__(config)
        if members is None:
            members = [
                AutoModelForSeq2SeqLM.from_config(member, trust_remote_code=False)
                for member in config.member_configs()
            ]
        self.members: Any = nn.ModuleList(members)
        self.post_init()

    @classmethod
    def of(cls, models: Sequence[PreTrainedModel]) -> EnsembleForConditionalGeneration:
        """An ensemble of models that are loaded; the members of an ensemble count one by one.

        The first one's generation config is the ensemble's. All are put into evaluation mode.
        """
        members: list[Any] = []
        for model in models:
            members += getattr(model, "members", [model])
        first = members[0]
        for member in members[1:]:
            _check_same_tokens(member, first)
        config = EnsembleConfig(members=[member.config.to_dict() for member in members])
        ensemble = cls(config, members).eval()
        ensemble.generation_config = copy.deepcopy(first.generation_config)
        ensemble.config._name_or_path = first.name_or_path
        ensemble.location = getattr(first, "location", {})
        return ensemble

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        names: str | os.PathLike | list | tuple,
        *args: Any,
        trust_remote_code: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Loads a list of models, or an ensemble that was saved; arguments are those of
        `from_pretrained`.

        Raises:
            ValueError: Members have different vocabularies or a class of their own, a tokenizer
                needs code that is not trusted, or a saved ensemble lacks weights.
        """
        if not isinstance(names, list | tuple):
            return super().from_pretrained(names, *args, **kwargs)
        from csan_hf.data.tokenization import TokenizerPair  # slow to import

        where = {option: kwargs[option] for option in LOCATION_OPTIONS & kwargs.keys()}
        for name in names:
            check_member(name, **where)
        tokenizers = {}
        for name in names:
            try:
                tokenizers[name] = TokenizerPair.from_pretrained(
                    name, trust_remote_code=trust_remote_code, **where
                )
            except (OSError, ValueError) as error:
                if "trust_remote_code" in str(error):
                    raise
                continue  # a member without a tokenizer
        check_vocabularies(tokenizers)
        members = [
            AutoModelForSeq2SeqLM.from_pretrained(
                name, *args, trust_remote_code=trust_remote_code, **kwargs
            )
            for name in names
        ]
        return cls.of(members)

    def tied_weights(self) -> dict[str, str]:
        """The members' tied weights."""
        keys = {}
        for number, member in enumerate(self.members):
            for name, source in member.all_tied_weights_keys.items():
                keys[f"members.{number}.{name}"] = f"members.{number}.{source}"
        return keys

    def saved_weights(self) -> set[str]:
        """All of the members' weights."""
        return set(self.state_dict())

    def get_encoder(self, *args: Any, **kwargs: Any) -> nn.Module:
        """The encoders as one, for `generate`."""
        return _Encoders(self.members)

    def _prepare_cache_for_generation(  # type: ignore[override]
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any
    ) -> None:
        implementation = generation_config.cache_implementation
        if implementation not in (None, "dynamic", "offloaded"):
            raise ValueError(
                f"cache_implementation={implementation!r} is not for ensembles, whose members make "
                "caches of their own kinds: leave it unset."
            )
        if passed_cache(model_kwargs) is not None:
            return
        caches: list[Any] = []
        for member in self.members:
            member_kwargs: dict[str, Any] = {}
            member._prepare_cache_for_generation(generation_config, member_kwargs, *args)
            caches.append(member_kwargs.get(CACHE))
        if None not in caches:
            model_kwargs[CACHE] = EnsembleCache(caches)

    @can_return_tuple
    @takes_past_key_values
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: Any = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """The logarithm of the mean of the members' probabilities, `logits` [B, I, V], in float32.

        Args:
            input_ids, attention_mask: Sources [B, J], and which of their tokens are real.
            decoder_input_ids, decoder_attention_mask: Target tokens [B, I]; default: `labels`
                shifted right.
            encoder_outputs: Outputs of `get_encoder()`, instead of sources.
            cache: The `EnsembleCache` of earlier target positions, as an ensemble returned it.
            labels: Tokens to predict [B, I], -100 = ignored; `loss` is their mean cross-entropy, or
                their sum over the Trainer's `num_items_in_batch`.
            use_cache: Whether to return a cache.
            **kwargs: Attentions and hidden states, which `generate` may ask for, differ between
                members and are not returned.

        Raises:
            ValueError: The cache is another model's.
        """
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        known_keywords(kwargs)
        if not isinstance(cache, EnsembleCache | None):
            raise ValueError(
                f"An ensemble keeps a cache for each member, which {type(cache).__name__} cannot "
                "hold: leave `cache` unset, or pass what an ensemble returned."
            )
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        if labels is not None and decoder_input_ids is None:
            decoder_input_ids = shift_tokens_right(
                labels, self.config.pad_token_id, self.config.decoder_start_token_id
            )
        if labels is not None:
            use_cache = False
        caches: list[Any] = []
        line_ids = getattr(encoder_outputs, "line_ids", None)

        def logits_of_members() -> Iterator[torch.Tensor]:
            for number, member in enumerate(self.members):
                member_cache = None if cache is None else cache.caches[number]
                encoded = BaseModelOutput(encoder_outputs[number])
                if line_ids is not None:
                    encoded["line_ids"] = _on_device(line_ids, member.device)
                outputs = member(
                    attention_mask=_on_device(attention_mask, member.device),
                    decoder_input_ids=_on_device(decoder_input_ids, member.device),
                    decoder_attention_mask=_on_device(decoder_attention_mask, member.device),
                    encoder_outputs=encoded,
                    labels=_on_device(labels, member.device),
                    use_cache=use_cache,
                    return_dict=True,
                    **{CACHE: member_cache},
                )
                caches.append(outputs.cache)
                yield outputs.logits

        mean = mean_log_probabilities(logits_of_members())
        if cache is None and None not in caches:
            cache = EnsembleCache(caches)
        # Log-probabilities are their own logits
        loss = None if labels is None else label_loss(mean, labels, num_items_in_batch)
        return Seq2SeqLMOutput(loss, mean, cache)


def mean_log_probabilities(logits: Iterable[torch.Tensor]) -> torch.Tensor:
    """The logarithm of the mean of the members' probabilities, float32 [..., V], of their logits,
    which may be on several devices.
    """
    steps = (values.log_softmax(dim=-1, dtype=torch.float32) for values in logits)
    total = next(steps)
    count = 1
    for log_probabilities in steps:
        total = torch.logaddexp(total, log_probabilities.to(total.device))
        count += 1
    return total - math.log(count)


def check_member(name: str | os.PathLike, **where: Any) -> None:
    """Raises `ValueError` if a checkpoint's class is in its own code: an ensemble's config could
    not name it.

    `where` is for `from_pretrained` (revision, token, ...)."""
    model_type = PreTrainedConfig.get_config_dict(name, **where)[0].get("model_type")
    if model_type not in (None, *CONFIG_MAPPING):  # None: an adapter, beside another's config
        raise ValueError(
            f"{name} is a model of type {model_type!r}, a class of its own code: "
            "members of an ensemble are models of csan_hf or transformers."
        )


def check_vocabularies(tokenizers: Mapping[str, TokenizerPair]) -> None:
    """Raises `ValueError` if members' tokenizers, by the members' names, differ in their tokens."""
    vocabularies = {
        name: (pair.source.get_vocab(), pair.target.get_vocab())
        for name, pair in tokenizers.items()
    }
    first = next(iter(vocabularies), "")
    for name, vocabulary in vocabularies.items():
        if vocabulary != vocabularies[first]:
            raise ValueError(
                f"{name} and {first} have different vocabularies: members of an ensemble share "
                "their tokens."
            )


def _check_same_tokens(model: PreTrainedModel, first: PreTrainedModel) -> None:
    expected = _token_settings(first.config)
    for setting, value in _token_settings(model.config).items():
        if value != expected[setting]:
            raise ValueError(
                f"{model.name_or_path!r} and {first.name_or_path!r} differ in their {setting} "
                f"({value} and {expected[setting]}): members of an ensemble share their tokens."
            )


def _token_settings(config: PreTrainedConfig) -> dict[str, int | None]:
    sizes = {"target vocabulary": target_size(config), "source vocabulary": config.vocab_size}
    return sizes | {name: getattr(config, name, None) for name in _TOKENS}


def _on_device(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(device)


AutoConfig.register(EnsembleConfig.model_type, EnsembleConfig, exist_ok=True)
AutoModelForSeq2SeqLM.register(EnsembleConfig, EnsembleForConditionalGeneration, exist_ok=True)
