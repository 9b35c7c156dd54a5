# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Running statistics made again for the weights as they are."""

import torch
from tiny import grid as tiny_model


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "input_ids": torch.randint(2, 11, (3, 5 + number), generator=generator),
            "labels": torch.randint(2, 11, (3, 4), generator=generator),
        }
        for number in range(count)
    ]


def statistics(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers() if "running" in name}


def test_they_are_averages_over_the_batches():
    model = tiny_model().double()
    data = batches(4)
    singles = []
    for batch in data:
        model.refresh_batch_statistics([batch])
        singles.append(statistics(model))
    assert model.refresh_batch_statistics(iter(data)) == 4
    for name, found in statistics(model).items():
        expected = torch.stack([single[name] for single in singles]).mean(0)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=name)


def test_nothing_else_changes():
    model = tiny_model().eval()
    before, weights = statistics(model), [parameter.clone() for parameter in model.parameters()]
    assert model.refresh_batch_statistics([]) == 0
    assert all(torch.equal(before[name], found) for name, found in statistics(model).items())
    model.refresh_batch_statistics(batches(2))
    assert not any(module.training for module in model.modules())
    assert all(torch.equal(*pair) for pair in zip(weights, model.parameters(), strict=True))
    assert model.model.decoder.dense_block.feature_norm.momentum == model.config.batch_norm_momentum
    assert model.model.decoder.final_norm.momentum == model.config.batch_norm_momentum


def test_a_norm_in_eval_mode_rests_and_stays_so():
    model = tiny_model().train()
    name = "model.decoder.dense_block.layers.1.norm2"
    model.get_submodule(name).eval()
    before, modes = statistics(model), [module.training for module in model.modules()]
    model.refresh_batch_statistics(batches(2))
    assert [module.training for module in model.modules()] == modes
    resting = {key for key, found in statistics(model).items() if torch.equal(before[key], found)}
    assert resting == {f"{name}.running_mean", f"{name}.running_var"}
