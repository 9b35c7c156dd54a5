# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Recipes: what is read, and what is refused with which words."""

import dataclasses
import importlib.util
import pickle

import pytest
from huggingface_hub.errors import StrictDataclassError
from training.tiny_runs import RECIPE, write_recipe
from transformers import GenerationConfig

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.commands.train import format_help
from csan_hf.credentials import find_credentials, holds_credential
from csan_hf.data import DataArguments, TokenizerPair, train_tokenizer
from csan_hf.lab.report import check_card
from csan_hf.lab.suites import load_suite
from csan_hf.training import TranslationTrainingArguments
from csan_hf.training.arguments import GenerationArguments
from csan_hf.training.dry_run import dry_run
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import (
    RecipeError,
    load_recipe,
    recipe_options,
    recipe_sections,
    refusing,
)
from csan_hf.training.run import train_from_recipe
from csan_hf_cli import main
from csan_hf_cli.train import split_command_line
from csan_hf_runtime.keys import Affects, at_least, declare
from csan_hf_runtime.yaml_text import load_yaml


@pytest.fixture
def load(recipe_file):
    """Loads the text of a file, or a key and a value of the command line."""

    def load(source):
        if isinstance(source, str):
            return load_recipe(recipe_file(source))
        return load_recipe(None, [source])

    return load


@pytest.fixture
def recipe_file(tmp_path):
    def write(text: str):
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_values_get_the_types_of_their_keys(recipe_file):
    path = recipe_file(
        "model: csan\nconfig: {d_model: 64, local_window: null, localness_layers: [0, 1.0, 1e1], "
        "normalize_before: true}\ntokenizer: {vocab_size: 1e3}\ntraining: {learning_rate: 1e-3, "
        "max_steps: 2e2, bf16: auto, warmup_steps: 0.1, max_grad_norm: 3}\ngeneration: "
        "{num_beams: 4, length_penalty: 1, early_stopping: never}\nname: 12\noutput_dir: out\n"
    )
    expected = {
        "config": {
            "d_model": 64,
            "local_window": None,
            "localness_layers": [0, 1, 10],
            "normalize_before": True,
        },
        "tokenizer": {"vocab_size": 1000},
        "training": {"learning_rate": 0.001, "max_steps": 200, "bf16": "auto"}
        | {"warmup_steps": 0.1, "max_grad_norm": 3.0},
        "generation": {"num_beams": 4, "length_penalty": 1.0, "early_stopping": "never"},
        "name": "12",
    }
    recipe = load_recipe(path, [("training.use_cpu", "off")])
    expected["training"]["use_cpu"] = False
    assert repr({name: getattr(recipe, name) for name in expected}) == repr(expected), (
        "1 is not 1.0, nor True"
    )
    assert recipe.training_arguments().learning_rate == 0.001


def test_command_line_wins_with_and_without_section(recipe_file):
    path = recipe_file("training: {learning_rate: 1e-3}\nconfig: {local_window: 11}\n")
    arguments = (
        "--learning_rate 3e-4 --config.local_window null --training.seed=7 --output-dir there "
        "--overwrite"
    )
    name, overrides, help = split_command_line([str(path), *arguments.split()])
    recipe = load_recipe(name, overrides)
    assert help is None
    assert recipe.training == {"learning_rate": 3e-4, "seed": 7}
    assert recipe.config == {"local_window": None}
    assert (recipe.output_dir, recipe.overwrite) == ("there", True)


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("config: {preset: long, encoder_layers: 3, local_window: 7}", {}),
        ("config: {preset: long, encoder_layers: 2}", {"encoder_layers": "3", "local_window": "7"}),
        (
            "config: {encoder_layers: 3, local_window: 5, head_area: 3, sinusoids: bart, "
            "cross_locality: [null]}",
            {"local_window": "7", "config.preset": "long"},
        ),
    ],
    ids=["file", "file and command line", "command line"],
)
def test_a_preset_lies_under_the_keys_beside_it(recipe_file, text, overrides):
    recipe = load_recipe(recipe_file(text), list(overrides.items()))
    expected = CsanConfig.preset("long", encoder_layers=3, local_window=7)
    assert CsanConfig(**recipe.config).to_dict() == expected.to_dict()
    assert load_recipe(recipe_file(recipe.to_yaml())) == recipe


