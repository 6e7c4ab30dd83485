"""Shell scripts are read as data: words of commands with literal variables."""

import pytest

from rows import each_row
from shardwise import InputError
from shardwise.launchers.shell import names_in, parse_script, shown


def words(text, **variables):
    """The words of the last command, as people read them."""
    return [shown(word) for word in parse_script(text, variables).commands[-1]]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("run --a 1 # no\n", ["run", "--a", "1"]),
        ("run --a \\\n  2", ["run", "--a", "2"]),
        ("run 'a b' \"c d\" e\\ f", ["run", "a b", "c d", "e f"]),
        ("run a#b", ["run", "a#b"]),
        ("N=8\nrun --n $N ${N}x", ["run", "--n", "8", "8x"]),
        ("run ${N:-4} ${N-5} ${M:=6} $M", ["run", "4", "5", "6", "6"]),
        ("N=1; run ${N:+yes} ${M:+no} end", ["run", "yes", "end"]),
        ('A="--x 1 \\\n --y 2"\nrun $A "$A"', ["run", "--x", "1", "--y", "2", "--x 1  --y 2"]),
        ('A=(--x 1 # one\n "b c")\nA+=(--z)\nrun "${A[@]}"', ["run", "--x", "1", "b c", "--z"]),
        ('A="1"; A+=" 2"; run $A', ["run", "1", "2"]),
        ("N=4; G=8; run $((N * G)) $(($N/2)) $((N % 3))", ["run", "32", "2", "1"]),
        ("export T=2; run $T", ["run", "2"]),
        ("run 2>&1 | tee log", ["tee", "log"]),
        ("run --a 1 > out 2>&1", ["run", "--a", "1"]),
        ("run --layers '([0]*3+[1]*58)'", ["run", "--layers", "([0]*3+[1]*58)"]),
        ('if [ "$X" = "1" ]; then A=--b; else A=--c; fi\nrun $A', ["run", "$X"]),
        ("X=1\nif [ $X -eq 1 ]; then A=--b; else A=--c; fi\nrun $A", ["run", "--b"]),
        ("X=2\nif [ $X -eq 1 ]; then A=1; elif [[ $X == 2 ]]; then A=2; fi; run $A", ["run", "2"]),
        ("X=5\nif [ $X = 1 ]; then if [ 1 = 1 ]; then A=1; fi; else A=9; fi; run $A", ["run", "9"]),
        ("X=b\ncase $X in a) A=1;; b|c) A=2;; *) A=3;; esac\nrun $A", ["run", "2"]),
        ("X=1\nif [ $X = 1 ] && [ 2 -gt 1 ]; then A=1; else A=2; fi\nrun $A", ["run", "1"]),
        ("if [[ 1 == 2 ]] || [[ -z $X ]]; then A=1; else A=2; fi\nrun $A", ["run", "1"]),
        ("if [[ $Y == 2 || 1 == 1 ]]; then A=1; else A=2; fi\nrun $A", ["run", "1"]),
        ("if grep -q x y; then A=1; else A=2; fi\nrun $A", ["run", "$A"]),
        ("T=4; run $(( ($T > 1) ? 7 : 0 )) $((T == 5 ? 1 : 2))", ["run", "7", "2"]),
        ('A="`pwd`/x.py --a $(b c)"\nsrun sh -c "run $A"', ["srun"]),
        ("if [ 1 = 2 ]; then A=--a; fi\nrun $A $B", ["run", "$B"]),
        ("A='run --a \"b c\"'\neval $A", ["run", "--a", "b c"]),
        ("A='run --a 1'\neval $A --b", ["run", "--a", "1", "--b"]),
        ("run $1 $(date) `date`", ["run", "$1", "$(date)", "$(date)"]),
        ("for x in 1 2; do A=$x; done; run $A", ["run", "$x"]),
    ],
)
def test_words_are_those_of_a_shell(script, expected):
    assert words(script) == expected


def test_a_value_that_is_set_comes_first():
    assert words("N=${1}\nrun --n $N", N="3") == ["run", "--n", "3"]
    assert words("if [ -z $X ]; then A=1; else A=2; fi; run $A", X="") == ["run", "1"]


def test_what_has_no_value_is_named_as_the_script_names_it():
    """A reader sets MODEL, not $1; and what decides a branch, not what it assigns."""
    script = "MODEL=$1\nif [ $PR = fp16 ]; then A=--fp16; fi\nrun $MODEL $A $((MODEL * 2)) $Z"
    found = [names_in(word) for word in parse_script(script).commands[-1]]
    assert found == [(), ("MODEL",), ("PR",), ("MODEL",), ("Z",)]


def test_commands_inside_commands_are_read():
    script = 'R="torchrun pretrain.py --a 1"\nsrun -N 2 bash -c "cd /x; ${R} --b"'
    assert parse_script(script).commands == (
        ("cd", "/x"),
        ("torchrun", "pretrain.py", "--a", "1", "--b"),
        ("srun", "-N", "2"),
    )


def test_what_is_not_literal_stays_so_in_commands_inside_commands():
    script = 'A="`pwd`/x.py $(b c) $1"\nsrun sh -c "run $A --b"'
    found = [shown(word) for word in parse_script(script).commands[0]]
    assert found == ["run", "$(pwd)/x.py", "$(b c)", "$1", "--b"]


def test_environment_directives_and_documents():
    script = (
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH -N 2  \nexport A=1\nB=2 run x\nC=3\n"
        "cat > tp.yaml << 'EOF'\nkey: $A\nEOF\nrun\n"
    )
    read = parse_script(script)
    assert read.directives == ("--nodes=4", "-N 2")
    assert read.exported == {"A": "1", "B": "2"}
    assert read.documents == {"tp.yaml": "key: $A"}


@pytest.mark.parametrize(
    "text", ["'", '"', "$(", "${", "a=(", "if", "case x in", "<<", "$((", "\\"]
)
def test_a_script_that_breaks_off_is_read_to_its_end(text):
    parse_script(f"run a\n{text}")


def test_a_script_cannot_grow_without_bound():
    script = "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A$A$A\n" * 40 + "run $A"
    assert sum(map(len, words(script))) < 500_000


@each_row(
    "text",
    [
        "if true; then\n" * 21 + "run\n" + "fi\n" * 21,
        "A=" + "${a:-" * 21 + "1" + "}" * 21,
        "A=1\n" * 20_001,
    ],
)
def test_what_is_not_read_is_refused(text):
    """Nesting deeper than 20 levels, more than 20,000 commands: nothing is skipped in silence."""
    with pytest.raises(InputError, match=r"more than 20"):
        parse_script(text, {}, {})
