"""PyMySQL in the place of mysqlclient, which needs a compiler: import it before Django's driver."""

from __future__ import annotations

import pymysql

pymysql.version_info = (2, 2, 1, "final", 0)
pymysql.install_as_MySQLdb()
