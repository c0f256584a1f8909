"""id_tokens, as they come from a token endpoint."""

import time
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.jwk import OctKey

from goondan_tasks.oauth.id_token import id_token_claims
from goondan_tasks.oauth.oauth_errors import ProviderRefusedError

_KEY = OctKey.import_key("a key of the provider, which we need not know")


def _id_token(**claims: Any) -> str:
    usual = {"sub": "U1", "aud": "our-id", "exp": int(time.time()) + 300}
    return jwt.encode({"alg": "HS256"}, {**usual, **claims}, _KEY)


def _signed(text: str) -> str:
    return jws.serialize_compact({"alg": "HS256"}, text.encode(), _KEY)


def test_an_id_token_says_who_the_user_is() -> None:
    assert id_token_claims(_id_token(), "our-id")["sub"] == "U1"
    assert id_token_claims(_id_token(aud=["another", "our-id"]), "our-id")["sub"] == "U1"


@pytest.mark.parametrize(
    "token",
    [
        _id_token(aud="another"),
        _id_token(exp=1),
        _id_token(sub=None),
        "",
        "a.b",
        "a.b.c",
        "é.é.é",
        _id_token()[:-200],
        _signed('["sub", "aud", "exp"]'),
        _signed('"sub aud exp"'),
        _signed("null"),
        _signed("[" * 100_000),
    ],
)
def test_an_id_token_that_proves_nothing_is_refused_without_being_repeated(token: str) -> None:
    with pytest.raises(ProviderRefusedError) as refused:
        id_token_claims(token, "our-id")

    assert refused.value.error == "invalid_id_token"
    assert not token or token not in refused.value.message
