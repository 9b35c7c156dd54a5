# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Loop oracle of Pervasive Attention (Elbayad et al., CoNLL 2018, sections 3 and 4.1), in float64.

One cell (sentence b, target row i, source column j) after the other; only real cells exist, so
padding cannot leak. A cell's features are a vector, a layer is a dictionary of them, and a kernel
tap is a matrix-vector product. Written from the paper and the checkpoint's parameter names, not
from the product. Autograd differentiates it."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Cell = tuple[int, int, int]  # (sentence b, target row i, source column j)
Grid = dict[Cell, Tensor]  # the features [channels] of every real cell
Row = tuple[int, int]  # (sentence b, target row i)

DECODER = "model.decoder"
BLOCK = f"{DECODER}.dense_block"
FEATURES = f"{BLOCK}.feature_norm"


@dataclass
class Statistics:
    """Mean and (biased) variance [channels] of a batch norm's input over its `count` real cells."""

    mean: Tensor
    variance: Tensor
    count: int

    def running(
        self, old_mean: Tensor, old_variance: Tensor, momentum: float
    ) -> tuple[Tensor, Tensor]:
        """The running statistics after this batch; their variance is the unbiased one, as torch's."""
        unbiased = self.variance * self.count / (self.count - 1)
        return (
            (1 - momentum) * old_mean.double() + momentum * self.mean,
            (1 - momentum) * old_variance.double() + momentum * unbiased,
        )


@dataclass
class Result:
    """What the network computes.

    features: H, [f_L] for every real cell. logits: [V] for every real row of a sentence that has a
    source. attention: rho of equation 8 for every real cell, if the aggregation has it. statistics:
    what a training forward found, under the name that stands before `.running_mean` in the state
    dict."""

    features: Grid
    logits: dict[Row, Tensor]
    attention: dict[Cell, Tensor]
    statistics: dict[str, Statistics]


def columns_of(grid: Grid, b: int, i: int) -> list[int]:
    """The real source columns of row i of sentence b, from left to right."""
    return sorted(j for (sentence, row, j) in grid if (sentence, row) == (b, i))


def find_statistics(grid: Grid) -> Statistics:
    count = len(grid)
    mean = sum(grid.values()) / count
    variance = sum((vector - mean) ** 2 for vector in grid.values()) / count
    return Statistics(mean, variance, count)


def multiply(grid: Grid, matrix: Tensor) -> Grid:
    """A 1 x 1 convolution without bias: matrix [out, in] times every cell's vector."""
    return {cell: matrix @ vector for cell, vector in grid.items()}


