# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A view of a model with modes and settings of its own, such as evaluation mode while the model is trained."""

from __future__ import annotations

from copy import deepcopy
from itertools import chain

from transformers import PreTrainedModel


def evaluation_view(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a model in evaluation mode that shares the weights of another and nothing else.

    Modes, configurations and the attention implementation of the view are its own, so that training
    and other threads that use the model are not affected.
    """
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return deepcopy(model, shared).eval()
