"""Updates of offloaded optimizer state on the host, by hand.

GPT sample, unsharded, as in `test_offload`: 4 layers of 12 h^2 + 13 h weights with h = 64, in bf16
with gradients in fp32. The sample host has 16 cores of 1 MB/s, so that the update decides.
"""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import samples
from rows import each_row
from samples import column, run
from shardwise import Estimate, InputError, Strategy, System
from shardwise.cli.host import HostOptions
from shardwise.config.strategy_fields import OFFLOADS
from shardwise.config.system import Host
from shardwise.cost.host import BANDWIDTH_SHARE, drive_time, in_groups, update_rate, update_time
from shardwise.cost.optimizer import UNFUSED_BYTES
from shardwise.report.tables.strategy_line import options_in_brief

pytestmark = pytest.mark.any_software

CORE = 1e6
HOST = Host(cores=16, memory_bandwidth=20e6, core_bandwidth=CORE)
DRIVES = HOST.model_copy(update={"nvme_read": 4e5, "nvme_write": 2e5})
WEIGHTS = 4 * (12 * 64**2 + 13 * 64) + (1000 + 32) * 64 + 2 * 64
# Gradient read 2.5 times, weight and two moments in fp32 read and written, 16-bit copy written.
FUSED = 2.5 * 4 + 2 * 12 + 2


def machine(host: Host | None = HOST, *, capacity: float = 1e12, link: float = 1e15) -> System:
    """The sample machine with a host."""
    first = {"name": "hbm", "capacity": 80e9, "bandwidth": 1e12}
    second = {"name": "host", "capacity": capacity, "bandwidth": link}
    return samples.system(memory=[first, second]).model_copy(update={"host": host})


def on_host(*, on: System | None = None, **columns: Any) -> Estimate:
    """Run with the optimizer on the host."""
    fields = {"zero": 0, "gbs": 8, "offload_optimizer": True, "cpu_optimizer": "fused"}
    return run(machine=on or machine(), **(fields | columns))


def test_cores_move_bytes_until_the_memory_is_the_limit() -> None:
    """16 cores of 1 MB/s; of the 20 MB/s of the memory 0.55 are reached."""
    ranks, threads = column(1, 1, 4, 4, 8), np.array([2, 16, 1, 4, 8])
    full = BANDWIDTH_SHARE * 20e6
    expected = [2e6, full, 4e6, full, full]
    np.testing.assert_allclose(update_rate(HOST, ranks, threads), expected)
    moved = column(*[3e6] * 5)
    np.testing.assert_allclose(update_time(HOST, moved, ranks, threads), ranks * 3e6 / expected)
    few = HOST.model_copy(update={"cores": 3})
    np.testing.assert_allclose(update_rate(few, ranks, threads), [2e6, 3e6, 3e6, 3e6, 3e6])


def test_groups_follow_each_other() -> None:
    """One group: both steps in turn; two: half of each is alone; many: the longer one."""
    first, second = column(6, 6, 6), column(2, 2, 2)
    expected = [8, 4 + 3, 8 / 1000 + 0.999 * 6]
    np.testing.assert_allclose(in_groups(first, second, column(1e8, 2e9, 1e12)), expected)


@each_row("word, each", [("fused", FUSED), ("unfused", FUSED + UNFUSED_BYTES)])
def test_the_host_updates_all_weights_after_backward(word: str, each: float) -> None:
    """36 bytes of each in one pass, by 1 thread of 1 MB/s; embedding and head are there, too."""
    result = on_host(cpu_optimizer=word, operations=True)
    assert result.time_s["optimizer"] == pytest.approx(each * WEIGHTS / CORE)
    assert sum(result.time_s.values()) == pytest.approx(result.step_time_s)
    (row,) = [row for row in result.operations or () if row.operation == "optimizer.host"]
    assert row.time_s == pytest.approx(result.time_s["optimizer"])


@each_row("optimizer", ["muon", "adamw-8bit"])
def test_some_updates_stay_on_the_accelerator(optimizer: str) -> None:
    """Matrix products of muon, and kernels of bitsandbytes on pages: the state moves."""
    result = on_host(optimizer=optimizer, cpu_optimizer="stack", on=machine(link=1e9))
    assert result.assumed_host is None
    assert result.time_s["optimizer"] < 1e-3 * FUSED * WEIGHTS / CORE
    with pytest.raises(InputError, match="or with muon and adamw-8bit"):
        on_host(optimizer=optimizer)