@pytest.mark.parametrize("preset", ["null", "csan_2d"])
def test_a_preset_replaces_one_that_a_recipe_has_written_out(preset, recipe_file):
    written = load_recipe("numbers", [("preset", "long")]).to_yaml()
    recipe = load_recipe(recipe_file(written), [("preset", preset)])
    assert CsanConfig(**recipe.config) == CsanConfig(
        **load_recipe("numbers", [("preset", preset)]).config
    )


def test_the_preset_null_is_full_attention():
    config = CsanConfig(**load_recipe("numbers", [("preset", "null")]).config)
    assert config.localities() == []


def test_a_key_is_one_field(monkeypatch):
    @dataclasses.dataclass
    class More(DataArguments):
        """One key more.

        Args:
            fresh: What is new.
        """

        fresh: int = declare(3, at_least(1), Affects.SPEED)

    monkeypatch.setattr("csan_hf.training.recipe.DataArguments", More)
    monkeypatch.setattr("csan_hf.training.recipe.recipe_sections", recipe_sections.__wrapped__)
    recipe = load_recipe(None, [("fresh", "0"), ("dataset", "numbers")])
    [option] = [option for option in recipe_options() if option.name == "fresh"]
    assert option.affects == Affects.SPEED
    assert option.text() == "  --data.fresh  (int; default 3; at least 1)\n      What is new."
    with pytest.raises(RecipeError, match="section data is refused: fresh must be at least 1"):
        recipe.data_arguments()


def test_only_what_a_user_can_mend_is_refused():
    for error in (OSError, ImportError, ValueError, StrictDataclassError):
        with pytest.raises(RecipeError, match="here: no"), refusing("here"):
            raise error("no")
    for error in (KeyError, TypeError, RuntimeError):
        with pytest.raises(error), refusing("here"):
            raise error("no")


def test_another_family_on_the_command_line_is_not_described_as_the_files(recipe_file):
    path = recipe_file("name: A\ndescription: A CSAN.\n")
    assert load_recipe(path, [("seed", "3")]).description == "A CSAN."
    other = load_recipe(path, [("model", "t5"), ("name", "B")])
    assert (other.name, other.description) == ("B", None)


def test_lists_on_the_command_line():
    for text in ("[0, 2]", "0,2"):
        assert load_recipe(None, [("localness_layers", text)]).config == {
            "localness_layers": [0, 2]
        }
    assert load_recipe(None, [("language", "[de, en]")]).language == ["de", "en"]
    for text in ("sp.model", "{pretrained: sp.model}"):
        assert load_recipe(None, [("tokenizer", text)]).tokenizer == {"pretrained": "sp.model"}
    sections = load_recipe(None, [("generation", "{num_beams: 2}"), ("num_beams", "3")])
    assert sections.generation == {"num_beams": 3}
    assert load_recipe(None, [("language", "no")]).language == "no"  # Norwegian, not false


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "training: {learning_rat: 1}",
            ["training.learning_rat", "Did you mean training.learning_rate?"],
        ),
        ("config: {preset: lng}", ["There is no preset 'lng'", "mean 'long'?"]),
        ("{base: numbers, config: {preset: [long]}}", ["config.preset must be str | null"]),
        ("trainin: {seed: 1}", ["unknown key trainin"]),
        ("learning_rate: 1e-3", ["unknown key learning_rate", "training.learning_rate"]),
        ("config: {vocab_size: 5}", ["config.vocab_size cannot be set", "tokenizer.vocab_size"]),
        ("training: {output_dir: x}", ["training.output_dir cannot be set", "top of the recipe"]),
        ("training: {max_steps: many}", ["training.max_steps must be int", "'many'"]),
        (
            "config: {localness_layers: [0, x]}",
            ["config.localness_layers must be list[int]", "'x'"],
        ),
        (
            "generation: {suppress_tokens: 3}",
            ["generation.suppress_tokens must be list[int] | null, got 3"],
        ),
        (
            "generation: {num_return_sequences: 2}",
            ["num_return_sequences cannot be set", "one translation"],
        ),
        ("license: no", ["license must be str", "got False. YAML reads no, off", "quotes"]),
        ("name: [a]", ["name must be str | null, got ['a']"]),
        ("training: {use_cpu: 2}", ["training.use_cpu must be bool, got 2"]),
        ("config: {dropout: " + "x" * 5000 + "}", ["config.dropout must be float | int, got 'xxx"]),
        ("config: 3", ["section config must hold keys and values"]),
        ("model: cnas", ["model must be one of conv_s2s, csan", "'cnas'"]),
        ("training: {seed: 1, seed: 2}", ["'seed' is repeated"]),
        ("name: !!python/object/apply:os.system [ls]", ["could not determine a constructor"]),
        ("name: \x00", ["special characters are not allowed"]),
        ("- 1", ["must hold keys and values"]),
        (("lr", "1"), ["unknown key lr.", "mean training.learning_rate or"]),
        (("batch_size", "1"), ["unknown key batch_size", "per_device_train_batch_size"]),
        (("data_seed", "1"), ["is ambiguous"]),
        (("generation", "{num_beams: 2, num_beams: 3}"), ["--generation: the key 'num_beams' is"]),
        (("lr_scheduler_kwargs", "{a: 1, a: 2}"), ["--lr_scheduler_kwargs: the key 'a' is"]),
        (
            ("config.localness_layers", "[0"),
            ["--config.localness_layers must be list[int]", "'[0'"],
        ),
    ],
)
def test_what_is_wrong_is_named(load, text, words):
    with pytest.raises(RecipeError) as error:
        load(text)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert len(message) < 400


