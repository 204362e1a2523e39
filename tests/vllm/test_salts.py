import dataclasses

import pytest

from cachecraft_rag.vllm.protocol import RequestParams
from cachecraft_rag.vllm.salts import cache_salt, is_valid_salt

SECRET = "secret"
PARAMS = RequestParams("tenant", "first", 0.15, 2, ((0, 9, "id", None, None),))
CHANGES = [{"namespace": "other"}, {"policy": "random"}, {"ratio": 0.150001}, {"ratio": 1.0}, {"min_run": 1}]


def changed(**changes):
    return dataclasses.replace(PARAMS, **changes)


@pytest.mark.parametrize("changes", CHANGES, ids=repr)
def test_whatever_changes_the_repair_changes_the_salt(changes):
    other = changed(**changes)
    assert cache_salt(SECRET, PARAMS) != cache_salt(SECRET, other)
    assert not is_valid_salt(SECRET, other, cache_salt(SECRET, PARAMS))


def test_the_same_kind_of_request_shares_its_salt_whatever_its_chunks():
    other = changed(segments=((0, 3, None, None, None),))
    assert cache_salt(SECRET, PARAMS) == cache_salt(SECRET, other)
    assert is_valid_salt(SECRET, PARAMS, cache_salt(SECRET, other))


def test_fields_do_not_run_into_each_other():
    one = cache_salt(SECRET, changed(namespace='a", "first', policy="b"))
    assert one != cache_salt(SECRET, changed(namespace="a", policy='first", "b'))


def test_another_secret_another_salt():
    assert cache_salt("other", PARAMS) != cache_salt(SECRET, PARAMS)
    assert not is_valid_salt("other", PARAMS, cache_salt(SECRET, PARAMS))


@pytest.mark.parametrize("salt", [None, "", "default", "cachecraft:", "cachecraft:00", SECRET])
def test_other_salts_are_refused(salt):
    assert not is_valid_salt(SECRET, PARAMS, salt)
    assert not is_valid_salt(SECRET, changed(prewarm=True), salt)


def test_each_prewarm_has_a_salt_of_its_own():
    prewarm = changed(prewarm=True)
    salts = {cache_salt(SECRET, prewarm) for _ in range(20)}
    assert len(salts) == 20
    assert all(is_valid_salt(SECRET, prewarm, salt) for salt in salts)
    assert not any(is_valid_salt(SECRET, PARAMS, salt) for salt in salts)
    assert not is_valid_salt("other", prewarm, salts.pop())


def test_a_serving_salt_is_not_good_for_a_prewarm():
    assert not is_valid_salt(SECRET, changed(prewarm=True), cache_salt(SECRET, PARAMS))


def test_a_salt_that_is_not_ascii_is_refused():
    assert not is_valid_salt(SECRET, PARAMS, "é")


def test_the_secret_does_not_show():
    assert SECRET not in cache_salt(SECRET, PARAMS)
    assert SECRET not in cache_salt(SECRET, changed(prewarm=True))