def test_ranks_share_their_server() -> None:
    """4 unsharded replicas with 2 threads each: 4 times the bytes at 8 times the rate of a core."""
    result = on_host(dp=4, host_threads=2)
    assert result.time_s["optimizer"] == pytest.approx(4 * FUSED * WEIGHTS / (8 * CORE))
    sharded = on_host(dp=4, zero=1, host_threads=2)
    assert sharded.time_s["optimizer"] == pytest.approx(FUSED * WEIGHTS / (8 * CORE))


def test_superoffload_updates_during_backward() -> None:
    """What the last backward pass is too short for is exposed, as transfers are."""
    late, early = on_host(), on_host(cpu_optimizer="superoffload")
    backward = late.time_s["backward"] / late.micro_batches
    assert early.time_s["optimizer"] == 0
    assert early.time_s["offload"] == pytest.approx(late.time_s["optimizer"] - backward)
    assert early.comm_s["offload"].total == pytest.approx(late.time_s["optimizer"])
    fast = machine(HOST.model_copy(update={"core_bandwidth": 1e15, "memory_bandwidth": 1e15}))
    assert on_host(on=fast, cpu_optimizer="superoffload").time_s["offload"] < 1e-8


def test_gradients_leave_during_backward_and_weights_return() -> None:
    """4 bytes of gradient out, less a backward pass; 2 bytes of weight in, after the update."""
    result = on_host(on=machine(link=1e8))
    backward = result.time_s["backward"] / result.micro_batches
    out, back = 4 * WEIGHTS / 1e8, 2 * WEIGHTS / 1e8
    assert result.comm_s["offload"].total == pytest.approx(out + back)
    assert result.time_s["offload"] == pytest.approx(out - backward + back)


def test_the_host_stores_sixteen_bytes_a_weight() -> None:
    """Master, moments and gradient of 4 bytes; the accelerator stores weights and gradients."""
    result = on_host().memory_bytes
    assert result.offloaded == 16 * WEIGHTS
    assert result.optimizer == 0
    assert result.weights == 2 * WEIGHTS
    assert result.gradients == 4 * WEIGHTS
    with_weights = on_host(offload_weights=True).memory_bytes
    assert with_weights.offloaded == 16 * WEIGHTS + 2 * 4 * (12 * 64**2 + 13 * 64)


def test_sharded_gradients_are_on_the_host_alone() -> None:
    """ZeRO-2 of 4 replicas: a quarter of 16 bytes a weight there, no shard of gradients here."""
    result = on_host(dp=4, zero=2).memory_bytes
    assert result.offloaded == pytest.approx(4 * WEIGHTS)
    assert result.gradients == 0


@each_row("spare", [0, -1])
def test_a_full_host_does_not_fit(spare: int) -> None:
    """State fits up to the last usable byte of the host."""
    result = on_host(on=machine(capacity=16 * WEIGHTS + spare))
    assert result.fits is (spare == 0)


def test_drives_store_the_state() -> None:
    """12 bytes a weight read and written at the slower rate, in place of memory of the host."""
    rate = np.array([1.0])
    np.testing.assert_allclose(drive_time(DRIVES, 1e6 * rate, 2 * rate), 2e6 / 2e5)
    result = on_host(on=machine(DRIVES), offload_nvme=True)
    assert result.time_s["optimizer"] == pytest.approx(12 * WEIGHTS / 2e5)
    with pytest.raises(InputError, match=r"no local drives \(host.nvme_read, host.nvme_write\)"):
        on_host(offload_nvme=True)


def test_a_host_reads_and_writes_its_drives() -> None:
    """One rate without the other is refused."""
    rates = {"cores": 4, "memory_bandwidth": 1e9, "core_bandwidth": 1e9}
    with pytest.raises(InputError, match="nvme_read and nvme_write must be set together"):
        Host(**rates, nvme_read=1e9)


