# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The sections training and generation: their keys, defaults for translation, and checks."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import GenerationConfig, Seq2SeqTrainingArguments
from transformers.utils import is_torch_bf16_gpu_available

from csan_hf.credentials import WHERE_INSTEAD
from csan_hf.evaluation.loading import cpu_has_bfloat16, warn_of_slow_bfloat16
from csan_hf.evaluation.metrics import DEFAULT_METRICS, find_metric
from csan_hf.families import ModelFamily
from csan_hf_runtime.generation import check_lengths
from csan_hf_runtime.keys import (
    ABOVE_0,
    BELOW_1,
    FROM_0,
    Affects,
    Bounds,
    Fact,
    at_least,
    check_bounds,
    declare,
    declare_all,
    declared_keys,
)


def device_has_bf16(*, use_cpu: bool) -> bool:
    """Whether a training's device computes bf16 in hardware."""
    if use_cpu:
        return cpu_has_bfloat16()
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(is_torch_bf16_gpu_available())


_FROM_1 = at_least(1)
_WITH_START_TOKEN = Bounds(
    "at least 2, as it counts the token that generation starts with", lambda value: value >= 2
)
_SHARE = Bounds("above 0 and at most 1", lambda value: 0 < value <= 1)
_POSITION_AND_FACTOR = Bounds(
    "a position of at least 0 and a factor above 0",
    lambda value: len(value) == 2 and value[0] >= 0 and 0 < value[1] < math.inf,
)
_BIASES = Bounds(
    "pairs of tokens and a finite number",
    lambda pairs: all(tokens and math.isfinite(bias) for tokens, bias in pairs),
)
_CACHES = Bounds(
    "'dynamic' or 'static', or with an accelerator 'offloaded'",
    lambda kind: (
        kind != "quantized" and ("offloaded" not in kind or torch.accelerator.is_available())
    ),
)
_METRICS_OF_TRANSLATIONS = Bounds(
    "names of metrics of translations, not of alignments",
    lambda names: all(find_metric(name).needs != "alignments" for name in names),
)
_FROM_THE_TOKENIZER: dict[str, Fact] = {
    "pad_token_id eos_token_id bos_token_id decoder_start_token_id": "it follows from the tokenizer"
}
LIBRARY = {
    "config": declare_all(
        {
            **_FROM_THE_TOKENIZER,
            "vocab_size decoder_vocab_size": "it follows from tokenizer.vocab_size",
            "line_token_id": "it follows from tokenizer.line_token",
            "is_encoder_decoder is_decoder architectures": "it follows from the model",
        }
    ),
    "generation": declare_all(
        {
            **_FROM_THE_TOKENIZER,
            "num_return_sequences": "one translation of each sentence is scored",
        }
    ),
    "training": declare_all(
        {
            "gradient_accumulation_steps per_device_train_batch_size": _FROM_1,
            "weight_decay max_grad_norm dataloader_num_workers": FROM_0,
            "num_train_epochs": ABOVE_0,
            "adam_beta1": BELOW_1,
            "seed data_seed": Bounds("in [0, 2^32)", lambda value: 0 <= value < 2**32),
            "max_steps": Bounds(
                "at least 1, or -1 for num_train_epochs",
                lambda value: value == -1 or value >= 1,
            ),
            "accelerator_config": Bounds(
                "without even_batches: false: processes share an evaluation in equal batches",
                lambda value: not isinstance(value, dict) or value.get("even_batches", True),
            ),
            "hub_strategy": Bounds(
                "'end' or 'every_save': optimizer states are not for sharing",
                lambda value: value in ("end", "every_save"),
            ),
            "logging_strategy logging_first_step run_name disable_tqdm push_to_hub hub_strategy "
            "hub_private_repo hub_model_id hub_always_push hub_revision": Affects.NOTHING,
            # Not dataloader_drop_last, which changes the batches where max_tokens is null
            "use_cpu dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
            "dataloader_prefetch_factor dataloader_multiprocessing_context ddp_bucket_cap_mb "
            "ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout "
            "gradient_checkpointing gradient_checkpointing_kwargs": Affects.SPEED,
            "eval_delay eval_on_start eval_do_concat_batches eval_use_gather_object "
            "eval_accumulation_steps save_only_model save_on_each_node": Affects.SCORES,
            "output_dir": "write output_dir at the top of the recipe",
            "resume_from_checkpoint": "a run resumes by itself; use --overwrite to start anew",
            "generation_config generation_max_length": "use the section generation",
            "save_total_limit": "use training.keep_best",
            "train_sampling_strategy length_column_name sortish_sampler": (
                "batches are built by training.max_tokens"
            ),
            "remove_unused_columns label_names": "the trainer needs its own value",
            "prediction_loss_only": "use training.predict_with_generate",
            "batch_eval_metrics": "BLEU is a corpus score",
            "do_train do_predict": (
                "training always runs, and the test splits are always translated"
            ),
            "do_eval": "use training.eval_strategy",
            "local_rank parallelism_config": (
                "the launcher sets it (accelerate launch --config_file)"
            ),
            "processes num_processes nproc_per_node gpus": (
                "start several by torchrun --nproc_per_node N -m csan_hf train RECIPE "
                "(docs/many-gpus.md)"
            ),
            "hub_token": f"a run writes and uploads its recipe: {WHERE_INSTEAD}",
        }
    ),
}
"""Declarations of arguments of the library, by section; fields of the classes below declare
themselves.
"""


