# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""A model in evaluation mode beside one that trains."""

from copy import deepcopy
from itertools import chain

from transformers import PreTrainedModel


def evaluation_view(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a model in evaluation mode that shares the weights of `model` and nothing else.

    Training and other threads that use the model are not affected.
    """
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return deepcopy(model, shared).eval()
