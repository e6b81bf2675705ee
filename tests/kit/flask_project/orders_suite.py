"""The views of the order suite, in Flask."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from flask import Blueprint, Response, abort, render_template_string, request, session
from flask.views import MethodView
from order_suite.duplicates import GUARDS

from flask_project import db, put
from flask_project.hooks import permission_required
from lockkit import LeaseLost
from lockkit_flask import current_order, idempotent, lock_view, locks

if TYPE_CHECKING:
    from flask.typing import ResponseReturnValue

calls: list[str] = []
orders = Blueprint("orders", __name__, url_prefix="/orders")
elsewhere = Blueprint("elsewhere", __name__)
SENDING = ["POST", "PUT", "PATCH"]


forms = Blueprint("forms", __name__)


@forms.get("/page")
def page() -> str:
    return render_template_string("<form method=post>{{ order_id_field() }}</form>" * 2)


@forms.post("/orders/")
def sent() -> ResponseReturnValue:
    made = put(current_order.order_id)
    db.session.commit()
    return f"order {made.id} for {session.get('user')}", 201


@forms.get("/log_in/<name>")
def log_in(name: str) -> str:
    """As in Flask's tutorial."""
    session.clear()
    session["user"] = name
    return "in"


@forms.get("/log_out")
def log_out() -> str:
    session.clear()
    return "out"


def sell(kind: str) -> int:
    calls.append(kind)
    made = put(kind)
    db.session.commit()
    return int(made.id)


def sold(kind: str, **headers: str) -> ResponseReturnValue:
    return f"sold {sell(kind)}", 201, headers


@orders.post("/function")
def function() -> ResponseReturnValue:
    return sold("function", Location="/sales/1")


class Class(MethodView):
    def post(self) -> ResponseReturnValue:
        return sold("class")


orders.add_url_rule("/class", view_func=Class.as_view("class"))


@orders.post("/async")
async def coroutine() -> ResponseReturnValue:
    return sold("async")


@orders.post("/broken")
def broken() -> ResponseReturnValue:
    sell("broken")
    raise RuntimeError


@orders.post("/returns-500")
def returns_500() -> ResponseReturnValue:
    return f"sorry {sell('returns-500')}", 500


@orders.post("/not-found")
def not_found() -> ResponseReturnValue:
    sell("not-found")
    abort(404)


@orders.post("/status/<int:status>")
def returns(status: int) -> ResponseReturnValue:
    return f"{status} {sell(str(status))}", status


@orders.post("/streaming")
def streaming() -> ResponseReturnValue:
    return Response(iter(["sold ", str(sell("streaming"))]), headers={"Location": "/s/1"})


@orders.post("/large")
def large() -> ResponseReturnValue:
    return "x" * 2000 + str(sell("large")), {"Location": "/large/1"}


@orders.post("/cookie")
def cookie() -> ResponseReturnValue:
    answer = Response(f"sold {sell('cookie')}", headers={"X-Other": "1", "ETag": '"e"'})
    answer.set_cookie("secret", "of-the-first")
    return answer


@orders.post("/download")
def download() -> ResponseReturnValue:
    return f"<script>{sell('download')}</script>", GUARDS


@elsewhere.route("/elsewhere", methods=SENDING)
@orders.route("/fields", methods=SENDING)
@orders.route("/<int:number>/pay", methods=SENDING)
def fields(**_: object) -> ResponseReturnValue:
    """Reads its body or form after lockkit has."""
    files = {name: upload.read().decode() for name, upload in request.files.items()}
    return f"{sell('fields')} {request.form.to_dict()} {files}", 201


@orders.post("/named/<name>")
def named(name: str) -> ResponseReturnValue:
    return sold("named")


@orders.post("/exempt")
@idempotent.exempt
def exempt() -> ResponseReturnValue:
    return sold("exempt")


@orders.post("/json-number")
@idempotent(order_id="json:number", required=True)
def json_number() -> ResponseReturnValue:
    return sold("json-number")


@orders.post("/locked/<sku>")
@lock_view("stock:{sku:str}", timeout=0)
def locked(sku: str) -> ResponseReturnValue:
    return sold("locked")


def denies() -> ResponseReturnValue:
    sell("denies")
    abort(403)


def denies_inside() -> ResponseReturnValue:
    sell("denies-inside")
    abort(403)


orders.add_url_rule("/denies", view_func=denies, methods=["POST"])
orders.add_url_rule("/denies-inside", view_func=idempotent(denies_inside), methods=["POST"])


@orders.post("/once")
def once() -> ResponseReturnValue:
    answer = sold("once")
    if "X-Allowed" not in request.headers:
        abort(403)
    return answer


@elsewhere.post("/cart")
def fill() -> ResponseReturnValue:
    session.update({"cart": {"A1": [1]}, "shown": True})
    return show()


@elsewhere.get("/cart")
def show() -> ResponseReturnValue:
    return {name: value for name, value in session.items() if not name.startswith("_")}


@orders.post("/cart/<end>")
def order_cart(end: str) -> ResponseReturnValue:
    sell("cart")
    session.pop("cart")["A1"].append(2)
    session["thanks"] = True
    match end:
        case "raises-404":
            abort(404)
        case "denies":
            abort(403)
        case "fails":
            raise RuntimeError
    return "", 503 if end == "returns-503" else 201


def parsing() -> str:
    return request.form.get("quantity", "")


def reading() -> str:
    return str(request.get_json()["quantity"])


def failing() -> str:
    raise ZeroDivisionError(request.form)


placed = idempotent(order_id="form:order_id")(parsing)


def calling() -> str:
    return placed()


for name, view in {
    "parsing": parsing,
    "reading": reading,
    "failing": failing,
    "exempt": idempotent.exempt(functools.partial(parsing)),
    "inside": placed,
    "calling": calling,
}.items():
    elsewhere.add_url_rule(f"/uncovered/{name}", name, view, methods=["POST", "PUT"])


@orders.post("/loses")
def loses() -> ResponseReturnValue:
    (lease,) = current_order.leases
    sell("loses")
    assert locks["default"].break_(lease.name, fence=current_order.fencing_token)
    try:
        lease.extend()
    except LeaseLost:
        if "X-Denied" in request.headers:
            abort(403)
        return "sold", 201
    raise AssertionError


@orders.post("/checked-above")
@permission_required
@idempotent
def checked_above() -> ResponseReturnValue:
    return sold("checked-above")


@orders.post("/checked")
@permission_required
def checked() -> ResponseReturnValue:
    return sold("checked", Location="/here")


@orders.post("/checked-below")
@idempotent
@permission_required
def checked_below() -> ResponseReturnValue:
    return sold("checked-below", Location="/here")
