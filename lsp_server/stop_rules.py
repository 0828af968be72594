"""Where a model stops writing code: at a fence, at talk about the code, at what it says again.

A model that was taught to chat, asked to go on in code, soon leaves it for one of these. Each rule
takes a text and the place it goes to and returns the text up to there, without blank lines at its
end; what it cuts stays cut while text still arrives. It knows no engine and no editor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from lsp_server.place import Place
from lsp_server.quoting import find_quoted_lines
from lsp_server.syntax import Grammar, parse, words
from specengine import blank_lines

Rule = Callable[[str, Place], str]
"""Takes a text and its place, and returns it shortened."""

MAX_LINES: Final = 400
"""Of a text that are looked at."""

MAX_LINE_CHARS: Final = 800
"""Of a line."""

MIN_WORDS: Final = 4
"""Plain words in a row that make a sentence."""

MAX_ANNOUNCING_WORDS: Final = 8
"""Of a line such as "Here is the output:", which need not be a whole sentence."""

MAX_PERIOD: Final = 4
"""Longest run of lines that ends the text when it comes for the third time."""

MAX_TIMES: Final = 6
"""How often a line of a single word, which tells little, may come in a row."""

MAX_COPIED_LINES: Final = 24
"""Longest run of lines that ends the text when it comes for the second time."""

MIN_COPIED_LINES: Final = 3
"""And the shortest; two are enough where the text begins with them."""

MIN_LOOP_CHARS: Final = 8
"""Shortest run of characters that may not come again and again within a line."""

MAX_LOOPED_CHARS: Final = 64
"""For so many it may, if four times: signatures hold "size_t, size_t, size_t, size_t"."""

MAX_SHORT_LOOPED_CHARS: Final = 96
"""And for so many a shorter one."""

_FENCE: Final = re.compile(r"[ \t]*(?:```|~~~(?!~))")
_OPENING_FENCE: Final = re.compile(r"\s*(?:```|~~~)[^\n]*(?:\n|\Z)")
_BULLET: Final = re.compile(r"\s*(?:(?:[-*•]|\d+[.)])[ \t]+)?(?:\*\*|__)?")
_INLINE_CODE: Final = re.compile(r"`[^`\n]+`")
_CONTRACTION: Final = r"(?<=[a-z])['\u2019](?:s|t|re|ll|ve|m|d)\b"
_PLAIN_TEXT: Final = re.compile(rf"(?:[A-Za-z,:;.!? -]|{_CONTRACTION})*")
_PLAIN_WORD: Final = re.compile(rf"[A-Z]?[a-z]+(?:{_CONTRACTION})?|[IA]")
_PAUSE: Final = re.compile(r"[,:;.!?-]+")
_PHRASE: Final = re.compile(
    r"(?:Here(?: is| are|['\u2019]s)|This|These|In (?:this|the)|Note(?: that)?|Explanation|Example"
    r"|Output|The|You can|We|I|It|Sure|Certainly|Of course|To|Let|Please|If you|Now)\b"
)
_MARKUP: Final = re.compile(r"</|/>|<[A-Za-z][^<>\n]*>[^;\n]*$", re.MULTILINE)
_LANGUAGES_WITH_TAGS: Final = (
    ("tree_sitter_javascript", "language"),
    ("tree_sitter_typescript", "language_tsx"),
)
_KEYWORDS: Final = words(
    "abstract and as assert async auto await bool boolean break byte case catch chan char class"
    " const constexpr continue crate def default defer del delete do double dyn elif else enum"
    " except export extends extern final finally float fn for from func function global go goto if"
    " impl implements import in inline instanceof int interface is keyof lambda let long loop map"
    " match mod module move mut namespace native new nonlocal not of operator or package pass"
    " private protected pub public raise range readonly record ref register requires return sealed"
    " select short signed sizeof static string struct super switch template throw throws trait try"
    " type typedef typename typeof union unsafe unsigned use using var virtual void volatile where"
    " while with yield"
)
"""Words that stand beside a name, or beside each other, in code of the eight languages."""

_TELLING: Final = re.compile(r"\w\W+\w")
"""What a line with two words has; "NULL," and "#endif" may come again."""


def end_at_fence(text: str, place: Place) -> str:
    """End at a Markdown fence, unless strings or the document may hold one."""
    return text if place.is_prose else _end_at(text, place, _is_fence)


def end_at_talk(text: str, place: Place) -> str:
    """End at a line that is a sentence about the code and cannot be code itself."""
    if place.is_prose:
        return text
    grammar = place.grammar
    if grammar is None:
        return _end_at_paragraph_of_talk(text, place)
    end = _end_at(text, place, lambda line: is_sentence(line, grammar))
    # Text between tags is no string, and reads as talk.
    may_hold_tags = (grammar.module, grammar.function) in _LANGUAGES_WITH_TAGS
    return text if may_hold_tags and _MARKUP.search(place.above + place.before + end) else end


def end_at_repetition(text: str, place: Place) -> str:
    """End before lines that come for the third time, or that copy many lines just before them.

    In the functions of the standard library no line of two words comes three times in a row, and
    of 16,539 one holds such a copy; a slow test counts again.
    """
    above = place.above.split("\n")[:-1][-MAX_COPIED_LINES:]
    lines = text.split("\n")
    rows = [*above, place.before + lines[0], *lines[1:MAX_LINES]]
    rows = [row.rstrip() for row in rows]
    for end in range(len(above) + 1, len(rows) + 1):
        kept = _end_of_original(rows, end, len(above))
        if kept is not None:
            return "\n".join(lines[: kept - len(above)]).rstrip()
    return text


def end_at_loop(text: str, place: Place) -> str:
    """End before a line that says the same again and again."""
    start = 0
    for line in text.split("\n")[:MAX_LINES]:
        if is_loop(line):
            return text[:start].rstrip()
        start += len(line) + 1
    return text


STOP_RULES: Final[tuple[Rule, ...]] = (
    end_at_fence,
    end_at_talk,
    end_at_repetition,
    end_at_loop,
)
"""In the order in which they are applied."""

LINE_RULES: Final = (end_at_fence, end_at_talk, end_at_loop)
"""Those that can end at a line before it is complete; see ``is_decided``."""


def opening_len(text: str, place: Place) -> int:
    """Return the length of a fence that opens the text, with an indentation given twice."""
    if place.is_prose or place.before.strip():
        return 0
    opening = _OPENING_FENCE.match(text)
    if opening is None:
        return 0
    is_indented_again = place.before and text.startswith(place.before, opening.end())
    return opening.end() + (len(place.before) if is_indented_again else 0)


def opening_blanks_len(text: str, place: Place) -> int:
    """Return the length of blank lines that open a text for a line that is blank already.

    In strings they stay, and in a language with brackets, where any line may begin a definition.
    """
    is_blank = not (place.before + place.rest).strip()
    if not is_blank or place.grammar is None or not place.grammar.is_indented:
        return 0
    length = blank_lines.opening_len(text, place.before)
    if length and 0 in find_quoted_lines(place.above + place.before, text, place.grammar):
        return 0
    return length


def is_decided(line: str, place: Place) -> bool:
    """Whether a line that still grows is one that a rule ends at, whatever it becomes."""
    if place.grammar is not None and is_sentence(line[: line.rfind(" ") + 1], place.grammar):
        return True
    return line.lstrip().startswith("```") or is_loop(line)


def is_sentence(line: str, grammar: Grammar) -> bool:
    """Whether a line reads as a sentence, by what its words are and not by which.

    Names stand beside each other in no code, but for a type before what it types: one such pair
    tells a language without that from talk, two in a sentence tell all.
    """
    sentence = _sentence(line)
    if not sentence:
        return False
    parts = [part.split() for part in _PAUSE.split(sentence)]
    num_words, num_pairs = sum(map(len, parts)), sum(map(_count_pairs, parts))
    min_pairs = 1 if grammar.is_indented else 2
    if any(len(part) >= MIN_WORDS and _count_pairs(part) >= min_pairs for part in parts):
        return True
    if not _PHRASE.match(sentence):
        return False
    is_announcement = sentence.endswith(":") and num_words <= MAX_ANNOUNCING_WORDS
    return is_announcement or (num_words >= MIN_WORDS and num_pairs > 0)


def is_loop(line: str) -> bool:
    """Whether a line holds the same run of characters four times in a row, and for long.

    Such a loop holds one of the samples below in its first half, which comes again one period on.
    """
    line = line[:MAX_LINE_CHARS]
    start = 0
    while start <= len(line) - 3 * MIN_LOOP_CHARS:
        again = line.find(line[start : start + MIN_LOOP_CHARS], start + 1)
        if again >= 0:
            period = again - start
            first, end = _stretch(line, start, period)
            if end - first >= _max_looped(line[start:again]):
                return True
            start = max(start, end - 2 * MIN_LOOP_CHARS + 1)  # next the sample that ends it
        start += MIN_LOOP_CHARS
    return False


def _is_fence(line: str) -> bool:
    return _FENCE.match(line) is not None


def _end_at(text: str, place: Place, is_end: Callable[[str], bool]) -> str:
    """End at the first line that begins outside of strings and comments and is an end."""
    start = 0
    quoted: frozenset[int] | None = None
    for number, line in enumerate(text.split("\n")[:MAX_LINES]):
        # The first line continues the cursor's own: what looks like talk there is a word of it.
        goes_on = number == 0 and bool(place.before.strip())
        is_free = not goes_on and (quoted is None or number not in quoted)
        seen = line[:MAX_LINE_CHARS].rstrip()
        if is_free and is_end(seen):
            if quoted is None:
                quoted = find_quoted_lines(place.above + place.before, text, place.grammar)
            if number not in quoted and not _is_code(seen, place.grammar):
                return text[:start].rstrip()
        start += len(line) + 1
    return text


def _end_at_paragraph_of_talk(text: str, place: Place) -> str:
    """Without a grammar: end at a sentence that has a chat's beginning and a blank line above."""
    head, *paragraphs = text.split("\n\n")
    kept = [head]
    for paragraph in paragraphs[:MAX_LINES]:
        line = paragraph.lstrip("\n").split("\n", 1)[0]
        sentence = _sentence(line)
        is_whole = sentence.rstrip().endswith((".", ":", "!")) and line.rstrip()[-1:] in ".:!"
        pairs = max(_count_pairs(part.split()) for part in _PAUSE.split(sentence))
        if is_whole and pairs > 1 and _PHRASE.match(sentence) and not line[:1].isspace():
            return "\n\n".join(kept).rstrip()
        kept.append(paragraph)
    return text