def check_section(section: str, declared: type, values: Mapping[str, Any]) -> None:
    """Raises a `ValueError` that names the first value of a section that is out of its bounds."""
    check_bounds(declared_keys(declared, LIBRARY[section]), values, f"{section}.")


@dataclass
class TranslationTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with translation's defaults and a few fields of our own.

    The optimiser and the schedule are those of Vaswani et al. (2017, section 5.3): Adam with betas
    0.9 and 0.98 and epsilon 1e-9; the rate grows linearly to `learning_rate` over `warmup_steps`
    and then falls as `learning_rate * sqrt(warmup_steps / step)`. Their peak is `d_model**-0.5 *
    warmup_steps**-0.5`; here it is given.

    Raises:
        ValueError: If a field is out of range; the message names it.
    """

    output_dir: str = "trainer_output"
    """Folder for everything that a run writes."""
    learning_rate: float = declare(5e-4, FROM_0)
    """Peak learning rate, reached after warm-up."""
    lr_scheduler_type: str = "inverse_sqrt"
    """Schedule after warm-up: 'inverse_sqrt' (Vaswani), 'linear', 'cosine', 'constant'..."""
    warmup_steps: float = declare(4000, FROM_0)
    """Updates of linear warm-up; a fraction below 1 is a share of all updates."""
    optim: str = "adamw_torch_fused"
    """Optimiser; with weight_decay 0, Adam."""
    adam_beta2: float = declare(0.98, BELOW_1)
    """Adam's second beta."""
    adam_epsilon: float = declare(1e-9, FROM_0)
    """Adam's epsilon."""
    label_smoothing_factor: float = declare(0.1, BELOW_1)
    """Label smoothing, torch's definition: mass spread over the whole vocabulary."""
    bf16: bool | Literal["auto"] = "auto"  # type: ignore[assignment]
    """bfloat16 autocast: true, false, or 'auto' = where the machine does it in hardware."""
    torch_compile: bool = declare(False, Affects.SPEED)
    """Compile forward and backward passes by torch.compile. What fails to compile runs uncompiled.
    """
    max_tokens: int | None = declare(4096, _FROM_1)
    """Tokens in a batch on one device, source plus target, padding included. null: batches of
    per_device_train_batch_size sentences instead.
    """
    max_cells: int | None = declare(16384, _FROM_1)
    """Cells of the source x target grid in a batch on one device: the bound of models that work on
    the grid (pervasive_attention), instead of max_tokens. Padding counts unless mix_lengths. null:
    batches of per_device_train_batch_size sentences instead.
    """
    mix_lengths: bool | None = None
    """true: every batch holds long and short sentences as the corpus does, and its bound counts
    real tokens or cells. false: a batch holds sentences of like lengths, and little is padded.
    null: true for models with batch normalisation (pervasive_attention), whose statistics would
    depend on the lengths, else false.
    """
    bpe_dropout: float = declare(0.0, BELOW_1)
    """BPE-dropout: probability of skipping a merge when training sentences are tokenized, anew in
    each epoch. At 0.1 batches hold about a quarter more tokens than their bound. Two runs
    differ, as its random numbers take no seed.
    """
    teachers: list[str] | None = None
    """Folders or Hub names of trained models with the same vocabularies: beside the labels, the
    model learns their distribution over the next token (the mean of their probabilities). They are
    asked once, before training; what they say is kept in data.cache_dir. They run no code of their
    own.
    """
    teacher_weight: float = declare(0.5, _SHARE)
    """Weight of the teachers in the loss; the labels with their smoothing have the rest."""
    teacher_temperature: float = declare(1.0, ABOVE_0)
    """Divides the logits of teachers and model in the teachers' part of the loss: above 1 unlikely
    tokens count more.
    """
    teacher_top_k: int = declare(16, _FROM_1)
    """Tokens that are kept of each distribution of the teachers, the likeliest ones, their
    probabilities divided by their sum; all, where the vocabulary has no more.
    """
    teacher_n_best: int = declare(1, _FROM_1)
    """Translations that the teachers give each source of data.unlabelled, by beam search with at
    least as many beams; their probabilities, divided by their sum, are the weights of these pairs.
    """
    max_sentences: int | None = declare(None, _FROM_1)
    """Maximum number of sentence pairs in a batch, on top of max_tokens or max_cells."""
    per_device_eval_batch_size: int = declare(64, _FROM_1, Affects.SPEED)
    """Sentences in an evaluation batch."""
    eval_strategy: str = declare("steps", Affects.SCORES)
    """When to evaluate: 'steps', 'epoch' or 'no'."""
    eval_steps: float | None = declare(500, ABOVE_0, Affects.SCORES)
    """Updates between two evaluations."""
    save_strategy: str | None = declare(None, Affects.SCORES)  # type: ignore[assignment]
    """When to save a checkpoint; null: at each evaluation."""
    save_steps: float | None = declare(None, ABOVE_0, Affects.SCORES)  # type: ignore[assignment]
    """Updates between two checkpoints; null: eval_steps."""
    logging_steps: float = declare(50, ABOVE_0, Affects.NOTHING)
    """Updates between two reports of the loss."""
    logging_nan_inf_filter: bool = declare(False, Affects.NOTHING)
    """Leave losses that are not finite out of the log, which waits for the device at every batch. A
    run ends at the first one either way.
    """
    predict_with_generate: bool = True
    """Translate the validation set at each evaluation, for BLEU."""
    generation_num_beams: int | None = declare(1, _FROM_1)
    """Beams at the evaluations during training; the final scores use generation.num_beams."""
    load_best_model_at_end: bool = declare(True, Affects.SCORES)
    """Return to the best checkpoint when training ends, or to an average; false keeps the last
    weights."""
    metrics: list[str] = declare([*DEFAULT_METRICS], _METRICS_OF_TRANSLATIONS)
    """Metrics of the translations: bleu, chrf, ter...; an unknown name lists all."""
    metric_for_best_model: str | None = "bleu"
    """Chooses the best checkpoint: one of metrics, or 'loss'."""
    early_stopping_patience: int | None = declare(None, _FROM_1, Affects.SCORES)
    """Stop after this many evaluations without a better score; null: train to the end."""
    early_stopping_threshold: float = declare(0.0, FROM_0, Affects.SCORES)
    """A smaller gain than this does not count as better."""
    keep_best: int = declare(5, _FROM_1, Affects.SCORES)
    """Number of best checkpoints to keep besides the newest; see average_best."""
    average_best: bool = declare(True, Affects.SCORES)
    """Average the kept checkpoints at the end, and use the average if it scores better."""
    batch_norm_batches: int = declare(200, FROM_0, Affects.SCORES)
    """Training batches from which batch normalisation (pervasive_attention) takes its statistics
    again for the final weights; 0: keep those of training.
    """
    report_to: str | list[str] | None = declare("tensorboard", Affects.NOTHING)
    """Where logs go besides the screen: 'tensorboard', 'none', 'wandb'..."""
    ddp_find_unused_parameters: bool | None = declare(False, Affects.SPEED)
    """With several GPUs and layerdrop this must be true, which is slower."""
    activation_checkpointing: bool | None = declare(None, Affects.SPEED)
    """Compute activations anew in the backward pass instead of keeping them, for less memory."""
    activation_checkpointing_kwargs: dict[str, Any] | str | None = declare(None, Affects.SPEED)
    """Arguments of the model's `activation_checkpointing_enable`."""

    def __post_init__(self) -> None:
        """Checks the numbers, fills the fields that follow from others, then runs the library's own
        checks.
        """
        check_section("training", type(self), vars(self))
        if self.teachers and self.bpe_dropout:
            raise ValueError(
                "training.teachers know targets that stay the same, and training.bpe_dropout cuts "
                "them anew in each epoch: set it to 0, or leave the teachers out."
            )
        if self.eval_strategy == "no":
            self.load_best_model_at_end = False
            self.metric_for_best_model = None
            self.early_stopping_patience = None
        if self.metric_for_best_model is not None:
            self._check_best_metric(self.metric_for_best_model.removeprefix("eval_"))
        if self.early_stopping_patience is not None and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        if not torch.accelerator.is_available():
            # transformers otherwise refuses bf16 on a CPU, and several processes train apart
            self.use_cpu = True
        if self.bf16 == "auto":
            self.bf16 = device_has_bf16(use_cpu=self.use_cpu)
        if not self.use_cpu and self.accelerator_config is None:
            # The host does not wait for the copy of a batch
            self.accelerator_config = {"non_blocking": True}
        if self.use_cpu:
            self.dataloader_pin_memory = False  # nothing to copy to; torch warns otherwise
            if self.bf16:
                warn_of_slow_bfloat16()
        if self.save_strategy is None:
            self.save_strategy = self.eval_strategy if self.load_best_model_at_end else "steps"
        if self.save_steps is None:
            self.save_steps = self.eval_steps if self.eval_steps is not None else 500
        if not hasattr(Seq2SeqTrainingArguments, "activation_checkpointing"):
            # Its name before transformers 5.23
            self.activation_checkpointing = bool(
                self.activation_checkpointing or self.gradient_checkpointing
            )
            self.gradient_checkpointing = self.activation_checkpointing
            if self.activation_checkpointing_kwargs is not None:
                self.gradient_checkpointing_kwargs = self.activation_checkpointing_kwargs
        super().__post_init__()

    def _check_best_metric(self, name: str) -> None:
        """Checks that evaluations give the metric, and looks up which of its scores are better."""
        choices = ["loss"]
        hint = ", as training.predict_with_generate is false"
        if self.predict_with_generate:
            choices = [*self.metrics, "loss"]
            hint = ""
        if name not in choices:
            raise ValueError(
                f"training.metric_for_best_model must be one of {', '.join(choices)}{hint}, got "
                f"{self.metric_for_best_model!r}."
            )
        if self.greater_is_better is None:
            self.greater_is_better = name != "loss" and find_metric(name).greater_is_better

    @property
    def precision(self) -> str:
        """The type that most of a forward pass is computed in: "bf16", "fp16" or "float32"."""
        if self.bf16:
            return "bf16"
        return "fp16" if self.fp16 else "float32"

    def batch_bound(self, family: ModelFamily) -> int | None:
        """Returns the field that bounds a batch of this family; None: batches are the library's."""
        return self.max_cells if family.batch_cost == "cells" else self.max_tokens

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the Hub's token out of pickles, such as training_args.bin."""
        return {**vars(self), "hub_token": None}


