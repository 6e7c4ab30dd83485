"""Conditions and arithmetic of shell scripts, where all of them is literal."""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

from shardwise.launchers.python_text import parsed_expression


def both(one: bool | None, other: bool | None) -> bool | None:
    """Whether both are true; None where that is not known."""
    return False if False in (one, other) else None if None in (one, other) else True


def either(one: bool | None, other: bool | None) -> bool | None:
    """Whether one of two is true; None where that is not known."""
    return True if True in (one, other) else None if None in (one, other) else False


COMPARISON = 3
"""Words of a comparison: a == b."""
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def compared(words: Sequence[str]) -> bool | None:
    """Whether a comparison of `test` is true; None where it is none that is known."""
    if words[:1] == ["!"]:
        inner = compared(words[1:])
        return None if inner is None else not inner
    if len(words) == 1:
        return bool(words[0])
    if words and words[0] in ("-z", "-n"):
        return (len("".join(words[1:])) == 0) == (words[0] == "-z")
    left, how, right = words if len(words) == COMPARISON else ("", "", "")
    if how in ("=", "==", "!="):
        return fnmatchcase(left, right) == (how != "!=")
    if how in _NUMBERS and left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
        return _NUMBERS[how](int(left), int(right))
    return None


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_MOST_NUMBER = 10**18


def calculated(text: str) -> int | None:
    """The value of sums, products, comparisons and choices; None of anything else."""
    choice = re.fullmatch(r"([^?]*)\?([^:]*):(.*)", text.strip(), re.DOTALL)
    if choice is not None:
        text = f"({choice[2]}) if ({choice[1]}) else ({choice[3]})"
    try:
        return _value(parsed_expression(text))
    except (ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_value(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    elif isinstance(node, ast.IfExp):
        value = _value(node.body if _value(node.test) else node.orelse)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        value = int(_COMPARISONS[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    else:
        raise ValueError("is no sum or product of whole numbers")
    if abs(value) > _MOST_NUMBER:
        raise ValueError("is too large")
    return value
