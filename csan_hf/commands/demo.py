# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""`csan-hf demo`."""

import ipaddress
import sys

from csan_hf.demo import DemoModel, build_demo, check_address, import_gradio


def demo(
    models: list[str],
    /,
    *,
    text: str = "",
    host: str = "127.0.0.1",
    port: int | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Try a checkpoint in the browser, or compare two: translate, and click a word for its alignment.

        csan-hf demo runs/numbers
        csan-hf demo runs/numbers runs/numbers_pervasive_attention --port 7861

    The page can be opened only on this machine, unless --host says otherwise. Needs `pip install csan_hf[demo]`.

    Args:
        models: folder or Hub name; one, or two to compare
        text: text to begin with
        host: address to serve at
        port: port to serve at (default: a free one from 7860)
    """
    if len(models) > 2:
        raise ValueError(f"the demo shows one model or two, got {len(models)}")
    check_address(host, port)
    import_gradio()  # before models are loaded for nothing
    loaded = [DemoModel(name, device=device, trust_remote_code=trust_remote_code) for name in models]
    if not _is_this_machine_alone(host):
        print(f"Served at {host}, without a password: whoever reaches this machine there can use it.", file=sys.stderr)
    build_demo(loaded, example=text).launch(server_name=host, server_port=port)


def _is_this_machine_alone(host: str) -> bool:
    """Says whether what is served at an address can be reached from no other machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may stand for anything
        return False
