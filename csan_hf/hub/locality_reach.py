# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Where a model is local, as numbers: which keys a query sees, how far a cell of the grid sees."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from csan_hf.families import FAMILIES
from csan_hf.models import CsanConfig, PervasiveAttentionConfig
from csan_hf.models.attention_call import AttentionCall, CarriedValue, KeyArea, Term
from csan_hf.models.backend_dense import DenseCells
from csan_hf.models.gaussian import Gaussian, GaussianMethod, GaussianTerm
from csan_hf.models.lines import read_lines
from csan_hf.models.locality import PARTS, AttentionSite, LayerLocality, LocalityMethod
from csan_hf.models.sublayers import Block

_SHORTEST = 15  # tokens drawn, at least
_MARGIN = 6  # tokens drawn beyond a window


@dataclass(frozen=True)
class AttentionReach:
    """Keys that the queries of a group of layers see, all local in the same way.

    Attributes:
        part: `"encoder"`, `"decoder"` (its self-attention) or `"cross"`.
        layers: The layers, counted from 0, of `depth` in that encoder or decoder.
        locality: What is local there; None = full attention.
        query: Head and position of the query that `heads` is about.
        heads: [H, J], weight of every key in every head for that query: 0 = not seen, 1 = seen,
            between them = lowered by an energy.
        positions: [I, J], the same for every query and the keys of its own head.
        areas: [H, H], 1 for the heads whose keys each head sees.
    """

    part: str
    layers: tuple[int, ...]
    depth: int
    locality: LayerLocality | None
    query: tuple[int, int]
    heads: Tensor
    positions: Tensor
    areas: Tensor


def attention_reaches(
    config: PreTrainedConfig | dict[str, Any], *, length: int | None = None
) -> list[AttentionReach]:
    """Says for each group of equal layers of a CSAN which keys its queries see.

    Args:
        config: A `CsanConfig`, or its fields.
        length: Tokens of source and target; None = 6 more than the widest window, and at least 15.

    Returns:
        Local layers before the others, encoder before decoder; of a classifier only the encoder.
    """
    csan: CsanConfig = drawn_config(config)
    is_classifier = any("Classification" in name for name in csan.architectures or [])
    groups = layer_groups(csan, ["encoder"] if is_classifier else PARTS)
    if length is None:
        length = _SHORTEST
        for _, locality, _ in groups:
            if locality is not None and locality.area.window is not None:
                length = max(length, locality.area.window + _MARGIN)
    return [_reach(csan, part, locality, layers, length) for part, locality, layers in groups]


def is_drawn(config: PreTrainedConfig | dict[str, Any]) -> bool:
    """Whether a model has a picture of its locality: something of it is local."""
    fields = config if isinstance(config, dict) else config.to_dict()
    if fields["model_type"] not in _drawn_families():
        return False
    drawn = drawn_config(fields)
    return not isinstance(drawn, CsanConfig) or bool(drawn.localities())


def _drawn_families() -> list[str]:
    return [name for name, family in FAMILIES.items() if family.draw is not None]


def layer_groups(
    config: CsanConfig, parts: Iterable[str] = PARTS
) -> list[tuple[str, LayerLocality | None, tuple[int, ...]]]:
    """The layers of each part that are alike, local ones first."""
    groups = []
    for part in parts:
        alike: dict[LayerLocality | None, list[int]] = {}
        for index in range(len(config.specifications(part))):
            alike.setdefault(config.layer_locality(part, index), []).append(index)
        ordered = sorted(alike.items(), key=lambda item: item[0] is None)
        groups += [(part, locality, tuple(layers)) for locality, layers in ordered]
    return groups


def grid_reach(config: PervasiveAttentionConfig) -> Tensor:
    """Says in which layer of Pervasive Attention a cell of the grid first enters what one cell
    sees.

    Returns:
        [R + 1, 2 R + 1] for R = layers · (k - 1) / 2: rows are target positions from R before the
        cell to its own, columns source positions from R before to R after it. The cell itself,
        which needs no convolution, has 0.
    """
    side = config.kernel_size // 2
    radius = config.num_layers * side
    rows = torch.arange(-radius, 1).abs()[:, None]
    columns = torch.arange(-radius, radius + 1).abs()[None, :]
    return torch.ceil(torch.maximum(rows, columns) / max(side, 1)).long()


