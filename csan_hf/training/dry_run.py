# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Dry runs: a recipe is checked and its costs are estimated; no weights are made, nothing is
downloaded or written.
"""

import contextlib
import copy
import dataclasses
import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from datasets import Dataset, DownloadConfig, load_dataset_builder
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from csan_hf.data import DataArguments, train_tokenizers
from csan_hf.data.corpora import BUILT_IN, load_translation_dataset, unlabelled_sources
from csan_hf.data.prepared import cache_folder
from csan_hf.data.tokenization import SPECIAL_TOKENS, tokenize_rows
from csan_hf.data.verbalise import get_verbaliser
from csan_hf.families import ModelFamily
from csan_hf.models.seq2seq_model import Seq2SeqForGeneration

from .arguments import TranslationTrainingArguments
from .errors import RecipeError, refusing
from .plan import Plan, rehearse_logging, resolve
from .recipe import Recipe
from .teachers import check_teachers

SENTENCE_LENGTH = 30
"""Tokens of a sentence, on either side, that memory and time are estimated with."""
UTILISATION = 0.4
"""Share of the matrix-product rate that training is assumed to reach; well-filled GPUs reach 0.3 to
0.5.
"""

_SAMPLE_SIZE = 5_000  # training pairs

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "float32": torch.float32}


class Estimate(NamedTuple):
    """Costs of one update on one device.

    Args:
        pairs: Sentence pairs in a batch.
        states: Bytes of weights, gradients and Adam's two moments.
        activations: Bytes kept for the backward pass.
        flops: Floating-point operations of matrix products and convolutions, forward and backward.
    """

    pairs: int
    states: int
    activations: int
    flops: int


def dry_run(recipe: Recipe) -> str:
    """Checks a recipe: sections, data as far as it is there, and model.

    Returns:
        A report for people: data, parameters, memory and time.

    Raises:
        RecipeError: As training would.
    """
    recipe = dataclasses.replace(recipe, output_dir=recipe.output_dir or "runs/dry_run")
    plan = resolve(recipe, with_data=False)
    rehearse_logging(plan.arguments)
    check_teachers(plan.arguments.teachers or [])
    lines = [f"Recipe: {recipe.name or recipe.model}", "", "Data", *_describe_data(plan)]
    if plan.data.unlabelled:
        with refusing("The data cannot be used"):
            sources = unlabelled_sources(plan.data)
        lines.append(f"  unlabelled: {len(sources):,} sources")
    return "\n".join([*lines, "", "Model", *_describe_model(plan)])


def _describe_data(plan: Plan) -> list[str]:
    """Says which splits are there, with their sizes, and which are missing."""
    args = plan.data
    languages = ", ".join(f"{source} to {target}" for source, target in args.pairs)
    if args.dataset in BUILT_IN:
        with refusing("The data cannot be used"):
            for language in itertools.chain.from_iterable(args.pairs):
                get_verbaliser(language)
        splits = ("train", "validation", "test")
        sizes = [f"{split} {args.size_of(split) or 'default'}" for split in splits]
        return [f"  {args.dataset} (built in), {languages}: {', '.join(sizes)}"]
    if args.dataset and not Path(args.dataset).exists():
        return [f"  {args.dataset} on the Hub, {languages}", *_describe_hub(args)]
    if args.dataset:
        with refusing("The data cannot be used"), tempfile.TemporaryDirectory() as folder:
            splits, _ = load_translation_dataset(args, work_dir=Path(folder))
            sizes = [
                f"  {split}: {_describe_split(plan, split, rows)}" for split, rows in splits.items()
            ]
        return [f"  {args.dataset}, {languages}", *sizes]
    lines = [f"  files in {args.data_dir or '.'}, {languages}"]
    for split in args.split_names:
        try:
            with tempfile.TemporaryDirectory() as folder:  # a large corpus does not fit into memory
                splits, _ = load_translation_dataset(args, [split], work_dir=Path(folder))
                lines.append(f"  {split}: {_describe_split(plan, split, splits[split])}")
        except ValueError as error:
            if "no file for" not in str(error):
                raise RecipeError(f"The data cannot be used: {error}") from error
            lines.append(f"  {split}: not there ({args.split_names[split]})")
    return lines


def _describe_split(plan: Plan, split: str, rows: Dataset) -> str:
    """Says its size, and of a large training set what a sample tells of preparing it."""
    pairs = f"{len(rows):,} pairs"
    if split != "train":
        return pairs
    if plan.data.is_endless:
        return "a stream, read as it comes"
    step = len(rows) // _SAMPLE_SIZE
    if step < 2:
        return pairs
    sample = rows.select(range(0, len(rows), step))
    tokenizers = plan.tokenizers
    if tokenizers is None:
        with refusing("The section tokenizer is refused"):
            tokenizers = train_tokenizers(sample, plan.recipe.tokenizer_arguments())
    start = time.perf_counter()
    tokenized = tokenize_rows(list(sample), tokenizers, plan.data)
    seconds = (time.perf_counter() - start) * step
    return (
        f"{pairs}; cutting them into tokens takes about {duration_text(seconds)}, and "
        f"{tokenized.data.nbytes * step / 1e6:,.0f} MB in {cache_folder(plan.data.cache_dir)}"
    )


def _describe_hub(args: DataArguments) -> list[str]:
    """Says what the cache knows of a Hub dataset."""
    offline = DownloadConfig(local_files_only=True)
    try:
        info = load_dataset_builder(
            str(args.dataset), args.dataset_config, download_config=offline
        ).info
    except Exception:  # whatever the reason: it is not here
        return [
            "  not in this machine's cache; will be downloaded (columns "
            f"{' and '.join(args.columns)})"
        ]
    return [
        f"  {name}: {split.num_examples:,} pairs" for name, split in (info.splits or {}).items()
    ]


def _describe_model(plan: Plan) -> list[str]:
    args = plan.arguments
    config: Any = copy.deepcopy(plan.config)
    for name in ("encoder_layerdrop", "decoder_layerdrop"):  # the costs of all layers
        if hasattr(config, name):
            setattr(config, name, 0.0)
    if getattr(config, "line_method", None) is not None and config.line_token_id is None:
        config.update({"line_token_id": len(SPECIAL_TOKENS)})  # of a vocabulary to be learned
    try:
        with FakeTensorMode():
            model = plan.family.model_class(config)
            costs = estimate(model, args, plan.family)
    except DataDependentOutputException:  # LED's
        return [
            f"  {type(model).__name__}: its costs depend on the tokens, and are not known "
            "beforehand"
        ]
    is_joint = getattr(config, "share_encoder_decoder_embeddings", True)
    vocabularies = "1 vocabulary" if is_joint else "2 vocabularies"
    rate = matrix_product_rate(args)
    seconds = costs.flops / (UTILISATION * rate)
    update = "an update"
    if args.gradient_accumulation_steps > 1:
        update += f" ({args.gradient_accumulation_steps} batches)"
    duration = f"{duration_text(seconds)} an update"
    if args.max_steps > 0:
        duration += (
            f", {duration_text(seconds * args.max_steps)} for {args.max_steps:,} updates, "
            "evaluation not counted"
        )
    parameters = model.num_parameters()
    embeddings = parameters - model.num_parameters(exclude_embeddings=True)
    return [
        f"  {type(model).__name__}: {parameters / 1e6:.1f}M parameters, "
        f"{embeddings / 1e6:.1f}M of them embeddings ({vocabularies} of "
        f"{config.vocab_size:,} entries)",
        f"  memory of a device: {costs.states / 2**30:.2f} GiB for weights, gradients and Adam "
        f"(float32), about {costs.activations / 2**30:.2f} GiB for the activations of "
        f"{costs.pairs} pairs of {SENTENCE_LENGTH} tokens ({args.precision})",
        f"  {update}: {costs.flops / 1e12:.2f} TFLOP on each device",
        f"  time on this machine ({args.device}), from a matrix-product rate of {rate / 1e12:.3g} "
        f"TFLOP/s measured now, of which {UTILISATION:.0%} are used: {duration}",
    ]


def estimate(
    model: PreTrainedModel, args: TranslationTrainingArguments, family: ModelFamily
) -> Estimate:
    """Costs of one update, from a forward pass whose tensors have shapes but no content.

    Args:
        model: Made under a `FakeTensorMode`.
        args: Batch and precision.
        family: The model's family, which says what bounds a batch.
    """
    bound = args.batch_bound(family)
    is_of_cells = family.batch_cost == "cells"
    pair_cost = SENTENCE_LENGTH**2 if is_of_cells else 2 * SENTENCE_LENGTH
    pairs = args.per_device_train_batch_size if bound is None else max(1, bound // pair_cost)
    if args.max_sentences is not None:
        pairs = min(pairs, args.max_sentences)
    ids = torch.full((pairs, SENTENCE_LENGTH), 2)
    if args.activation_checkpointing:
        enable = model.gradient_checkpointing_enable  # its name before transformers 5.23
        getattr(model, "activation_checkpointing_enable", enable)()
    model.train()
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    def run(*, with_logits: bool) -> None:
        dtype = DTYPES[args.precision]
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            # The base model: without labels and padding nothing depends on the content of a tensor
            output = model.base_model(input_ids=ids, decoder_input_ids=ids, use_cache=False)
            if not with_logits:
                return
            if "logits" in output:
                logits = output.logits
            else:
                logits = model.get_output_embeddings()(output.last_hidden_state)
            F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())

    # In two runs: the counter hooks every module, and hooked modules keep more than fused ones
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # Of logits in pieces nothing is kept
        run(with_logits=not isinstance(model, Seq2SeqForGeneration))
    with counted_flops() as counter:
        run(with_logits=True)
    # In units of forward passes, recomputation included
    backward = 3 if args.activation_checkpointing else 2
    return Estimate(
        pairs=pairs,
        states=16 * sum(parameter.numel() for parameter in model.parameters()),
        activations=sum(kept.values()),
        flops=(1 + backward) * counter.get_total_flops() * args.gradient_accumulation_steps,
    )


@contextlib.contextmanager
def counted_flops() -> Iterator[FlopCounterMode]:
    """Counts operations of matrix products and convolutions, which oneDNN and fused attention would
    hide.
    """
    without_mkldnn = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None)
    with without_mkldnn, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def matrix_product_rate(args: TranslationTrainingArguments) -> float:
    """Measures the operations per second of matrix products in the precision and on the device of
    training.
    """
    size = 1024
    matrix = torch.ones(size, size, dtype=DTYPES[args.precision], device=args.device)
    threads = torch.get_num_threads()
    timer = Timer("matrix @ matrix", globals={"matrix": matrix}, num_threads=threads)
    return 2 * size**3 / timer.blocked_autorange(min_run_time=0.3).median


def duration_text(seconds: float) -> str:
    """Writes a duration in the largest unit of which it has two or more."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.2f} seconds"
