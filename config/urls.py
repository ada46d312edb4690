"""All addresses: the admin, the API, the pages."""

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.utils.functional import lazy
from django.views.generic import RedirectView

admin.site.site_header = admin.site.site_title = "Capstan"
admin.site.index_title = "Administration"
handler404 = "chat.pages.nothing"

urlpatterns = [
    path("favicon.ico", RedirectView.as_view(url=lazy(static, str)("chat/capstan.svg"))),
    path("admin/", admin.site.urls),
    path("api/", include("chat.api_urls")),
    path("", include("chat.urls")),
]
