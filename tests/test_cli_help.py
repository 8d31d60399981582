"""Every help text: complete, in plain sentences, and shown as it was written."""

import re

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from restd.cli.app import app


def commands(group, path=("restd",)):
    for name, command in group.commands.items():
        if command.hidden:
            continue
        yield (*path, name), command
        if isinstance(command, TyperGroup):
            yield from commands(command, (*path, name))


COMMANDS = dict(commands(get_command(app)))
MANNERISMS = re.compile(r"\b(wanted|asked|told|said|a row a|parted|goes on)\b", re.IGNORECASE)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_and_option_is_explained(path):
    command = COMMANDS[path]
    texts = {" ".join(path): command.help}
    texts |= {
        f"{' '.join(path)} {param.name}": param.help for param in command.params if not getattr(param, "hidden", False)
    }
    for name, text in texts.items():
        assert text, f"{name} has no help"
        paragraphs = text.strip().split("\n\n")
        assert paragraphs[0].rstrip().endswith("."), f"{name}: not a sentence: {text!r}"
        assert "[" not in text, f"{name}: Rich would take the brackets for markup"
        assert not MANNERISMS.search(text), f"{name}: {text!r}"


def test_every_recipe_is_named_in_the_help():
    from importlib import resources

    recipes = {entry.name.removesuffix(".toml") for entry in (resources.files("restd") / "recipes").iterdir()}
    paths = (("restd", "index", "build"), ("restd", "train"))
    helps = {param.help for path in paths for param in COMMANDS[path].params if "--recipe" in param.opts}
    named = {name for text in helps for name in re.findall(r"[\w-]+", text)}
    assert recipes <= named, recipes - named


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_name_real_commands_and_options(path):
    for line in (COMMANDS[path].epilog or "").split("\n\n")[1:]:
        for example in line.split(" && "):
            words = example.split()
            command = COMMANDS.get(tuple(words[:3])) or COMMANDS[tuple(words[:2])]
            if isinstance(command, TyperGroup):  # its short form
                command = next(iter(command.commands.values()))
            options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
            assert {word for word in words if word.startswith("-")} <= options, example


def test_the_help_of_every_command_is_printed(command):
    for path in COMMANDS:
        code, out, err = command(*path[1:], "--help")
        assert code == 0, err
        assert f"Usage: {' '.join(path)}" in out


def test_benchmarks_and_analyses_are_described():
    from types import SimpleNamespace

    from restd.bench import BENCHMARKS
    from restd.cli.analyze import ANALYSES, _makers
    from restd.cli.bench import DESCRIPTIONS
    from restd.train import DistillSettings

    assert set(DESCRIPTIONS) == set(BENCHMARKS)
    study = SimpleNamespace(comparison=SimpleNamespace(config=SimpleNamespace(distill=DistillSettings())))
    assert set(ANALYSES) == set(_makers(study, new=None, ours="restd", theirs="base", queries=1, count=1, seeds=""))
