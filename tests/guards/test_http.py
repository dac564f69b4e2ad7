"""A fence in a header: what a service answers to a request without it, with a wrong one, and to a holder that is late."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from wheel_lock import StaleFence
from wheel_lock.guards import Fence
from wheel_lock.guards.http import HEADER, KEY, AsgiFences, WsgiFences, headers, parse

NAMES = ["account:42", "ünï code", "a b\r\nc", "%41", "x" * 200]


@pytest.mark.parametrize("name", NAMES)
def test_a_header_brings_a_fence_as_it_is(name: str) -> None:
    value = headers((name, 7))[HEADER]
    assert value.isascii()
    assert value.isprintable()
    assert parse(value) == Fence(name, 7)


@pytest.mark.parametrize(
    "value", ["", "7", "7 ", "x name", "-1 name", "1_0 name", "٣ name", "9" * 17 + " n", "7 %ff", " 7 n", "7 a,9 a"]
)
def test_a_header_that_has_no_fence_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(value)


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        return
    fence = scope[KEY]
    if fence is not None and fence.fence < 7:
        raise StaleFence(fence.name, fence.fence, 7)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": repr(fence).encode()})
    if fence is not None and fence.name == "begun":
        raise StaleFence(fence.name, fence.fence, 8)


def wsgi(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    fence = environ[KEY]
    if fence is not None and fence.fence < 7:
        raise StaleFence(fence.name, fence.fence, 7)
    start_response("200 OK", [])
    return [repr(fence).encode()]


EXPECTED: list[tuple[str, dict[str, str], int]] = [
    ("GET", {}, 200),
    ("POST", {}, 428),
    ("Post", {}, 428),
    ("POST", {HEADER: "text"}, 400),
    ("GET", {HEADER: "text"}, 400),
    ("POST", headers(("account:42", 7)), 200),
    ("POST", headers(("account:42", 6)), 409),
]


@pytest.mark.parametrize(("method", "fields", "status"), EXPECTED)
async def test_a_service_that_is_asgi_answers(method: str, fields: dict[str, str], status: int) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(AsgiFences(asgi)), base_url="http://service") as client:
        answer = await client.request(method, "/", headers=fields)
    check(answer, fields, status)


@pytest.mark.parametrize(("method", "fields", "status"), EXPECTED)
def test_a_service_that_is_wsgi_answers(method: str, fields: dict[str, str], status: int) -> None:
    with httpx.Client(transport=httpx.WSGITransport(WsgiFences(wsgi)), base_url="http://service") as client:
        check(client.request(method, "/", headers=fields), fields, status)


def check(answer: httpx.Response, fields: dict[str, str], status: int) -> None:
    assert answer.status_code == status
    if status == 200:
        assert answer.text == (repr(parse(fields[HEADER])) if fields else "None")
    else:
        assert answer.text.startswith(str(status))


async def test_an_answer_that_has_begun_is_not_answered_again() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(AsgiFences(asgi)), base_url="http://service") as client:
        with pytest.raises(StaleFence):
            await client.post("/", headers=headers(("begun", 7)))


async def test_what_is_not_http_is_passed_on() -> None:
    async def nothing(*_: Any) -> Any:
        raise AssertionError

    await AsgiFences(asgi)({"type": "lifespan"}, nothing, nothing)


def test_methods_that_need_a_fence_can_be_chosen() -> None:
    with httpx.Client(
        transport=httpx.WSGITransport(WsgiFences(wsgi, required=())), base_url="http://service"
    ) as client:
        assert client.post("/").status_code == 200
