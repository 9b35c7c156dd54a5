# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Recipes: what is read, and what is refused with which words."""

import dataclasses
import pickle

import pytest
from datasets import DatasetDict
from huggingface_hub.errors import StrictDataclassError
from system.training.tiny_runs import TINY, parse
from transformers import GenerationConfig, SequenceBiasLogitsProcessor

from csan_hf import CsanConfig, CsanForConditionalGeneration
from csan_hf.commands.train import format_help
from csan_hf.credentials import find_credentials, holds_credential
from csan_hf.data import DataArguments, PreparedCorpus, TokenizerPair, train_tokenizer
from csan_hf.lab.report import check_card
from csan_hf.lab.suites import load_suite
from csan_hf.training import TranslationTrainingArguments
from csan_hf.training.arguments import GenerationArguments
from csan_hf.training.dry_run import dry_run
from csan_hf.training.errors import RecipeError, refusing
from csan_hf.training.plan import resolve
from csan_hf.training.recipe import load_recipe, recipe_options, recipe_sections
from csan_hf.training.run import train_from_recipe
from csan_hf_runtime.command_line import main
from csan_hf_runtime.command_line.train import read_command_line
from csan_hf_runtime.keys import Affects, at_least, declare
from csan_hf_runtime.yaml_text import load_yaml


@pytest.fixture
def read(tmp_path):
    """The recipe of a file's text and more words, or of a command line that begins with --."""

    def read(text: str, words: str = ""):
        if text.startswith("--"):
            return parse(text)
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return parse(f"{path} {words}")

    return read


def test_values_get_the_types_of_their_keys(read):
    text = """
model: csan
output_dir: out
name: 12
config: {d_model: 64, local_window: null, localness_layers: [0, 1.0, 1e1], normalize_before: true}
tokenizer: {vocab_size: 1e3}
training: {learning_rate: 1e-3, max_steps: 2e2, bf16: auto, warmup_steps: 0.1, max_grad_norm: 3}
generation: {num_beams: 4, length_penalty: 1, early_stopping: never}
"""
    typed = """\
model: csan
output_dir: out
name: '12'
config:
  d_model: 64
  local_window: null
  localness_layers:
  - 0
  - 1
  - 10
  normalize_before: true
tokenizer:
  vocab_size: 1000
training:
  learning_rate: 0.001
  max_steps: 200
  bf16: auto
  warmup_steps: 0.1
  max_grad_norm: 3.0
  use_cpu: false
generation:
  num_beams: 4
  length_penalty: 1.0
  early_stopping: never
"""
    recipe = read(text, "--training.use_cpu off --overwrite")
    assert recipe.to_yaml() == typed
    again = read(typed)
    assert again.to_dict() == recipe.to_dict()
    assert (recipe.overwrite, again.overwrite) == (True, False)
    assert recipe.training_arguments().learning_rate == 0.001


def test_command_line_wins_with_and_without_section(read):
    recipe = read(
        "training: {learning_rate: 1e-3}\nconfig: {local_window: 11}\n",
        "--learning_rate 3e-4 --config.local_window null --training.seed=7 --output-dir there",
    )
    assert recipe.training == {"learning_rate": 3e-4, "seed": 7}
    assert recipe.config == {"local_window": None}
    assert recipe.output_dir == "there"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("config: {preset: long, encoder_layers: 3, local_window: 7}", ""),
        ("config: {preset: long, encoder_layers: 2}", "--encoder_layers 3 --local_window 7"),
        (
            "config: {encoder_layers: 3, local_window: 5, head_area: 3, sinusoids: bart, "
            "cross_locality: [null]}",
            "--local_window 7 --config.preset long",
        ),
    ],
    ids=["file", "file and command line", "command line"],
)
def test_a_preset_lies_under_the_keys_beside_it(read, text, words):
    recipe = read(text, words)
    expected = CsanConfig.preset("long", encoder_layers=3, local_window=7)
    assert CsanConfig(**recipe.config).to_dict() == expected.to_dict()
    assert read(recipe.to_yaml()) == recipe


