"""What a suggestion is asked to fill, and where its text leaves that: line, statement or block.

Tokens come from tree-sitter, so that brackets in strings do not count; on their order, brackets,
indentation and, where the tree is sound, the statement's node decide. Languages without a grammar
get words and signs instead. It knows no engine: the caller asks again as text arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tree_sitter import Node, Tree

from lsp_server.positions import bytes_from_chars, chars_from_bytes
from lsp_server.quoting import window_of
from lsp_server.syntax import Grammar, KeptTree, leaves, words

OPENERS: Final = frozenset(("(", "[", "{", "${", "#{", "string_start"))
CLOSERS: Final = frozenset((")", "]", "}", "string_end"))
_CLOSER_OF: Final = {"(": b")", "[": b"]"}
CONTINUATIONS: Final = words(
    "else catch finally while where then . ?. && || ?? ? : , { = + - / | & => -> <<"
)
"""Tokens that, first on a line, may still belong to the statement above."""

INDENTED_CONTINUATIONS: Final = words("else elif except finally")
"""The same, where a statement ends with its line."""

_CLOSING_WORDS: Final = words("end fi done esac elif elseif elsif rescue ensure until")
"""The same, in a language without a grammar; there they end blocks, as "}" does elsewhere."""

_QUERIES: Final = words("select insert update delete with")
_CLAUSES: Final = words(
    "from where and or on join inner left right full cross group order having limit offset union "
    "set values returning"
)
"""What goes on with a statement that begins with one of those, in capitals or not."""

_CLOSING_TAG: Final = b"</"
_DOCSTRING_QUOTES: Final = ('"""', "'''")
_REST_IS_CLOSERS: Final = re.compile(r"[\s)\]}>\"'`;,]*")
_FIRST_WORD: Final = re.compile(rb"\w*")
_WORD_OR_SIGN: Final = re.compile(r"\w+|[^\w\s]")


class Scope(StrEnum):
    """What is to be filled."""

    LINE = "line"
    """The rest of a line that goes on after the cursor."""
    STATEMENT = "statement"
    """The statement at the cursor, with the block it opens."""
    BLOCK = "block"
    """The body of what the line above opens."""
    BLOCKS = "blocks"
    """All up to the end of the block that holds the cursor, for who asks explicitly."""


@dataclass(frozen=True)
class Site:
    """A place to fill."""

    scope: Scope
    grammar: Grammar | None
    window: str
    """The end of the prefix, from the beginning of a line."""


@dataclass(frozen=True)
class _Token:
    kind: str
    start: int
    end: int
    column: int
    is_line_first: bool
    is_comment: bool
    node: Node | None


@dataclass
class _Walk:
    """What is known after the tokens so far."""

    depth: int = 0
    last: _Token | None = None
    column: int | None = None
    """Of the statement, or of the block's first line."""
    start: int = 0
    """Where that begins."""


def find_site(prefix: str, rest: str, grammar: Grammar | None, widest: Scope = Scope.BLOCK) -> Site:
    """Return what a cursor between a prefix and the rest of its line asks for.

    ``widest`` is ``BLOCKS`` for more than the statement at the cursor.
    """
    window = window_of(prefix)
    line = prefix[prefix.rfind("\n") + 1 :]
    if not _REST_IS_CLOSERS.fullmatch(rest):
        return Site(Scope.LINE, grammar, window)
    above = prefix[: len(prefix) - len(line)].rstrip()
    opens_block = above.endswith(("{", "(", "[")) or (
        grammar is not None and grammar.is_indented and _before_docstring(above).endswith(":")
    )
    if not line.strip() and opens_block:
        return Site(Scope.BLOCK, grammar, window)
    return Site(Scope.BLOCKS if widest is Scope.BLOCKS else Scope.STATEMENT, grammar, window)


def _before_docstring(above: str) -> str:
    """Return a text without the docstring it ends with: a body that only has one is still empty."""
    quotes = above[-3:]
    start = above.rfind(quotes, 0, -3) if quotes in _DOCSTRING_QUOTES else -1
    line_start = above.rfind("\n", 0, max(start, 0)) + 1
    is_docstring = start >= 0 and not above[line_start:start].strip(" \trR")
    return above[:line_start].rstrip() if is_docstring else above


def find_end(site: Site, text: str) -> int | None:
    """Return how many characters of the text fill the site, or None while that is open."""
    return EndFinder(site).find(text)