@each_row(
    "name, value, needs",
    [
        ("host_threads", 4, "has no effect unless the host updates"),
        ("offload_nvme", True, "has no effect unless the host updates"),
        ("cpu_optimizer", "fused", "has no effect without offload_optimizer"),
    ],
)
def test_fields_of_the_host_need_an_update_there(name: str, value: object, needs: str) -> None:
    """They are refused where the accelerator updates, not ignored."""
    with pytest.raises(InputError, match=needs):
        run(machine=machine(DRIVES), **{name: value})


def test_the_range_has_both_ends() -> None:
    """One thread, unfused and slow, to all cores and fused; what is set no longer varies."""
    unknown, set_ = on_host(cpu_optimizer="stack"), on_host(host_threads=1)
    assert unknown.assumed_host is not None
    assert set_.assumed_host is not None
    found = unknown.assumed_host
    assert (found.ranks, found.threads, found.cpu_optimizer) == (1, 1, "fused")
    slowest = 1.5 * (FUSED + UNFUSED_BYTES) * WEIGHTS / CORE
    assert found.slower_step_s == pytest.approx(slowest, rel=0.1)
    fastest = FUSED * WEIGHTS / (1.5 * BANDWIDTH_SHARE * 20e6)
    assert found.faster_step_s == pytest.approx(fastest, rel=0.1)
    assert set_.assumed_host.slower_step_s == pytest.approx(1.5 * FUSED * WEIGHTS / CORE, rel=0.1)
    assert run(machine=machine()).assumed_host is None


def test_what_a_search_offloads() -> None:
    """Weights, activations and optimizer state, not what says how the host updates them."""
    assert OFFLOADS == ("offload_weights", "offload_activations", "offload_optimizer")


def test_a_server_is_described_by_its_own_figures() -> None:
    """512 GB for 8 accelerators or for the 2 of a run; an eighth at most stays reserved."""
    system = System.load("h100-sxm")
    for gpus, part in ((None, 64e9), (2, 256e9), (16, 64e9)):
        second = system.with_host({"memory": "512 GB", "cores": 16}, gpus).accelerator.memory[1]
        assert second.capacity == part
        assert second.usable_bytes == part - min(32 * 2**30, part / 8)
    assert system.with_host({"cores": 16}).server.cores == 16
    with pytest.raises(InputError, match="no second memory tier"):
        samples.system().with_host({"memory": "1 TB"})
    with pytest.raises(InputError, match="cores: 0: must be at least 1"):
        system.with_host({"cores": 0})


def test_tables_say_how_the_host_updates() -> None:
    """In the line of a plan, where the strategy says it."""
    plain = {"gpus": 1, "gbs": 1, "offload_optimizer": True}
    more = {"cpu_optimizer": "unfused", "host_threads": 4, "offload_nvme": True}
    for columns, words in (
        (plain, ["optimizer offloaded"]),
        (plain | more, ["optimizer on NVMe", "cpu optimizer unfused", "host threads 4"]),
    ):
        strategy = Strategy(**columns).resolved(samples.model()).to_dict()
        assert options_in_brief(strategy)[-len(words) :] == words


def test_flags_describe_the_server_at_hand() -> None:
    """Without any the system stays as it is; a wrong value names its flag."""
    none: dict[str, str | None] = dict.fromkeys(field.name for field in fields(HostOptions))
    assert HostOptions(**none).of("h100-sxm", 8) == "h100-sxm"
    named = none | {"host_cores": "16", "host_memory": "1 TB", "nvme_read": "3 GB/s"}
    found = HostOptions(**named).of("h100-sxm", 4)
    assert isinstance(found, System)
    assert (found.server.cores, found.server.nvme_read) == (16, 3e9)
    assert found.accelerator.memory[1].capacity == 250e9
    with pytest.raises(InputError, match="host_bandwidth: '3 GHz'"):
        HostOptions(**none | {"host_bandwidth": "3 GHz"}).of("h100-sxm", 4)


def test_a_system_without_a_host_has_the_usual_one() -> None:
    """8 cores and 48 GB/s for each of 8 accelerators."""
    bare = System.load("h100-sxm").model_copy(update={"host": None}).server
    assert (bare.cores, bare.memory_bandwidth) == (64, 8 * 48e9)