def test_a_recipe_is_a_file_or_a_name_that_comes_with_the_package(recipe_file):
    assert load_recipe("numbers").output_dir == "runs/numbers"
    with pytest.raises(
        ValueError, match=r"no recipe .*numers\.yaml.*recipe\.yaml.*`csan-hf recipes` lists"
    ):
        load_recipe(recipe_file("model: csan").with_name("numers.yaml"))


def test_resolved_recipe_gives_itself_again(recipe_file):
    recipe = load_recipe(
        recipe_file("output_dir: x\nconfig: {local_window: null}\nname: A – B"), [("seed", "3")]
    )
    recipe.overwrite = True
    again = load_recipe(recipe_file(recipe.to_yaml()))
    assert again.to_dict() == recipe.to_dict()
    assert again.config == {"local_window": None}
    assert not again.overwrite


def test_help_has_every_key_with_help(capsys):
    text = format_help("all")
    for option in recipe_options():
        assert option.text() in text
        assert option.help, option.path
    assert "None" not in text, "YAML's null is"
    assert "%%" not in text, "argparse reads that as %"
    assert main(["train", "--help"]) == 0
    short = capsys.readouterr().out
    for name, section in recipe_sections().items():
        assert f"\n  {name}  " in short or all(
            option.text() in short for option in section.values()
        )


@pytest.mark.parametrize(
    ("words", "head"),
    [
        ("--help=training", "--training.max_steps (int; default -1; at least 1, or -1 for "),
        ("numbers --data.help", "--data.join (int; default 1; at least 1)"),
        ("--help generation", "--generation.num_beams (int | null; default null; at least 1)"),
        ("--help config --model rnnsearch", "--config.hidden_size (int; default 256; at least 2)"),
        (
            "multi30k_pervasive_attention --help config",
            "config (PervasiveAttentionConfig): --config.",
        ),
        ("--help config multi30k_rnnsearch --model csan", "config (CsanConfig): --config.preset"),
        ("--help keep_best", "--training.keep_best (int; default 5; at least 1)"),
        ("numbers --help max_steps", "or -1 for num_train_epochs; here 800)"),
    ],
)
def test_help_of_a_section_or_a_key_says_bounds(words, head, capsys):
    assert main(["train", *words.split()]) == 0
    told = capsys.readouterr().out
    assert head in " ".join(told.split())
    paths = [line.split()[0] for line in told.splitlines() if line.startswith("  --")]
    assert len({path.rpartition(".")[0] for path in paths}) == 1, "one section's"


