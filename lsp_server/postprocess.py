"""Named rules that turn what a model wrote into what an editor shows.

Each rule takes a text and the place it goes to, and returns the text shortened; none writes
anything, but for ``match_indentation``, which changes tabs and spaces at the beginning of lines.
Text is LF throughout; ``with_line_ends`` restores what the document uses. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lsp_server.indentation import spaces_of, with_unit
from lsp_server.occasion import is_inside_word
from lsp_server.place import Place
from lsp_server.stop_rules import LINE_RULES, STOP_RULES, Rule, is_decided, opening_len


@dataclass(frozen=True)
class Processed:
    """What is left to show."""

    text: str
    emptied_by: str
    """The rule that left nothing, for the trace; empty when something is left."""


CLOSERS: Final = frozenset(")]}>\"'`;,")
_PAIRS: Final = {")": "(", "]": "[", "}": "{"}
_WORDLESS: Final = re.compile(r"\s*[^\w\s(\[{<][^\w(\[{<]*")
_MEANINGLESS: Final = re.compile(r"[\s#/*.\-_=<>!~\\]*")


def drop_opening_fence(text: str, place: Place) -> str:
    """Drop a fence around all of the text; the one that closes it is where the text ends."""
    return text[opening_len(text, place) :]


def match_indentation(text: str, place: Place) -> str:
    """Indent with tabs or spaces as the document does."""
    lines = text.split("\n")
    # The first line goes on with one that the document has indented already.
    first = 0 if not place.before.strip() else 1
    if not place.indent or place.is_prose or len(lines) <= first:
        return text
    num_spaces = spaces_of(lines[first:])
    matched = [with_unit(line, place.indent, num_spaces) for line in lines[first:]]
    return "\n".join([*lines[:first], *matched])


def end_at_next_line(text: str, place: Place) -> str:
    """End where the text reaches the line that stands below the cursor already.

    One without a word, as a bracket or quotes, says too little: those below it, down to one with a
    word, must come too.
    """
    below = _first_telling(place.next_lines)
    lines = text.split("\n")
    written = [(place.before + lines[0]).rstrip(), *(line.rstrip() for line in lines[1:])]
    filled = [index for index, line in enumerate(written) if line]
    for at in range(len(filled) - len(below) + 1 if below else 0):
        if [written[index] for index in filled[at : at + len(below)]] == below:
            return "\n".join(lines[: filled[at]])
    return text


def drop_duplicate_of_next_line(text: str, place: Place) -> str:
    """Drop last lines that are those below, the very last one cut short by the length limit."""
    lines = [line.rstrip() for line in text.split("\n")]
    for size in range(min(len(lines) - 1, len(place.next_lines)), 0, -1):
        *whole, last = lines[-size:]
        below = [line.rstrip() for line in place.next_lines[:size]]
        is_opening = last == below[-1] and last.endswith(tuple(_PAIRS.values()))
        is_telling = len(last.strip()) >= 3 or is_opening
        if is_telling and whole == below[:-1] and below[-1].startswith(last):
            return "\n".join(text.split("\n")[:-size])
    return text


def drop_overlap_with_rest(text: str, place: Place) -> str:
    """Drop the end of the text that the rest of the cursor's line repeats."""
    rest = place.rest.strip()
    if not rest:
        return text
    is_apart = place.rest[0].isspace()
    longest = min(len(rest), len(text))
    for size in range(longest, 0, -1):
        is_all = size == len(rest) and (is_apart or not rest[0].isalnum())
        is_enough = size > 1 or rest[0] in CLOSERS or is_all
        if not is_enough or not text.endswith(rest[:size]) or not _can_drop(text, size):
            continue
        is_part = is_inside_word(text[:-size], rest) or is_inside_word(text, rest[size:])
        if is_apart and is_part:
            continue  # the end of "plugin" is no " in"
        return text[:-size].rstrip() if is_apart else text[:-size]
    return text


def drop_closers_below(text: str, place: Place) -> str:
    """End before a line that closes what the line below, indented alike, closes already.

    More may stand there: a block's text ends with its own "}" before "});". What the text has
    opened itself it closes itself. Lines without a word, such as the end of a comment, are dropped
    only where the text ends with them.
    """
    lines = text.rstrip().split("\n")
    below = [line.rstrip() for line in place.next_lines]
    whole = [(place.before + lines[0]).rstrip(), *(line.rstrip() for line in lines[1:])]
    for index, line in enumerate(whole):
        is_candidate = _is_wordless(line) and lines[index].strip()
        if not below or not is_candidate or not _stands_in(line, below[0]):
            continue
        brackets = [char for char in lines[index] if char in _PAIRS]
        surplus = _surplus_closers("\n".join(lines[: index + 1]))
        is_there = _is_subsequence(brackets, surplus) if brackets else _are_in(whole[index:], below)
        if is_there:
            return drop_closers_below("\n".join(lines[:index]), place)
    return text


def strip_end(text: str, place: Place) -> str:
    """Drop white space at the end, and at line ends."""
    return "\n".join(line.rstrip() for line in text.rstrip().split("\n"))


