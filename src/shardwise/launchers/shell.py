"""Shell scripts as data: the words of their commands, with variables of literal value replaced.

Nothing is run. What has no literal value (arguments of the script, output of commands, variables
that are set elsewhere) stays in a word as a mark with its name; `names_in` finds them.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from shardwise.errors import Fault, InputError
from shardwise.launchers.python_text import parsed_expression

_TO_FILES = (">", "<<<")
_SHOWN = 5
MARK = "\0"
"""Around the name of what has no literal value, in text that is read again."""
OPERATORS = (";;", "&&", "||", "|&", ";", "|", "&", "\n")
_REDIRECTION = re.compile(r"\d*(?:&>>|&>|>>|>&|<<<|>|<)(?:&?\d+)?")
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>|&;\n]*(?<!\s)>(?=[\s\"'\\]|$)")
"""What the reader of a template is to fill in, such as <PATH TO VOCABULARY>."""
_HEREDOC = re.compile(r"<<(-?)\s*(['\"\\]?)([A-Za-z_][A-Za-z0-9_]*)\2")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_PLAIN = re.compile(r"""[^ \t\n\\'"$`()<>&|;\0]+""")
"""Text of an unquoted word up to what may end it or be replaced."""
_PLAIN_IN_QUOTES = re.compile(r"""[^"\\$`]+""")
_IN_DOCUMENT = re.compile(r"(?<!\\)\$(?:\{([^{}]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_BRACKETS = {"(": re.compile(r"[()]"), "{": re.compile(r"[{}]")}
_ESCAPED_IN_QUOTES = '"\\$`'


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a word."""

    kind: str
    """text; `name`: what stands in ${...}; `number`: in $((...)); `command`: in $(...)."""
    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command before its variables are replaced."""

    pieces: tuple[Piece, ...]

    @property
    def literal(self) -> str | None:
        """Its text, if it is plain: neither quoted nor with variables."""
        if any(piece.kind != "text" or piece.quoted for piece in self.pieces):
            return None
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Document:
    """A here-document, with the file that the command line before it writes."""

    text: str
    quoted: bool = False
    """Whether its variables are left as they are."""


Token = Word | Document | str
"""A word, a here-document, or an operator."""


class Lexer:
    """Cuts a script into tokens."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._at = 0
        self._pieces: list[tuple[str, list[str], bool]] = []
        self._in_word = False
        self._tokens: list[Token] = []
        self._documents: list[tuple[str, bool]] = []

    def tokens(self) -> list[Token]:
        """Return all tokens; a script that ends inside quotes ends its last word there."""
        while self._at < len(self._text):
            self._step()
        self._end_word()
        return self._tokens

    def _step(self) -> None:
        text, at = self._text, self._at
        here = text[at]
        if text.startswith("\\\n", at):
            self._at += 2
        elif here == MARK:
            end = text.find(MARK, at + 1)
            end = len(text) - 1 if end < 0 else end
            self._add("text", text[at : end + 1], quoted=False)
            self._at = end + 1
        elif here in " \t":
            self._end_word()
            self._at += 1
        elif here == "#" and not self._in_word:
            end = text.find("\n", at)
            self._at = len(text) if end < 0 else end
        elif here == "\\":
            self._add("text", text[at + 1 : at + 2], quoted=True)
            self._at += 2
        elif here == "'":
            end = text.find("'", at + 1)
            end = len(text) if end < 0 else end
            self._add("text", text[at + 1 : end], quoted=True)
            self._at = end + 1
        elif here == '"':
            self._double_quoted()
        elif here in "$`":
            self._expansion(quoted=False)
        else:
            self._operator_or_text()

    def _operator_or_text(self) -> None:
        text, at = self._text, self._at
        if (found := _HEREDOC.match(text, at)) is not None:
            self._end_word()
            self._documents.append((found[3], bool(found[2])))
            self._at = found.end()
            return
        if not self._in_word and (found := _PLACEHOLDER.match(text, at)) is not None:
            self._add("text", found[0], quoted=True)
            self._at = found.end()
            return
        if (found := _REDIRECTION.match(text, at)) is not None and (
            not self._in_word or text[at] in "<>&"
        ):
            self._end_word()
            if not found[0][-1].isdigit():  # 2>&1 names no file
                self._tokens.append("<<<" if found[0] == "<<<" else ">")
            self._at = found.end()
            return
        if text[at] == "(":
            joined = self._in_word and _ARRAY.fullmatch(self._plain())
            self._end_word()
            self._tokens.append("=(" if joined else "(")
            self._at += 1
            return
        if text[at] == ")":
            self._end_word()
            self._tokens.append(")")
            self._at += 1
            return
        for symbol in OPERATORS:
            if text.startswith(symbol, at):
                self._end_word()
                self._tokens.append(symbol)
                self._at += len(symbol)
                if symbol == "\n":
                    self._read_documents()
                return
        plain = _PLAIN.match(text, at)
        self._at = at + 1 if plain is None else plain.end()
        self._add("text", text[at : self._at], quoted=False)

    def _plain(self) -> str:
        return "".join("".join(texts) for kind, texts, _ in self._pieces if kind == "text")

    def _read_documents(self) -> None:
        """Read here-documents, which begin on the line after their operator."""
        for end_word, quoted in self._documents:
            lines = []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = end + 1
                if line.strip() == end_word:
                    break
                lines.append(line)
            self._tokens.insert(-1, Document("\n".join(lines), quoted))
        self._documents = []

    def _add(self, kind: str, text: str, *, quoted: bool) -> None:
        self._in_word = True
        last_kind, texts, last_quoted = self._pieces[-1] if self._pieces else ("", [], quoted)
        if kind == last_kind == "text" and last_quoted is quoted:
            texts.append(text)
        else:
            self._pieces.append((kind, [text], quoted))

    def _end_word(self) -> None:
        if self._in_word:
            pieces = (Piece(kind, "".join(texts), quoted) for kind, texts, quoted in self._pieces)
            self._tokens.append(Word(tuple(pieces)))
        self._pieces, self._in_word = [], False

    def _double_quoted(self) -> None:
        text = self._text
        self._at += 1
        self._add("text", "", quoted=True)
        while self._at < len(text) and text[self._at] != '"':
            here, after = text[self._at], text[self._at + 1 : self._at + 2]
            if here == "\\" and after == "\n":
                self._at += 2
            elif here == "\\" and after and after in _ESCAPED_IN_QUOTES:
                self._add("text", after, quoted=True)
                self._at += 2
            elif here in "$`":
                self._expansion(quoted=True)
            else:
                plain = _PLAIN_IN_QUOTES.match(text, self._at)
                end = self._at + 1 if plain is None else plain.end()
                self._add("text", text[self._at : end], quoted=True)
                self._at = end
        self._at += 1

    def _expansion(self, *, quoted: bool) -> None:
        text, at = self._text, self._at
        if text.startswith("$((", at):
            end = self._closing(at + 1)
            self._add("number", text[at + 3 : end - 1], quoted=quoted)
        elif text.startswith("$(", at):
            end = self._closing(at + 1)
            self._add("command", text[at + 2 : end], quoted=quoted)
        elif text.startswith("${", at):
            end = self._closing(at + 1)
            self._add("name", text[at + 2 : end], quoted=quoted)
        elif text[at] == "`":
            end = text.find("`", at + 1)
            end = len(text) if end < 0 else end
            self._add("command", text[at + 1 : end], quoted=quoted)
        elif (name := _NAME.match(text, at + 1)) is not None:
            self._add("name", name[0], quoted=quoted)
            end = name.end() - 1
        else:
            self._add("text", "$", quoted=quoted)
            end = at
        self._at = end + 1

    def _closing(self, at: int) -> int:
        """Return where the bracket that opens at a place closes."""
        opening, depth = self._text[at], 0
        for found in _BRACKETS[opening].finditer(self._text, at):
            depth += 1 if found[0] == opening else -1
            if depth == 0:
                return found.start()
        return len(self._text)


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


_MARKED = re.compile(f"{MARK}([^{MARK}]*){MARK}")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?=)")
_PARAMETER = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(\[[@*]\])?(?:(:?[-=+?])(.*))?", re.DOTALL
)
_DIRECTIVE = re.compile(r"^#(?:SBATCH|PBS|BSUB|FLUX:)[ \t]+(.*)$", re.MULTILINE)
_ANYWHERE = re.compile(
    r"(?:^|[;{]|\bthen|\belse|\bdo|\bexport)[ \t]*([A-Za-z_][A-Za-z0-9_]*)\+?=", re.MULTILINE
)
_PREFIXES = ("export", "local", "declare", "readonly", "typeset")
_LOOPS = ("for", "while", "until", "select")
_CLOSED_BY = {"if": "fi", "case": "esac", **dict.fromkeys(_LOOPS, "done")}
_SKIPPED = ("then", "do", "{", "}", "!", "else", "fi", "done", "time", "function")
_SHELLS = ("bash", "sh")
_SHELL_OPTIONS = ("-c", "-lc", "-l", "-x", "-e")
_BEFORE = ("exec", "nohup", "time")
_MOST_STEPS = 20_000
_MOST_DEPTH = 20
"""Levels of compound commands and default values that a script may have; most have a few."""
_MOST_LETTERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a script says, as far as it is literal."""

    commands: tuple[tuple[str, ...], ...]
    """Words of every command, variables replaced; `eval` and `bash -c` are those of their text."""
    variables: Mapping[str, tuple[str, ...]]
    """Variables after the last command; arrays have several words."""
    exported: Mapping[str, str]
    """Variables of the environment: exported ones, and those before a command."""
    documents: Mapping[str, str]
    """Here-documents by the file that they are written to."""
    directives: tuple[str, ...]
    """Options of #SBATCH lines, and of others of that kind."""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Words that a loop takes one after the other, by its variable."""

    def how_to_set(self, name: str) -> str:
        """How the user sets a variable that has no value, for messages."""
        listed = self.choices.get(name)
        if listed is None:
            return f"set it: --set {name}=VALUE"
        return (
            f"a loop has {len(listed)} of it; choose: --set {name}={' or '.join(listed[:_SHOWN])}"
        )


def names_in(text: str) -> tuple[str, ...]:
    """Return the names of what has no literal value in a word."""
    return tuple(dict.fromkeys(_MARKED.findall(text)))


def shown(text: str) -> str:
    """Return a word as people read it: $NAME for what has no literal value."""
    return _MARKED.sub(r"$\1", text)


def parse_script(
    text: str,
    variables: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    sibling: Callable[[str], str | None] = lambda _: None,
) -> Script:
    """Read a shell script.

    Parameters
    ----------
    variables
        Values of variables; `args`: the arguments of the script, $1 and what follows.
    sibling
        Text of a script that this one sources; None: it is not there.
    """
    values: dict[str, tuple[str, ...]] = {
        name: (value,) for name, value in (environment or {}).items()
    }
    fixed = dict(variables or {})
    words = _split(fixed.pop("args", ""), None, -1)
    fixed |= {str(number + 1): word for number, word in enumerate(words)}
    return _Reader(fixed=fixed, values=values, sibling=sibling).read(text)


def _split(text: str, separators: str | None, most: int) -> list[str]:
    """Words of a text, at most so many cuts; -1: all."""
    if not separators or not separators.strip():
        return text.split(None, most)
    return re.split(f"[{re.escape(separators)}]", text, maxsplit=max(most, 0))


def directives_of(text: str) -> tuple[str, ...]:
    """Return the options of #SBATCH lines, and of others of that kind."""
    return tuple(found.rstrip(" \t") for found in _DIRECTIVE.findall(text))


def _mark(name: str) -> str:
    return f"{MARK}{name}{MARK}"


class _Tokens:
    """Tokens of a text, with the literal words among them and where compound commands close."""

    def __init__(self, text: str) -> None:
        self.tokens = Lexer(text).tokens()
        self.words = [part.literal if isinstance(part, Word) else None for part in self.tokens]
        self.closes: dict[int, int] = {}
        """The end of a compound command by its position, if it has one."""
        opened: dict[str, list[int]] = {closing: [] for closing in set(_CLOSED_BY.values())}
        for place, word in enumerate(self.words):
            if word in _CLOSED_BY:
                opened[_CLOSED_BY[word]].append(place)
            elif word is not None and opened.get(word):
                self.closes[opened[word].pop()] = place

    def close(self, at: int, stop: int) -> int:
        """Where a compound command that opens at a place closes, at most `stop`."""
        return min(self.closes.get(at, stop), stop)


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Follows a script from command to command."""

    fixed: dict[str, str]
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    """Variables that some branch assigns to: they are empty where it does not run."""
    sibling: Callable[[str], str | None] = lambda _: None
    """Text of a script that this one sources; None: it is not there."""
    sourced: set[str] = field(default_factory=set)
    choices: dict[str, tuple[str, ...]] = field(default_factory=dict)
    looping: bool = False
    """Whether this is a loop with several rounds, of which one is read."""
    fresh: set[str] = field(default_factory=set)
    """Variables that the round sets before it adds to them."""
    steps: int = 0
    depth: int = 0

    def read(self, text: str) -> Script:
        self.assigned = set(_ANYWHERE.findall(text))
        self._run_text(text, None)
        return Script(
            commands=tuple(self.commands),
            variables={**self.values, **{name: (one,) for name, one in self.fixed.items()}},
            exported=self.exported,
            documents=self.documents,
            directives=directives_of(text),
            choices=self.choices,
        )

    def _run_text(self, text: str, unless: str | None) -> None:
        """Read the commands of a text; for `unless` see `_run`."""
        script = _Tokens(text)
        self._run(script, 0, len(script.tokens), unless)

    def _run(self, script: _Tokens, at: int, stop: int, unless: str | None) -> None:
        """Read the commands from one token to another.

        Parameters
        ----------
        unless
            Name of what decides whether they are run, where it is not known; None: they are.
        """
        self._descend()
        while at < stop and self.steps < _MOST_STEPS:
            self.steps += 1
            word = script.words[at]
            if word == "if":
                at = self._branches(script, at, stop, unless)
            elif word == "case":
                at = self._cases(script, at, stop, unless)
            elif word in _LOOPS:
                end = script.close(at, stop)
                self._loop(script, at, end, unless)
                at = end + 1
            elif isinstance(script.tokens[at], (str, Document)) or word in _SKIPPED:
                at += 1
            else:
                end = _end_of_command(script.tokens, at, stop)
                self._command(script.tokens[at:end], unless)
                at = end
        if at < stop:
            raise InputError(Fault(problem=f"has more than {_MOST_STEPS:,} commands"))
        self.depth -= 1

    def _loop(self, script: _Tokens, at: int, end: int, unless: str | None) -> None:
        """Read a loop once; of a `for` over literal words the user chooses one.

        What a loop accumulates is not known.
        """
        words, name = script.words, script.words[at + 1] if at + 1 < end else None
        do = next((place for place in range(at, end) if words[place] == "do"), end)
        takes = words[at] == "while" and any(map(_is_of_arguments, script.tokens[at + 1 : do]))
        if takes and "1" not in self.fixed:  # without arguments
            return
        if words[at] != "for" or words[at + 2 : at + 3] != ["in"] or not name:
            self._run(script, at + 1, end, unless or "")
            return
        listed = [one for one in script.tokens[at + 3 : do] if isinstance(one, Word)]
        values = [text for one in listed for text in self._expanded(one, split=True)]
        if len(values) == 1 and name not in self.fixed:
            self.values[name] = (values[0],)
        elif name not in self.fixed:
            self.values[name] = (_mark(name),)
            if values and not any(map(names_in, values)):
                self.choices[name] = tuple(dict.fromkeys(values))
        outer = self.looping, self.fresh
        self.looping, self.fresh = self.looping or len(values) != 1, set()
        self._run(script, do + 1, end, unless)
        self.looping, self.fresh = outer

    def _branches(self, script: _Tokens, at: int, stop: int, unless: str | None) -> int:
        """Read `if`: the branch whose condition is literal and true, or all of them."""
        end = script.close(at, stop)
        for condition, body in _arms(script, at, end):
            verdict, name = (True, None) if condition is None else self._test(condition)
            if verdict is not False:
                self._run(script, *body, unless if verdict else unless or name)
            if verdict:
                break
            if verdict is None:
                unless = unless or name
        return end + 1

    def _test(self, tokens: Sequence[Token]) -> tuple[bool | None, str]:
        """Return whether a condition is true, None where it is not known, and what decides it."""
        verdict: bool | None = True
        how, missing, start = "&&", "", 0
        for place, part in enumerate([*tokens, "&&"]):
            if part not in ("&&", "||", "|"):
                continue
            found, name = self._tested(tokens[start:place]) if how != "|" else (None, "")
            missing = missing or name
            verdict = either(verdict, found) if how == "||" else both(verdict, found)
            how, start = str(part), place + 1
        return verdict, missing if verdict is None else ""

    def _tested(self, tokens: Sequence[Token]) -> tuple[bool | None, str]:
        """Return whether one test is true, and the first name without a value in it."""
        words: list[str] = []
        for part in tokens:
            if isinstance(part, Word):
                words += self._expanded(part, split=False) or [""]
        words = [word for word in words if word not in ("[", "[[", "test", "]", "]]")]
        if any(part in _TO_FILES for part in tokens) or not words:
            return None, ""
        if words[-2:-1] in (["-z"], ["-n"]) and self._is_unset(words[-1]):
            words[-1] = ""
        missing = next((name for word in words for name in names_in(word)), "")
        is_test = isinstance(tokens[0], Word) and tokens[0].literal in ("[", "[[", "test")
        inside = is_test or words[0][:1] in "-!" or len(words) == COMPARISON
        return (None, missing) if missing or not inside else (compared(words), "")

    def _is_unset(self, word: str) -> bool:
        """Whether a word is a variable that nothing sets; a test of its length finds none."""
        names = names_in(word)
        return len(names) == 1 and names[0].isidentifier() and names[0] not in self.values

    def _cases(self, script: _Tokens, at: int, last: int, unless: str | None) -> int:
        """Read `case`: the first pattern that matches a literal word, or all of them."""
        tokens, end = script.tokens, script.close(at, last)
        subject = tokens[at + 1] if at + 1 < end else None
        word = self._text(subject) if isinstance(subject, Word) else ""
        missing, matched, place = names_in(word), False, at + 3
        while place < end:
            close = next((i for i in range(place, end) if tokens[i] == ")"), end)
            listed = tokens[place:close]
            patterns = [self._text(one) for one in listed if isinstance(one, Word)]
            stop = next((i for i in range(close, end) if tokens[i] == ";;"), end)
            fits = any(fnmatchcase(word, pattern) for pattern in patterns)
            if missing or (fits and not matched):
                self._run(script, close + 1, stop, missing[0] if missing else unless)
            matched = matched or fits
            place = stop + 1
        return end + 1

    def _command(self, tokens: Sequence[Token], unless: str | None) -> None:
        """Read one command: assignments, then its words."""
        words: list[str] = []
        before: dict[str, str] = {}
        ends: dict[str, str] = {}
        prefixed, at = False, 0
        while at < len(tokens):
            part = tokens[at]
            at += 1
            if isinstance(part, Document):
                self._document(part, ends.get(">"))
                ends["<<"] = part.text.replace("\\\n", " ")
            elif isinstance(part, str):
                at = self._redirect(part, tokens, at, ends)
            else:
                if not words and part.literal in _PREFIXES:
                    prefixed = prefixed or part.literal == "export"
                    words = []
                    continue
                name = _assigned(part) if not words else None
                if name is not None:
                    at = self._assign(name, part, tokens, at, unless)
                    before[name] = " ".join(self.values.get(name, ()))
                else:
                    words += self._expanded(part, split=True)
        if prefixed or words:
            self.exported |= before
        if words[:1] == ["read"]:
            self._read_words(words[1:], ends.get("<<<", ends.get("<<")), before.get("IFS"))
        elif words:
            self._record(words, unless)

    def _redirect(self, how: str, tokens: Sequence[Token], at: int, ends: dict[str, str]) -> int:
        """Note where input comes from or output goes; returns where the command goes on."""
        target = tokens[at] if at < len(tokens) else None
        if how not in _TO_FILES or not isinstance(target, Word):
            return at
        ends[how] = self._text(target)
        return at + 1

    def _read_words(self, words: Sequence[str], text: str | None, separators: str | None) -> None:
        """Set variables as `read` does, from the words of a here-string."""
        self.values.pop("IFS", None)
        names = [word for word in words if word.isidentifier()]
        found: list[tuple[str, ...]]
        if text is None or names_in(text):
            missing = names_in(text or "")
            found = [(_mark(missing[0] if missing else name),) for name in names]
        elif any(re.fullmatch(r"-\w*a\w*", word) for word in words):
            found = [tuple(_split(text, separators, -1))]
        else:
            parts = _split(text, separators, max(len(names) - 1, 0))
            found = [(part,) for part in (*parts, *([""] * len(names)))]
        for name, value in zip(names, found, strict=False):
            if name not in self.fixed:
                self.values[name] = value

    def _source(self, words: Sequence[str], unless: str | None) -> None:
        """Read a script that lies in the folder of this one, or below."""
        path = _MARKED.split(words[0])[-1].lstrip("/") if words else ""
        text = None if path in self.sourced else self.sibling(path)
        if text is not None:
            self.sourced.add(path)
            self.assigned |= set(_ANYWHERE.findall(text))
            self._run_text(text, unless)

    def _document(self, document: Document, target: str | None) -> None:
        if target:
            text = document.text
            if not document.quoted:
                text = _IN_DOCUMENT.sub(self._in_document, text)
            self.documents[target] = text

    def _in_document(self, found: re.Match[str]) -> str:
        """The value of a variable in a here-document."""
        return shown(" ".join(self._parameter(found[1] or found[2])))

    def _record(self, words: list[str], unless: str | None) -> None:
        """Note a command; text that a shell would run is read as commands."""
        if words[0] in ("source", "."):
            self._source(words[1:2], unless)
            return
        if words[0] == "eval":
            self._run_text(" ".join(words[1:]), unless)
            return
        for at, word in enumerate(words[:-1]):
            if word.rpartition("/")[2] not in _SHELLS:
                continue
            later = (words[place] for place in range(at + 1, len(words)))
            text = next((one for one in later if one not in _SHELL_OPTIONS), "")
            if any(map(str.isspace, text)):
                self._run_text(text, unless)
                if at:
                    self.commands.append(tuple(words[:at]))
                return
        self.commands.append(tuple(words[1:] if words[0] in _BEFORE else words))

    def _assign(
        self, name: str, part: Word, tokens: Sequence[Token], at: int, unless: str | None
    ) -> int:
        """Set a variable; returns where its command goes on."""
        adds = str(part.pieces[0].text).startswith(f"{name}+=")
        old = self.values.get(name, ())
        if at < len(tokens) and tokens[at] == "=(":
            end = next((i for i in range(at, len(tokens)) if tokens[i] == ")"), len(tokens))
            items: list[str] = []
            for one in tokens[at + 1 : end]:
                if isinstance(one, Word):
                    items += self._expanded(one, split=True)
            value, at = (*(old if adds else ()), *items), end + 1
        else:
            first = part.pieces[0]
            rest = first.text[len(name) + (2 if adds else 1) :]
            word = Word((Piece("text", rest, first.quoted), *part.pieces[1:]))
            value = ((" ".join(old) if adds else "") + self._text(word),)
        if sum(map(len, value)) > _MOST_LETTERS:
            value = (_mark(name),)
        again = any(re.search(rf"\b{name}\b", one.text) for one in part.pieces[1:])
        if self.looping and not (adds or again):
            self.fresh.add(name)
        elif unless is None and self.looping and name not in self.fresh:
            unless = name
        if unless is not None:
            value = (*(old if adds else ()), _mark(unless or name))
        if name not in self.fixed:
            self.values[name] = value
        return at

    def _text(self, word: Word) -> str:
        """A word as one text."""
        return " ".join(self._expanded(word, split=False))

    def _expanded(self, word: Word, *, split: bool) -> list[str]:
        """A word with its variables replaced; unquoted ones are split at blanks."""
        done: list[str] = []
        current, started = "", False
        for piece in word.pieces:
            values = self._values_of(piece)
            if piece.kind == "text" or (piece.quoted and len(values) == 1):
                current += values[0]
                started = started or piece.quoted or bool(values[0])
                continue
            pieces = list(values)
            if not piece.quoted and split:
                joined = " ".join(values)
                if joined[:1].isspace() and started:
                    done.append(current)
                    current, started = "", False
                pieces = joined.split()
                if joined[-1:].isspace() and pieces:
                    pieces.append("")
            for number, text in enumerate(pieces):
                if number:
                    if started:
                        done.append(current)
                    current, started = "", False
                current += text
                started = started or bool(text) or piece.quoted
        if started:
            done.append(current)
        return done

    def _values_of(self, piece: Piece) -> tuple[str, ...]:
        if piece.kind == "text":
            return (piece.text,)
        if piece.kind == "command":
            if piece.text.startswith("expr "):
                return (self._number(piece.text.removeprefix("expr ")),)
            return (_mark(f"({' '.join(piece.text.split())})"),)
        if piece.kind == "number":
            return (self._number(piece.text),)
        return self._parameter(piece.text)

    def _parameter(self, text: str) -> tuple[str, ...]:
        """Words of ${...}; a form that is not known stays a mark."""
        found = _PARAMETER.fullmatch(text)
        if found is None:
            known = re.match(r"[A-Za-z_0-9]*", text.lstrip("#!"))
            return (_mark(known[0] if known and known[0] else text),)
        name, listed, how, other = found[1], found[2], found[3], found[4]
        value = self._variable(name)
        is_set = value is not None and (not how or ":" not in how or "".join(value) != "")
        if how and how[-1] == "+":
            return (self._inner(other),) if is_set else ("",)
        if value is not None and is_set:
            return value if listed else (" ".join(value),)
        if how and how[-1] in "-=":
            default = self._inner(other)
            if how[-1] == "=" and name not in self.fixed:
                self.values[name] = (default,)
            return (default,)
        if value is None and name in self.assigned:
            return ("",)
        return ((_mark(name),) if value is None else value) or ("",)

    def _descend(self) -> None:
        if self.depth == _MOST_DEPTH:
            problem = f"nests commands or default values more than {_MOST_DEPTH} levels deep"
            raise InputError(Fault(problem=problem))
        self.depth += 1

    def _inner(self, text: str) -> str:
        """The text of a default value."""
        self._descend()
        lexed = Lexer(f'"{text}"' if '"' not in text else text).tokens()
        inner = " ".join(self._text(one) for one in lexed if isinstance(one, Word))
        self.depth -= 1
        return inner

    def _variable(self, name: str) -> tuple[str, ...] | None:
        if name in self.fixed:
            return (self.fixed[name],)
        value = self.values.get(name)
        found = _MARKED.fullmatch(value[0]) if value is not None and len(value) == 1 else None
        if found is not None and not found[1].isidentifier():
            return (_mark(name),)  # not $1 or $(...): the name that a reader of the script sees
        return value

    def _number(self, text: str) -> str:
        """The value of simple arithmetic, or a mark with the first name without a value."""
        if "$(" in text or "`" in text:
            return _mark(f"({' '.join(text.split())})")
        plain = re.sub(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9])\}?", r"\1", text)
        names = re.findall(r"[A-Za-z_][A-Za-z0-9_]*", plain)
        values = {name: " ".join(self._variable(name) or (_mark(name),)) for name in names}
        replaced = re.sub(r"[A-Za-z_][A-Za-z0-9_]*", lambda one: values[one[0]].strip(), plain)
        if missing := names_in(replaced):
            return _mark(missing[0])
        result = calculated(replaced)
        return _mark(" ".join(text.split())) if result is None else str(result)


def _assigned(part: Word) -> str | None:
    """The variable that a word assigns to, if it does."""
    first = part.pieces[0]
    found = None if first.quoted or first.kind != "text" else _ASSIGNMENT.match(first.text)
    return found[1] if found else None


def _arms(
    script: _Tokens, at: int, end: int
) -> list[tuple[Sequence[Token] | None, tuple[int, int]]]:
    """Conditions of `if`, without its `fi`, and where bodies begin and end.

    `else` has no condition.
    """
    arms: list[tuple[Sequence[Token] | None, tuple[int, int]]] = []
    condition: Sequence[Token] | None = None
    place = start = at + 1
    while place < end:
        word = script.words[place]
        if word == "if":
            place = script.close(place, end)
        elif word == "then":
            condition, start = script.tokens[start:place], place + 1
        elif word in ("elif", "else"):
            arms.append((condition, (start, place)))
            condition, start = None, place + 1
        place += 1
    return [*arms, (condition, (start, end))]


def _is_of_arguments(token: Token) -> bool:
    """Whether a word has an argument of the script or their number, or parses them."""
    if not isinstance(token, Word):
        return False
    names = {piece.text for piece in token.pieces if piece.kind == "name"}
    return token.literal == "getopts" or not names.isdisjoint(("#", "1", "@", "*"))


def _end_of_command(tokens: Sequence[Token], at: int, stop: int) -> int:
    """Where a simple command ends, at most `stop`; lines inside an array go on."""
    inside = False
    for place in range(at, stop):
        part = tokens[place]
        if part == "=(":
            inside = True
        elif part == ")" and inside:
            inside = False
        elif isinstance(part, str) and part not in _TO_FILES and not inside:
            return place
    return stop