@pytest.mark.parametrize("words", ["--help numbers", "numbers --help", "--help= numbers"])
def test_a_recipe_after_help_is_the_recipe(words):
    assert split_command_line(words.split()) == ("numbers", [], "")


def test_every_setting_of_generation_is_one_of_the_library():
    assert {field.name for field in dataclasses.fields(GenerationArguments)} <= vars(
        GenerationConfig()
    ).keys()


SECRET = "hf_" + "sEcReT9x" * 4
PASSWORD = "correct horse"


def test_a_recipe_builds_on_another(tmp_path, recipe_file):
    path = recipe_file("base: numbers\nconfig: {d_model: 64}\ntraining: {seed: 5}")
    found = load_recipe(path).to_dict()
    base = load_recipe("numbers").to_dict()
    assert base.pop("output_dir"), "where the base's run lies"
    assert found == {
        **base,
        "config": {**base["config"], "d_model": 64},
        "training": {**base["training"], "seed": 5},
    }
    found = load_recipe(recipe_file("base: numbers\nmodel: rnnsearch\nconfig: {hidden_size: 64}"))
    assert found.config == {"hidden_size": 64}, "fields of another family's network mean nothing"
    assert (found.name, found.description) == (None, None), "nor does what its card says"
    (tmp_path / "first.yaml").write_text("base: numbers")
    for text, words in {
        "base: first.yaml": r"the base first.yaml has a base itself",
        "base: /etc/passwd": r"must be the path of a recipe \(.yaml\)",
        "base: other.yaml": "There is no recipe .*other.yaml",
        "base: numbers\nconfig: 3": "section config must hold keys and values, got a int",
    }.items():
        with pytest.raises((RecipeError, ValueError), match=words):
            load_recipe(recipe_file(text))
    (tmp_path / "first.yaml").write_text("config: {token: hf_" + "x" * 30 + "}")
    with pytest.raises(RecipeError, match=r"first.yaml: config\.token is a credential"):
        load_recipe(recipe_file("base: first.yaml"))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"training: {{hub_token: {PASSWORD}}}", "training.hub_token"),
        (
            f"training: {{report_to: [wandb, {{wandb_api_key: {PASSWORD}}}]}}",
            "training.report_to[1].wandb_api_key",
        ),
        (
            f"training: {{deepspeed: {{comet: {{apiKey: {PASSWORD}}}}}}}",
            "training.deepspeed.comet.apiKey",
        ),
        (f"training: {{run_name: {SECRET}}}", "training.run_name"),
        (f"training: {{max_steps: {SECRET}}}", "training.max_steps"),
        (f"training: {SECRET}", "training"),
        (f"{SECRET}: 3", "a key"),
        (f"description: 'made with {SECRET}.'", "description"),
        ("data: {train: 'https://joe:correct%20horse@example.org/train.{lang}'}", "data.train"),
        ("data: {train: 'https://example.org/train.tsv?access_token=correct+horse'}", "data.train"),
        ("description: 'Authorization: Basic correct+horse'", "description"),
        ("description: 'https%3A%2F%2Fjoe%3Acorrect-horse%40example.org'", "description"),
        (f"deepspeed: {{credentials: {{user: joe, value: {PASSWORD}}}}}", "deepspeed.credentials"),
        ("deepspeed: {password: 20061}", "deepspeed.password"),
        (f"data: {{test: {{a: &x [{{password: {PASSWORD}}}], b: *x}}}}", "data.test.a[0].password"),
        (("hub_token", PASSWORD), "hub_token"),
        (("deepspeed", "{a: {secret: correct horse}}"), "deepspeed.a.secret"),
    ],
)
def test_a_credential_is_refused_and_never_shown(load, text, key):
    with pytest.raises(RecipeError) as error:
        load(text)
    message = str(error.value)
    assert all(
        words in message for words in (f": {key} is a credential", "hf auth login", "HF_TOKEN")
    )
    assert not any(
        secret in message for secret in (SECRET, PASSWORD, "correct%20horse", "correct+horse", "\n")
    )


