# Copyright 2026 The csan_hf authors. Licensed under the Apache License, Version 2.0.
"""Pushing to a Hub on this machine, and loading from it where csan_hf cannot be imported."""

import json
import tempfile
from pathlib import Path

import pytest
import yaml
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HTTPError
from loopback_hub import Repository
from system.hub.cards import faults
from system.hub.elsewhere import card_code, run_elsewhere

from csan_hf import CsanForTokenClassification
from csan_hf.hub import (
    IncompleteCheckpointError,
    card_problems,
    check_checkpoint,
    push_checkpoint,
    push_to_hub,
    save_self_contained,
    write_model_card,
)
from csan_hf.hub.public_files import foreign_code, public_files, read_json
from csan_hf.hub.push import additions_of, push_in_background
from csan_hf.pipelines import TranslationPipeline
from csan_hf_runtime.command_line import main

ROOT = Path(__file__).parents[3]
SENTENCES = ["eins zwei", "Hund", "drei vier Katze Hund"]

# Runs where csan_hf cannot be imported: loads by name and runs the code of cards; then loads from
# the cache alone, as a process that knows nothing of the first load: the one that did needs no
# request anyway. Both share the imports.
ELSEWHERE = """
import json, os, sys, urllib.request
sys.modules["csan_hf"] = None
import huggingface_hub
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
names, sentences, cards = json.loads(sys.argv[1])

def load(name):
    more = {"revision": names[name], "trust_remote_code": True}
    AutoModelForSeq2SeqLM.from_pretrained(name, **more)
    AutoTokenizer.from_pretrained(name, **more)
    return pipeline("translation", model=name, device="cpu", **more)(sentences)

if (child := os.fork()) == 0:
    for card in cards:
        exec(card, {})
    print(json.dumps([load(name) for name in names]))
    urllib.request.urlopen(os.environ["HF_ENDPOINT"] + "/api/whoami-v2?last").read()
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
huggingface_hub.constants.HF_HUB_OFFLINE = True
print(json.dumps([load(name) for name in names]))
"""
TRAIN = yaml.safe_load("""
model: csan
license: apache-2.0
data: {dataset: numbers, source_lang: de, target_lang: en, train_size: 200, validation_size: 6, test_size: 4}
tokenizer: {vocab_size: 300}
config: {d_model: 16, encoder_layers: 1, decoder_layers: 1, encoder_attention_heads: 2, decoder_attention_heads: 2,
  encoder_ffn_dim: 16, decoder_ffn_dim: 16}
training: {max_tokens: 2000, max_steps: 4, eval_steps: 2, logging_steps: 1, learning_rate: 0.001, warmup_steps: 1,
  use_cpu: true, bf16: false, report_to: none, push_to_hub: true, hub_model_id: tester/trained,
  hub_strategy: every_save, hub_always_push: true}
generation: {num_beams: 1, max_length: 12}
""")


def load_elsewhere(hub, folder, names, sentences, cards=()):
    """What models of these names translate where csan_hf is not installed, where the code of the
    cards runs, too.

    Returns:
        The translations by name, and what the cards' code printed.
    """
    (folder / "load.py").write_text(ELSEWHERE)
    codes = [card_code(card) for card in cards]
    names = {name: hub.repositories[name].commit for name in names}
    for name in names:  # what comes later concerns nobody who names a commit
        hub.repositories[name].files.pop("target_tokenizer/tokenizer.json", None)
    environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_token", "HF_HUB_OFFLINE": "0"}
    arguments = json.dumps([names, sentences, codes])
    output, errors = run_elsewhere(folder, "load.py", arguments, **environment)
    assert "A new version of the following files" not in errors, "of code without a revision"
    *printed, online, offline = output.strip().splitlines()
    assert offline == online
    assert hub.requests[-1] == "GET /api/whoami-v2?last", "the cache was enough"
    return dict(zip(names, json.loads(online), strict=True)), printed