@pytest.mark.parametrize("preset", ["null", "csan_2d"])
def test_a_preset_replaces_one_that_a_recipe_has_written_out(preset, read):
    recipe = read(parse("numbers --preset long").to_yaml(), f"--preset {preset}")
    config = CsanConfig(**recipe.config)
    assert config == CsanConfig(**parse(f"numbers --preset {preset}").config)
    assert (config.localities() == []) == (preset == "null")


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
    [option] = [option for option in recipe_options() if option.name == "fresh"]
    assert option.affects == Affects.SPEED
    assert option.text() == "  --data.fresh  (int; default 3; at least 1)\n      What is new."
    with pytest.raises(RecipeError, match="section data is refused: fresh must be at least 1"):
        parse("--fresh 0 --dataset numbers").data_arguments()


def test_only_what_a_user_can_mend_is_refused():
    for error in (OSError, ImportError, ValueError, StrictDataclassError):
        with pytest.raises(RecipeError, match="here: no"), refusing("here"):
            raise error("no")
    for error in (KeyError, TypeError, RuntimeError):
        with pytest.raises(error), refusing("here"):
            raise error("no")


def test_another_family_on_the_command_line_is_not_described_as_the_files(read):
    text = "name: A\ndescription: A CSAN.\n"
    assert read(text, "--seed 3").description == "A CSAN."
    t5_recipe = read(text, "--model t5 --name B")
    assert (t5_recipe.name, t5_recipe.description) == ("B", None)


def test_lists_on_the_command_line():
    for text in ("'[0, 2]'", "0,2"):
        assert parse(f"--localness_layers {text}").config == {"localness_layers": [0, 2]}
    assert parse("--language '[de, en]'").language == ["de", "en"]
    assert parse("--metrics bleu").training == {"metrics": ["bleu"]}
    assert parse("--language no").language == "no"  # Norwegian, not false
    for text in ("sp.model", "'{pretrained: sp.model}'"):
        assert parse(f"--tokenizer {text}").tokenizer == {"pretrained": "sp.model"}
    sections = parse("--generation '{num_beams: 2}' --num_beams 3")
    assert sections.generation == {"num_beams": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "training: {learning_rat: 1}",
            r"training\.learning_rat\..*Did you mean training\.learning_rate\?",
        ),
        ("config: {preset: lng}", "There is no preset 'lng'.*mean 'long'?"),
        ("{base: numbers, config: {preset: [long]}}", r"config\.preset must be str \| null"),
        ("trainin: {seed: 1}", r"unknown key trainin\. Did you mean training or"),
        ("learning_rate: 1e-3", r"unknown key learning_rate.*training\.learning_rate"),
        (
            "config: {vocab_size: 5}",
            r"config\.vocab_size cannot be set.*tokenizer\.vocab_size",
        ),
        (
            "training: {output_dir: x}",
            r"training\.output_dir cannot be set.*top of the recipe",
        ),
        ("training: {max_steps: many}", r"training\.max_steps must be int.*'many'"),
        (
            "config: {localness_layers: [0, x]}",
            r"config\.localness_layers must be list\[int\].*'x'",
        ),
        (
            "generation: {suppress_tokens: 3}",
            r"generation\.suppress_tokens must be list\[int\] \| null, got 3",
        ),
        (
            "generation: {sequence_bias: [[3, 1.0]]}",
            r"sequence_bias must be list\[tuple\[list\[int\], float\]\] \| null, got ",
        ),
        (
            "generation: {num_return_sequences: 2}",
            "num_return_sequences cannot be set.*one translation",
        ),
        ("license: no", "license must be str.*got False. YAML reads no, off.*quotes"),
        ("name: [a]", r"name must be str \| null, got \['a'\]"),
        ("training: {use_cpu: 2}", r"training\.use_cpu must be bool, got 2"),
        (
            "config: {dropout: " + "x" * 5000 + "}",
            r"config\.dropout must be float \| int, got 'xxx",
        ),
        ("config: 3", "section config must hold keys and values, got a int"),
        ("model: cnas", "model must be one of conv_s2s, csan.*'cnas'"),
        ("training: {seed: 1, seed: 2}", "'seed' is repeated"),
        (
            "config: {<<: {d_model: 16}, dropout: 0.1, dropout: 0.2}",
            "'dropout' is repeated",
        ),
        ("name: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("name: \x00", "special characters are not allowed"),
        ("- 1", "must hold keys and values"),
        ("base: first.yaml", "the base first.yaml has a base itself"),
        ("base: /etc/passwd", r"must be the path of a recipe \(.yaml\)"),
        ("base: other.yaml", "There is no recipe .*other.yaml"),
        ("base: numbers\nconfig: 3", "section config must hold keys and values, got a int"),
        ("base: secret.yaml", r"secret.yaml: config\.token is a credential"),
        ("--lr 1", r"unknown key lr\..*mean training\.learning_rate or"),
        ("--batch_size 1", "unknown key batch_size.*per_device_train_batch_size"),
        ("--data_seed 1", "is ambiguous"),
        ("--config foo", "config is a section: write --config.KEY VALUE, or --config"),
        ("--generation '{num_beams: 2, num_beams: 3}'", "--generation: the key 'num_beams' is"),
        ("--lr_scheduler_kwargs '{a: 1, a: 2}'", "--lr_scheduler_kwargs: the key 'a' is"),
        (
            "--config.localness_layers [0",
            r"--config\.localness_layers must be list\[int\].*'\[0'",
        ),
    ],
)
def test_what_is_wrong_is_named(read, tmp_path, text, words):
    (tmp_path / "first.yaml").write_text("base: numbers")
    (tmp_path / "secret.yaml").write_text("config: {token: hf_" + "x" * 30 + "}")
    with pytest.raises(ValueError, match=words) as error:
        read(text)
    message = str(error.value)
    assert "\n" not in message
    assert len(message.replace(str(tmp_path), "")) < 300


