"""`diagnose`: runs into which something slow was put, and runs without."""

from dataclasses import replace

import numpy as np
import pytest

from diagnosed_runs import CASES, Case, Launched, Slow
from rows import first_of
from shardwise import InputError, diagnose
from shardwise.launchers.diagnose.measured import measured_steps
from shardwise.launchers.diagnose.results import Cause
from shardwise.launchers.logs import FORMATS, LogBuilder
from shardwise.launchers.tables.diagnose import print_diagnosis
from written_logs import WRITERS, Run, huggingface_end, megatron, write_log
from written_traces import write_trace

INJECTED = {
    Cause.SLOW_PRODUCTS: ("products", {"products": 3.0}),
    Cause.SLOW_LINK: ("", {"link": 2.5}),
    Cause.HOST_STALLS: ("idle", {"host_share": 0.4}),
    Cause.DATA_LOADING: ("idle", {"loading_share": 0.4}),
}


def _diagnosed(tmp_path, launched, *, writer=megatron, traced=True, **options):
    """Write what a run leaves, and diagnose it."""
    log = write_log(tmp_path / "run.log", writer, launched.run())
    trace = None
    if traced:
        gpus = launched.case.estimate().strategy["gpus"]
        how = {"rank": launched.case.rank, "world": gpus, "steps": 4}
        trace = write_trace(tmp_path / "trace.json", launched.step(), **how)
    return diagnose(launched.case.launch, launched.case.system, log=log, trace=trace, **options)


# Each cause on one kind of run, every kind among them; then all other pairs.
PAIRS = sorted(
    ((cause, case) for cause in INJECTED for case in CASES),
    key=lambda pair: (list(INJECTED).index(pair[0]) - list(CASES).index(pair[1])) % len(CASES),
)


@pytest.mark.parametrize(("cause", "case"), first_of(len(INJECTED), PAIRS))
def test_each_cause_is_named_with_its_gain(tmp_path, case, cause):
    """Slow products, a slow tier, stalls and loading: one finding, its gain within 20 %."""
    component, slow = INJECTED[cause]
    launched = Launched(case=CASES[case], slow=Slow(**slow))
    found = _diagnosed(tmp_path, launched, changes=0)

    assert [one.cause for one in found.findings] == [cause]
    (finding,) = found.findings
    assert finding.component == component or not component
    assert finding.gain_s == pytest.approx(launched.gain(), rel=0.2)
    assert finding.gain_share == pytest.approx(finding.gain_s / found.measured.step_time_s)
    if cause is Cause.SLOW_LINK:
        assert finding.tier == CASES[case].tier


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", first_of(1, [1, 2, 3]))
def test_clean_runs_have_no_finding(tmp_path, case, seed):
    """Steps that vary by 2 % around the prediction show nothing, with a trace and without."""
    launched = Launched(case=CASES[case], seed=seed, noise=0.02)

    assert _diagnosed(tmp_path, launched, changes=0).findings == ()
    assert _diagnosed(tmp_path, launched, traced=False, changes=0).findings == ()


@pytest.mark.parametrize("writer", [name for name in WRITERS if "bridge" not in name])
def test_every_log_gives_the_same_measured_run(tmp_path, writer):
    """The format of the log does not matter."""
    launched = Launched(case=CASES["replicas"])
    found = _diagnosed(tmp_path, launched, writer=WRITERS[writer], traced=False, changes=0)
    own = launched.run().seconds[4:]

    assert found.measured.step_time_s == pytest.approx(np.median(own), rel=0.02)
    assert found.measured.warm_up == 3
    assert found.findings == ()


def test_components_add_up_on_both_sides(tmp_path):
    """Predicted and measured components are the predicted and the traced step."""
    found = _diagnosed(tmp_path, Launched(case=CASES["tensor and pipeline"]), changes=0)

    predicted = sum(one.predicted_s for one in found.components)
    measured = sum(one.measured_s for one in found.components)
    assert predicted == pytest.approx(found.predicted.step_time_s, rel=1e-6)
    assert measured == pytest.approx(found.traced_step_s, rel=1e-6)


def test_a_log_alone_shows_the_level_and_what_would_explain_it(tmp_path, capsys):
    """Slow products without a trace: the cause is unknown, but the factor that explains it fits."""
    slow = Slow(products=1.5)
    found = _diagnosed(
        tmp_path, Launched(case=CASES["replicas"], slow=slow), traced=False, changes=0
    )
    (finding,) = found.findings
    by_name = {one.what: one for one in finding.possible}

    assert finding.cause is Cause.UNKNOWN
    assert finding.gain_s == pytest.approx(found.measured.step_time_s - found.predicted.step_time_s)
    assert by_name["products"].factor == pytest.approx(1.5, rel=0.02)
    assert by_name["host"].added_s == pytest.approx(finding.gain_s)
    print_diagnosis(found)
    assert "possible single cause: GEMMs, 1.5" in capsys.readouterr().out


def test_periodic_slow_steps_are_found_in_the_log(tmp_path):
    """A checkpoint every 5 steps that takes as long as a step costs a fifth of it."""
    launched = Launched(case=CASES["replicas"])
    run = launched.run()
    seconds = [(2 * s if n % 5 == 4 else s) for n, s in enumerate(run.seconds)]
    log = write_log(tmp_path / "run.log", megatron, replace(run, seconds=tuple(seconds)))
    (finding,) = diagnose(launched.case.launch, "h100-sxm", log=log, changes=0).findings

    assert finding.cause is Cause.PERIODIC_STEPS
    assert "one every 5 steps" in finding.text
    assert finding.gain_s == pytest.approx(0.2 * np.median(run.seconds), rel=0.2)


