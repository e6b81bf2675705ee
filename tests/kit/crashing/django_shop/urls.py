from __future__ import annotations

from django.urls import path

from crashing import wrong
from crashing.configuration import configuration
from crashing.django_shop import views

guard = configuration().guard
urlpatterns = [
    path("orders/", views.order if guard == "lockkit" else wrong.GUARDS[guard](views.sell)),
    path("orders/async", views.async_order),
    path("orders/own", views.own_order),
]
