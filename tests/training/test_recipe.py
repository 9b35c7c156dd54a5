"""Recipes: what is read, and what is refused with which words."""

import pytest

from csan_hf.training.options import RecipeError, convert
from csan_hf.training.recipe import format_help, load_recipe, recipe_options, split_command_line


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "recipe.yaml"

    def write(text: str):
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_sections_are_read_with_the_types_of_their_fields(recipe_file):
    path = recipe_file(
        "model: csan\n"
        "config: {d_model: 64, local_window: 5, localness_layers: [0, 1], normalize_before: true}\n"
        "tokenizer: {vocab_size: 1e3}\n"
        "training: {learning_rate: 1e-3, max_steps: 2e2, bf16: auto}\n"
        "generation: {num_beams: 4, length_penalty: 1, early_stopping: never}\n"
        "output_dir: out\n"
    )
    recipe = load_recipe(path)
    assert recipe.config == {"d_model": 64, "local_window": 5, "localness_layers": [0, 1], "normalize_before": True}
    assert recipe.tokenizer == {"vocab_size": 1000}
    assert recipe.training == {"learning_rate": 0.001, "max_steps": 200, "bf16": "auto"}
    assert recipe.generation == {"num_beams": 4, "length_penalty": 1.0, "early_stopping": "never"}
    assert recipe.training_arguments().learning_rate == 0.001


def test_command_line_wins_with_and_without_section(recipe_file):
    path = recipe_file("training: {learning_rate: 1e-3}\nconfig: {local_window: 11}\n")
    arguments = (
        f"{path} --learning_rate 3e-4 --config.local_window null --training.seed=7 --output-dir there --overwrite"
    )
    name, overrides, wants_help = split_command_line(arguments.split())
    recipe = load_recipe(name, overrides)
    assert not wants_help
    assert recipe.training == {"learning_rate": 3e-4, "seed": 7}
    assert recipe.config == {"local_window": None}
    assert (recipe.output_dir, recipe.overwrite) == ("there", True)


def test_lists_on_the_command_line():
    for text in ("[0, 2]", "0,2"):
        assert load_recipe(None, [("localness_layers", text)]).config == {"localness_layers": [0, 2]}
    assert load_recipe(None, [("language", "[de, en]")]).language == ["de", "en"]
    assert load_recipe(None, [("language", "no")]).language == "no"  # Norwegian, not false


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training: {learning_rat: 1}", ["training.learning_rat", "Did you mean training.learning_rate?"]),
        ("config: {local_windw: 5}", ["config.local_windw", "Did you mean config.local_window"]),
        ("config: {learning_rate: 5}", ["config.learning_rate", "Did you mean training.learning_rate"]),
        ("trainin: {seed: 1}", ["unknown key trainin"]),
        ("learning_rate: 1e-3", ["unknown key learning_rate", "training.learning_rate"]),
        ("config: {vocab_size: 5}", ["config.vocab_size cannot be set", "tokenizer.vocab_size"]),
        ("training: {output_dir: x}", ["training.output_dir cannot be set", "top of the recipe"]),
        ("training: {max_steps: many}", ["training.max_steps must be integer", "'many'"]),
        ("training: {max_steps: 1.5}", ["training.max_steps must be integer", "1.5"]),
        ("config: {localness_layers: [0, x]}", ["config.localness_layers[1] must be integer", "'x'"]),
        ("license: no", ["license must be text", "quotes"]),
        ("config: 3", ["section config must hold keys and values"]),
        ("model: cnas", ["model must be one of csan", "'cnas'"]),
        ("training: {seed: 1, seed: 2}", ["'seed' stands twice"]),
        ("training: {seed: [}", ["not valid YAML"]),
        ("- 1", ["must hold keys and values"]),
    ],
)
def test_what_is_wrong_is_named(recipe_file, text, words):
    with pytest.raises(RecipeError) as error:
        load_recipe(recipe_file(text))
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([("learning_rat", "1")], ["unknown key learning_rat", "training.learning_rate"]),
        ([("training.local_window", "5")], ["config.local_window"]),
        ([("max_steps", "soon")], ["--training.max_steps must be integer", "'soon'"]),
        ([("config.localness_layers", "[0")], ["not valid YAML"]),
    ],
)
def test_wrong_command_lines_are_named(overrides, words):
    with pytest.raises(RecipeError) as error:
        load_recipe(None, overrides)
    for word in words:
        assert word in str(error.value)


def test_bare_key_of_several_sections_is_ambiguous():
    names = [option.name for option in recipe_options()]
    shared = sorted({option.name for option in recipe_options() if names.count(option.name) > 1 and option.section})
    assert shared, "nothing to test"
    with pytest.raises(RecipeError, match="is ambiguous"):
        load_recipe(None, [(shared[0], "1")])


def test_missing_recipe_lists_its_neighbours(recipe_file):
    path = recipe_file("model: csan")
    with pytest.raises(RecipeError, match=r"no recipe .*numers\.yaml.*recipe\.yaml"):
        load_recipe(path.with_name("numers.yaml"))


def test_refused_sections_say_which(recipe_file):
    recipe = load_recipe(recipe_file("output_dir: x\ntraining: {keep_best: 0}"))
    with pytest.raises(RecipeError, match=r"section training.*keep_best.*got 0"):
        recipe.training_arguments()
    with pytest.raises(RecipeError, match="output_dir is missing"):
        load_recipe(None).training_arguments()


def test_resolved_recipe_gives_itself_again(recipe_file):
    recipe = load_recipe(recipe_file("output_dir: x\nconfig: {local_window: null}\nname: A – B"), [("seed", "3")])
    recipe.overwrite = True
    again = load_recipe(recipe_file(recipe.to_yaml()))
    assert again.to_dict() == recipe.to_dict()
    assert again.config == {"local_window": None}
    assert not again.overwrite


def test_help_has_every_key_with_help():
    text = format_help()
    for option in recipe_options():
        assert f"--{option.path}  (" in text
    without = [option.path for option in recipe_options() if option.section != "generation" and not option.help]
    assert without == []


def test_conversion_of_union_types():
    assert convert("1e-3", float | None, "x") == 0.001
    assert convert(None, float | None, "x") is None
    assert convert(3, int | str, "x") == 3
    assert convert("off", bool, "x") is False
    assert convert(12, str, "x") == "12"
    with pytest.raises(RecipeError, match="x must be true or false, got 2"):
        convert(2, bool, "x")
