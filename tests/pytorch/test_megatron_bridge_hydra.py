"""Hydra parses the overrides of exported plans, and they make what the configuration file says.

As `process_config_with_overrides` of Megatron-Bridge applies both. It needs hydra-core.
"""

import shlex
from typing import Any

import pytest

from megatron_plans import legal_plans
from shardwise import InputError
from shardwise.launchers.megatron_bridge import LAUNCHER
from shardwise.launchers.megatron_bridge.trees import is_override, read_value

loader: Any = pytest.importorskip("hydra._internal.config_loader_impl")
parser: Any = pytest.importorskip("hydra.core.override_parser.overrides_parser")
omegaconf: Any = pytest.importorskip("omegaconf")


def recipe_like(fields: dict[str, Any]) -> dict[str, Any]:
    """Sections with the same fields, all null; optional sections null or a word."""
    null = {
        name: recipe_like(value) if isinstance(value, dict) and "_target_" not in value else None
        for name, value in fields.items()
    }
    return null | ({"mixed_precision": "bf16_mixed"} if "mixed_precision" in null else {})


def test_overrides_make_the_configuration() -> None:
    """In a structure that refuses unknown fields."""
    found = 0
    for plan in legal_plans(LAUNCHER.stack, 20, 77, LAUNCHER.faults):
        try:
            (script,) = LAUNCHER.write(plan, LAUNCHER.releases[0], ".sh")
            (file,) = LAUNCHER.write(plan, LAUNCHER.releases[0], ".yaml")
        except InputError:  # DeepEP in racks
            continue
        joined = script.text.replace("\\\n", " ")
        words = [word for word in shlex.split(joined, comments=True) if is_override(word)]
        words = [word for word in words if "." in word.partition("=")[0]]
        parsed = parser.OverridesParser.create().parse_overrides(words)
        for word, one in zip(words, parsed, strict=True):
            assert read_value(word.partition("=")[2]) == omegaconf.OmegaConf.to_container(
                omegaconf.OmegaConf.create({"x": one.value()})
            ).get("x")
        wanted = omegaconf.OmegaConf.to_container(omegaconf.OmegaConf.create(file.text))
        config = omegaconf.OmegaConf.create(recipe_like(wanted))
        omegaconf.OmegaConf.set_struct(config, True)
        apply = loader.ConfigLoaderImpl._apply_overrides_to_config  # noqa: SLF001 - as Bridge does
        apply(overrides=parsed, cfg=config)
        assert omegaconf.OmegaConf.to_container(config) == wanted
        found += 1
    assert found > 15
