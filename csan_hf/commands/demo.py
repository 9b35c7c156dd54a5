# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Try a checkpoint in the browser, or compare two: translate, and click a word for its alignment.

    csan-hf demo runs/numbers
    csan-hf demo runs/numbers runs/numbers_pervasive_attention --port 7861

The page can be opened only on this machine, unless --host says otherwise. Needs `pip install csan_hf[demo]`.
"""

from __future__ import annotations

import argparse
import ipaddress
import sys

from csan_hf.command_line import script
from csan_hf.demo import DemoModel, build_demo, import_gradio


def is_this_machine_alone(host: str) -> bool:
    """Says whether what is served at an address can be reached from no other machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may stand for anything
        return False


@script({ImportError: 2})
def main(arguments: list[str]) -> None:
    """Runs `csan-hf demo`."""
    parser = argparse.ArgumentParser(
        prog="csan-hf demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", metavar="CHECKPOINT", help="folder or Hub name; one, or two to compare")
    parser.add_argument("--text", default="", help="text to begin with")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve at (%(default)s)")
    parser.add_argument("--port", type=int, help="port to serve at (default: a free one from 7860)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1... (default: the accelerator if there is one)")
    parser.add_argument("--trust_remote_code", action="store_true", help="run model code from checkpoints")
    options = parser.parse_args(arguments)
    if len(options.models) > 2:
        raise ValueError(f"the demo shows one model or two, got {len(options.models)}")
    import_gradio()  # before models are loaded for nothing
    models = [
        DemoModel(name, device=options.device, trust_remote_code=options.trust_remote_code) for name in options.models
    ]
    if not is_this_machine_alone(options.host):
        print(
            f"Served at {options.host}, without a password: whoever reaches this machine there can use it.",
            file=sys.stderr,
        )
    build_demo(models, example=options.text).launch(server_name=options.host, server_port=options.port)
