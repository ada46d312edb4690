"""Addresses that lead nowhere, the icon, and how the admin presents itself."""

from __future__ import annotations

import logging

import pytest
from django.apps import apps
from django.conf import settings as project
from django.test import Client

from config.logs import NoTraceOfRefusals
from tests.support.runs import make_user

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("debug", [True, False])
@pytest.mark.parametrize("path", ["/plnas/", "/c/no-such/", "/admin/no-such/"])
def test_a_mistyped_address_shows_our_page(settings, debug: bool, path: str):
    settings.DEBUG = debug
    browser = Client()
    browser.force_login(make_user(is_staff=True))
    answer = browser.get(path)
    assert answer.status_code == 404
    assert "There is nothing here" in answer.content.decode()
    assert "urlpatterns" not in answer.content.decode()
    assert "default-src 'none'" in answer["Content-Security-Policy"]


@pytest.mark.parametrize("debug", [True, False])
def test_a_mistyped_address_of_the_api_is_its_usual_error(settings, debug: bool):
    settings.DEBUG = debug
    answer = Client().get("/api/no-such/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_an_address_without_its_slash_still_leads_on(settings):
    settings.DEBUG = True
    assert Client().get("/admin").headers["Location"] == "/admin/"


def test_the_icon_is_found_where_browsers_ask_for_it():
    assert Client().get("/favicon.ico").headers["Location"].endswith("chat/capstan.svg")


def test_the_admin_says_whose_it_is():
    page = Client().get("/admin/login/").content.decode()
    assert "Capstan</a>" in page
    assert "Django" not in page
    assert 'rel="icon"' in page


def test_every_room_with_rows_has_a_name_for_people():
    for room in (*project.ROOMS, *project.DOMAIN_APPS):
        config = apps.get_app_config(f"capstan_{room}")
        assert not config.verbose_name.startswith("Capstan"), room


def test_a_refusal_is_logged_without_its_traceback():
    try:
        raise PermissionError("not yours")
    except PermissionError as exc:
        trace = (type(exc), exc, exc.__traceback__)
    for level, kept in ((logging.WARNING, False), (logging.ERROR, True)):
        record = logging.LogRecord("django.request", level, __file__, 1, "said", (), trace)
        assert NoTraceOfRefusals().filter(record)
        assert bool(record.exc_info) is kept
    assert any(isinstance(each, NoTraceOfRefusals) for each in logging.getLogger("django.request").filters)