def drawn_config(config: PreTrainedConfig | dict[str, Any]) -> Any:
    """Returns the config of a family that can be drawn.

    Raises:
        ValueError: It is of another family.
    """
    if not isinstance(config, dict):
        # A config that came with a checkpoint, as remote code, has another class of the same name
        config = config.to_dict()
    name = config.get("model_type", CsanConfig.model_type)
    if name not in _drawn_families():
        raise ValueError(
            f"The locality of model_type {name!r} cannot be drawn, only that of "
            f"{' and '.join(_drawn_families())}."
        )
    return FAMILIES[name].config_class.from_dict(config)


def _reach(
    config: CsanConfig,
    part: str,
    locality: LayerLocality | None,
    layers: tuple[int, ...],
    length: int,
) -> AttentionReach:
    site = config.attention_site(part, layers[0])
    num_heads = site.num_heads
    area = KeyArea(causal=site.is_causal) if locality is None else locality.area
    head = num_heads // 2
    position = length - 1 - length // 4 if site.is_causal else length // 2
    weights = _example_weights(site, locality, area, length)
    areas = area.with_neighbours(torch.eye(num_heads)[None, :, None]).sum(dim=2)[0]
    return AttentionReach(
        part=part,
        layers=layers,
        depth=len(config.specifications(part)),
        locality=locality,
        query=(head, position),
        heads=areas[head][:, None] * weights[head, position],
        positions=weights[head],
        areas=areas,
    )


@torch.no_grad()
def _example_weights(
    site: AttentionSite, locality: LayerLocality | None, area: KeyArea, length: int
) -> Tensor:
    """[H, I, J]: 0 = not seen, 1 = seen, between them = lowered by an energy."""
    methods = () if locality is None else locality.methods
    call = _example_call(site, length, has_lines=any(method.needs_lines for method in methods))
    cells = DenseCells(call)
    weights = area.within_window(cells.distance).float().expand(1, site.num_heads, length, length)
    for method in methods:
        if isinstance(method, Block):
            query_block = cells.query_position // method.length
            is_own_block = cells.key_position // method.length == query_block
            # Paler: the other blocks, seen through a summary
            weights = weights * (is_own_block.float() - 1.0).exp()
        term = _example_term(method, site, call)
        if term is not None and term.visible is not None:
            weights = weights * term.visible(cells)
        if term is not None and term.energy is not None:
            weights = weights * term.energy(cells).exp()
    return weights[0]


def _example_term(method: LocalityMethod, site: AttentionSite, call: AttentionCall) -> Term | None:
    """A method's term in a call: that of a Gaussian as `caption` says, others as untrained."""
    if isinstance(method, Gaussian):
        length = call.key.shape[2]
        center = (torch.arange(length, dtype=torch.float32) + _SHIFT[site.part]).clamp(0, length)
        return GaussianTerm(
            center[None, None], torch.full((1, 1, 1), _example_width(method, length))
        )
    if method.term is None:
        return None
    with torch.random.fork_rng(devices=[]):
        term: Term | None = method.term(method.build(site), call)
    return term


_SHIFT = {"encoder": 2, "decoder": -2, "cross": 0}  # of an example's centre from the query
_LINES = 4
_PLACE = {"encoder": "i + 2", "decoder": "i − 2", "cross": "i"}


def _example_call(site: AttentionSite, length: int, *, has_lines: bool) -> AttentionCall:
    """A sentence of `length` tokens, or a text of some `_LINES`."""
    states = torch.zeros(1, site.num_heads, length, site.head_dim)
    lines = None
    if has_lines:
        numbers = torch.arange(length)[None] * _LINES // length
        lines, _ = read_lines(numbers, None, numbers, CarriedValue())
    area = KeyArea(causal=site.is_causal)
    return AttentionCall(states, states, states, area, site.head_dim**-0.5, lines=lines)


def _example_width(method: Gaussian, length: int) -> float:
    """Width of a Gaussian as a trained model might predict it."""
    return {"fixed": float(method.size), "head": 10.0}.get(method.width, length / 2)


def caption(method: LocalityMethod) -> str:
    """A method's key and settings."""
    settings = dataclasses.asdict(method).items()
    shown = ", ".join(f"{name} {value}".replace("_", " ") for name, value in settings)
    return method.key.replace("_", " ") + (f" ({shown})" if shown else "")


def picture_caption(method: LocalityMethod, part: str, length: int) -> str:
    """The caption, and what is drawn where the method predicts something."""
    text = caption(method)
    if isinstance(method, Gaussian):
        return f"{text}: drawn around {_PLACE[part]}, {_example_width(method, length):g} wide"
    return f"{text}: drawn as untrained" if isinstance(method, GaussianMethod) else text
