"""Plans that a search recommends can be launched.

The rules are those of `launcher_rules`, read in the sources of the launchers; megatron-core and
torchtitan, where they are installed, configure the same plans.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch_questions import QUESTIONS, Question, as_text, asked, best_plans, faults_of
from launcher_rules import LAUNCHERS, stack_name
from profiles import examples
from shardwise import Model

BY_QUESTION = [pytest.param(question, id=str(question)) for question in QUESTIONS]
SMALL = st.builds(
    asked,
    st.sampled_from(["llama3.2-1b", "llama3-8b", "qwen3-14b", "deepseek-v2-lite", "gpt-oss-20b"]),
    st.sampled_from(["a100-80gb-sxm", "h100-sxm", "b200-sxm", "gb200-nvl72", "mi300x", "tpu-v5p"]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([8, 24, 64]),
)


@given(SMALL)
@examples(8)
def test_plans_of_any_question_can_be_launched(question: Question) -> None:
    assert not faults_of(question), as_text(faults_of(question))


@pytest.mark.nightly
@pytest.mark.parametrize("question", BY_QUESTION)
def test_the_ten_best_can_be_launched(question: Question) -> None:
    assert best_plans(question)
    assert not faults_of(question), as_text(faults_of(question))


@pytest.mark.nightly
@pytest.mark.parametrize("question", BY_QUESTION)
def test_launchers_configure_the_ten_best(question: Question) -> None:
    """Their own configurations accept what they have options for."""
    launched_configs = pytest.importorskip("launched_configs")
    model = Model.load(question.model)
    for strategy in best_plans(question):
        launcher = LAUNCHERS.get(stack_name(strategy))
        if launcher is not None and launcher.name in ("megatron", "bridge", "primus"):
            launched_configs.megatron_run(model, strategy)
        elif launcher is not None and launcher.name == "torchtitan":
            launched_configs.titan_run(strategy)