def test_a_recipe_is_a_file_or_a_name_that_comes_with_the_package(tmp_path):
    assert load_recipe("numbers").output_dir == "runs/numbers"
    (tmp_path / "recipe.yaml").touch()
    with pytest.raises(
        ValueError, match=r"no recipe .*numers\.yaml.*recipe\.yaml.*`csan-hf recipes` lists"
    ):
        load_recipe(tmp_path / "numers.yaml")


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
    assert read_command_line(words.split()) == ("numbers", [], "")


def test_the_text_true_is_a_value():
    _, overrides, _ = read_command_line(
        ["numbers", "--name", "true", "--hub_model_id=true", "--fp16"]
    )
    recipe = load_recipe("numbers", overrides)
    assert recipe.name == recipe.training["hub_model_id"] == "true"
    assert recipe.training["fp16"] is True


def test_every_setting_of_generation_is_one_of_the_library():
    settings = GenerationArguments.__dataclass_fields__.keys()
    assert settings <= GenerationConfig().to_dict().keys()


def test_a_recipe_builds_on_another(read):
    expected = load_recipe("numbers").to_dict()
    assert expected.pop("output_dir"), "where the base's run lies"
    expected["config"]["d_model"] = 64
    expected["training"]["seed"] = 5
    built = read("base: numbers\nconfig: {d_model: 64}\ntraining: {seed: 5}")
    assert built.to_dict() == expected
    rnnsearch_recipe = read("base: numbers\nmodel: rnnsearch\nconfig: {hidden_size: 64}")
    assert rnnsearch_recipe.config == {"hidden_size": 64}, (
        "fields of another family's network mean nothing"
    )
    assert (rnnsearch_recipe.name, rnnsearch_recipe.description) == (None, None), (
        "nor does what its card says"
    )


