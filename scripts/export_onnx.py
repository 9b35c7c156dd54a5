#!/usr/bin/env python
"""`csan-hf export-onnx`, in a checkout."""

import sys

from csan_hf.commands.export_onnx import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
