from django.contrib import admin
from django.contrib.auth.admin import UserAdmin

from workspaces.models import Membership, User, Workspace

admin.site.register(User, UserAdmin)


class MembershipInline(admin.TabularInline[Membership, Workspace]):
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)


@admin.register(Workspace)
class WorkspaceAdmin(admin.ModelAdmin[Workspace]):
    list_display = ("slug", "name", "created_at")
    search_fields = ("slug", "name")
    inlines = (MembershipInline,)