SECRET = "hf_" + "sEcReT9x" * 4
PASSWORDS = ("correct horse", "correct%20horse", "correct+horse", "20061")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("training: {hub_token: correct horse}", "training.hub_token"),
        (
            "training: {report_to: [wandb, {wandb_api_key: correct horse}]}",
            "training.report_to[1].wandb_api_key",
        ),
        (
            "training: {deepspeed: {comet: {apiKey: correct horse}}}",
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
        ("deepspeed: {credentials: {user: joe, value: correct horse}}", "deepspeed.credentials"),
        ("deepspeed: {password: 20061}", "deepspeed.password"),
        ("data: {test: {a: &x [{password: correct horse}], b: *x}}", "data.test.a[0].password"),
        ("--hub_token 'correct horse'", "hub_token"),
        ("--deepspeed '{a: {secret: correct horse}}'", "deepspeed.a.secret"),
    ],
)
def test_a_credential_is_refused_and_never_shown(read, text, key):
    with pytest.raises(RecipeError) as error:
        read(text)
    message = str(error.value)
    for words in (f": {key} is a credential", "hf auth login", "HF_TOKEN"):
        assert words in message
    assert not any(secret in message for secret in (SECRET, *PASSWORDS, "\n"))


def test_what_this_machine_keeps_secret_is_refused_wherever_it_stands(read, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "plainword")
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef0123")
    monkeypatch.setenv("SOME_TOKEN", "model")  # too short to be told from a word
    with pytest.raises(RecipeError, match=r"name, training\.run_name are credentials") as error:
        read("name: my plainword model\ntraining: {run_name: x0123456789abcdef0123}")
    assert not any(secret in str(error.value) for secret in ("plainword", "0123456789"))


@pytest.mark.parametrize("variable", ["PWD", "OLDPWD", "GOOGLE_APPLICATION_CREDENTIALS"])
def test_paths_that_a_variable_names_are_no_credentials(tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, str(tmp_path))
    folder = f"{tmp_path}/run"
    words = f"--output_dir {folder} --data.data_dir {folder} --init_from {folder}"
    assert parse(words).output_dir == folder
    assert not holds_credential(
        f"hf-internal-testing/tiny, sk-en-opensubtitles2018, trained in {folder}"
    )


def test_a_file_that_is_no_yaml_is_not_quoted(read):
    with pytest.raises(RecipeError, match="line 1, column") as error:
        read(f"training: {{hub_token: {SECRET}: [")
    assert SECRET not in str(error.value)
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is error.value.__context__ is None, "a traceback would show it"


HARMLESS = """
max_tokens: 4096
include_num_input_tokens_seen: all
average_tokens_across_devices: true
max_new_tokens: 20
suppress_tokens: [1, 2]
pad_token_id: 0
token_healing: false
dataset_revision: 0123456789abcdef0123456789abcdef01234567
train: https://example.org/a?x=1
bleu_tokenize: 13a
pad_token: <pad>
eos_token: </s>
"""


def test_what_only_sounds_like_a_credential_is_none():
    assert list(find_credentials({"section": load_yaml(HARMLESS)})) == []


def test_no_pickle_of_arguments_has_a_token(tmp_path):
    args = TranslationTrainingArguments(output_dir=str(tmp_path), report_to="none")
    args.set_push_to_hub("joe/model", token="correct horse")
    assert b"correct horse" not in pickle.dumps(args)
    assert args.hub_token == "correct horse"
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
def test_yaml_that_would_grow_without_end_is_refused(tmp_path, text, problem):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    (tmp_path / "results.json").write_text("{}")
    checks = {load_recipe: path, load_suite: path, check_card: tmp_path, load_yaml: text}
    for check, argument in checks.items():
        with pytest.raises(ValueError, match=problem):
            check(argument)


