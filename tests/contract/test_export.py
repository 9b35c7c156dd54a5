# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""torch.export and ONNX by the library's exporters, verified at batch sizes and lengths that they
did not see.
"""

import copy
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
import torch
from exports import EXPORTS, letters_and_phones, residual_grid, traced_once
from families import sources, targets
from search.engines import graph_engine, source_batch
from transformers import AutoModelForSeq2SeqLM
from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter

from csan_hf import EnsembleForConditionalGeneration
from csan_hf.hub.onnx import export_onnx, graph_logits
from csan_hf.hub.public_files import read_json
from csan_hf_runtime.command_line import main
from csan_hf_runtime.graphs import GraphDecoder, Graphs
from csan_hf_runtime.translator import TextTranslator

MODELS = {
    "csan, everything": lambda: tiny.csan(seed=1, max_position_embeddings=256, **tiny.ONE_LAYER),
    "pervasive attention, residual": residual_grid,
    **{name: EXPORTS[name].make for name in ("pervasive attention", "conv_s2s")},
}
SEEN = ((6, 4, 5), 5)
UNSEEN = (((9, 3), 11), ((17, 2, 5, 8, 11), 4), ((23,), 30), ((12, 40), 3))
AXES = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
DYNAMIC = {"input_ids": AXES, "attention_mask": AXES, "decoder_input_ids": AXES}


def batch_of(lengths: tuple[int, ...], target_length: int) -> dict:
    return {**sources(lengths), "decoder_input_ids": targets(len(lengths), target_length)}


@torch.no_grad()
def logits_of(model, batch: dict) -> torch.Tensor:
    return model(**batch, use_cache=False).logits


# From 128 tokens on, Python would go on in blocks; an exported program cannot turn off
LONG = {"csan, everything": (((140, 9), 7), ((200,), 150))}


@pytest.mark.parametrize("name", MODELS)
def test_a_program_takes_other_shapes_than_it_was_traced_with(name):
    model = MODELS[name]()
    config = DynamoConfig(dynamic=True, dynamic_shapes=DYNAMIC)
    program = DynamoExporter().export(model, {**batch_of(*SEEN), "use_cache": False}, config=config)
    if isinstance(program, torch.export.ExportedProgram):  # of earlier versions of transformers
        program = program.module()
    for shape in (SEEN, *UNSEEN, *LONG.get(name, ())):
        batch = batch_of(*shape)
        torch.testing.assert_close(
            program(**batch).logits, logits_of(model, batch), rtol=1e-4, atol=1e-5
        )


# ---- ONNX: exported models translate as the models that they were made of, a token and a cache at
# a time

NAMES = sorted(EXPORTS.keys() - {"csan", "letters"})
WITH_ATTENTION = [name for name in NAMES if EXPORTS[name].with_attention]


def with_lines(model, batch: dict) -> dict:
    """The batch with some ends of lines, where the model knows these."""
    mark = model.config.to_dict().get("line_token_id")
    if mark is None:
        return batch
    return {
        name: ids.masked_fill(ids == 7, mark) if name.endswith("input_ids") else ids
        for name, ids in batch.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_same_translations(name, exported):
    model, folder = exported(name)
    batch = with_lines(
        model, sources((9, 3, 7, 1))
    )  # another number and other lengths than were traced
    first_source = {key: tensor[:1] for key, tensor in batch.items()}
    for inputs in (batch, tiny.padded_on_the_left(batch), first_source):
        count = len(inputs["input_ids"])
        whole = with_lines(model, {**inputs, "decoder_input_ids": targets(count, 12)})
        torch.testing.assert_close(
            graph_logits(folder, **whole), logits_of(model, whole), rtol=1e-4, atol=1e-5
        )
        for beams, returned in ((1, 1), (3, 2)):
            settings = {"num_beams": beams, "min_new_tokens": 9, "max_new_tokens": 14}
            expected = model.generate(**inputs, **settings, num_return_sequences=returned)
            settings = model.generation_config.to_diff_dict() | settings
            translations = graph_engine(folder).search(
                source_batch(inputs, settings, [15] * count, returned=returned)
            )
            rows = iter(expected[:, 1:])
            for hypotheses in translations:
                for hypothesis in hypotheses:
                    row = next(rows)[: len(hypothesis.tokens)]
                    assert hypothesis.tokens.tolist() == row.tolist()


@pytest.mark.parametrize("name", WITH_ATTENTION)
def test_a_graph_gives_the_attention_that_alignments_are_read_from(name, exported):
    model, folder = exported(name)
    graphs = Graphs.from_directory(folder)
    batch = with_lines(model, sources((9, 3, 7)))
    ids, mask = (batch[key].numpy() for key in ("input_ids", "attention_mask"))
    targets_of_beams = targets(6, 4)  # two beams of each source
    alignment = GraphDecoder(graphs, graphs.encode(ids, mask)).attention(targets_of_beams.numpy())
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    repeated = {key: tensor.repeat_interleave(2, 0) for key, tensor in batch.items()}
    with torch.no_grad():
        outputs = eager(**repeated, decoder_input_ids=targets_of_beams, output_attentions=True)
    # Of the last token: earlier ones may explain the next of the targets, which a step does not know
    last = outputs.cross_attentions[-1].mean(dim=1)[:, -1]
    torch.testing.assert_close(torch.tensor(alignment[:, -1]), last, rtol=1e-4, atol=1e-5)


def test_an_export_holds_graphs_and_settings_but_no_code(exported):
    _, folder = exported("rnnsearch")
    suffixes = {path.suffix for path in folder.rglob("*") if path.is_file()}
    assert suffixes <= {".onnx", ".data", ".json"}
    config = read_json(folder / "config.json")
    assert config["model_type"] == "rnnsearch"
    assert not {"auto_map", "custom_pipelines"} & config.keys()


def test_a_step_keeps_what_later_ones_need_and_reads_the_source_no_more(exported):
    _, folder = exported("csan, every kind")
    graphs = Graphs.from_directory(folder)
    batch = sources((6, 4))
    source = graphs.encode(batch["input_ids"].numpy(), batch["attention_mask"].numpy())
    nothing = np.zeros_like(source["encoder_hidden_states"])
    tokens = targets(2, 9)
    logits = []
    for inputs in (source, {**source, "encoder_hidden_states": nothing}):
        decoder = after_tokens(graphs, source, tokens[:, :8])
        decoder.source = inputs
        logits.append(decoder.step(tokens.numpy()))
    assert (logits[0] == logits[1]).all()
    kept = {"0.decoder": 2, "1.decoder": 9, "2.decoder": 1}
    for name, length in {**kept, "3.decoder": 1}.items():
        assert decoder.cache.pop(f"past_key_values.{name}.key").shape[2] == length
    assert not [name for name in decoder.cache if name.endswith(".key")]


def after_tokens(graphs, source, tokens):
    """The decoder after target tokens [B, I]."""
    decoder = GraphDecoder(graphs, source)
    decoder.step(tokens.numpy())
    return decoder


def error_of(folder: Path, model) -> float:
    """The largest difference of a token's logits from the model's, as a share of how these vary."""
    batch = with_lines(model, batch_of((9, 3, 7, 1), 12))
    expected = logits_of(model, batch)
    logits = graph_logits(folder, **batch)
    is_forbidden = expected.isinf()
    assert torch.equal(logits.isinf(), is_forbidden)
    expected = expected.masked_fill(is_forbidden, 0.0)
    differences = logits.masked_fill(is_forbidden, 0.0) - expected
    variation = expected - expected.mean(dim=-1, keepdim=True)
    return (differences.norm(dim=-1) / variation.norm(dim=-1)).max().item()


LARGEST_ERRORS = {"float16": 0.005, "int8": 0.1}


@pytest.mark.parametrize("precision", LARGEST_ERRORS)
@pytest.mark.parametrize("name", NAMES)
def test_close_with_fewer_bits(name, precision, exported):
    model, folder = exported(name, precision)
    assert error_of(folder, model) < LARGEST_ERRORS[precision]


@pytest.mark.parametrize("name", NAMES)
def test_a_sentence_in_int8_does_not_depend_on_those_beside_it(name, exported):
    model, folder = exported(name, "int8")
    lengths = (9, 3, 7, 1)
    batch = with_lines(model, batch_of(lengths, 12))
    together = graph_logits(folder, **batch)
    for row, length in enumerate(lengths):
        sentence = {
            "input_ids": batch["input_ids"][row : row + 1, :length],
            "attention_mask": batch["attention_mask"][row : row + 1, :length],
            "decoder_input_ids": batch["decoder_input_ids"][row : row + 1],
        }
        torch.testing.assert_close(
            graph_logits(folder, **sentence), together[row : row + 1], rtol=0, atol=1e-5
        )


def size_of(folder):
    return sum(path.stat().st_size for path in folder.glob("*.onnx"))


@pytest.mark.parametrize(("precision", "share"), [("float16", 0.6), ("int8", 0.4)])
def test_smaller_with_fewer_bits(precision, share, exported):
    _, small = exported("rnnsearch", precision)
    _, whole = exported("rnnsearch")
    assert size_of(small) < share * size_of(whole)


def test_a_recurrent_step_is_computed_in_integers(exported):
    _, folder = exported("rnnsearch", "int8")
    graph = onnx.load(folder / "decoder_model_merged.onnx").graph
    assert "LSTM" not in {node.op_type for node in graph.node}


@pytest.mark.parametrize("precision", LARGEST_ERRORS)
def test_steps_of_moving_gaussians_are_predicted_in_32_bits(precision, exported):
    model, folder = exported("csan, every kind", precision)
    graph = onnx.load(folder / "decoder_model_merged.onnx").graph
    in_32_bits = {
        tuple(tensor.dims)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
    }
    width, heads = model.config.d_model, model.config.decoder_attention_heads
    assert {(width, width // 2), (width // 2, heads)} <= in_32_bits
    assert (width, width) not in in_32_bits


def test_a_moving_gaussian_keeps_its_place_in_16_bits(exported):
    """Centres added up in float16 were 23 tokens off after 1,200."""
    model, folder = exported("csan, every kind", "float16")
    batch = {**sources((9,)), "decoder_input_ids": targets(1, 1200)}
    with torch.no_grad():
        layers = model(**batch, use_cache=True).cache.self_attention_cache.layers
    graphs = Graphs.from_directory(folder)
    source = graphs.encode(batch["input_ids"].numpy(), batch["attention_mask"].numpy())
    tensors = after_tokens(graphs, source, batch["decoder_input_ids"]).cache
    for layer in (2, 3):
        center = torch.from_numpy(tensors[f"past_key_values.{layer}.decoder.key"])
        torch.testing.assert_close(center, layers[layer].keys, rtol=0, atol=0.2)


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_graphs_of_other_weights_are_refused(precision, tmp_path):
    model = MODELS["conv_s2s"]()
    with traced_once():
        export_onnx(model, tmp_path / "right")
        with torch.no_grad():
            model.lm_head.weight.neg_()
        message = rf"^ConvS2S.* in {precision} computes something else: .* differ .* by \d"
        with pytest.raises(ValueError, match=message):
            export_onnx(model, tmp_path / "onnx", precision=precision)
    assert os.listdir(tmp_path) == ["right"]


def test_graphs_that_do_not_run_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        onnx, "save", lambda model, path, **options: Path(path).write_bytes(b"\x08")
    )
    message = r"^ConvS2S.* as ONNX graphs in float32 does not run: "
    with traced_once(), pytest.raises(ValueError, match=message):
        export_onnx(MODELS["conv_s2s"](), tmp_path / "onnx")
    assert not list(tmp_path.iterdir())


def test_words_of_letters_become_symbols_without_torch(exported):
    model, folder = exported("pervasive attention, residual")
    spelled = ["née", "a", "bcadé", "", "cafés noirs", "ZEBRA’S", "zebra'", "CAFÉ"]
    letters, phones = letters_and_phones()
    expected = model.generate(**letters(spelled, padding=True, return_tensors="pt"))
    texts = phones.batch_decode(expected, skip_special_tokens=True)
    translations = TextTranslator.from_directory(folder).translate(spelled)
    texts[spelled.index("")] = ""
    assert [several[0].text for several in translations] == texts
    assert len(set(texts)) > 3


CHECKPOINT = Path(__file__).parents[1] / "frozen/csan"


def test_a_trained_checkpoint_by_the_command(tmp_path, capsys):
    """With its tokenizer, in 16 bits."""
    sentences = read_json(CHECKPOINT / "expected.json")["sentences"]
    (tmp_path / "source.txt").write_text("".join(f"{line}\n" for line in sentences))
    command = ["export-onnx", str(CHECKPOINT), str(tmp_path / "onnx"), "--precision", "float16"]
    assert main([*command, "--check", str(tmp_path / "source.txt")]) == 0
    count = len(sentences)
    assert f"{count} of {count} translations are the same" in capsys.readouterr().out
    model = AutoModelForSeq2SeqLM.from_pretrained(CHECKPOINT)
    assert error_of(tmp_path / "onnx", model) < 0.003
    weights = onnx.load(tmp_path / "onnx/decoder_model_merged.onnx").graph.initializer
    types = {weight.data_type for weight in weights if len(weight.dims) == 2}
    assert onnx.TensorProto.FLOAT16 in types
    assert onnx.TensorProto.FLOAT not in types
    assert main(command) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("export-onnx {graphs} {new}", "holds ONNX graphs, which only translate"),
        ("translate --model {graphs} {graphs}", "holds ONNX graphs, which only translate"),
    ],
)
def test_graphs_are_no_checkpoint(command, told, exported, tmp_path, capsys):
    graphs = exported("pervasive attention, residual")[1]
    words = [word.format(graphs=graphs, new=tmp_path / "new") for word in command.split()]
    assert main(words) == 2
    assert told in capsys.readouterr().err


def test_what_cannot_be_exported_is_said(tmp_path):
    with pytest.raises(
        ValueError, match=r"must be float32, got torch.bfloat16: call model.float\(\)"
    ):
        export_onnx(residual_grid().bfloat16(), tmp_path / "onnx")
    with pytest.raises(ValueError, match="precision must be float32, float16, int8, got 'fp16'"):
        export_onnx(residual_grid(), tmp_path / "onnx", precision="fp16")
    with pytest.raises(ValueError, match="EnsembleForConditionalGeneration cannot be exported"):
        export_onnx(
            EnsembleForConditionalGeneration.of([residual_grid(), residual_grid()]),
            tmp_path / "onnx",
        )
    assert not (tmp_path / "onnx").exists()
