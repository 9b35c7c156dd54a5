# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""What torch is asked to do: operations counted, and the memory that their results hold."""

import weakref

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Counts dispatched operations, and remembers the most numbers that any result held and all
    held together.

    Attributes:
        count: Operations so far.
        written: Numbers of all results together.
        largest: Numbers of the largest result.
        peak: The most bytes that results held at one time, each storage counted once.
        device: The type of device that every result must be on; None = any.
    """

    def __init__(self, device: str | None = None) -> None:
        super().__init__()
        self.device = device
        self.count = self.written = self.largest = self.peak = self._held = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.count += 1
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                assert self.device in (None, tensor.device.type), (
                    f"{function} gave a tensor on {tensor.device}"
                )
                self.written += tensor.numel()
                if 0 not in tensor.stride():
                    self.largest = max(self.largest, tensor.numel())
                self._hold(tensor)
        return result

    def _hold(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if id(storage) not in self._known:
            self._known.add(id(storage))
            self._held += storage.nbytes()
            self.peak = max(self.peak, self._held)
            weakref.finalize(storage, self._release, id(storage), storage.nbytes())

    def _release(self, storage: int, size: int) -> None:
        self._known.discard(storage)
        self._held -= size
