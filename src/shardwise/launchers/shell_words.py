"""Words and operators of a shell script, as data: nothing is run."""

import re
from dataclasses import dataclass

MARK = "\0"
"""Around the name of what has no literal value, in text that is read again."""
OPERATORS = (";;", "&&", "||", "|&", ";", "|", "&", "\n")
_REDIRECTION = re.compile(r"\d*(?:&>>|&>|>>|>&|<<<|>|<)(?:&?\d+)?")
_HEREDOC = re.compile(r"<<(-?)\s*(['\"\\]?)([A-Za-z_][A-Za-z0-9_]*)\2")
_ARRAY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_PLAIN = re.compile(r"""[^ \t\n\\'"$`()<>&|;\0]+""")
"""Text of an unquoted word up to what may end it or be replaced."""
_PLAIN_IN_QUOTES = re.compile(r"""[^"\\$`]+""")
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
        if (found := _REDIRECTION.match(text, at)) is not None and (
            not self._in_word or text[at] in "<>&"
        ):
            self._end_word()
            if not found[0][-1].isdigit():  # 2>&1 names no file
                self._tokens.append(">")
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
        for operator in OPERATORS:
            if text.startswith(operator, at):
                self._end_word()
                self._tokens.append(operator)
                self._at += len(operator)
                if operator == "\n":
                    self._read_documents()
                return
        plain = _PLAIN.match(text, at)
        self._at = at + 1 if plain is None else plain.end()
        self._add("text", text[at : self._at], quoted=False)

    def _plain(self) -> str:
        return "".join("".join(texts) for kind, texts, _ in self._pieces if kind == "text")

    def _read_documents(self) -> None:
        """Read here-documents, which begin on the line after their operator."""
        for end_word, _ in self._documents:
            lines = []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line = self._text[self._at : end]
                self._at = end + 1
                if line.strip() == end_word:
                    break
                lines.append(line)
            self._tokens.insert(-1, Document("\n".join(lines)))
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
