"""The headers of a response that decide what becomes of it when it is given again."""

from __future__ import annotations

KEPT_HEADERS = (
    "Content-Type",
    "Content-Language",
    "Content-Disposition",
    "Content-Security-Policy",
    "Cache-Control",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "Referrer-Policy",
    "Location",
    "Refresh",
    "ETag",
    "Link",
    "HX-Location",
    "HX-Push-Url",
    "HX-Redirect",
    "HX-Refresh",
    "HX-Replace-Url",
    "HX-Reselect",
    "HX-Reswap",
    "HX-Retarget",
    "HX-Trigger",
    "HX-Trigger-After-Settle",
    "HX-Trigger-After-Swap",
    "X-Inertia",
    "X-Inertia-Location",
)
"""The only headers that are stored. Others are made anew for each reply, or belong to one client
(Set-Cookie)."""

FILE_HEADERS = frozenset({"x-accel-redirect", "x-sendfile"})
"""With one of these, the server in front sends a file as the body, so the body is not ours."""