@dataclass
class GenerationArguments:
    """Settings of transformers' `GenerationConfig` for a translation model; None leaves the
    library's own.
    """

    num_beams: int | None = declare(None, _FROM_1)
    """Beams; 1 is greedy search."""
    max_length: int | None = declare(None, _WITH_START_TOKEN)
    """Maximum number of target tokens, with the decoder's start token."""
    max_new_tokens: int | None = None
    """Maximum number of target tokens without the start token, instead of max_length."""
    min_length: int | None = declare(None, FROM_0)
    """Minimum number of target tokens, with the decoder's start token."""
    min_new_tokens: int | None = declare(None, FROM_0)
    """Minimum number of target tokens without the start token, instead of min_length."""
    max_time: float | None = declare(None, ABOVE_0)
    """Seconds after which generation of a batch stops, finished or not."""
    length_penalty: float | None = declare(None, Bounds("finite", math.isfinite))
    """Exponent of the length that divides a beam's score: above 0 favours long ones."""
    early_stopping: bool | str | None = None
    """When to stop: true, at num_beams finished hypotheses; false, when better ones are unlikely;
    'never', when they are impossible.
    """
    no_repeat_ngram_size: int | None = declare(None, FROM_0)
    """No n-gram of this length occurs twice in a translation."""
    encoder_no_repeat_ngram_size: int | None = declare(None, FROM_0)
    """No n-gram of this length in the source occurs in its translation."""
    repetition_penalty: float | None = declare(None, ABOVE_0)
    """Divides the scores of tokens that have occurred; 1 is none."""
    encoder_repetition_penalty: float | None = declare(None, ABOVE_0)
    """Lowers tokens that are not in the source; 1 is none."""
    exponential_decay_length_penalty: list[float] | None = declare(None, _POSITION_AND_FACTOR)
    """A list of a position and a factor: from that position on, the end becomes likelier at every
    token.
    """
    suppress_tokens: list[int] | None = None
    """Ids of tokens that are never generated."""
    begin_suppress_tokens: list[int] | None = None
    """Ids of tokens that are not generated first."""
    bad_words_ids: list[list[int]] | None = None
    """Sequences of token ids that are never generated."""
    sequence_bias: list[tuple[list[int], float]] | None = declare(None, _BIASES)
    """Pairs of a sequence of token ids and the bias added to its score."""
    forced_bos_token_id: int | None = None
    """Id of the first target token, such as the language of a multilingual model."""
    forced_eos_token_id: int | list[int] | None = None
    """Id of the last target token where max_length is reached."""
    renormalize_logits: bool | None = None
    """Whether log-probabilities are normalised again after all changes to the scores."""
    remove_invalid_values: bool | None = None
    """Whether NaN and infinite scores are replaced by finite ones."""
    use_cache: bool | None = None
    """Whether keys and values of earlier positions are kept."""
    cache_implementation: str | None = declare(None, _CACHES)
    """Kind of that cache."""
    do_sample: bool | None = None
    """Whether tokens are drawn by their probability; the settings below apply only then."""
    temperature: float | None = declare(None, ABOVE_0)
    """Divides the logits before sampling."""
    top_k: int | None = declare(None, FROM_0)
    """How many of the likeliest tokens are sampled from."""
    top_p: float | None = declare(None, _SHARE)
    """Probability of the smallest set of likeliest tokens that is sampled from."""
    min_p: float | None = declare(None, Bounds("in [0, 1]", lambda value: 0 <= value <= 1))
    """Minimum probability of a sampled token, as a share of the likeliest one's."""
    typical_p: float | None = declare(None, _SHARE)
    """Probability of the smallest set of most typical tokens that is sampled from."""
    epsilon_cutoff: float | None = declare(None, BELOW_1)
    """Minimum probability of a sampled token."""
    eta_cutoff: float | None = declare(None, BELOW_1)
    """As epsilon_cutoff, but lower where the distribution is flat."""


