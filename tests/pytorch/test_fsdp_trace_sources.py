"""What may be traced, from where, with what settings; and what is refused."""

import sys

import numpy as np
import pytest

from shardwise import System
from shardwise.errors import InputError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is

from shardwise.fsdp.trace import load_module, trace  # noqa: E402
from traced_modules import BF16, Mlp, Odd, mlp, traced  # noqa: E402


class Exits(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 3)

    def forward(self, _):
        raise SystemExit("no GPU")


class TestSources:
    def test_a_module_that_exists_already(self):
        """Its weights are not touched; the profile is that of the compute type."""
        module = Mlp()
        module.example_inputs = lambda batch, _: torch.zeros(batch, 8)
        before = module.up.weight.clone()
        profile = traced(module, batch=4)
        assert profile.parameters[0].element_bytes == BF16
        assert torch.equal(module.up.weight, before)
        assert module.up.weight.grad is None
        assert np.array_equal(profile.resident_bytes, traced(mlp, batch=4).resident_bytes)

    def test_weights_on_the_meta_device(self):
        """As large models are made before they are sharded."""

        def made(batch):
            with torch.device("meta"):
                module = Mlp()
            return module, torch.zeros(batch, 8)

        assert np.array_equal(
            traced(made, batch=4).resident_bytes, traced(mlp, batch=4).resident_bytes
        )

    def test_a_factory_by_name(self, tmp_path, monkeypatch):
        """Found in the working folder too."""
        code = "import torch\ndef made(seq_len):\n"
        code += "    return torch.nn.Linear(4, 4), (torch.zeros(seq_len, 4),)\n"
        (tmp_path / "traced_factories.py").write_text(code)
        monkeypatch.chdir(tmp_path)
        profile = traced("traced_factories:made", seq_len=3)
        assert (profile.name, profile.source) == ("Linear", "traced_factories:made")
        assert profile.fixed_bytes == 3 * 4 * BF16
        assert str(tmp_path) not in sys.path

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("nowhere.json", "no such file"),
            ("nowhere", "no such file; must be a config.json"),
            ("no_such_package:made", "cannot be imported: ModuleNotFoundError"),
            ("collections:nothing", "collections has no nothing"),
            ("math:pi", "pi is a float"),
            (3, "must be a config.json"),
            (dict, "makes a dict"),
            (lambda: 1 / 0, "cannot be built: ZeroDivisionError"),
            (lambda: sys.exit(3), "cannot be built: SystemExit: 3"),
            (lambda: (Exits(), torch.zeros(3)), "does not run: SystemExit: no GPU"),
            (lambda: nn.Linear(2, 2), "has no embedding"),
            (lambda: (nn.Linear(2, 2), torch.zeros(3)), "does not run: RuntimeError"),
        ],
    )
    def test_refusals_say_what_is_wrong(self, source, said):
        with pytest.raises(InputError, match=said):
            traced(source)

    @pytest.mark.parametrize("raised", ["SystemExit(0)", "GeneratorExit()"])
    def test_a_module_that_exits_when_imported(self, raised, tmp_path, monkeypatch):
        """It must not end the process with its own code."""
        name = f"exits_{raised[:6].lower()}"
        (tmp_path / f"{name}.py").write_text(f"raise {raised}\n")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InputError, match=f"'{name}:made': cannot be imported: {raised[:6]}"):
            traced(f"{name}:made")

    def test_an_interrupt_passes(self):
        def interrupted():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            traced(interrupted)

    def test_torch_may_be_missing(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(InputError, match="needs the extra torch"):
            traced("collections:OrderedDict")

    def test_a_model_with_nothing_to_train(self):
        frozen = Odd().requires_grad_(False)
        with pytest.raises(InputError, match="no trainable weight"):
            traced(frozen)

    def test_control_flow_that_needs_numbers(self):
        class Branches(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x

        with pytest.raises(InputError, match="needs a number of a tensor"):
            traced(lambda: (Branches(), torch.zeros(3)))

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"batch": 0}, "batch: 0: must be a whole number"),
            ({"seq_len": 1.5}, "seq_len: 1.5"),
            ({"dtype": "fp8"}, "dtype: 'fp8': no such type; allowed: fp32, bf16, fp16"),
            ({"system": None}, "system: is missing"),
            ({"system": "nvl-none"}, "no such system"),
        ],
    )
    def test_settings_that_are_wrong(self, given, said):
        with pytest.raises(InputError, match=said):
            trace(mlp, **({"system": "h100-sxm", "batch": 1, "seq_len": 1} | given))

    def test_an_accelerator_without_the_type(self):
        data = System.load("h100-sxm").to_dict()
        for part in ("matrix", "matmul"):
            del data["accelerator"][part]["fp16"]
        data["sources"] = {"": {"kind": "assumed", "text": "a test"}}
        with pytest.raises(InputError, match="fp16"):
            trace(mlp, system=System.load(data), batch=1, seq_len=1, dtype="fp16")

    def test_a_model_can_be_loaded_alone(self):
        load = load_module(mlp, batch=3)
        module = load.build()
        args, kwargs = load.inputs(module, 3, 1)
        assert load.loss(module(*args, **kwargs)).requires_grad
