"""PyMySQL in the place of mysqlclient, unless that is there: import it before Django's driver."""

from __future__ import annotations

import mysqlclient
import pymysql

if not mysqlclient.is_installed():
    pymysql.version_info = (2, 2, 1, "final", 0)
    pymysql.install_as_MySQLdb()
