"""What matches what is decided as apimachinery and the scheduler decide it."""

from __future__ import annotations

import pytest

from hpk.kube import selectors

LABELS = {"disk": "ssd", "cores": "16", "word": "many", "empty": ""}


@pytest.mark.parametrize(
    ("operator", "key", "values", "is_met"),
    [
        ("In", "disk", ["ssd", "hdd"], True),
        ("In", "disk", ["hdd"], False),
        ("In", "nothing", [""], False),
        ("NotIn", "disk", ["ssd"], False),
        ("NotIn", "nothing", ["ssd"], True),
        ("Exists", "empty", [], True),
        ("Exists", "nothing", [], False),
        ("DoesNotExist", "nothing", [], True),
        ("DoesNotExist", "disk", [], False),
        ("Gt", "cores", ["15"], True),
        ("Gt", "cores", ["16"], False),
        ("Lt", "cores", ["17"], True),
        ("Lt", "cores", ["16"], False),
        ("Gt", "word", ["1"], False),
        ("Lt", "word", ["1"], False),
        ("Gt", "empty", ["1"], False),
        ("Lt", "nothing", ["1"], False),
        ("Gt", "cores", ["few"], False),
        ("Gt", "cores", [], False),
        ("Gt", "cores", ["1", "2"], False),
        ("Gt", "cores", ["9223372036854775808"], False),
        ("Lt", "cores", ["1_7"], False),
        ("Is", "disk", ["ssd"], False),
    ],
)
def test_a_requirement_is_met_as_in_apimachinery(operator: str, key: str, values: list[str], *, is_met: bool) -> None:
    """What is no number is neither more nor less, and raises nothing."""
    assert selectors.Requirement(key=key, operator=operator, values=values).matches(LABELS) is is_met


def test_an_empty_term_matches_no_node_and_an_empty_label_selector_everything() -> None:
    """A node selector without terms matches none, too."""
    assert not selectors.NodeSelectorTerm().matches(LABELS, name="hpk")
    assert not selectors.NodeSelector().matches(LABELS, name="hpk")
    assert selectors.LabelSelector().matches(LABELS)


@pytest.mark.parametrize(
    ("operator", "values", "is_met"),
    [("In", ["hpk"], True), ("NotIn", ["hpk"], False), ("In", ["hpk", "b"], False), ("Exists", [], False)],
)
def test_a_node_is_also_chosen_by_its_name(operator: str, values: list[str], *, is_met: bool) -> None:
    """With one value, and no other operators."""
    field = selectors.Requirement(key="metadata.name", operator=operator, values=values)
    assert selectors.NodeSelectorTerm(match_fields=[field]).matches({}, name="hpk") is is_met


@pytest.mark.parametrize(
    ("toleration", "is_tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "3"}, True),
        ({"key": "k", "operator": "Equal", "value": "4"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "k", "operator": "Lt", "value": "4"}, True),
        ({"key": "k", "operator": "Gt", "value": "4"}, False),
        ({"key": "k", "operator": "Lt", "value": "few"}, False),
        ({"key": "k", "operator": "Is", "value": "3"}, False),
    ],
)
def test_a_taint_is_tolerated_as_the_scheduler_sees_it(toleration: dict[str, str], *, is_tolerated: bool) -> None:
    """By key, value and effect; a preference keeps nobody off."""
    taint = selectors.Taint(key="k", value="3", effect="NoSchedule")
    found = selectors.untolerated([taint], [selectors.Toleration(**toleration)])
    assert (found == []) is is_tolerated
    assert selectors.untolerated([selectors.Taint(key="k", effect="PreferNoSchedule")], []) == []
