"""FSDP2 on fake tensors holds what its rules say, and leaves everything as it was."""
# ruff: noqa: E402, SLF001 - torch may be missing; what is compared has no public way in

import warnings
from contextlib import contextmanager

import pytest

from shardwise.errors import InputError
from shardwise.fsdp.plan import Setting

torch = pytest.importorskip("torch")
tools = pytest.importorskip("torch.distributed._tools.fsdp2_mem_tracker")

from torch import nn

from emitted_calls import unit, wrapping
from rows import each_row
from sharded_training import ALL_FP32, Chain
from shardwise.fsdp import verify as ours
from shardwise.fsdp.verify import verify

N = 64 * 64
EACH = wrapping(*(unit(str(i)) for i in range(4)))


def found(verified, place):
    """The fullest moment after a turn, the first time it is taken."""
    return next(m for m in verified.moments if m.place == place)


def weights(moment):
    """What FSDP2 holds of weights and gradients, in multiples of N bytes."""
    told = {k: v / N for k, v in moment.by_category.items()}
    return {k: told.get(k, 0) for k in ("Unsharded Param", "All Gather", "Reduce Scatter")}


def test_the_state_is_sharded_and_adamw_needs_one_more_copy():
    """fp32, W = 4, 4 matrices: 4N bytes each of weights, gradients, 2 states; and one root."""
    told = verify(Chain(), wrapping(), Setting(shards=4), batch=1, seq_len=1)
    step = told.optimizer
    assert step.phase == "optimizer"
    assert step.by_category["Sharded Param"] == 4 * N
    assert step.by_category["Sharded Grad"] == 4 * N
    # Two states and the root of one, and 4 bytes that count steps for each of 4 matrices.
    assert step.by_category["OptState"] == 3 * 4 * N + 4 * 4
    assert told.peak_bytes == max(m.total_bytes for m in told.moments)
    assert all(sum(m.by_category.values()) == m.total_bytes for m in told.moments)


def test_forward_holds_two_gather_buffers_while_it_copies_out():
    """bf16, 2N bytes a unit: on the copy for unit 1 the buffer of unit 0 still lives."""
    told = verify(Chain(), EACH, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    copying = found(told, "gather 1")
    assert weights(copying) == {"Unsharded Param": 2, "All Gather": 4, "Reduce Scatter": 0}
    after = found(told, "enter 2")  # the last gathered stays, its weights do not
    assert weights(after)["Unsharded Param"] == 0


def test_backward_holds_the_next_unit_and_the_last_reduction():
    """While unit 1 runs backward: it and the buffer of unit 0; fp32 input of the reduction of 2."""
    told = verify(Chain(), EACH, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    assert weights(found(told, "reduce 1")) == {
        "Unsharded Param": 2,
        "All Gather": 2,
        "Reduce Scatter": 4,
    }


def test_weights_that_are_kept_are_gathered_once():
    kept = wrapping(*(unit(str(i), reshard=False) for i in range(4)))
    told = verify(Chain(), kept, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    assert sum(m.place.startswith("gather ") for m in told.moments) == 4
    assert weights(found(told, "loss.backward()"))["Unsharded Param"] == 8


def test_a_group_is_gathered_once_and_kept_until_its_last_module_ends():
    """The tracker of PyTorch ends a group at each of its modules; here the hooks are FSDP2's."""
    pairs = wrapping(unit("0", "1"), unit("2", "3"))
    told = verify(Chain(), pairs, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    forward = [m.place for m in told.moments if m.phase == "forward"]
    acts = [p for p in forward if p.startswith(("gather ", "gathered ", "reshard ", "exit "))]
    assert acts == [
        *("gather 0, 1", "gathered 0, 1", "exit 0", "exit 1", "reshard 0, 1"),
        *("gather 2, 3", "gathered 2, 3", "exit 2", "exit 3", "reshard 2, 3"),
        "exit root",
    ]
    assert weights(found(told, "exit 0"))["Unsharded Param"] == 4


@each_row("units", [wrapping(), EACH])
@each_row("checkpointed", [(), ("0", "2")])
def test_without_groups_the_peak_is_that_of_pytorchs_own_tracker(units, checkpointed):
    setting = Setting(shards=4)
    load, wrapped = Chain(), wrapping(*units.units, checkpointed=checkpointed)
    with ours._fake_world(torch, setting) as mesh:
        module = load.build()
        ours._wrap(module, wrapped, setting, mesh)
        optimizer = ours._optimizer(torch, module, setting)
        called = (load.inputs(module, 8, 1), {})
        ours._step(load, module, optimizer, called)
        module.zero_grad()
        tracker = tools.FSDPMemTracker(module, optimizer)
        tracker.track_inputs((called,))
        with tracker:
            ours._step(load, module, optimizer, called)
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    told = verify(load, wrapped, setting, batch=8, seq_len=1)
    assert told.peak_bytes == peak["Total"]


def test_checkpointed_modules_keep_their_input_alone():
    """Each block saves its input and what comes out of tanh; checkpointed, the input."""
    load = Chain()
    load.build = lambda: nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)) for _ in range(8))
    )
    setting = Setting(shards=4, compute_dtype="fp32", optimizer="none")

    def held(*names):
        told = verify(load, wrapping(checkpointed=names), setting, batch=256, seq_len=1)
        return found(told, "loss.backward()").by_category["Activation"]

    assert held() - held("0", "3", "4") == 3 * 256 * 64 * 4


