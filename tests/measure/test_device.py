"""How calls are timed on a processor and on an accelerator, which a stand-in for PyTorch plays."""

from types import SimpleNamespace

import pytest

from shardwise.measure.device import Device


class Stream:
    """A device of CUDA that takes 3 ms for each call that is launched."""

    def __init__(self):
        self.now_ms, self.log = 0.0, []

    def launch(self):
        self.log.append("call")
        self.now_ms += 3.0

    def torch(self):
        stream = self

        class Event:
            def __init__(self, *, enable_timing):
                assert enable_timing

            def record(self):
                stream.log.append("record")
                self.at = stream.now_ms

            def synchronize(self):
                stream.log.append("wait for event")

            def elapsed_time(self, other):
                return other.at - self.at

        cuda = SimpleNamespace(
            Event=Event,
            set_device=lambda index: stream.log.append(f"device {index}"),
            synchronize=lambda: stream.log.append("wait"),
            _sleep=lambda _: stream.log.append("sleep"),
            is_bf16_supported=lambda: False,
            get_device_properties=lambda place: SimpleNamespace(name=place, total_memory=8),
        )
        return SimpleNamespace(cuda=cuda, float16="half")


def test_an_accelerator_is_timed_by_events_around_queued_calls():
    """It is idle first, then busy while the host launches; the time is that of its stream."""
    stream = Stream()
    device = Device(stream.torch(), "cuda", 1)
    assert device.time_s(stream.launch, 4) == pytest.approx(3e-3)
    calls = ["call"] * 4
    expected = ["device 1", "wait", "sleep", "record", *calls, "record", "wait for event"]
    assert stream.log == expected
    assert (device.asynchronous, device.backend, device.place) == (True, "nccl", "cuda:1")


def test_the_time_of_the_host_is_apart_from_that_of_the_device():
    """Between two waits: the host launches and does not wait for the calls."""
    stream = Stream()
    device = Device(stream.torch(), "cuda")
    assert device.host_s(stream.launch, 3) < 1e-3
    assert stream.log == ["device 0", "wait", "call", "call", "call", "wait"]


def test_a_card_without_bf16_is_measured_in_fp16():
    """As V100 and T4."""
    device = Device(Stream().torch(), "cuda")
    assert device.dtypes == ["fp16", "fp32"]
    assert device.dtype("fp16") == "half"
    assert device.describe() == {"name": "cuda:0", "memory_bytes": 8}


def test_a_processor_is_timed_by_the_median_of_its_clock():
    """One call of five that is much longer does not count."""
    device = Device(SimpleNamespace(), "cpu")
    ticks = iter([0.0, 1.0, 2.0, 12.0, 13.0, 14.0])
    assert device.host_s(lambda: None, 5, lambda: next(ticks)) == 1.0
    assert (device.asynchronous, device.backend, device.place) == (False, "gloo", "cpu")
    found = device.describe()
    assert found["name"]
    assert found["memory_bytes"] > 2**28
