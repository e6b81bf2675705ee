"""The shop in Django. ``crashing.django_shop.servers`` has the applications."""
