"""``/orders/<kind>``"""

from __future__ import annotations

from django.urls import path

from orders_django import views

KINDS = {
    "function": views.function,
    "class": views.ClassView.as_view(),
    "api": views.Api.as_view(),
    "api-mixed": views.ApiMixed.as_view(),
    "api-set": views.ApiSet.as_view({"post": "buy"}),
    "api-set-mixed": views.ApiSetMixed.as_view({"post": "buy"}),
    "api-function": views.api_function,
    "api-invalid": views.ApiInvalid.as_view(),
    "api-invalid-mixed": views.ApiInvalidMixed.as_view(),
    "api-broken": views.ApiBroken.as_view(),
    "template": views.template,
    "template-query": views.template_query,
    "template-broken": views.template_broken,
    "broken": views.broken,
    "told-to-end": views.told_to_end,
    "returns-500": views.returns_500,
    "not-found": views.not_found,
    "caught": views.caught,
    "swallows": views.swallows_database_error,
    "durable": views.durable,
    "streaming": views.streaming,
    "large": views.large,
    "gzipped": views.gzipped,
    "cookie": views.cookie,
    "fields": views.fields,
    "for-users": views.for_users,
    "permitted": views.permitted,
    "permitted-or-login": views.permitted_or_login,
    "permitted-inside": views.permitted_inside,
    "permitted-class": views.PermittedClass.as_view(),
    "permitted-dispatch": views.PermittedDispatch.as_view(),
    "json-number": views.json_number,
    "exempt": views.exempt,
    "no-csrf": views.no_csrf,
    "loses": views.loses_its_lease,
    "closes": views.closes_connection,
    "waits": views.waits,
    "async-waits": views.async_waits,
    "slow": views.slow,
    "dies": views.dies,
    "async": views.async_function,
    "async-inside": views.async_inside,
    "async-loses": views.async_loses_its_lease,
    "async-broken": views.async_broken,
}

urlpatterns = [
    *(path(f"orders/{kind}", view) for kind, view in KINDS.items()),
    path("orders/status/<int:status>", views.returns),
    path("orders/<int:number>/pay", views.fields),
    path("orders/async-locked/<str:sku>", views.async_locked),
    path("orders/locked/<str:sku>", views.locked),
    path("elsewhere", views.fields),
]