def drop_meaningless(text: str, place: Place) -> str:
    """Drop text without a word, a string or a bracket, such as a lone comment sign."""
    return "" if _MEANINGLESS.fullmatch(text) else text


RULES: Final[tuple[Rule, ...]] = (
    drop_opening_fence,
    *STOP_RULES,
    match_indentation,
    end_at_next_line,
    drop_duplicate_of_next_line,
    drop_closers_below,
    strip_end,
    drop_overlap_with_rest,
    drop_meaningless,
)
"""In the order in which they are applied."""

STREAM_RULES: Final = (*STOP_RULES, end_at_next_line)
"""Those whose cut is final while text still arrives."""


def postprocess(text: str, place: Place) -> Processed:
    """Apply all rules in order."""
    for rule in RULES:
        text = rule(text, place)
        if not text:
            return Processed("", rule.__name__)
    return Processed(text, "")


def stream_end(text: str, place: Place) -> int | None:
    """Return where streamed text ends for good, or None while it does not.

    Lines count when they are complete, the last one also when it is already past saving.
    """
    opening = opening_len(text, place)  # dropped from the whole text only
    body = text[opening:]
    lines, _, last = body.rpartition("\n")
    kept = _apply(STREAM_RULES, lines, place)
    if len(kept) == len(lines) and is_decided(last, place):
        lines, kept = body, _apply(LINE_RULES, body, place)
    return opening + len(kept) if len(kept) < len(lines) else None


def num_covered(text: str, rest: str) -> int:
    """Return how many closing brackets and quotes of the rest the text itself brings along.

    They go into the item's range. Editors show an item only if what its range holds after the
    cursor comes, in this order, in its text, so nothing else may be covered.
    """
    # Others close what an accepted part has opened: no editor has closed that.
    brackets = [bracket for bracket in _surplus_closers(text) if bracket in rest]
    line = text.split("\n", 1)[0]
    covered = 0
    for char in rest:
        if char in _PAIRS:
            if not brackets or brackets.pop(0) != char:
                break
        elif char not in CLOSERS or _num_loose(line, char) <= rest[:covered].count(char):
            break
        covered += 1
    return covered if _is_subsequence(rest[:covered], text) else 0


def with_line_ends(text: str, eol: str) -> str:
    """Return LF text with the line ends of its document."""
    return text if eol == "\n" else text.replace("\n", eol)


def to_lf(text: str) -> str:
    """Return text with LF only, as models read and write it."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _apply(rules: tuple[Rule, ...], text: str, place: Place) -> str:
    for rule in rules:
        text = rule(text, place)
    return text


def _is_wordless(line: str) -> bool:
    """Whether a line holds signs only, and opens nothing."""
    return _WORDLESS.fullmatch(line) is not None


def _stands_in(line: str, below: str) -> bool:
    """Whether a line below begins with this one, which may end its statement as well."""
    return below.startswith(line) or (line.startswith(below) and line[len(below) :] in (";", ","))


def _are_in(lines: list[str], below: list[str]) -> bool:
    """Whether lines without a word are the next ones below; of the last, more may stand there."""
    num = len(lines)
    is_there = len(below) >= num and lines[:-1] == below[: num - 1]
    return is_there and _stands_in(lines[-1], below[num - 1]) and all(map(_is_wordless, lines))


def _first_telling(lines: tuple[str, ...]) -> list[str]:
    """Return the lines down to the first that has a word; none if there is no such."""
    for num, line in enumerate(lines, 1):
        if any(char.isalnum() for char in line):
            return [line.rstrip() for line in lines[:num]]
    return []


def _can_drop(text: str, size: int) -> bool:
    """A bracket that closes one opened in what is left stays: "f(x)" before ")" is no overlap."""
    start = len(text) - size
    unmatched, _ = _match_brackets(text)
    return all(start + index in unmatched for index in _match_brackets(text[start:])[0])


def _match_brackets(text: str) -> tuple[list[int], list[str]]:
    """Return where brackets close what the text has not opened, and which openers stay open."""
    unmatched: list[int] = []
    open_signs: list[str] = []
    for index, char in enumerate(text):
        if char in _PAIRS.values():
            open_signs.append(char)
        elif char in _PAIRS:
            if open_signs and open_signs[-1] == _PAIRS[char]:
                open_signs.pop()
            else:
                unmatched.append(index)
    return unmatched, open_signs


def _surplus_closers(text: str) -> list[str]:
    """Return the brackets that the text closes too many; those left open make up for some."""
    unmatched, open_signs = _match_brackets(text)
    closers = [text[index] for index in unmatched]
    for sign in open_signs:
        for index in range(len(closers) - 1, -1, -1):
            if _PAIRS[closers[index]] == sign:
                del closers[index]
                break
    return closers


def _num_loose(line: str, char: str) -> int:
    return line.count(char) % 2 if char in "\"'`" else line.count(char)


def _is_subsequence(part: Iterable[str], whole: Iterable[str]) -> bool:
    remaining = iter(whole)
    return all(char in remaining for char in part)