def test_uneven_steps_and_memory_are_found_in_the_log(tmp_path):
    """Steps that vary by 12 %, and a peak of twice the predicted memory."""
    launched = Launched(case=CASES["replicas"], noise=0.12, seed=2)
    run = launched.run()
    log = write_log(tmp_path / "run.log", megatron, replace(run, memory=2 * run.memory))
    found = diagnose(launched.case.launch, "h100-sxm", log=log, changes=0)

    assert {one.cause for one in found.findings} == {Cause.UNEVEN_STEPS, Cause.MEMORY}


def test_warm_up_and_other_batches_are_left_out():
    """The first tenth of the steps, and those of a ramp-up, do not count."""
    builder = LogBuilder(format=FORMATS[1])
    for n in range(1, 41):
        batch, time = (16, 500.0) if n <= 20 else (64, 2000.0 + n)
        line = f"iteration {n}/40 | elapsed time per iteration (ms): {time} | "
        builder.add(f"{line}global batch size: {batch} |")
    steps = measured_steps(builder.built("x"), tokens_per_step=64, samples_per_step=64, gpus=1)

    assert (steps.logged, steps.warm_up) == (40, 4)
    assert steps.index.tolist() == list(range(21, 41))
    assert steps.median_s == pytest.approx(2.0305)


def test_changes_count_what_was_measured(tmp_path):
    """A slow tier makes a change that avoids it worth more than on a machine as predicted."""
    case = CASES["tensor and pipeline"]

    def gain_of(slow):
        found = _diagnosed(tmp_path, Launched(case=case, slow=slow), changes=10)
        assert all(one.gain_s > 0 for one in found.changes)
        gains = [one.gain_s for one in found.changes]
        assert gains == sorted(gains, reverse=True)
        named = {
            tuple((field.field, field.value) for field in one.fields): one.gain_s
            for one in found.changes
        }
        return named[("tp", 2),]

    assert gain_of(Slow(link=2.5)) > 1.5 * gain_of(Slow())


def test_a_change_gains_what_the_estimate_says(tmp_path):
    """Without findings the gain is the ratio of two estimates, and every change is legal."""
    case = CASES["replicas"]
    found = _diagnosed(tmp_path, Launched(case=case, noise=0.0), changes=3)
    before = case.estimate().step_time_s

    assert found.changes
    for change in found.changes:
        fields = case.fields | {one.field: one.value for one in change.fields}
        after = Case(model=case.model, fields=fields, tier=case.tier).estimate()
        assert after.fits
        assert change.gain_share == pytest.approx(1 - after.step_time_s / before, rel=1e-6)
        assert change.predicted_step_time_s == pytest.approx(after.step_time_s, rel=1e-9)


def test_a_log_of_another_run_is_refused(tmp_path):
    """Degrees that the log prints must be those of the launch file."""
    launched = Launched(case=CASES["replicas"])
    run = replace(launched.run(), gpus=16, degrees=(4, 1, 4, 1))
    log = write_log(tmp_path / "run.log", megatron, run)
    with pytest.raises(InputError) as refusal:
        diagnose(launched.case.launch, "h100-sxm", log=log)

    assert [fault.field for fault in refusal.value.faults] == ["gpus", "tp"]
    assert all("another run" in fault.problem for fault in refusal.value.faults)


def test_a_trace_of_another_run_is_refused(tmp_path):
    """The number of ranks must be that of the launch file."""
    launched = Launched(case=CASES["replicas"])
    log = write_log(tmp_path / "run.log", megatron, launched.run())
    trace = write_trace(tmp_path / "trace.json", launched.step(), world=8)
    with pytest.raises(InputError, match=r"world_size: 8: .*another run"):
        diagnose(launched.case.launch, "h100-sxm", log=log, trace=trace)


def test_what_the_launch_file_lacks_is_named(tmp_path):
    """Without a model, the fault names the field; the log may have the number of ranks."""
    launched = Launched(case=CASES["replicas"])
    log = write_log(tmp_path / "run.log", megatron, launched.run())
    fields = {name: value for name, value in launched.case.strategy.items() if name != "gpus"}
    bare = replace(launched.case.launch, model=None, strategy=fields)
    with pytest.raises(InputError, match=r"train\.sh: model: "):
        diagnose(bare, "h100-sxm", log=log)

    found = diagnose(bare, "h100-sxm", log=log, model="llama3-8b", changes=0)
    assert found.strategy["gpus"] == 64


def test_the_mean_of_all_steps_is_enough(tmp_path):
    """A log with the last line of the Trainer alone gives a step time, and says what it is."""
    case = CASES["replicas"]
    step = case.estimate().step_time_s
    run = Run(seconds=(step,) * 50, gpus=64, batch=64)
    log = write_log(tmp_path / "run.log", huggingface_end, run)
    found = diagnose(case.launch, "h100-sxm", log=log, changes=0)

    assert found.measured.step_time_s == pytest.approx(step, rel=1e-3)
    assert found.findings == ()
    assert "mean of all steps" in found.notes[0]
