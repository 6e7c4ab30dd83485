"""`shardwise lengths`."""

import json as json_text
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shardwise.analysis.data_lengths import data_lengths
from shardwise.cli.help import with_help
from shardwise.cli.options import JSON_FLAG, OUTPUT_OPTION, arg, missing_flag, opt, refuse_options
from shardwise.cli.output import note, printed, show
from shardwise.config.arguments import count_of
from shardwise.config.data_lengths import log_normal
from shardwise.errors import Fault, InputError
from shardwise.units import read_whole

_CHARACTERS = 4.0
"""Characters per token of English text without a tokenizer; assumed."""
_COUNTS = ("length", "num_tokens", "n_tokens")
_TEXTS = ("text", "prompt", "completion", "instruction", "input", "output", "question", "answer",
          "chosen", "response")  # fmt: skip
_TURNS = ("messages", "conversations")


@with_help(
    examples=[
        "shardwise lengths --quantiles 512,2048,8192 --mbs 4 --ranks 8",
    ]
)
def command(
    *,
    file: str | None = arg(
        "[FILE]",
        "Data: a line of JSON for each sequence, with its text, messages, input_ids or length.",
        default=None,
    ),
    quantiles: str | None = opt(
        "--quantiles P50,P95,MAX", "Median, 95th percentile and longest, instead of a file."
    ),
    tokenizer: str | None = opt(
        "--tokenizer NAME",
        "Tokenizer of the Hugging Face hub, or a tokenizer.json; without it, 4 characters count "
        "as a token.",
    ),
    seq_len: str | None = opt("--seq-len N", "Cut sequences off there. Default: the longest."),
    mbs: str | None = opt("--mbs N", "Sequences of a micro-batch. Default: 1."),
    ranks: str | None = opt("--ranks N", "Replicas that wait for each other. Default: 1."),
    json: bool = JSON_FLAG,
    output: str | None = OUTPUT_OPTION,
) -> int:
    """Measure the lengths of a data set, and what padded and packed batches of it cost.

    The flags for `estimate` follow: packed rows have --document-len, padded batches the expected
    length as --seq-len for time; memory peaks at the longest.
    """
    if (file is None) == (quantiles is None):
        raise missing_flag("file", "set a file of data, or --quantiles, not both")
    if file is None:
        refuse_options("needs a file of data", tokenizer=tokenizer)
        numbers = [read_whole(one) or 0 for one in str(quantiles).split(",")]
        if len(numbers) != 3:  # noqa: PLR2004 - as the flag says
            raise InputError(Fault.of("quantiles", quantiles, "must be P50,P95,MAX"))
        lengths = log_normal(*map(float, numbers))
    else:
        lengths = list(_lengths(file, _counter(tokenizer)))  # type: ignore[assignment]
    own = {"seq_len": seq_len, "mbs": mbs, "ranks": ranks}
    given: dict[str, Any] = {n: count_of(n, text) for n, text in own.items() if text is not None}
    found = data_lengths(lengths, measured=file is not None, **given)
    if file is not None and tokenizer is None:
        note("no tokenizer: 4 characters count as a token (set --tokenizer)")
    show(found.to_dict, printed("data_lengths:print_lengths", found), json=json, output=output)
    return 0


def _counter(tokenizer: str | None) -> Callable[[str], float]:
    """A function that counts the tokens of a text."""
    if tokenizer is None:
        return lambda text: max(len(text) / _CHARACTERS, 1.0)
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an extra
    except ImportError:
        problem = "needs tokenizers, which is not installed: pip install 'shardwise[lengths]'"
        raise InputError(Fault.of("tokenizer", tokenizer, problem)) from None
    is_file = Path(tokenizer).is_file()
    try:
        known = Tokenizer.from_file(tokenizer) if is_file else Tokenizer.from_pretrained(tokenizer)
    except Exception as error:  # noqa: BLE001 - its errors have no type of their own
        raise InputError(Fault.of("tokenizer", tokenizer, f"cannot be loaded: {error}")) from None
    return lambda text: float(len(known.encode(text).ids))


def _lengths(file: str, count: Callable[[str], float]) -> Iterator[float]:
    """Tokens of each line."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(Fault(source=file, problem=f"cannot be read: {error}")) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            place = f"{file}:{number}"
            try:
                record = json_text.loads(line)
            except ValueError:
                raise InputError(Fault(source=place, problem="is no line of JSON")) from None
            yield _length(record, count, place)


def _length(record: object, count: Callable[[str], float], place: str) -> float:
    """Tokens of one record: as it says, or of its ids, messages or texts."""
    if isinstance(record, str):
        return count(record)
    if isinstance(record, int) and not isinstance(record, bool) and record > 0:
        return float(record)
    if isinstance(record, Mapping):
        for name in _COUNTS:
            if isinstance(record.get(name), int):
                return float(record[name])
        if isinstance(record.get("input_ids"), list):
            return float(len(record["input_ids"]))
        turns = next((record[n] for n in _TURNS if isinstance(record.get(n), list)), None)
        texts = [str(record[name]) for name in _TEXTS if isinstance(record.get(name), str)]
        if turns is not None:
            texts = [
                str(t.get("content", t.get("value", ""))) for t in turns if isinstance(t, Mapping)
            ]
        if texts:
            return count("\n".join(texts))
    fields = ", ".join((*_COUNTS, "input_ids", *_TURNS, *_TEXTS))
    raise InputError(Fault(source=place, problem=f"has none of the fields {fields}"))
