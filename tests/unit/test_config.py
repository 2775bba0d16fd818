"""Settings that cannot be meant are refused by name."""

from __future__ import annotations

import pytest

from hpk import config, errors


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"HPK_IMAGE_GC_HIGH_THRESHOLD_PERCENT": "80"}, "must be below the high one"),
        ({"HPK_IMAGE_GC_LOW_THRESHOLD_PERCENT": "-1"}, "both between 0 and 100"),
        ({"HPK_IMAGE_GC_HIGH_THRESHOLD_PERCENT": "101"}, "both between 0 and 100"),
        ({"HPK_IMAGES_GIB": "0"}, "name the GiB that images may take"),
        ({"HPK_IMAGES_GIB": "a lot"}, "'a lot' is not of type int"),
    ],
)
def test_thresholds_are_checked(settings: dict[str, str], words: str) -> None:
    """As the kubelet checks its own (ValidateKubeletConfiguration)."""
    with pytest.raises(errors.Fatal, match=words):
        config.load(environment=settings)


def test_thresholds_can_be_set() -> None:
    """All of them, from the environment."""
    made = config.load(environment={"HPK_IMAGES_GIB": "200", "HPK_IMAGE_MINIMUM_GC_AGE": "60"})
    assert (made.images_gib, made.image_minimum_gc_age, made.image_gc_high_threshold_percent) == (200, 60.0, 85)