@pytest.mark.usefixtures("undrawn")
def test_what_was_pushed_loads_elsewhere_by_name(hub_here, joint, grid, tmp_path):
    """A grid by the command, with its check; a CSAN and a classifier by calls."""
    expected = {}
    for name, (model, tokenizers) in {"tester/csan": joint, "tester/grid": grid}.items():
        pair = {"tokenizer": getattr(tokenizers, "source", tokenizers)}
        pair["target_tokenizer"] = getattr(tokenizers, "target", tokenizers)
        expected[name] = TranslationPipeline(model=model, device="cpu", **pair)(SENTENCES)
        # No folder of its name
        directory = save_self_contained(model, tokenizers, tmp_path / "saved" / name)
        write_model_card(directory, {"license": "apache-2.0", "language": ["de", "en"]}, {})
    # With the user's name in front
    push_checkpoint(tmp_path / "saved/tester/csan", "csan", check=False, revision="new")
    assert "new" in hub_here.repositories["tester/csan"].branches
    assert main(["push", str(tmp_path / "saved/tester/grid"), "tester/grid"]) == 0
    card = push_classifier(hub_here, joint, tmp_path)
    translations, printed = load_elsewhere(
        hub_here, tmp_path, list(expected), SENTENCES, [card.content]
    )
    assert translations == expected
    assert "entity" in "".join(printed)


def push_classifier(hub, joint, tmp_path):
    """Pushes a classifier as what it is; returns its card."""
    translator = save_self_contained(*joint, tmp_path / "translator")
    names = {0: "thing", 1: "animal", 2: "number"}
    model = CsanForTokenClassification.from_pretrained(translator, num_labels=3, id2label=names)
    push_to_hub(
        model, joint[1], "tester/classifier", recipe={"license": "apache-2.0", "language": "de"}
    )
    files = hub.repositories["tester/classifier"].files
    assert "generation_config.json" not in files
    card = ModelCard(files["README.md"].decode())
    assert card_problems(card, pipeline_tag="token-classification") == []
    return card


# All that a push of `TRAIN` may carry
PUBLIC = {
    "README.md",
    "config.json",
    "generation_config.json",
    "hypotheses/test.txt",
    "hypotheses/validation.txt",
    "locality.png",
    "model.safetensors",
    "recipe.yaml",
    "results.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "training.png",
}
TOKEN = "hf_" + "sEcReT9x" * 4
USER = "zaphodb"