def test_what_this_machine_keeps_secret_is_refused_wherever_it_stands(recipe_file, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "plainword")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123")
    monkeypatch.setenv("SOME_TOKEN", "model")  # too short to be told from a word
    with pytest.raises(RecipeError, match=r"name, training\.run_name are credentials") as error:
        load_recipe(
            recipe_file("name: my plainword model\ntraining: {run_name: x0123456789abcdef0123}")
        )
    assert not any(secret in str(error.value) for secret in ("plainword", "0123456789"))


@pytest.mark.parametrize("variable", ["PWD", "OLDPWD", "GOOGLE_APPLICATION_CREDENTIALS"])
def test_paths_that_a_variable_names_are_no_credentials(tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, str(tmp_path))
    paths = {
        "output_dir": f"{tmp_path}/run",
        "data.data_dir": f"{tmp_path}/data",
        "init_from": f"{tmp_path}/model",
    }
    assert load_recipe(None, list(paths.items())).output_dir == f"{tmp_path}/run"
    assert not holds_credential(
        f"hf-internal-testing/tiny, sk-en-opensubtitles2018, trained in {tmp_path}/run"
    )


def test_a_file_that_is_no_yaml_is_not_quoted(recipe_file):
    with pytest.raises(RecipeError, match="line 1, column") as error:
        load_recipe(recipe_file(f"training: {{hub_token: {SECRET}: ["))
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is error.value.__context__ is None, "a traceback would show it"


def test_what_only_sounds_like_a_credential_is_none():
    harmless = {
        "max_tokens": 4096,
        "include_num_input_tokens_seen": "all",
        "average_tokens_across_devices": True,
        "max_new_tokens": 20,
        "suppress_tokens": [1, 2],
        "pad_token_id": 0,
        "token_healing": False,
        "dataset_revision": "0123456789abcdef0123456789abcdef01234567",
        "train": "https://example.org/a?x=1",
        "bleu_tokenize": "13a",
        "pad_token": "<pad>",
        "eos_token": "</s>",
    }
    assert list(find_credentials({"section": harmless})) == []


def test_no_pickle_of_arguments_has_a_token(tmp_path):
    args = TranslationTrainingArguments(output_dir=str(tmp_path), report_to="none")
    args.set_push_to_hub("joe/model", token=PASSWORD)
    assert PASSWORD.encode() not in pickle.dumps(args)
    assert args.hub_token == PASSWORD
    with pytest.raises(ValueError, match="hub_strategy must be 'end' or 'every_save'"):
        TranslationTrainingArguments(output_dir=str(tmp_path), hub_strategy="checkpoint")


MULTIPLYING_ALIASES = "a: &a0 [x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join(9 * [f'*a{level - 1}'])}]\n" for level in range(1, 7)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MULTIPLYING_ALIASES, "stands for more than 100,000 values"),
        ("a: &a [*a]", "stands for more than 100,000 values"),
        ("<<: &a {<<: *a}", "stands for more than 100,000 values"),
        ("config: " + 2000 * "[", "nested too deep"),
    ],
    ids=["aliases that multiply", "a list in itself", "keys merged into themselves", "brackets"],
)
def test_yaml_that_would_grow_without_end_is_refused(recipe_file, text, problem):
    path = recipe_file(text)
    (path.parent / "results.json").write_text("{}")
    checks = {load_recipe: path, load_suite: path, check_card: path.parent, load_yaml: text}
    for check, argument in checks.items():
        with pytest.raises(ValueError, match=problem):
            check(argument)


@pytest.mark.parametrize(
    "value", ["!!timestamp a", "!!bool a", "!!int a", "!!int ''", "2026-99-99"]
)
def test_yaml_values_that_are_not_of_their_type_are_refused(value):
    with pytest.raises(ValueError, match="not valid YAML: a value is not of its type"):
        load_yaml(f"a: {value}")


def test_aliases_and_merged_keys_are_read(recipe_file):
    merged = "config: {<<: {d_model: 16, dropout: 0.1}, dropout: 0.2}"
    recipe = load_recipe(recipe_file("training: {seed: &seed 3, data_seed: *seed}\n" + merged))
    assert recipe.training == {"seed": 3, "data_seed": 3}
    assert recipe.config == {"d_model": 16, "dropout": 0.2}
    with pytest.raises(RecipeError, match="'dropout' is repeated"):
        load_recipe(recipe_file("config: {<<: {d_model: 16}, dropout: 0.1, dropout: 0.2}"))