def masked_convolution(grid: Grid, kernel: Tensor) -> Grid:
    """The masked k x k convolution of figure 1: row i looks at rows i - r + 1 .. i and at columns j
    +- k // 2.

    kernel [out, in, r, k]: the last of its r rows is the row itself, the middle of its k columns is
    the column itself. A cell that does not exist, beyond the edge or padding, is zero."""
    out, _, r, k = kernel.shape
    result = {}
    for b, i, j in grid:
        total = kernel.new_zeros(out)
        for row_tap in range(r):
            for column_tap in range(k):
                neighbour = (b, i - (r - 1) + row_tap, j - k // 2 + column_tap)
                if neighbour in grid:
                    total = total + kernel[:, :, row_tap, column_tap] @ grid[neighbour]
        result[(b, i, j)] = total
    return result


class Network:
    """The network of one state dict and config; `training` chooses the batch's statistics over the
    running ones.
    """

    def __init__(self, state: dict[str, Tensor], config: Any, training: bool) -> None:
        self.state = {name: t.double() if t.is_floating_point() else t for name, t in state.items()}
        self.config = config
        self.training = training
        self.statistics: dict[str, Statistics] = {}

    def normalize(self, grid: Grid, norm: str, running: str) -> Grid:
        """ReLU(batch norm): weight and bias of `norm`, statistics of the first channels of
        `running`.
        """
        weight, bias = self.state[f"{norm}.weight"], self.state[f"{norm}.bias"]
        if self.training:
            self.statistics[running] = find_statistics(grid)
            mean, variance = self.statistics[running].mean, self.statistics[running].variance
        else:
            channels = len(weight)
            mean = self.state[f"{running}.running_mean"][:channels]
            variance = self.state[f"{running}.running_var"][:channels]
        deviation = torch.sqrt(variance + self.config.batch_norm_eps)
        return {
            cell: torch.relu((vector - mean) / deviation * weight + bias)
            for cell, vector in grid.items()
        }

    def embedding(self, side: str, token: int, position: int) -> Tensor:
        """x_j or y_i: the token's vector, or sqrt(1/2) of its sum with the position's; or sqrt(d)
        token + position.
        """
        owner = (
            "model.shared"
            if self.config.share_encoder_decoder_embeddings
            else f"model.{side}.embed_tokens"
        )
        vector = self.state[f"{owner}.weight"][token]
        width = len(vector)
        kind = self.config.position_embeddings
        scale = self.config.scale_embedding
        if scale:
            vector = math.sqrt(width) * vector
        if kind is None:
            return vector
        if kind == "learned":
            place = self.state[f"model.{side}.embed_positions.weight"][position]
        else:
            angles = [position / 10000 ** (2 * n / width) for n in range(width // 2)]
            place = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
        return vector + place if scale else math.sqrt(0.5) * (vector + place)

    def input_grid(
        self, input_ids: Tensor, source_mask: Tensor, decoder_ids: Tensor, target_mask: Tensor
    ) -> Grid:
        """Equation 1, and the convolution that halves its channels: real cells only."""
        weight, bias = (
            self.state[f"{DECODER}.input_projection.weight"],
            self.state[f"{DECODER}.input_projection.bias"],
        )
        grid = {}
        for b in range(len(input_ids)):
            for i in range(decoder_ids.shape[1]):
                for j in range(input_ids.shape[1]):
                    if target_mask[b, i] and source_mask[b, j]:
                        y = self.embedding("decoder", int(decoder_ids[b, i]), i)
                        x = self.embedding("encoder", int(input_ids[b, j]), j)
                        grid[(b, i, j)] = weight @ torch.cat([y, x]) + bias
        return grid

    def dense_layer(self, grid: Grid, index: int) -> Grid:
        """The g channels that a layer makes of everything before it (figure 3, bottom)."""
        name = f"{BLOCK}.layers.{index}"
        hidden = multiply(
            self.normalize(grid, f"{name}.norm1", FEATURES), self.state[f"{name}.conv1.weight"]
        )
        kernel = self.state[f"{name}.conv2.weight"]
        k = self.config.kernel_size
        assert kernel.shape[2:] == (k // 2 + 1, k)
        new = masked_convolution(self.normalize(hidden, f"{name}.norm2", f"{name}.norm2"), kernel)
        if not self.config.gated:
            return new
        g = self.config.growth_rate
        return {cell: torch.sigmoid(vector[:g]) * vector[g:] for cell, vector in new.items()}

    def linear(self, vector: Tensor, name: str) -> Tensor:
        return self.state[f"{name}.weight"] @ vector + self.state[f"{name}.bias"]

    def residual_features(self, grid: Grid) -> Grid:
        """H of the residual block: the mean of its input and of what each layer makes."""
        features = [grid]
        for index in range(self.config.num_layers):
            name = f"{DECODER}.residual_block.layers.{index}"
            of_channels, bias = (
                self.state[f"{name}.conv2.weight"],
                self.state[f"{name}.conv2.bias"],
            )  # [C, 1, r, k]
            kernel = of_channels.new_zeros(
                len(of_channels), len(of_channels), *of_channels.shape[2:]
            )
            for channel in range(len(of_channels)):
                kernel[channel, channel] = of_channels[channel, 0]
            new = masked_convolution(
                {cell: self.linear(v, f"{name}.conv1") for cell, v in grid.items()}, kernel
            )
            grid = {cell: math.sqrt(0.5) * (grid[cell] + new[cell] + bias) for cell in grid}
            for cell, vector in grid.items():
                hidden = torch.relu(self.linear(vector, f"{name}.fc1"))
                grid[cell] = math.sqrt(0.5) * (vector + self.linear(hidden, f"{name}.fc2"))
            features.append(dict(grid))
        mean = {}
        for cell in grid:
            mean[cell] = sum(layer[cell] for layer in features) / len(features)
        return mean

    def features(self, grid: Grid) -> Grid:
        """H: the dense block, the transition, the last norm; or the residual block."""
        if self.config.block == "residual":
            return self.residual_features(grid)
        for index in range(self.config.num_layers):
            new = self.dense_layer(grid, index)
            grid = {cell: torch.cat([vector, new[cell]]) for cell, vector in grid.items()}
        grid = self.normalize(grid, f"{BLOCK}.transition.norm", FEATURES)
        grid = multiply(grid, self.state[f"{BLOCK}.transition.conv.weight"])
        return self.normalize(grid, f"{DECODER}.final_norm", f"{DECODER}.final_norm")

    def attention(self, grid: Grid, b: int, i: int) -> dict[int, Tensor]:
        """rho_i of equation 8: a weight for every real column."""
        weight, bias = (
            self.state[f"{DECODER}.aggregation.attention.{part}"] for part in ("weight", "bias")
        )
        energies = {j: weight[0] @ grid[(b, i, j)] + bias[0] for j in columns_of(grid, b, i)}
        largest = max(energy.item() for energy in energies.values())
        exponentials = {j: torch.exp(energy - largest) for j, energy in energies.items()}
        total = sum(exponentials.values())
        return {j: exponential / total for j, exponential in exponentials.items()}

    def shares(self, grid: Grid, b: int, i: int) -> dict[int, Tensor]:
        """What every real column adds to the pooled vector [f_L or 2 f_L] of row i: their sum is
        the pooled vector.

        Equations 2, 3 and 9; for the maximum the share of column j is H_ij on the channels B_ij,
        zero elsewhere."""
        columns = columns_of(grid, b, i)
        length = len(columns)  # |s|
        parts: dict[int, list[Tensor]] = {j: [] for j in columns}
        if self.config.aggregation == "gated_max":
            gates = {
                j: self.linear(grid[(b, i, j)], f"{DECODER}.aggregation.gate").chunk(2)
                for j in columns
            }
            grid = {(b, i, j): value * torch.sigmoid(gate) for j, (value, gate) in gates.items()}
        if self.config.aggregation in ("max", "max_attention", "gated_max"):
            channels = len(grid[(b, i, columns[0])])
            winners = [
                max(columns, key=lambda j: grid[(b, i, j)][d].item()) for d in range(channels)
            ]
            for j in columns:
                wins = torch.tensor([float(winner == j) for winner in winners], dtype=torch.float64)
                parts[j].append(wins * grid[(b, i, j)])
        if self.config.aggregation == "average":
            for j in columns:
                parts[j].append(grid[(b, i, j)] / math.sqrt(length))
        if self.config.aggregation in ("attention", "max_attention"):
            rho = self.attention(grid, b, i)
            for j in columns:
                parts[j].append(math.sqrt(length) * rho[j] * grid[(b, i, j)])
        return {j: torch.cat(part) for j, part in parts.items()}

    def words(self) -> tuple[Tensor, Tensor]:
        """E [V, pooled channels] and bias [V] with logits = E pooled + bias (equation 4), through
        d_t if tied.
        """
        bias = self.state["lm_head.bias"]
        if not self.config.tie_word_embeddings:
            return self.state["lm_head.weight"], bias
        shared = self.config.share_encoder_decoder_embeddings
        table = self.state["model.shared.weight" if shared else f"{DECODER}.embed_tokens.weight"]
        projection = f"{DECODER}.output_projection"
        return table @ self.state[f"{projection}.weight"], bias + table @ self.state[
            f"{projection}.bias"
        ]


def run(
    state: dict[str, Tensor],
    config: Any,
    input_ids: Tensor,
    source_mask: Tensor,
    decoder_input_ids: Tensor,
    target_mask: Tensor,
    training: bool = False,
) -> Result:
    """Runs the network without dropout.

    state: the state dict, its tensors as leaves if gradients are wanted. input_ids and source_mask
    [B, J], decoder_input_ids and target_mask [B, I], 1 = real. training: norms use the batch's
    statistics."""
    network = Network(state, config, training)
    features = network.features(
        network.input_grid(input_ids, source_mask, decoder_input_ids, target_mask)
    )
    matrix, bias = network.words()
    logits, attention = {}, {}
    for b, i in sorted({(b, i) for b, i, _ in features}):
        logits[(b, i)] = matrix @ sum(network.shares(features, b, i).values()) + bias
        if "attention" in config.aggregation:
            attention.update(
                {(b, i, j): rho for j, rho in network.attention(features, b, i).items()}
            )
    return Result(features, logits, attention, network.statistics)


def alignment(
    state: dict[str, Tensor], config: Any, result: Result, words: Tensor
) -> dict[Cell, Tensor]:
    """alpha_ij(w): what source column j adds to the logit of the word w = words[b, i] (equation 7).

    words [B, I]. The sum over j and the bias of `words()` make the logit, for every aggregation.
    """
    network = Network(state, config, training=False)
    matrix, _ = network.words()
    alpha = {}
    for b, i in result.logits:
        for j, share in network.shares(result.features, b, i).items():
            alpha[(b, i, j)] = matrix[int(words[b, i])] @ share
    return alpha
