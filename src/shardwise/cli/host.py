"""Flags of a system: its price, and cores, memory, rates and drives of one server."""

from typing import Any

from shardwise.cli.options import COMMAND_LINE, flag_fault, opt, positive_number, used
from shardwise.config.roles import Section
from shardwise.config.system import System
from shardwise.errors import InputError
from shardwise.records import dataclass, replace

_FIELDS = {
    "host_cores": "cores",
    "host_memory": "memory",
    "host_bandwidth": "memory_bandwidth",
    "host_core_bandwidth": "core_bandwidth",
    "nvme_read": "nvme_read",
    "nvme_write": "nvme_write",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """The server at hand, where it is not that of the system."""

    host_cores: str | None = opt(
        "--host-cores N", "Physical cores of a server that the job may use.", Section.MEMORY
    )
    host_memory: str | None = opt(
        "--host-memory SIZE",
        "Memory of a server, such as 512GB; its accelerators share it.",
        Section.MEMORY,
    )
    host_bandwidth: str | None = opt(
        "--host-bandwidth RATE",
        "Peak bandwidth of the memory of a server, such as 90GB/s.",
        Section.MEMORY,
    )
    host_core_bandwidth: str | None = opt(
        "--host-core-bandwidth RATE",
        "Rate at which one thread of an optimizer update moves bytes, such as 12GB/s.",
        Section.MEMORY,
    )
    nvme_read: str | None = opt(
        "--nvme-read RATE", "Read rate of the drives of a server, together.", Section.MEMORY
    )
    nvme_write: str | None = opt(
        "--nvme-write RATE", "Write rate of the drives of a server, together.", Section.MEMORY
    )

    def given(self) -> dict[str, Any]:
        """Options that were used, by flag."""
        return used(self)

    def of(self, system: str | System, gpus: int | None) -> str | System:
        """The system with this host; itself where no option was used.

        Parameters
        ----------
        gpus
            Accelerators of the run, which share the memory if there are fewer than in a server.
        """
        given = self.given()
        if not given:
            return system
        flags = {field: flag for flag, field in _FIELDS.items()}
        try:
            return System.load(system).with_host({_FIELDS[n]: given[n] for n in given}, gpus)
        except InputError as error:
            raise InputError(
                [
                    replace(fault, field=flags.get(fault.field, fault.field), source=COMMAND_LINE)
                    for fault in error.faults
                ]
            ) from None


def with_price(system: System, text: str | None) -> System:
    """The system with a price of a GPU-hour [USD]; itself where none is set."""
    if text is None:
        return system
    number = positive_number("price", text, " of USD, as in 2.5")
    try:
        return system.with_price(number or 0.0)
    except InputError as error:
        raise flag_fault("price", text, error.faults[0].problem) from None
