from __future__ import annotations

from django.urls import path

from shop import race_views, views

urlpatterns = [
    path("", views.index),
    path("orders/", views.orders),
    path("status.json", views.status),
    path("ping", views.ping),
    path("login", views.log_in),
    path("logout", views.log_out),
    path("<str:name>", views.asset),
    path("race/none/<str:sku>", race_views.none),
    path("race/naive/<str:sku>", race_views.naive),
    path("race/lockkit/<str:sku>", race_views.lockkit),
    path("race/row/<str:sku>", race_views.row),
    path("race/paused/<str:sku>", race_views.paused),
    path("race/fenced/<str:sku>", race_views.fenced),
]
