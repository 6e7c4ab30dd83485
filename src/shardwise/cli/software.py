"""`shardwise software`: what a description of software means, or the trainers that are known."""

from typing import Any

from shardwise.cli.help import with_help
from shardwise.cli.options import JSON_FLAG, arg
from shardwise.cli.output import emit_json
from shardwise.config.software.record import trainers
from shardwise.config.software.resolve import resolve
from shardwise.config.system import System
from shardwise.report.tables.software import match_record, print_match, print_trainers


@with_help(
    examples=["shardwise software", 'shardwise software "torchtitan 0.2 + torch.compile" h100-sxm']
)
def command(
    description: str | None = arg(
        "[DESCRIPTION]", "Software in words; the trainers that are known if omitted.", default=None
    ),
    system: str | None = arg(
        "[SYSTEM]", "System of the catalog or file that it runs on.", default=None
    ),
    json: bool = JSON_FLAG,
) -> int:
    """List the trainers that are known, or say what a description of software means.

    A description names a trainer, its release or a month, what shards the training state, libraries
    and kernels, as --stack takes it. The answer has the stack whose figures are used, what the
    release does where a strategy says nothing, each with its source, and what remains open with
    probabilities. Some of it depends on the accelerator: name a system, too.
    """
    if description is None:
        known = trainers()
        if json:
            emit_json({name: _plain(one) for name, one in known.items()})
        else:
            print_trainers(list(known.values()))
        return 0
    found = resolve(description, None if system is None else System.load(system))
    if json:
        emit_json(match_record(found))
    else:
        print_match(found)
    return 0


def _plain(trainer: Any) -> dict[str, Any]:
    return dict(trainer.model_dump(mode="json", exclude_defaults=True))
