# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training arguments with defaults for translation."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.utils import is_torch_bf16_gpu_available

from csan_hf.evaluation.loading import cpu_has_bfloat16, warn_of_slow_bfloat16
from csan_hf.evaluation.metrics import DEFAULT_METRICS, find_metric
from csan_hf.families import ModelFamily


def _machine_has_bf16() -> bool:
    """Whether bf16 is computed in hardware."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.accelerator.is_available():
        return bool(is_torch_bf16_gpu_available())
    return cpu_has_bfloat16()


# Bounds of fields besides null: the words of the error, the test (which NaN fails), and the fields
_BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "at least 1": (
        lambda value: value >= 1,
        "max_tokens max_cells max_sentences early_stopping_patience keep_best num_beams "
        "generation_num_beams gradient_accumulation_steps per_device_train_batch_size "
        "per_device_eval_batch_size",
    ),
    "at least 2, as it counts the token that generation starts with": (
        lambda value: value >= 2,
        "max_length",
    ),
    "at least 0 and finite": (
        lambda value: 0 <= value < math.inf,
        "learning_rate weight_decay warmup_steps adam_epsilon max_grad_norm "
        "early_stopping_threshold batch_norm_batches dataloader_num_workers min_length "
        "min_new_tokens no_repeat_ngram_size encoder_no_repeat_ngram_size top_k",
    ),
    "above 0 and finite": (
        lambda value: 0 < value < math.inf,
        "eval_steps save_steps logging_steps num_train_epochs max_time repetition_penalty "
        "encoder_repetition_penalty temperature",
    ),
    "in [0, 1)": (
        lambda value: 0 <= value < 1,
        "adam_beta1 adam_beta2 label_smoothing_factor bpe_dropout epsilon_cutoff eta_cutoff",
    ),
    "above 0 and at most 1": (lambda value: 0 < value <= 1, "top_p typical_p"),
    "in [0, 1]": (lambda value: 0 <= value <= 1, "min_p"),
    "finite": (math.isfinite, "length_penalty"),
    "a position of at least 0 and a factor above 0": (
        lambda value: len(value) == 2 and value[0] >= 0 and 0 < value[1] < math.inf,
        "exponential_decay_length_penalty",
    ),
    "'dynamic' or 'static', or with an accelerator 'offloaded'": (
        lambda kind: (
            kind != "quantized" and ("offloaded" not in kind or torch.accelerator.is_available())
        ),
        "cache_implementation",
    ),
    "in [0, 2^32)": (lambda value: 0 <= value < 2**32, "seed data_seed"),
    "at least 1, or -1 for num_train_epochs": (
        lambda value: value == -1 or value >= 1,
        "max_steps",
    ),
    "'end' or 'every_save': optimizer states are not for sharing": (
        lambda value: value in ("end", "every_save"),
        "hub_strategy",
    ),
    "without even_batches: false: processes share an evaluation in equal batches": (
        lambda value: not isinstance(value, dict) or value.get("even_batches", True),
        "accelerator_config",
    ),
    "names of metrics of translations, not of alignments": (
        lambda names: all(find_metric(name).needs != "alignments" for name in names),
        "metrics",
    ),
}


def check_bounds(section: str, values: Mapping[str, Any]) -> None:
    """Raises a `ValueError` that names the first value of a section that is out of its range."""
    for words, (fits, names) in _BOUNDS.items():
        for name in names.split():
            value = values.get(name)
            if value is not None and not fits(value):
                raise ValueError(f"{section}.{name} must be {words}, got {value}.")


def bounds_by_name() -> dict[str, str]:
    """Returns the bounds of each field that has some, in words."""
    bounds: dict[str, str] = {}
    for words, (_, names) in _BOUNDS.items():
        bounds |= dict.fromkeys(names.split(), words)
    return bounds


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
    learning_rate: float = 5e-4
    """Peak learning rate, reached after warm-up."""
    lr_scheduler_type: str = "inverse_sqrt"
    """Schedule after warm-up: 'inverse_sqrt' (Vaswani), 'linear', 'cosine', 'constant'..."""
    warmup_steps: float = 4000
    """Updates of linear warm-up; a fraction below 1 is a share of all updates."""
    optim: str = "adamw_torch_fused"
    """Optimiser; with weight_decay 0, Adam."""
    adam_beta2: float = 0.98
    """Adam's second beta."""
    adam_epsilon: float = 1e-9
    """Adam's epsilon."""
    label_smoothing_factor: float = 0.1
    """Label smoothing, torch's definition: mass spread over the whole vocabulary."""
    bf16: bool | Literal["auto"] = "auto"  # type: ignore[assignment]
    """bfloat16 autocast: true, false, or 'auto' = where the machine does it in hardware."""
    max_tokens: int | None = 4096
    """Tokens in a batch on one device, source plus target, padding included. null: batches of
    per_device_train_batch_size sentences instead.
    """
    max_cells: int | None = 16384
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
    bpe_dropout: float = 0.0
    """BPE-dropout: probability of skipping a merge when training sentences are tokenized, anew in
    each epoch. At 0.1 batches hold about a quarter more tokens than their bound. Two runs
    differ, as its random numbers take no seed.
    """
    max_sentences: int | None = None
    """Maximum number of sentence pairs in a batch, on top of max_tokens or max_cells."""
    per_device_eval_batch_size: int = 64
    """Sentences in an evaluation batch."""
    eval_strategy: str = "steps"
    """When to evaluate: 'steps', 'epoch' or 'no'."""
    eval_steps: float | None = 500
    """Updates between two evaluations."""
    save_strategy: str | None = None  # type: ignore[assignment]
    """When to save a checkpoint; null: at each evaluation."""
    save_steps: float | None = None  # type: ignore[assignment]
    """Updates between two checkpoints; null: eval_steps."""
    logging_steps: float = 50
    """Updates between two reports of the loss."""
    logging_nan_inf_filter: bool = False
    """Leave losses that are not finite out of the log, which waits for the device at every batch. A
    run ends at the first one either way.
    """
    predict_with_generate: bool = True
    """Translate the validation set at each evaluation, for BLEU."""
    generation_num_beams: int | None = 1
    """Beams at the evaluations during training; the final scores use generation.num_beams."""
    load_best_model_at_end: bool = True
    """Return to the best checkpoint when training ends."""
    metrics: list[str] = field(default_factory=lambda: [*DEFAULT_METRICS])
    """Metrics of the translations: bleu, chrf, ter...; an unknown name lists all."""
    metric_for_best_model: str | None = "bleu"
    """Chooses the best checkpoint: one of metrics, or 'loss'."""
    early_stopping_patience: int | None = None
    """Stop after this many evaluations without a better score; null: train to the end."""
    early_stopping_threshold: float = 0.0
    """A smaller gain than this does not count as better."""
    keep_best: int = 5
    """Number of best checkpoints to keep besides the newest; see average_best."""
    average_best: bool = True
    """Average the kept checkpoints at the end, and use the average if it scores better."""
    batch_norm_batches: int = 200
    """Training batches from which batch normalisation (pervasive_attention) takes its statistics
    again for the final weights; 0: keep those of training.
    """
    report_to: str | list[str] | None = "tensorboard"
    """Where logs go besides the screen: 'tensorboard', 'none', 'wandb'..."""
    ddp_find_unused_parameters: bool | None = False
    """With several GPUs and layerdrop this must be true, which is slower."""
    activation_checkpointing: bool | None = None
    """Compute activations anew in the backward pass instead of keeping them, for less memory."""
    activation_checkpointing_kwargs: dict[str, Any] | str | None = None
    """Arguments of the model's `activation_checkpointing_enable`."""

    def __post_init__(self) -> None:
        """Checks the numbers, fills the fields that follow from others, then runs the library's own
        checks.
        """
        check_bounds("training", vars(self))
        if self.eval_strategy == "no":
            self.load_best_model_at_end = False
            self.metric_for_best_model = None
            self.early_stopping_patience = None
        if self.metric_for_best_model is not None:
            self._check_best_metric(self.metric_for_best_model.removeprefix("eval_"))
        if self.bf16 == "auto":
            self.bf16 = _machine_has_bf16()
        if not torch.accelerator.is_available():
            # transformers otherwise refuses bf16 on a CPU, and several processes train apart
            self.use_cpu = True
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

    num_beams: int | None = None
    """Beams; 1 is greedy search."""
    max_length: int | None = None
    """Maximum number of target tokens, with the decoder's start token."""
    max_new_tokens: int | None = None
    """Maximum number of target tokens without the start token, instead of max_length."""
    min_length: int | None = None
    """Minimum number of target tokens, with the decoder's start token."""
    min_new_tokens: int | None = None
    """Minimum number of target tokens without the start token, instead of min_length."""
    max_time: float | None = None
    """Seconds after which generation of a batch stops, finished or not."""
    length_penalty: float | None = None
    """Exponent of the length that divides a beam's score: above 0 favours long ones."""
    early_stopping: bool | str | None = None
    """When to stop: true, at num_beams finished hypotheses; false, when better ones are unlikely;
    'never', when they are impossible.
    """
    no_repeat_ngram_size: int | None = None
    """No n-gram of this length occurs twice in a translation."""
    encoder_no_repeat_ngram_size: int | None = None
    """No n-gram of this length in the source occurs in its translation."""
    repetition_penalty: float | None = None
    """Divides the scores of tokens that have occurred; 1 is none."""
    encoder_repetition_penalty: float | None = None
    """Lowers tokens that are not in the source; 1 is none."""
    exponential_decay_length_penalty: list[float] | None = None
    """A list of a position and a factor: from that position on, the end becomes likelier at every
    token.
    """
    suppress_tokens: list[int] | None = None
    """Ids of tokens that are never generated."""
    begin_suppress_tokens: list[int] | None = None
    """Ids of tokens that are not generated first."""
    bad_words_ids: list[list[int]] | None = None
    """Sequences of token ids that are never generated."""
    sequence_bias: list[Any] | None = None
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
    cache_implementation: str | None = None
    """Kind of that cache."""
    do_sample: bool | None = None
    """Whether tokens are drawn by their probability; the settings below apply only then."""
    temperature: float | None = None
    """Divides the logits before sampling."""
    top_k: int | None = None
    """How many of the likeliest tokens are sampled from."""
    top_p: float | None = None
    """Probability of the smallest set of likeliest tokens that is sampled from."""
    min_p: float | None = None
    """Minimum probability of a sampled token, as a share of the likeliest one's."""
    typical_p: float | None = None
    """Probability of the smallest set of most typical tokens that is sampled from."""
    epsilon_cutoff: float | None = None
    """Minimum probability of a sampled token."""
    eta_cutoff: float | None = None
    """As epsilon_cutoff, but lower where the distribution is flat."""