@pytest.mark.usefixtures("undrawn")
def test_a_training_pushes_complete_checkpoints_and_nothing_else(hub_here, tmp_path, monkeypatch):
    """Secrets and local paths lie wherever they could be taken along from."""
    person = tmp_path / USER
    output = person / "out"
    for name in (".env", "credentials.json", "tb/events.out", "runs-of-others/optimizer.pt"):
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text(f"{TOKEN} of {person}")
    recipe = {
        **TRAIN,
        "training": {**TRAIN["training"], "run_name": f"{person}/run"},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    names = ["training_args.bin", "last-checkpoint/rng_state.pth", "evaluation/scores.json"]
    left = dict.fromkeys(names, TOKEN.encode())
    of_user = {"_quarto.yml", "voices/a.pt", "runs/notes.md", "optimizer.md"}
    user_files = dict.fromkeys(of_user, b"")
    hub_here.repositories["tester/trained"] = Repository(left | user_files)
    for name, value in {"HOME": person, "USER": USER, "LOGNAME": USER, "HF_TOKEN": TOKEN}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(person)
    arguments = ["train", str(tmp_path / "recipe.yaml"), "--output_dir", str(output)]
    assert main(arguments) == 0
    repository = hub_here.repositories["tester/trained"]
    code = {path.name for path in output.glob("*.py")}
    assert "modeling_csan.py" in code
    assert set(repository.files) - of_user == PUBLIC | code == set(public_files(output))
    assert of_user < set(repository.files)
    for name, content in repository.files.items():
        for private in (TOKEN, USER, str(tmp_path), str(ROOT)):
            assert private.encode() not in content, (name, private)
    for files in repository.history[:2]:
        assert set(files) <= PUBLIC | code | set(left) | of_user
    assert repository.messages == [
        "Training in progress, step 2",
        "Training in progress, step 4",
        "Trained model with scores and card",
        "Card with the revision to load",
    ]
    # the first one by its name, the last one by the code of its card, as it stands there
    first = repository.history[0]
    hub_here.repositories["tester/first"] = Repository(dict(first), ["first"], [first])
    card = repository.files["README.md"].decode()
    loaded, _ = load_elsewhere(hub_here, tmp_path, ["tester/first"], ["zwölf"], [card])
    assert loaded["tester/first"][0].keys() == {"translation_text"}
    results = json.loads(repository.files["results.json"])
    assert faults(ModelCard(card), results, pipeline_tag="translation") == []


def test_an_ensemble_is_complete_without_code(ensemble, tokenizers, tmp_path):
    ensemble.save_pretrained(tmp_path)
    tokenizers.save_pretrained(tmp_path)
    write_model_card(tmp_path, {"license": "mit", "language": ["en", "de"]}, {})
    check_checkpoint(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "This needs csan_hf." in card
    assert "load without it" not in card


def test_a_hub_that_is_out_of_reach_is_said(joint, tmp_path, monkeypatch):
    directory = save_self_contained(*joint, tmp_path / "model")

    def refuse(self, *arguments, **options):
        raise HTTPError("[Errno 111] Connection refused")

    monkeypatch.setattr(HfApi, "create_repo", refuse)
    with pytest.raises(
        ConnectionError, match=r"The Hub cannot be reached, .*/model was not uploaded: .*refused"
    ):
        push_checkpoint(directory, "tester/model", check=False)


@pytest.fixture
def complete(joint, tmp_path, undrawn):
    """A folder that can be shared."""
    directory = save_self_contained(*joint, tmp_path / "model")
    write_model_card(directory, {"license": "apache-2.0"}, {})
    return directory


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["config.json"], r"cannot be shared:\n- config.json is missing\n"),
        (
            ["tokenizer_config.json", "generation_config.json", "README.md"],
            r"- tokenizer_config.json is missing\n- README.md is missing\n- generation_config.json is missing\n",
        ),
        (
            ["model.safetensors"],
            "does not load where only transformers is installed: .*model.safetensors",
        ),
        (["csan_attention.py"], "- csan_attention.py is missing, which other code imports"),
    ],
)
def test_an_incomplete_checkpoint_is_refused(names, words, complete):
    for name in names:
        (complete / name).unlink()
    with pytest.raises(IncompleteCheckpointError, match=words):
        check_checkpoint(complete)


@pytest.mark.parametrize(
    ("line", "replacement", "words"),
    [
        (
            "pipeline_tag: translation",
            "pipeline_tag: token-classification",
            "pipeline_tag must be translation or text2text-generation, got 'token-classification'",
        ),
        ("library_name: transformers", "", "library_name must be transformers, got None"),
        ("tags:", "tags: [", "README.md has no valid metadata"),
    ],
)
def test_a_card_of_another_model_is_refused(line, replacement, words, complete):
    card = complete / "README.md"
    text = card.read_text()
    card.write_text(text.replace(line, replacement))
    with pytest.raises(IncompleteCheckpointError, match=words):
        check_checkpoint(complete)
    card.write_bytes(f"{text}\nZürich".encode("latin-1", errors="replace"))
    with pytest.raises(IncompleteCheckpointError, match=r"README\.md is not UTF-8: "):
        check_checkpoint(complete)


@pytest.mark.parametrize("options", [["--check_only"], []])
def test_a_check_alone_refuses_what_a_push_refuses(options, complete, capsys, hub_here):
    with (complete / "README.md").open("a") as card:
        card.write(f"\n{TOKEN}\n")
    assert main(["push", str(complete), "tester/model", *options]) == 2
    assert "holds a credential" in capsys.readouterr().err
    assert not hub_here.requests


