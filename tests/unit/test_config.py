"""Settings that cannot be meant are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpk import config, errors


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"HPK_IMAGE_GC_HIGH_THRESHOLD_PERCENT": "80"}, "must be below the high one"),
        ({"HPK_IMAGE_GC_LOW_THRESHOLD_PERCENT": "-1"}, "both between 0 and 100"),
        ({"HPK_IMAGE_GC_HIGH_THRESHOLD_PERCENT": "101"}, "both between 0 and 100"),
        ({"HPK_IMAGES_GIB": "0"}, "images_gib 0: it must be 1 or more"),
        ({"HPK_CONTAINER_LOG_MAX_SIZE": "0"}, "container_log_max_size 0: it must be 1 or more"),
        ({"HPK_CONTAINER_LOG_MAX_FILES": "1"}, "container_log_max_files 1: it must be 2 or more"),
        ({"HPK_LOG_LEVEL": "loud"}, r"log_level 'loud' \(known: debug, info, warning, error\)"),
        ({"HPK_ETCD": "home"}, r"etcd 'home' \(known: auto, shared, node\)"),
        ({"HPK_MAX_PODS": "0"}, "max_pods 0: it must be 1 or more"),
        ({"HPK_POLL_SECONDS": "0"}, "poll_seconds 0.0: it must be 1 or more"),
        ({"HPK_POLL_SECONDS": "nan"}, "poll_seconds nan: it must be 1 or more"),
        ({"HPK_IMAGE_MAXIMUM_GC_AGE": "-1"}, "image_maximum_gc_age -1.0: it must be 0 or more"),
        ({"HPK_SERVICE_CIDR": "10.0.0.0/32"}, "'10.0.0.0/32': it must be /30 or larger"),
        ({"HPK_IMAGES_GIB": "a lot"}, "'a lot' is not of type int"),
    ],
)
def test_settings_are_checked(settings: dict[str, str], words: str) -> None:
    """Before anything starts, with the name and what would be right."""
    with pytest.raises(errors.Fatal, match=words):
        config.load(environment=settings)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Neither text nor TOML, or no file at all."""
    for make in (lambda file: file.write_bytes(b"\xff"), lambda file: file.write_text("= ["), Path.mkdir):
        file = tmp_path / "config.toml"
        file.unlink(missing_ok=True)
        make(file)
        with pytest.raises(errors.Fatal, match=f"Cannot read {file}"):
            config.load(environment={"HPK_STATE": str(tmp_path)})


def test_a_state_directory_that_may_not_be_entered_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for one without settings."""

    def refuse(self: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(errors.Fatal, match=r"Cannot read /x/config.toml: .*Permission denied"):
        config.load(environment={"HPK_STATE": "/x"})


def test_thresholds_can_be_set() -> None:
    """All of them, from the environment."""
    made = config.load(environment={"HPK_IMAGES_GIB": "200", "HPK_IMAGE_MINIMUM_GC_AGE": "60"})
    assert (made.images_gib, made.image_minimum_gc_age, made.image_gc_high_threshold_percent) == (200, 60.0, 85)


def test_a_variable_that_is_nearly_a_setting_is_told() -> None:
    """And no other: a site has variables of its own."""
    environment = {"HPK_NETWROK": "host", "HPK_STATE": "/x", "HPK_BIND": "/data", "HPK_OURS": "1", "PATH": "/bin"}
    assert config.strangers(environment) == ["HPK_NETWROK is not a setting; did you mean HPK_NETWORK?"]
