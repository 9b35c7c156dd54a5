# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training goes on uncompiled where `torch.compile` fails."""

import logging

import torch
import torch._dynamo
import torch._functorch.config

from .errors import notify


class _FailureNotice(logging.Filter):
    """Replaces the tracebacks of failed compilations by one notice, at the first."""

    was_given = False

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or record.levelno < logging.WARNING:
            return True
        if not self.was_given:
            cause = getattr(error, "inner_exception", error)
            first_line = str(cause).partition("\n")[0]
            notify(
                f"torch.compile failed: {type(cause).__name__}: {first_line}. That part is trained "
                "uncompiled; --torch_compile false skips compiling."
            )
            self.was_given = True
        return False


_FAILURE_NOTICE = _FailureNotice()


def train_uncompiled_on_failure() -> None:
    """From now on, in this process, what fails to compile runs uncompiled, after one notice."""
    _FAILURE_NOTICE.was_given = False
    torch._dynamo.config.suppress_errors = True
    # Backward passes are compiled at once: an error in the backward pass itself is not suppressed
    torch._functorch.config.force_non_lazy_backward_lowering = True
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_FAILURE_NOTICE)
