"""Launch files with odd text: read, or refused with a fault; never another exception."""

import random
import warnings
from functools import cache

import pytest

from shardwise import InputError, export, read_launch
from shardwise.launchers.registry import LAUNCHERS

FORMS = [(one.name, ending) for one in LAUNCHERS for ending in one.endings]
PIECES = ("0", "-1", "x", "[", "{", "'", '"', "$", "1e400", "nan", "\n", "9" * 20, "true", "null")
PIECES += (": ", "=", " --", "1if", "${A", "$((", "&a ", "*a", "\u2028", "\x1b")
DEEP = {
    "brackets": "[" * 100_000,
    "mappings": '{"a":' * 50_000,
    "substitutions": "$(" * 20_000,
    "conditions": "if true; then " * 5_000,
    "signs": "$((" + "-" * 8_000 + "1))",
    "quotes": "torchrun 'pretrain_gpt.py --num-layers",
}


@cache
def _text(name, ending):
    fields = {"gpus": 16, "gbs": 64, "tp": 2}
    return export(name, "llama3-8b", "h100-sxm", fields, nearest=True, ending=ending).files[0].text


def _changed(drawn, text):
    for _ in range(drawn.choice((1, 2, 5))):
        begin = drawn.randrange(len(text))
        end = min(len(text), begin + drawn.choice((1, 1, 3, 20, 200)))
        middle = drawn.choice(("", drawn.choice(PIECES), text[begin:end] * 3))
        text = text[:begin] + middle + text[end:]
    return text


def _read(path, text):
    """Read a text; warnings of Python's parser are errors here."""
    path.write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return read_launch(path, model="llama3-8b", gpus=16)
        except InputError:
            return None


@pytest.mark.parametrize(("name", "ending"), FORMS, ids=lambda part: part)
def test_changed_files_are_read_or_refused(tmp_path, name, ending):
    """Seeded changes of an exported file, most of which leave it a launch file."""
    drawn = random.Random(f"{name}{ending}")  # noqa: S311 - no secret
    path = tmp_path / f"run{ending}"
    assert _read(path, _text(name, ending)) is not None
    for _ in range(12):
        _read(path, _changed(drawn, _text(name, ending)))


@pytest.mark.parametrize("what", DEEP)
@pytest.mark.parametrize("ending", [".sh", ".json", ".yaml", ".toml", ".py"])
def test_deep_texts_are_refused(tmp_path, ending, what):
    """Alone they are no launch file."""
    assert _read(tmp_path / f"run{ending}", DEEP[what]) is None


NESTED = "-" * 8_000 + "1"
INSIDE = [
    ("torchtitan", ".py", "local_batch_size=1", f"local_batch_size={NESTED}", "nested too deep"),
    ("megatron", ".sh", "NNODES=2", f"NNODES=$(({NESTED}))", "no literal value"),
    ("megatron", ".sh", "-batch-size 1", f"-batch-size 1 --moe-layer-freq {NESTED}", "must be a"),
    ("megatron", ".sh", "-batch-size 1", "-batch-size 1 --moe-layer-freq 1if", "must be a number"),
]


@pytest.mark.parametrize(("name", "ending", "old", "new", "problem"), INSIDE)
def test_expressions_are_parsed_within_bounds(tmp_path, name, ending, old, new, problem):
    """Python's own parser runs out of memory on such an expression."""
    path, text = tmp_path / f"run{ending}", _text(name, ending)
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=problem):
        read_launch(path)
