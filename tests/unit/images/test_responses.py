"""What a registry refuses is told in containerd's words and its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpk import errors
from tests.fakes import registry as fake

if TYPE_CHECKING:
    from hpk.images import registry


async def test_unknown_images_are_refused_in_containerds_words(
    server: fake.FakeRegistry, client: registry.Registry
) -> None:
    """The reference is named twice, as users know it."""
    name = f"{server.host}/a/b:1"
    with pytest.raises(errors.ImageRefused) as caught:
        await client.resolve(server.access())
    assert str(caught.value) == f'failed to resolve reference "{name}": {name}: not found'
    assert caught.value.reason == "ErrImagePull"


@pytest.mark.parametrize(("code", "words"), [(403, "unexpected status from GET"), (401, "pull access denied")])
async def test_the_registrys_own_answer_is_told(
    server: fake.FakeRegistry, client: registry.Registry, code: int, words: str
) -> None:
    """A HEAD has no body, so the reason is asked for."""
    server.answer("manifests", *[fake.error(code, message="ask your admin")] * 2)
    with pytest.raises(errors.ImageRefused, match=f"{words}.*denied: ask your admin"):
        await client.resolve(server.access())
