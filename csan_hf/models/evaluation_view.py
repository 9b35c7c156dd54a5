# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A model in evaluation mode beside one that trains."""

from copy import deepcopy
from itertools import chain

from transformers import PreTrainedModel


def evaluation_view(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a model in evaluation mode that shares the weights of `model` and nothing else.

    Training and other threads that use the model are not affected.

    Raises:
        ValueError: The model has no weights in torch, as one on ONNX Runtime, which only generates.
    """
    if next(model.parameters(), None) is None:
        raise ValueError(
            f"{model.name_or_path} holds ONNX graphs, which only translate: take the checkpoint "
            "that they were exported from."
        )
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return deepcopy(model, shared).eval()
