"""Plans for torchtitan, written and read again, are the plans that they were."""

import pytest

from profiles import drawn
from shardwise import InputError, Model, estimate
from shardwise.launchers.launch import LaunchText
from shardwise.launchers.torchtitan import LAUNCHER
from shardwise.launchers.torchtitan.models import FLAVORS, flavor_of, model_of
from torchtitan_plans import canonical, drawn_plans, imported, made


@pytest.mark.parametrize(("release", "ending"), [("0.2.2", ".toml"), ("0.3.0", ".py")])
def test_drawn_plans_return_as_they_were(release: str, ending: str) -> None:
    """In all fields that have an effect; comments stripped, and nothing left over."""
    differing = set()
    for plan in drawn_plans(22, drawn(200, 6), release):
        (file,) = LAUNCHER.write(plan, release, ending)
        lines = [line for line in file.text.splitlines() if not line.startswith("#")]
        source = f"plan{file.ending}"
        launch = LAUNCHER.read(LaunchText(source=source, text="\n".join(lines)))
        model, strategy = imported(launch)

        assert model == plan.model
        assert launch.not_understood == ()
        before, after = (canonical(plan.model, one) for one in (plan.strategy, strategy))
        differing |= {
            (name, str(before[name]), str(after[name]))
            for name in before
            if before[name] != after[name]
        }
    assert differing == set()


def test_a_plan_that_returns_takes_the_same_time() -> None:
    """But for overlap that a plan switches off: torchtitan has no option for that."""
    compared = 0
    for plan in drawn_plans(7, 30, "0.2.2"):
        (file,) = LAUNCHER.write(plan, "0.2.2", ".toml")
        model, strategy = imported(LAUNCHER.read(LaunchText(source="a.toml", text=file.text)))
        if plan.strategy.tp_overlap != "none":
            times = [
                estimate(model, plan.system, one).step_time_s for one in (plan.strategy, strategy)
            ]
            compared += 1
            assert times[0] == pytest.approx(times[1], rel=1e-12)
    assert compared > 10


def test_models_of_flavors_return_by_name() -> None:
    """Each flavor has the architecture of one model, and of no other flavor of its release."""
    for flavor in FLAVORS:
        for release in flavor.releases:
            assert flavor_of(model_of(flavor), release) is flavor


@pytest.mark.parametrize(
    ("name", "etp"),
    [("llama2-7b", 1), ("llama-33b", 1), ("qwen3-coder-480b-a35b", 2), ("llama2-70b", 1)],
)
def test_an_architecture_without_flavor_is_written_in_numbers(name: str, etp: int) -> None:
    plan = made(Model.load(name), tp=2, etp=etp)
    (file,) = LAUNCHER.write(plan, "0.3.0", ".py")
    model, strategy = imported(LAUNCHER.read(LaunchText(source="plan.py", text=file.text)))

    assert model.name == name
    assert model.layers == plan.model.layers
    assert (model.hidden, model.vocab) == (plan.model.hidden, plan.model.vocab)
    assert canonical(model, strategy) == canonical(model, plan.strategy)


def test_multi_token_prediction_is_of_python_alone() -> None:
    plan = made(Model.load("deepseek-v3"), gpus=256, gbs=512, ep=8)
    (file,) = LAUNCHER.write(plan, "0.3.0", ".py")
    model, _ = imported(LAUNCHER.read(LaunchText(source="plan.py", text=file.text)))

    assert "num_mtp_layers=1" in file.text
    assert model == plan.model


@pytest.mark.parametrize("name", ["llama3-8b", "llama2-7b"])
@pytest.mark.parametrize(
    ("kernel", "backend"),
    [("stack", "sdpa"), ("triton", "flex"), ("flash3", "varlen"), ("flash4", "flex_flash")],
)
def test_attention_backends_are_of_python(name: str, kernel: str, backend: str) -> None:
    """TOML has no such option, and no other kernel has a name."""
    plan = made(Model.load(name), tp=2, attention_kernel=kernel)
    (file,) = LAUNCHER.write(plan, "0.3.0", ".py")
    assert f'attn_backend="{backend}"' in file.text
    _, strategy = imported(LAUNCHER.read(LaunchText(source="plan.py", text=file.text)))
    assert strategy.attention_kernel == kernel
    other = made(Model.load(name), tp=2, attention_kernel="efficient")
    with pytest.raises(InputError, match=r"'efficient': torchtitan 0\.3\.0 allows"):
        LAUNCHER.write(other, "0.3.0", ".py")
    with pytest.raises(InputError, match=r"'efficient': torchtitan 0\.2\.2 has no"):
        LAUNCHER.write(
            made(Model.load("llama3-8b"), attention_kernel="efficient"), "0.2.2", ".toml"
        )
