#!/usr/bin/env python
"""`csan-hf convert`, in a checkout."""

import sys

from csan_hf.commands.convert import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