def _sentence(line: str) -> str:
    """Return the plain text that a line begins with, without a bullet; names in quotes count."""
    bullet = _BULLET.match(line)
    rest = line[bullet.end() if bullet is not None else 0 :]
    if not rest[:1].isalpha():
        return ""
    rest = _INLINE_CODE.sub("it", rest).replace("**", "")
    plain = _PLAIN_TEXT.match(rest)
    text = plain.group() if plain is not None else ""
    # A word that goes on with another sign, as in "foo(", is a name.
    return text if len(text) == len(rest) else text[: text.rfind(" ") + 1]


def _count_pairs(part: list[str]) -> int:
    """Count neighbours that are both plain words and no keywords."""
    plain = [_PLAIN_WORD.fullmatch(word) is not None and word not in _KEYWORDS for word in part]
    return sum(one and two for one, two in pairwise(plain))


def _is_code(line: str, grammar: Grammar | None) -> bool:
    """Whether a line alone is a statement, as ``print this`` once was and ``~~~x`` is elsewhere."""
    if grammar is None or line.lstrip().startswith("```"):  # to Python's grammar a string
        return False
    tree = parse(grammar, line.strip().encode())
    return tree is not None and not tree.root_node.has_error


def _end_of_original(rows: list[str], end: int, base: int) -> int | None:
    """Return how many rows to keep if those before ``end`` repeat what stands before them.

    Rows before ``base`` are not the model's; they are always kept.
    """
    last = rows[end - 1]
    since = end - 1 - MAX_TIMES
    if since >= 0 and rows[since:end].count(last) > MAX_TIMES and _has_letter(last):
        return max(since + 1, base)
    for period in range(1, MAX_COPIED_LINES + 1):
        if end < 2 * period or last != rows[end - 1 - period]:
            continue
        run, start = rows[end - period : end], end - period
        if run != rows[start - period : start]:
            continue
        num_telling = len({row for row in run if _TELLING.search(row)})
        is_third = start >= 2 * period and run == rows[start - 2 * period : start - period]
        if period <= MAX_PERIOD and is_third and num_telling:
            return max(start - period, base)
        min_lines = 2 if start == base else MIN_COPIED_LINES
        if start >= base and period >= min_lines and num_telling >= min_lines:
            return start
    return None


def _has_letter(text: str) -> bool:
    return any(char.isalpha() for char in text)


def _stretch(line: str, start: int, period: int) -> tuple[int, int]:
    """Return from where to where a line repeats itself with a period."""
    first, end = start, start + period
    while first > 0 and line[first - 1] == line[first - 1 + period]:
        first -= 1
    while end < len(line) and line[end] == line[end - period]:
        end += 1
    return first, end


def _max_looped(unit: str) -> int:
    """Return how many characters of a unit that comes again and again are too many."""
    if not _has_letter(unit):
        return MAX_LINE_CHARS + 1
    if len(unit) < MIN_LOOP_CHARS:
        return MAX_SHORT_LOOPED_CHARS
    return max(4 * len(unit), MAX_LOOPED_CHARS)
