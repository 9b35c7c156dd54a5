# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""The special tokens of all tokenizers."""

PAD_TOKEN, EOS_TOKEN, UNK_TOKEN = "<pad>", "</s>", "<unk>"
SPECIAL_TOKENS = (PAD_TOKEN, EOS_TOKEN, UNK_TOKEN)
"""The special tokens; their ids are their places here: 0, 1 and 2."""
