"""The special tokens of all tokenizers."""

PAD_TOKEN, EOS_TOKEN, UNK_TOKEN = "<pad>", "</s>", "<unk>"
SPECIAL_TOKENS = (PAD_TOKEN, EOS_TOKEN, UNK_TOKEN)
"""The special tokens; their ids are their places here: 0, 1 and 2."""