class EndFinder:
    """Looks for the end again as text arrives, and parses only what is new."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._kept = KeptTree(site.grammar) if site.grammar is not None else None

    def find(self, text: str) -> int | None:
        """Return how many characters of the text fill the site, or None while that is open."""
        if self._site.scope is Scope.LINE:
            newline = text.find("\n")
            return newline if newline >= 0 else None
        if "\n" not in text and not any(closer in text for closer in ")]}"):
            return None
        source = self._site.window + text
        tree = self._kept.parse(source.encode()) if self._kept is not None else None
        return _Search(self._site, source, tree).run()


class _Search:
    """One pass over the tokens of window and text."""

    def __init__(self, site: Site, source: str, tree: Tree | None) -> None:
        self.site = site
        self.source = source
        self.data = self.source.encode()
        self.cursor = bytes_from_chars(self.source, len(site.window))
        line = site.window[site.window.rfind("\n") + 1 :]
        self.line_start = self.cursor - len(line.encode())
        self.is_indented = site.grammar is not None and site.grammar.is_indented
        self.tree = tree

    def run(self) -> int | None:
        start = self.cursor if self.site.scope is Scope.BLOCK else self.line_start
        tokens = self._tokens(start)
        walk = _Walk()
        statement: Node | None = None
        for token in tokens:
            if token.is_comment:
                continue
            if walk.column is None:
                if token.kind in CLOSERS and token.start < self.cursor:
                    continue  # "} else {": the statement is what follows the bracket
                walk.column, walk.start = token.column, token.start
                statement = self._statement(token)
            if self._begins_comment(token):
                return None  # the rest of the text is a comment that has not ended yet
            is_next_line = token.is_line_first and token.start > self.cursor
            end = self._end_before(token, walk, statement) if is_next_line else None
            if end is not None:
                return self._to_chars(end)
            walk.depth += (token.kind in OPENERS) - (token.kind in CLOSERS)
            if walk.depth < 0 and token.start >= self.cursor:
                end = self._end_at_closer(token, walk)
                return None if end is None else self._to_chars(end)
            walk.last = token
        end = self._end_of_simple_line(walk)
        return None if end is None else self._to_chars(end)

    def _end_before(self, token: _Token, walk: _Walk, statement: Node | None) -> int | None:
        """Where to end if the line that begins with this token is no longer part of it."""
        assert walk.column is not None
        if walk.depth > 0 or walk.last is None or _is_in_string(token.node):
            return None
        if self.site.scope is Scope.BLOCK:
            ended = self.is_indented and token.column < walk.column
        elif self.site.scope is Scope.BLOCKS:
            ended = token.kind not in CLOSERS and token.column < walk.column
        elif token.kind in CLOSERS:
            ended = False
        elif token.column < walk.column:
            ended = True
        elif self._may_continue(token, walk) or self._is_unterminated(walk.last, walk):
            ended = False
        elif statement is not None:
            ended = token.start >= statement.end_byte
        else:
            ended = token.column <= walk.column
        return self._line_end(walk.last.end) if ended else None

    def _begins_comment(self, token: _Token) -> bool:
        sign = self.data[token.start : token.start + 2]
        return token.kind.startswith("/") and not self.is_indented and sign in (b"//", b"/*")

    def _is_unterminated(self, last: _Token, walk: _Walk) -> bool:
        """Whether a language with semicolons waits for one, as after "static int"."""
        grammar = self.site.grammar
        is_directive = self.data[walk.start : walk.start + 1] in (b"#", b"@")
        is_terminated = grammar is not None and grammar.is_terminated
        return is_terminated and not is_directive and last.kind not in (";", "}", ":", ",")

    def _may_continue(self, token: _Token, walk: _Walk) -> bool:
        """Whether a token, or the word that it is the beginning of, goes on with a statement."""
        # Its text, not its kind: in broken text a keyword may be taken for a name.
        text = self.data[token.start : token.end].decode(errors="replace")
        if text == "while" and not self.data.startswith(b"do", walk.start):
            return False
        known = INDENTED_CONTINUATIONS if self.is_indented else CONTINUATIONS
        if self.site.grammar is None:
            known |= _CLOSING_WORDS
            if _first_word(self.data[walk.start :]) in _QUERIES:
                known, text = known | _CLAUSES, text.lower()
            if _CLOSING_TAG.startswith(self.data[token.start : token.start + 2]):
                return True
        if token.end < len(self.data):
            return text in known
        return any(word.startswith(text) for word in known)

    def _end_at_closer(self, token: _Token, walk: _Walk) -> int | None:
        """A bracket closes what was open before: a block's own goes along, a foreign one not.

        So does what closes the brackets around it and the statement, as in "});".
        """
        is_foreign = (
            self.site.scope is not Scope.BLOCK and token.kind == "}" and walk.last is not None
        )
        if is_foreign and walk.last is not None and walk.last.end > self.cursor:
            return self._line_end(walk.last.end, stop=token.start)
        around = self._open_brackets()[:-1]
        if token.kind == "}" and around[-1:] not in (["("], ["["]):
            return token.end
        end = token.end
        while around and self.data[end : end + 1] == _CLOSER_OF.get(around.pop()):
            end += 1
        if end == len(self.data):
            return None
        return end + (self.data[end : end + 1] in (b";", b","))

    def _open_brackets(self) -> list[str]:
        """Return what is open at the cursor."""
        opened: list[str] = []
        for token in self._tokens(0):
            if token.start >= self.cursor:
                break
            if token.kind in OPENERS:
                opened.append(token.kind)
            elif token.kind in CLOSERS and opened:
                opened.pop()
        return opened

    def _end_of_simple_line(self, walk: _Walk) -> int | None:
        """End at a line end that surely ends the statement, without waiting for the next token."""
        last = walk.last
        if self.site.scope is not Scope.STATEMENT or last is None or walk.depth > 0:
            return None
        if last.end <= self.cursor or b"\n" not in self.data[last.end :]:
            return None
        is_first_line = b"\n" not in self.data[walk.start : last.end]
        if self.is_indented:
            ends = (
                last.kind not in (":", "\\", ",") and self.data[walk.start : walk.start + 1] != b"@"
            )
        else:
            ends = last.kind == ";" and self.site.grammar is not None
        return self._line_end(last.end) if is_first_line and ends else None

    def _statement(self, token: _Token) -> Node | None:
        """The node of the statement that begins at, or holds, a token, if its tree is sound."""
        node, grammar = token.node, self.site.grammar
        if node is None or grammar is None:
            return None
        while (parent := node.parent) is not None:
            if parent.type in grammar.containers or parent.parent is None:
                break
            node = parent
        is_sound = not node.has_error and not (node.parent is not None and node.parent.is_error)
        return node if is_sound else None

    def _tokens(self, start: int) -> Iterator[_Token]:
        if self.tree is not None:
            yield from self._tree_tokens(self.tree, start)
            return
        for match in _WORD_OR_SIGN.finditer(self.source, self._raw_chars(start)):
            begin = bytes_from_chars(self.source, match.start())
            word = match.group()
            yield self._token(word, begin, begin + len(word.encode()), None)

    def _tree_tokens(self, tree: Tree, start: int) -> Iterator[_Token]:
        for node in leaves(tree, start):
            if self.data[node.start_byte : node.end_byte].isspace():
                continue  # the line end of a directive
            yield self._token(node.type, node.start_byte, node.end_byte, node)

    def _token(self, kind: str, start: int, end: int, node: Node | None) -> _Token:
        line_start = self.data.rfind(b"\n", 0, start) + 1
        lead = self.data[line_start:start]
        is_comment = node is not None and (
            "comment" in kind or (node.parent is not None and "comment" in node.parent.type)
        )
        return _Token(kind, start, end, len(lead), not lead.strip(), is_comment, node)

    def _line_end(self, offset: int, stop: int | None = None) -> int:
        """The end of the line that holds a byte, so that a comment behind a statement stays."""
        newline = self.data.find(b"\n", offset, stop)
        return newline if newline >= 0 else (stop if stop is not None else len(self.data))

    def _raw_chars(self, offset: int) -> int:
        return chars_from_bytes(self.data, offset)

    def _to_chars(self, end: int) -> int:
        return max(0, self._raw_chars(max(end, self.cursor)) - len(self.site.window))


def _is_in_string(node: Node | None) -> bool:
    parent = node.parent if node is not None else None
    while parent is not None and parent.start_byte < (node.start_byte if node else 0):
        if "string" in parent.type or "template" in parent.type:
            return True
        parent = parent.parent
    return False


def _first_word(data: bytes) -> str:
    word = _FIRST_WORD.match(data)
    return word[0].decode(errors="replace").lower() if word else ""
