"""A shop in Django and in Flask whose processes stop where a request tells them to. Tests only.

``points``: where and how they stop. ``django_shop``, ``flask_shop``: the shops, which know nothing
of it but one call in their views. ``machines``: server processes. ``customers``: clients that do
not give up. ``books``: what was really sold. ``wrong``: guards that must be caught.
"""
