"""Megatron-Bridge: its scripts with overrides and configuration files; and files of NeMo, read."""

from shardwise.config.launch import Launch
from shardwise.launchers.launch import DOCUMENTS, NO_OPTIONS, Launcher, LaunchText
from shardwise.launchers.megatron.core_options import CORE_SAYS
from shardwise.launchers.megatron_bridge.files import (
    NAME,
    RELEASES,
    faults,
    launch_of,
    write,
)


def recognise(text: str, source: str) -> bool:
    """Whether a text is a script or a configuration of Megatron-Bridge or NeMo."""
    from shardwise.launchers.megatron_bridge import configuration, script  # noqa: PLC0415 - slow

    if configuration.is_configuration(text, source):
        return True
    return not source.endswith(_DATA) and script.IS_SCRIPT.search(text) is not None


_DATA = (".yaml", ".yml", ".json", ".toml", ".gz")


def read(text: LaunchText) -> Launch:
    """Read a script or a configuration.

    Raises
    ------
    InputError
        If a value is wrong or a variable has none.
    """
    from shardwise.launchers.megatron_bridge import configuration, script  # noqa: PLC0415 - slow

    is_file = text.source.endswith(_DATA)
    job = configuration.configuration_job(text) if is_file else script.script_job(text)
    return launch_of(job, text)


LAUNCHER = Launcher(
    name=NAME,
    title="Megatron-Bridge",
    releases=RELEASES,
    endings=(".sh", ".yaml"),
    recognise=recognise,
    read=read,
    faults=faults,
    layer_precision=True,
    write=write,
    yours="data, tokenizer, learning rate and schedule, train.train_iters, checkpoints",
    says=CORE_SAYS | {"lora_rank", "lora_parts"},
    ignores=NO_OPTIONS | DOCUMENTS,
)
