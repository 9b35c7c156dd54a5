#!/usr/bin/env python
"""`csan-hf convert-attn2d`, in a checkout."""

import sys

from csan_hf.commands.convert_attn2d import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