def write_config(file, **entries):
    """Adds entries to a config, which need not be there yet."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(read_json(file) | entries))


@pytest.mark.parametrize(
    ("file", "entries", "named"),
    [
        ("config.json", {"auto_map": {"AutoConfig": "intruder.Config"}}, "intruder"),
        ("config.json", {"auto_map": {"AutoTokenizer": ["somebody/else--intruder.T", None]}}, "--"),
        ("config.json", {"custom_pipelines": {"translation": {"impl": "../intruder.P"}}}, "/intr"),
        ("tokenizer_config.json", {"auto_map": ["intruder.T", None]}, "tokenizer_config.json"),
        (
            "target_tokenizer/tokenizer_config.json",
            {"auto_map": {"AutoTokenizer": [None, "intruder.T"]}},
            "target_tokenizer/tokenizer_config.json",
        ),
        ("canvas.py", None, "canvas.py"),
    ],
)
def test_foreign_code_does_not_run_unasked(file, entries, named, complete, tmp_path, capsys):
    trace = f"open({str(tmp_path / 'trace')!r}, 'w')\n"
    for folder in (complete, tmp_path):
        (folder / "intruder.py").write_text(trace)
    if entries is None:
        (complete / file).write_text(trace)
        write_config(complete / "config.json", auto_map={"AutoConfig": "canvas.X"})
    else:
        write_config(complete / file, **entries)
    assert main(["push", str(complete), "tester/model"]) == 2
    error = capsys.readouterr().err
    assert named in error
    assert "pass --trust_remote_code" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "trace").exists()


def test_a_check_alone_runs_and_lists_what_would_be_uploaded(complete, tmp_path, capsys, hub_here):
    """Without the login, and not code of its own for `generate`, which lies beside it."""
    script = "import os\nopen({!r}, 'w').write(os.environ.get('HF_TOKEN', 'none'))\n".format
    beside, trace = tmp_path / "beside", tmp_path / "trace"
    (complete / "custom_generate").mkdir()
    code = f"{script(str(beside))}def generate(): ...\n"
    (complete / "custom_generate" / "generate.py").write_text(code)
    assert foreign_code(complete) == []
    with (complete / "csan_attention.py").open("a") as code:
        code.write(script(str(trace)))
    arguments = ["push", str(complete), "tester/model", "--check_only", "--trust_remote_code"]
    assert main(arguments) == 0
    assert trace.read_text() == "none"
    assert not beside.exists()
    *files, end = capsys.readouterr().out.splitlines()
    size, name = next(line.split() for line in files if line.endswith("model.safetensors"))
    assert int(size.replace(",", "")) == (complete / name).stat().st_size
    assert {line.split()[1] for line in files} == set(public_files(complete))
    assert end == f"{complete} is complete; these files, sizes in bytes, would be uploaded."
    assert not hub_here.requests


@pytest.fixture
def of_a_person(joint, tmp_path, monkeypatch):
    """A checkpoint in a home folder, with a recipe of paths."""
    person = tmp_path / USER
    monkeypatch.setenv("HOME", str(person))
    monkeypatch.setenv("LOGNAME", USER)
    directory = save_self_contained(*joint, person / "model")
    recipe = {
        "output_dir": "runs/x",
        "init_from": f"{person}/start",
        "data": {
            "data_dir": f"../{USER}/corpus",
            "train": "/data/one/train.{lang}",
            "test": {"a": f"C:\\{USER}\\t.tsv"},
        },
        "training": {"run_name": str(person)},
    }
    (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return directory


def test_a_recipe_is_uploaded_without_places(of_a_person):
    (of_a_person / "results.json").write_text('{"note": "not /data/one/train.{lang}s"}')
    content = {
        addition.path_in_repo: addition.path_or_fileobj for addition in additions_of(of_a_person)
    }
    assert yaml.safe_load(content["recipe.yaml"]) == {
        "init_from": "start",
        "data": {"data_dir": "corpus", "train": "train.{lang}", "test": {"a": "t.tsv"}},
        "training": {"run_name": "~"},
    }
    assert content["model.safetensors"] == str(of_a_person / "model.safetensors")


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("recipe.yaml", "name: x\ndescription: Made of {home}/corpus/plain.txt", 2),
        ("README.md", "See\n\nfile://{home}/notes.", 3),
        ("README.md", f"`~{USER}/x`", 1),
        ("results.json", '{"note": "from /data/one/train.{lang}/x"}', 1),
        ("tokenizer_config.json", '{\n"name_or_path": "{home}/start"\n}', 2),
        ("target_tokenizer/tokenizer_config.json", '["{json_home}"]', 1),
        ("generation_config.json", '["{temporary}/x"]', 1),
    ],
)
def test_a_path_of_this_machine_is_refused(file, text, line, of_a_person):
    home = str(of_a_person.parent)
    places = {"{home}": home, "{json_home}": json.dumps(home)[1:-1]}
    for name, place in (places | {"{temporary}": tempfile.gettempdir()}).items():
        text = text.replace(name, place)
    (of_a_person / file).parent.mkdir(exist_ok=True)
    (of_a_person / file).write_text(text)
    with pytest.raises(IncompleteCheckpointError, match=f"{file}, line {line} of what") as error:
        additions_of(of_a_person)
    assert "corpus/plain" not in str(error.value)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("recipe.yaml", "training: {hub_token: correct horse}"),
        ("results.json", '{"environment": {"key": "hf_' + "a1B2" * 8 + '"}}'),
        ("translation.py", f"TOKEN = '{TOKEN}'"),
        ("translation.py", "# AKIA" + "IOSFODNN7EXAMPLE"),
        ("translation.py", "password = 'correct horse'"),
        ("hypotheses/test.txt", TOKEN),
    ],
)
def test_a_folder_with_a_credential_is_not_uploaded(file, text, complete):
    (complete / file).parent.mkdir(exist_ok=True)
    if file.startswith("hypotheses/"):
        (complete / "results.json").write_text('{"scores": {"test": {}}}')
    (complete / file).write_text(text)
    with pytest.raises(IncompleteCheckpointError, match=f"{file} holds a credential") as error:
        additions_of(complete)
    assert not any(secret in str(error.value) for secret in ("correct horse", TOKEN, "a1B2"))


def test_only_files_of_the_list_are_uploaded(joint, tmp_path):
    directory = save_self_contained(*joint, tmp_path / "model")
    expected = set(public_files(directory))
    for name in ("secret.png", "secret.py", "secret.safetensors"):
        (tmp_path / name).write_text("private")
    for name in ("notes.txt", "optimizer.pt", "other.safetensors", "hypotheses/notes.txt"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("private")
    (directory / "README.md").write_text("![x](../secret.png) ![y](/etc/passwd) ![z](a/b.png)")
    index = {"weight_map": {"a": "../secret.safetensors", "b": "optimizer.pt"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = read_json(directory / "config.json")
    config["auto_map"] |= {"AutoModelForCausalLM": "../secret.Model", "AutoTokenizer": ["a", None]}
    (directory / "config.json").write_text(json.dumps(config))
    assert set(public_files(directory)) == expected | {"README.md", "model.safetensors.index.json"}


@pytest.mark.parametrize("name", ["LICENSE", "hypotheses/test.txt"])
def test_a_link_out_of_the_folder_is_refused(name, complete, tmp_path):
    (complete / "results.json").write_text('{"scores": {"test": {}}}')
    (tmp_path / "secret").write_text("private")
    (complete / name).parent.mkdir(exist_ok=True)
    (complete / name).symlink_to(tmp_path / "secret")
    with pytest.raises(IncompleteCheckpointError, match=rf"{name} leads out of the folder"):
        additions_of(complete)


def test_an_upload_in_the_background_that_is_refused_leaves_nothing(tmp_path):
    checkpoint = tmp_path / "run" / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text(json.dumps({"author": "hf_" + 20 * "a"}))
    options = {"token": None, "revision": None, "commit_message": "step 2"}
    with pytest.raises(IncompleteCheckpointError, match="holds a credential"):
        push_in_background(checkpoint, "me/model", **options)
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "checkpoint-2", "config.json"]
