# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training goes on uncompiled where `torch.compile` fails."""

import logging

import torch
import torch._dynamo
import torch._functorch.config

from .errors import notify


class _FirstFailure(logging.Filter):
    """Of all failed compilations the first is a notice of one line; the log gets no traceback."""

    is_told = False

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return True
        if not self.is_told:
            cause = getattr(error, "inner_exception", error)
            first_line = str(cause).partition("\n")[0]
            notify(
                "torch.compile failed, and what it failed on is trained uncompiled: "
                f"{type(cause).__name__}: {first_line} (--torch_compile false does not try it.)"
            )
            self.is_told = True
        return False


_FIRST_FAILURE = _FirstFailure()


def train_uncompiled_on_failure() -> None:
    """From now on, what `torch.compile` fails on runs as it is, after one notice."""
    _FIRST_FAILURE.is_told = False
    torch._dynamo.config.suppress_errors = True
    # Backward passes are compiled with forward passes: later an error would end the training
    torch._functorch.config.force_non_lazy_backward_lowering = True
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_FIRST_FAILURE)
