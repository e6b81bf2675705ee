"""Order IDs for plain HTML forms: the public names of ``lockkit_django.orders.forms``."""

from lockkit_django.orders.forms import new_order_id, order_id_field

__all__ = ["new_order_id", "order_id_field"]