def test_replicas_keep_what_they_reduced_until_backward_ends():
    """Reduced in fp32 but stored in bf16, each unit's share stays: 4 units of 4N/4 bytes."""
    setting = Setting(shards=4, replicas=2, stored_dtype="bf16")
    single = verify(Chain(), EACH, Setting(shards=4, stored_dtype="bf16"), batch=1, seq_len=1)
    double = verify(Chain(), EACH, setting, batch=1, seq_len=1)
    more = found(double, "reduced 0").total_bytes - found(single, "reduced 0").total_bytes
    assert more == 4 * N
    assert double.optimizer.total_bytes == single.optimizer.total_bytes


@each_row(("optimizer", "states"), [("none", 0), ("sgd", 0), ("adamw", 2)])
def test_optimizers_keep_their_states(optimizer, states):
    setting = Setting(shards=4, optimizer=optimizer)
    told = verify(Chain(), wrapping(), setting, batch=1, seq_len=1)
    start = told.moments[0].by_category.get("OptState", 0)
    assert start == states * 4 * N + (4 * 4 if states else 0)


@each_row("wrong", ["", "build", "loss"])
def test_everything_is_as_before(wrong):
    """No process group, no default dtype, no patched method stays, whatever goes wrong."""
    resize, show = torch.UntypedStorage.resize_, warnings.formatwarning
    seed = torch.get_rng_state()
    setting = Setting(shards=2, stored_dtype="bf16")
    if wrong:
        with pytest.raises(KeyError):
            verify(Chain(wrong=wrong), wrapping(), setting, batch=1, seq_len=1)
    else:
        verify(Chain(), wrapping(), setting, batch=1, seq_len=1)
    assert not torch.distributed.is_initialized()
    assert torch.get_default_dtype() == torch.float32
    assert torch.UntypedStorage.resize_ is resize
    assert warnings.formatwarning is show
    assert torch.equal(torch.get_rng_state(), seed)
    assert type(torch.ones(1) + 1) is torch.Tensor


def test_a_process_group_of_others_is_left_alone(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        with pytest.raises(InputError, match="exists already"):
            verify(Chain(), wrapping(), Setting(shards=2), batch=1, seq_len=1)
        assert torch.distributed.get_world_size() == 1
    finally:
        torch.distributed.destroy_process_group()


def test_kernels_that_stand_in_for_an_accelerators_are_used():
    """For both steps, forward and backward; and then the note that they are missing is too."""
    told = []

    class Standing(Chain):
        @contextmanager
        def stand_ins(self):
            told.append("begin")
            yield
            told.append("end")

    with_them = verify(Standing(), wrapping(), ALL_FP32, batch=1, seq_len=1)
    without = verify(Chain(), wrapping(), ALL_FP32, batch=1, seq_len=1)
    assert told == ["begin", "end"]
    assert not any("kernels of the CPU" in note for note in with_them.notes)
    assert any("kernels of the CPU" in note for note in without.notes)


def test_warnings_of_fsdp2_are_notes():
    """A linear layer with a bias gives a view of its product when its input has three axes."""

    class Deep(Chain):
        def build(self):
            return nn.Sequential(nn.Linear(64, 64))

        def inputs(self, _module, batch, seq_len):
            return torch.zeros(batch, seq_len, 64)

    told = verify(Deep(), wrapping(unit("0")), ALL_FP32, batch=2, seq_len=2)
    assert any("FSDP2-wrapped module (FSDPLinear) returned a view" in note for note in told.notes)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match=r"units: '7': no module of the model"):
        verify(Chain(), wrapping(unit("7")), Setting(shards=2), batch=1, seq_len=1)
    with pytest.raises(InputError, match="checkpointed: '7'"):
        verify(Chain(), wrapping(checkpointed=["7"]), Setting(shards=2), batch=1, seq_len=1)


def test_weights_in_two_units_are_refused_in_fsdp2s_words():
    load = Chain()
    plain = load.build

    def tied():
        module = plain()
        module[3].weight = module[0].weight
        return module

    load.build = tied
    with pytest.raises(InputError, match=r"refused by FSDP2: .*shared"):
        verify(load, EACH, Setting(shards=2), batch=1, seq_len=1)
    group = wrapping(unit("0", "3"), unit("1"), unit("2"))
    told = verify(load, group, Setting(shards=4), batch=1, seq_len=1)
    assert told.moments[0].by_category["Sharded Param"] == 3 * N  # counted once