@pytest.mark.parametrize(
    "value", ["!!timestamp a", "!!bool a", "!!int a", "!!int ''", "2026-99-99"]
)
def test_yaml_values_that_are_not_of_their_type_are_refused(value, read):
    for load in (load_yaml, read):
        with pytest.raises(
            ValueError, match="not valid YAML: line 1, column 10: a value is not of"
        ):
            load(f"config: [{value}]")


def test_a_bias_that_is_a_whole_number_is_one_for_the_library(read):
    recipe = read("generation: {sequence_bias: [[[5, 6], -2]]}")
    biases = recipe.generation["sequence_bias"]
    SequenceBiasLogitsProcessor(biases)
    assert biases == [([5, 6], -2.0)]
    again = read(recipe.to_yaml())
    assert again == recipe
    assert again.fingerprint(Affects.SCORES) == recipe.fingerprint(Affects.SCORES)


def test_aliases_and_merged_keys_are_read(read):
    merged = "config: {<<: {d_model: 16, dropout: 0.1}, dropout: 0.2}"
    recipe = read("training: {seed: &seed 3, data_seed: *seed}\n" + merged)
    assert recipe.training == {"seed": 3, "data_seed": 3}
    assert recipe.config == {"d_model": 16, "dropout": 0.2}


# ---- values that cannot work, refused in training and by --dry_run before anything is read or
# written