# ---- values that cannot work, refused in training and by --dry_run before anything is read or
# written


STREAM = {
    **{"data.dataset": "null", "data.train": "t.{lang}", "data.streaming": "true"},
    **{f"data.{split}_size": "null" for split in ("train", "validation", "test")},
    "max_steps": "-1",
}
LEARNED = {"model": "pervasive_attention", "position_embeddings": "learned"}


@pytest.fixture
def no_data(monkeypatch):
    """Whoever reads data came too far."""
    monkeypatch.setattr("csan_hf.training.plan.prepare_corpus", None)
    monkeypatch.setattr("csan_hf.training.dry_run.load_translation_dataset", None)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"num_beams": "0"},
            "section generation is refused: generation.num_beams must be at least 1, got 0",
        ),
        (
            {"generation.max_length": "1"},
            "generation is refused: generation.max_length must be at least 2, .*, got 1",
        ),
        *(
            (
                {f"generation.{key}": value},
                f"refused: generation.{key} must have tokens .* 999, got ",
            )
            for key, value in (
                ("forced_bos_token_id", "1000"),
                ("forced_eos_token_id", "[1, -1]"),
                ("bad_words_ids", "[[3], [5, 1000]]"),
                ("sequence_bias", "[[[5, 1000], 1.0]]"),
            )
        ),
        *(
            ({f"generation.{key}": value}, f"section generation is refused: generation.{key} must ")
            for key, value in (
                ("bad_words_ids", "[[]]"),
                ("forced_eos_token_id", "[]"),
                ("sequence_bias", "[[3, 1.0]]"),
                ("sequence_bias", "[[[3], nan]]"),
                ("length_penalty", "nan"),
                ("exponential_decay_length_penalty", "[1]"),
            )
        ),
        (
            {"generation.min_length": "90", "generation.max_length": "20"},
            "generation.min_length must be at most 20, as max_length is 20, got 90",
        ),
        (
            {"predict_with_generate": "false"},
            "must be one of loss, as .*predict_with_generate is false, got",
        ),
        ({"bleu_tokenize": "31a"}, "bleu_tokenize must be one of none, zh, 13a,.*got '31a'"),
        (
            {"accelerator_config": "{even_batches: false}"},
            "accelerator_config must be without even",
        ),
        ({"learning_rate": "nan"}, "training.learning_rate must be at least 0 and finite, got nan"),
        (
            {"generation.cache_implementation": "quantized"},
            "cache_implementation must be 'dynamic' or 'static', or with an accel.*, got quantized",
        ),
        (
            {"max_steps": "0"},
            "training.max_steps must be at least 1, or -1 for num_train_epochs, got 0",
        ),
        ({"encoder_attention_heads": "5"}, "section config is refused"),
        (
            {"init_from": "/no/such"},
            "init_from: There is no folder /no/such to read the model from",
        ),
        (
            {"tokenizer.pretrained": "/no/such"},
            "tokenizer: the tokenizer of /no/such cannot be loaded",
        ),
        (
            {"tokenizer.pretrained_target": "x"},
            "pretrained_target is x: name the source's, too, in pretrained",
        ),
        (
            {"language_pairs": "[de_en]"},
            "section data is refused: language_pairs: 'de_en' must be SOURCE-TARGET",
        ),
        (
            {"language_pairs": "de-en,de-en"},
            "language_pairs: 'de-en' must be SOURCE-TARGET, .*, each pair once",
        ),
        ({"streaming": "true"}, "section data is refused: streaming reads files or a dataset on"),
        (STREAM, "data.streaming without data.train_size has no end: set training.max_steps"),
        (
            {**STREAM, "max_steps": "9", "max_tokens": "null"},
            "data.streaming needs a bound of batches: set training.max_tokens",
        ),
        (
            {**STREAM, "max_steps": "9", "eval_strategy": "epoch"},
            "data.streaming has no epochs: set training.eval_strategy to steps or no",
        ),
        ({**STREAM, "join": "2"}, "join needs a corpus that is read as a whole"),
        ({"metrics": "[blue]"}, "There is no metric 'blue'; choose from bleu, chrf"),
        (
            {
                "metrics": "[bleu, repeated_terms]",
                "data.dataset": "null",
                "data.test": '{"a": ["a.{lang}", "b.{lang}"]}',
            },
            "repeated_terms compares with one reference: leave it out, or give one",
        ),
        ({"metrics": "[aer]"}, "training.metrics must be names of metrics of translations"),
        (
            {"metrics": "[wer]"},
            "training.metric_for_best_model must be one of wer, loss, got 'bleu'",
        ),
        ({"lr_scheduler_kwargs": "{cycles: 2}"}, r"training is refused: .*unexpected keyword"),
        ({"optim": "adamw_8bit"}, "section training is refused: .*need to install `bitsandbytes`"),
        (
            {"tokenizer.vocab_size": "258"},
            "section tokenizer is refused: vocab_size is 258; it must be at least 259",
        ),
        ({"target_vocab_size": "400"}, "target_vocab_size is 400, but the vocabulary is joint"),
        (
            {**LEARNED, "max_position_embeddings": "200"},
            "is 200, but data.max_source_length lets 256 tokens in",
        ),
        (
            {**LEARNED, "generation.max_length": "2000"},
            "is 1024, but generation.max_length lets 2000 tokens in",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.usefixtures("no_data")
def test_a_value_that_cannot_work_is_refused(tmp_path, overrides, words):
    check_refusal(
        load_recipe("numbers", [*overrides.items(), ("output_dir", str(tmp_path / "run"))]),
        words,
        tmp_path,
    )


def test_a_small_corpus_may_not_give_the_tokens_of_generation(tmp_path):
    overrides = [("suppress_tokens", "[900]"), ("output_dir", str(tmp_path))]
    plan = resolve(load_recipe("numbers", overrides))
    tokenizer = train_tokenizer(["one"], vocab_size=300)
    with pytest.raises(RecipeError, match=r"suppress_tokens must have tokens .*, got 900"):
        plan.build_model(TokenizerPair(tokenizer, tokenizer))


@pytest.mark.parametrize("run", [dry_run, train_from_recipe])
def test_a_logger_that_is_not_installed_is_refused(tmp_path, run):
    recipe = write_recipe(tmp_path / "tiny.yaml", training={"report_to": "wandb"})
    with pytest.raises(RecipeError, match=r"section training is refused: .*pip install wandb"):
        run(load_recipe(recipe, [("output_dir", str(tmp_path / "run"))]))


def check_refusal(recipe, words, folder):
    for run in (dry_run, train_from_recipe):
        with pytest.raises(RecipeError, match=words):
            run(recipe)
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_tokenizer(["eins zwei drei"] * 9, 300)
    tokenizer.save_pretrained(folder)
    CsanForConditionalGeneration(
        CsanConfig(vocab_size=len(tokenizer), **RECIPE["config"])
    ).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"local_window": "4"}, "section config is refused: .*local_window"),
        (
            {"d_model": "32"},
            r"section config is refused: it changes the shapes of .* from \(\d+, 16\) to "
            r"\(\d+, 32\)",
        ),
        (
            {"model": "pervasive_attention"},
            "init_from: .* is a csan model, which pervasive_attention cannot use",
        ),
    ],
)
@pytest.mark.usefixtures("no_data")
def test_what_a_checkpoint_cannot_be_made_is_refused(checkpoint, tmp_path, overrides, words):
    pairs = {
        "init_from": str(checkpoint),
        "output_dir": str(tmp_path / "run"),
        "data.dataset": "numbers",
        **overrides,
    }
    check_refusal(load_recipe(None, list(pairs.items())), words, tmp_path)


def test_a_bleu_tokenizer_whose_package_is_missing_is_named(monkeypatch):
    assert (
        resolve(load_recipe("numbers", [("bleu_tokenize", "char")])).recipe.bleu_tokenize == "char"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        RecipeError, match=r"bleu_tokenize is 'ja-mecab', which .* pip install sacrebleu\[ja\]"
    ):
        resolve(load_recipe("numbers", [("bleu_tokenize", "ja-mecab")]))