_SETTINGS_OF_TOKENS = (
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "sequence_bias",
)
_EMPTY_WITHOUT_EFFECT = ("suppress_tokens", "begin_suppress_tokens")


def check_generation(values: Mapping[str, Any], vocabulary_size: int) -> None:
    """Checks settings of generation, of which transformers refuses some at the first translation.

    Args:
        values: Names of `GenerationConfig` and their values; None = not set.
        vocabulary_size: Tokens that the decoder has.

    Raises:
        ValueError: It names key, value and bound.
    """
    check_section("generation", GenerationArguments, values)
    for name in _SETTINGS_OF_TOKENS:
        value = values.get(name)
        items = value if isinstance(value, list) else [value]
        if [] in (value, *items) and name not in _EMPTY_WITHOUT_EFFECT:
            raise ValueError(f"generation.{name} must not have an empty list, got {value}.")
        for token in _tokens_in(items):
            if not 0 <= token < vocabulary_size:
                raise ValueError(
                    f"generation.{name} must have tokens of the target vocabulary, 0 to "
                    f"{vocabulary_size - 1}, got {token}."
                )
    check_lengths(values, "generation.")
    GenerationConfig(**values).validate(strict=True)


def _tokens_in(items: list[Any]) -> Iterator[int]:
    """Yields the tokens of lists of lists; a bias is no token."""
    for item in items:
        match item:
            case int():
                yield item
            case [[*sequence], _] | [*sequence]:
                yield from sequence