STREAM = (
    "numbers --data.dataset null --data.train t.{lang} --data.streaming --data.train_size null "
    "--validation_size null --test_size null"
)
LEARNED = "numbers --model pervasive_attention --position_embeddings learned"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer = train_tokenizer(["eins zwei drei"] * 9, 300)
    tokenizer.save_pretrained(folder)
    config = CsanConfig(vocab_size=len(tokenizer), **load_recipe(TINY).config)
    CsanForConditionalGeneration(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "numbers --num_beams 0",
            "section generation is refused: generation.num_beams must be at least 1, got 0",
        ),
        (
            "numbers --generation.max_length 1",
            "generation is refused: generation.max_length must be at least 2, .*, got 1",
        ),
        (
            "numbers --forced_bos_token_id 1000",
            "refused: generation.forced_bos_token_id must have tokens .* 999, got ",
        ),
        (
            "numbers --generation.forced_eos_token_id '[1, -1]'",
            "refused: generation.forced_eos_token_id must have tokens .* 999, got ",
        ),
        (
            "numbers --bad_words_ids '[[3], [5, 1000]]'",
            "refused: generation.bad_words_ids must have tokens .* 999, got ",
        ),
        (
            "numbers --sequence_bias '[[[5, 1000], 1.0]]'",
            "refused: generation.sequence_bias must have tokens .* 999, got ",
        ),
        (
            "numbers --bad_words_ids [[]]",
            "section generation is refused: generation.bad_words_ids must ",
        ),
        (
            "numbers --generation.forced_eos_token_id []",
            "section generation is refused: generation.forced_eos_token_id must ",
        ),
        (
            "numbers --sequence_bias '[[[], 1.0]]'",
            "section generation is refused: generation.sequence_bias must ",
        ),
        (
            "numbers --sequence_bias '[[[3], .nan]]'",
            "section generation is refused: generation.sequence_bias must ",
        ),
        (
            "numbers --length_penalty nan",
            "section generation is refused: generation.length_penalty must ",
        ),
        (
            "numbers --exponential_decay_length_penalty [1]",
            "section generation is refused: generation.exponential_decay_length_penalty must ",
        ),
        (
            "numbers --generation.min_length 90 --generation.max_length 20",
            "generation.min_length must be at most 20, as max_length is 20, got 90",
        ),
        (
            "numbers --predict_with_generate false",
            "must be one of loss, as .*predict_with_generate is false, got",
        ),
        (
            "numbers --bleu_tokenize 31a",
            "bleu_tokenize must be one of none, zh, 13a,.*got '31a'",
        ),
        (
            "numbers --accelerator_config '{even_batches: false}'",
            "accelerator_config must be without even",
        ),
        (
            "numbers --learning_rate nan",
            "training.learning_rate must be at least 0 and finite, got nan",
        ),
        (
            "numbers --cache_implementation quantized",
            "cache_implementation must be 'dynamic' or 'static', or with an accel.*, got quantized",
        ),
        (
            "numbers --max_steps 0",
            "training.max_steps must be at least 1, or -1 for num_train_epochs, got 0",
        ),
        ("numbers --encoder_attention_heads 5", "section config is refused"),
        (
            "numbers --init_from /no/such",
            "init_from: There is no folder /no/such to read the model from",
        ),
        ("numbers --init_from .", r"init_from: \. has no config\.json"),
        (
            "numbers --tokenizer.pretrained /no/such",
            "tokenizer: the tokenizer of /no/such cannot be loaded",
        ),
        (
            "numbers --pretrained_target x",
            "pretrained_target is x: name the source's, too, in pretrained",
        ),
        (
            "numbers --language_pairs [de_en]",
            "section data is refused: language_pairs: 'de_en' must be SOURCE-TARGET",
        ),
        (
            "numbers --language_pairs de-en,de-en",
            "language_pairs: 'de-en' must be SOURCE-TARGET, .*, each pair once",
        ),
        (
            "numbers --streaming",
            "section data is refused: streaming reads files or a dataset on",
        ),
        (
            f"{STREAM} --max_steps -1",
            "data.streaming without data.train_size has no end: set training.max_steps",
        ),
        (
            f"{STREAM} --max_steps 9 --max_tokens null",
            "data.streaming needs a bound of batches: set training.max_tokens",
        ),
        (
            f"{STREAM} --max_steps 9 --max_tokens 500",
            "as long as data.max_source_length=256 and data.max_target_length=256 allow has 512 "
            "tokens, more than a batch, training.max_tokens=500: lower these limits",
        ),
        (
            f"{STREAM} --max_steps 9 --model pervasive_attention --max_target_length null",
            "has inf cells, more than a batch, training.max_cells=16384",
        ),
        (
            f"{STREAM} --max_steps 9 --eval_strategy epoch",
            "data.streaming has no epochs: set training.eval_strategy to steps or no",
        ),
        (f"{STREAM} --join 2", "join needs a corpus that is read as a whole"),
        ("numbers --metrics [blue]", "There is no metric 'blue'; choose from bleu, chrf"),
        (
            "numbers --metrics '[bleu, repeated_terms]' --data.dataset null "
            """--data.test '{"a": ["a.{lang}", "b.{lang}"]}'""",
            "repeated_terms compares with one reference: leave it out, or give one",
        ),
        ("numbers --metrics [aer]", "training.metrics must be names of metrics of translations"),
        (
            "numbers --metrics [wer]",
            "training.metric_for_best_model must be one of wer, loss, got 'bleu'",
        ),
        (
            "numbers --lr_scheduler_kwargs '{cycles: 2}'",
            "training is refused: .*unexpected keyword",
        ),
        (
            "numbers --optim adamw_8bit",
            "section training is refused: .*need to install `bitsandbytes`",
        ),
        ("numbers --report_to wandb", "section training is refused: .*pip install wandb"),
        (
            "numbers --tokenizer.vocab_size 258",
            "section tokenizer is refused: vocab_size is 258; it must be at least 259",
        ),
        (
            "numbers --target_vocab_size 400",
            "target_vocab_size is 400, but the vocabulary is joint",
        ),
        (
            f"{LEARNED} --max_position_embeddings 200",
            "is 200, but data.max_source_length lets 256 tokens in",
        ),
        (
            f"{LEARNED} --generation.max_length 2000",
            "is 1024, but generation.max_length lets 2000 tokens in",
        ),
        (
            "numbers --position_embeddings learned --max_position_embeddings 200",
            "is 200, but data.max_source_length lets 256 tokens in",
        ),
        (
            "numbers_conv_s2s --max_position_embeddings 200",
            "is 200, but data.max_source_length lets 256 tokens in",
        ),
        # of a checkpoint
        (
            "--dataset numbers --init_from CHECKPOINT --local_window 4",
            "section config is refused: .*local_window",
        ),
        (
            "--dataset numbers --init_from CHECKPOINT --d_model 32",
            r"section config is refused: it changes the shapes of .* from \(\d+, 16\) to \(\d+, 32\)",
        ),
        (
            "--dataset numbers --init_from CHECKPOINT --model pervasive_attention",
            "init_from: .* is a csan model, which pervasive_attention cannot use",
        ),
    ],
)
def test_a_value_that_cannot_work_is_refused(words, told, checkpoint, tmp_path, monkeypatch):
    # Whoever reads data came too far
    monkeypatch.setattr("csan_hf.training.plan.prepare_corpus", None)
    monkeypatch.setattr("csan_hf.training.dry_run.load_translation_dataset", None)
    words = words.replace("CHECKPOINT", str(checkpoint))
    recipe = parse(f"{words} --output_dir {tmp_path}/run")
    for run in (dry_run, train_from_recipe):
        with pytest.raises(RecipeError, match=told):
            run(recipe)
    assert list(tmp_path.iterdir()) == []


