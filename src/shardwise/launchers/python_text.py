"""Python in launch files: parsed, never run; and texts in Python that is written."""

import ast
import warnings


def docstring(text: str) -> str:
    """Return a docstring of one line, which a text cannot end."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"""{escaped}"""'


def parsed_module(text: str) -> ast.Module:
    """Return a parsed Python file.

    Raises
    ------
    ValueError
        If it is no Python, or nested too deep.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a literal such as 1if, on standard error
            return ast.parse(text)
    except SyntaxError as error:
        raise ValueError(str(error)) from None
    except (RecursionError, MemoryError):
        raise ValueError("it is nested too deep") from None


def parsed_expression(text: str) -> ast.expr:
    """Return a parsed expression.

    Raises
    ------
    ValueError
        If it is no expression of Python, or nested too deep.
    """
    module = parsed_module(f"({text.strip()}\n)")
    if len(module.body) != 1 or not isinstance(module.body[0], ast.Expr):
        raise ValueError("is no expression")
    return module.body[0].value
