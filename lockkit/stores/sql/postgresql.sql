-- lockkit on PostgreSQL: one row per name, and what differs from table.sql.
-- Django makes the table by migration (lockkit_django); without Django,
-- lockkit.stores.sql.create_table(engine) makes it.
--
-- The clock is clock_timestamp(). It is never now(), which stands still within a transaction.
-- A statement with the clock in its FROM reads it once, so that all its columns get one moment.
-- Grants this needs: SELECT, INSERT, UPDATE, DELETE on lockkit_lock.

-- name: create
CREATE TABLE IF NOT EXISTS lockkit_lock (
    id varchar(64) NOT NULL PRIMARY KEY,
    prefix varchar(64) NOT NULL,
    name varchar(255) NOT NULL,
    version bigint NOT NULL,
    fence bigint NOT NULL,
    state text NOT NULL,
    updated bigint NOT NULL
)

-- name: clock
SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)

-- name: take
WITH taken AS (
    UPDATE lockkit_lock
    SET version = version + 1, fence = clock.now, state = :state, updated = clock.now
    FROM (SELECT {clock} AS now OFFSET 0) AS clock
    WHERE id = :id AND state = '' AND version BETWEEN 0 AND {most}
    AND fence BETWEEN 0 AND clock.now - 1
    RETURNING fence
)
SELECT {clock}, lock.version, lock.fence, lock.state, (SELECT fence FROM taken)
FROM (SELECT 1) AS one LEFT JOIN lockkit_lock AS lock ON lock.id = :id

-- name: free
WITH freed AS (
    UPDATE lockkit_lock SET version = version + 1, state = '', updated = clock.now
    FROM (SELECT {clock} AS now OFFSET 0) AS clock
    WHERE id = :id AND state = :state AND version BETWEEN 0 AND {most}
    AND fence BETWEEN clock.now - :ttl + 1 AND {most}
    RETURNING fence, set_config('synchronous_commit', 'off', true)
)
SELECT {clock}, lock.version, lock.fence, lock.state, (SELECT fence FROM freed)
FROM (SELECT 1) AS one LEFT JOIN lockkit_lock AS lock ON lock.id = :id

-- name: tell
WITH changed AS (
    UPDATE lockkit_lock SET version = version + 1, fence = :fence, state = :state, updated = :now
    WHERE id = :id AND version = :version RETURNING id
)
SELECT pg_notify(told.channel, told.message)
FROM changed, json_each_text(CAST(:told AS json)) AS told (message, channel)

-- name: hear
LISTEN :channel

-- name: prove
SELECT pg_notify(:channel, '')