def test_long_targets_are_generated_whole(tmp_path):
    words = f"{TINY} --data.max_target_length 1024 --output_dir {tmp_path}"
    recipe = parse(words)
    recipe.generation.clear()
    assert resolve(recipe).generation["max_length"] == 1025, "with the start"
    assert resolve(parse(f"{words} --generation.max_length 99")).generation["max_length"] == 99


@pytest.mark.parametrize("run", [dry_run, train_from_recipe])
def test_a_missing_validation_set_is_told_before_anything_is_read(run, tmp_path):
    for language in ("en", "de"):
        (tmp_path / f"train.{language}").write_text("one\ntwo\n")
    words = (
        f"multi30k_csan_1d --data_dir {tmp_path} --data.train train.{{lang}} --data.test null "
        f"--data.validation null --output_dir {tmp_path}/run"
    )
    with pytest.raises(RecipeError, match=r"no validation set: set data\.validation, or --valid"):
        run(parse(words))
    assert not (tmp_path / "run").exists()


def test_a_small_corpus_may_not_give_the_tokens_of_generation(tmp_path):
    plan = resolve(parse(f"numbers --suppress_tokens [900] --output_dir {tmp_path}"))
    tokenizer = train_tokenizer(["one"], vocab_size=300)
    tokenizers = TokenizerPair(tokenizer, tokenizer)
    corpus = PreparedCorpus(tokenizers, DatasetDict(), report="", characters=None)
    with pytest.raises(RecipeError, match=r"suppress_tokens must have tokens .*, got 900"):
        plan.build_model(corpus)


@pytest.mark.parametrize(
    ("words", "left_out"),
    [
        ("--data.train_size 5 --config.dropout 0.3", set()),
        ("--data.source_lang en --config.local_window 11", set()),
        ("--config.local_window 5", {"name", "description"}),
        (
            "--data.source_lang de --data.target_lang en",
            {"name", "description", "language"},
        ),
        (
            "--data.dataset null --data.train t.tsv --license mit --name mine",
            {"description", "dataset_name"},
        ),
    ],
)
def test_a_card_says_nothing_of_the_recipe_that_the_command_line_contradicts(words, left_out):
    written = load_recipe("numbers").to_dict().keys()
    assert written - parse(f"numbers {words}").to_dict().keys() == left_out


def test_a_recipe_that_knows_its_corpus_by_digests_has_one_direction():
    written = load_recipe("multi30k_csan_2d").to_dict().keys()
    recipe = parse("multi30k_csan_2d --data.source_lang en --data.target_lang de")
    assert written - recipe.to_dict().keys() == {"name", "description", "language"}
