# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Training without its pictures, which take longer than the trainings of these tests."""


def leave_out_pictures(patch) -> None:
    """Draws nothing until a `pytest.MonkeyPatch` is undone; `test_the_folder_is_complete` looks for the pictures."""
    for module in ("callbacks", "run"):
        patch.setattr(f"csan_hf.training.{module}.draw_training", lambda history, path: None)
    patch.setattr("csan_hf.hub.model_card.draw_locality", lambda config, path: None)
