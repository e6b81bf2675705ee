-- lockkit on MySQL and MariaDB: one row per name, and what differs from table.sql.
-- Django makes the table by migration (lockkit_django); without Django,
-- lockkit.stores.sql.create_table(engine) makes it.
--
-- The clock is in UTC: a clock in the session's time zone may repeat an hour in autumn. It is asked
-- for microseconds, UTC_TIMESTAMP(6): without the number it has only seconds.
-- Prefixes are compared as bytes, because most collations ignore case and trailing blanks. States
-- are compared as bytes, too; whether one is free, by its length.
-- An INSERT that finds the row is an error (1062). ON DUPLICATE KEY UPDATE is not used: the number
-- of rows that it reports depends on whether the client asked for found rows, as Django and
-- SQLAlchemy do.
-- The clock stands still within a statement. LAST_INSERT_ID tells the client which fence was
-- written. Columns are assigned from left to right, so "updated = fence" is the new fence.
-- Grants this needs: SELECT, INSERT, UPDATE, DELETE on lockkit_lock.

-- name: create
CREATE TABLE IF NOT EXISTS lockkit_lock (
    id varchar(64) NOT NULL PRIMARY KEY,
    prefix varchar(64) NOT NULL,
    name varchar(255) NOT NULL,
    version bigint NOT NULL,
    fence bigint NOT NULL,
    state longtext NOT NULL,
    updated bigint NOT NULL
) ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin

-- name: clock
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- name: take
UPDATE lockkit_lock SET fence = LAST_INSERT_ID({clock}), version = version + 1, state = :state,
    updated = fence
WHERE id = :id AND LENGTH(state) = 0 AND version BETWEEN 0 AND {most}
    AND fence BETWEEN 0 AND {clock} - 1

-- name: free
UPDATE lockkit_lock SET version = version + 1, state = '', updated = {clock}
WHERE id = :id AND state = CAST(:state AS BINARY) AND version BETWEEN 0 AND {most}
    AND fence BETWEEN {clock} - :ttl + 1 AND {most}

-- name: insert
INSERT INTO lockkit_lock (id, prefix, name, version, fence, state, updated)
VALUES (:id, :prefix, :name, :now, :fence, :state, :now)

-- name: page
SELECT {clock}, id, version, name, fence, prefix,
    CASE WHEN CAST(prefix AS BINARY) = CAST(:prefix AS BINARY) THEN state ELSE SUBSTR(state, 1, 1) END
FROM lockkit_lock WHERE id > :after ORDER BY id LIMIT :most

-- name: put
REPLACE INTO lockkit_lock (id, prefix, name, version, fence, state, updated)
VALUES (:id, :prefix, :name, :now, :fence, :state, :now)

-- name: prefixes
SELECT MIN(prefix), MAX(used)
FROM (SELECT prefix, LENGTH(state) > 0 AS used FROM lockkit_lock ORDER BY id LIMIT :most) AS looked_at
WHERE CAST(prefix AS BINARY) <> CAST(:prefix AS BINARY) AND LEFT(prefix, 1) <> '{'
GROUP BY CAST(prefix AS BINARY) ORDER BY 2 DESC LIMIT 100
