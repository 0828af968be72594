from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from specengine import errors
from specengine.client import request_error
from specengine.errors import REQUEST_ERRORS, RequestError, SpecEngineError
from specengine.protocol import Failed, decode_from_engine, encode


def tree(error: type[SpecEngineError]) -> Iterator[type[SpecEngineError]]:
    yield error
    for child in error.__subclasses__():
        yield from tree(child)


ALL = list(tree(SpecEngineError))
REQUESTS = [error for error in ALL if issubclass(error, RequestError)]


@pytest.mark.parametrize("error", ALL)
def test_class_says_in_one_sentence_what_it_is(error: type[SpecEngineError]) -> None:
    docstring = vars(error).get("__doc__") or ""
    assert docstring.endswith(".")
    assert "\n" not in docstring


@pytest.mark.parametrize("error", ALL)
def test_class_stands_in_the_tree_of_the_module(error: type[SpecEngineError]) -> None:
    assert error.__module__ == errors.__name__
    assert f" {error.__name__} " in f"{inspect.getdoc(errors)} ".replace("\n", " ")


def test_codes_are_unique_and_of_the_class_itself() -> None:
    codes = [vars(error)["code"] for error in ALL]
    assert len(set(codes)) == len(ALL)


def test_all_request_errors_cross_the_wire() -> None:
    assert set(REQUEST_ERRORS.values()) == set(REQUESTS)
    assert all(REQUEST_ERRORS[error.code] is error for error in REQUESTS)


@pytest.mark.parametrize("error", REQUESTS)
def test_request_error_survives_the_wire(error: type[RequestError]) -> None:
    sent = error("the prompt has 9 tokens, allowed are 8.", hint="Send less, é.")
    frame = encode(Failed(request=7, code=sent.code, what=sent.what, hint=sent.hint))
    message = decode_from_engine(frame[4:])
    assert isinstance(message, Failed)
    received = request_error(message)
    assert type(received) is error
    assert (received.what, received.hint, str(received)) == (sent.what, sent.hint, str(sent))


@pytest.mark.parametrize("code", ["", "from_the_future", "load", "config"])
def test_code_that_names_no_request_error_is_a_request_error(code: str) -> None:
    """A newer engine must not break a client, nor make it raise what no request can."""
    received = request_error(Failed(request=7, code=code, what="no.", hint=""))
    assert type(received) is RequestError
    assert str(received) == "no."


@pytest.mark.parametrize("error", ALL)
def test_text_is_what_happened_and_what_to_do(error: type[SpecEngineError]) -> None:
    assert str(error("It broke.", hint="Mend it.")) == "It broke. Mend it."
    assert str(error("It broke.")) == "It broke."
