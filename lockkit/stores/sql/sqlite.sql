-- lockkit on SQLite: one row per name, in a file of its own. Named statements, read by dialect.py.
--
-- id       SHA-256 (hex) of the key prefix and the name: what is compared, so collations do not matter
-- prefix   of the keys, for listing
-- name     for people
-- version  grows with every change; a change is written only over the version that was read
-- fence    the last fencing token or ticket
-- state    JSON of holders, queue and tombs (codec.py); empty when the name is free
-- updated  microseconds since 1970, as all times in here
--
-- The clock is the host's wall clock, read by the connection before each statement: SQLite itself
-- reads it in whole milliseconds.

-- name: create
CREATE TABLE IF NOT EXISTS lockkit_lock (
    id TEXT NOT NULL PRIMARY KEY,
    prefix TEXT NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    state TEXT NOT NULL,
    updated INTEGER NOT NULL
)

-- name: clock
SELECT :clock

-- name: read
SELECT {clock}, lock.version, lock.fence, lock.state
FROM (SELECT 1) LEFT JOIN lockkit_lock AS lock ON lock.id = :id

-- name: take
UPDATE lockkit_lock SET version = version + 1, fence = :clock, state = :state, updated = :clock
WHERE id = :id AND state = '' AND version BETWEEN 0 AND {most}
    AND fence BETWEEN 0 AND :clock - 1
    AND TYPEOF(version) = 'integer' AND TYPEOF(fence) = 'integer'

-- name: free
UPDATE lockkit_lock SET version = version + 1, state = '', updated = :clock
WHERE id = :id AND state = :state AND version BETWEEN 0 AND {most}
    AND fence BETWEEN :clock - :ttl + 1 AND {most}
    AND TYPEOF(version) = 'integer' AND TYPEOF(fence) = 'integer'

-- name: read_many
SELECT {clock}, id, version, fence, state
FROM lockkit_lock WHERE id IN (:ids)

-- name: insert
INSERT OR IGNORE INTO lockkit_lock (id, prefix, name, version, fence, state, updated)
VALUES (:id, :prefix, :name, :now, :fence, :state, :now)

-- name: update
UPDATE lockkit_lock SET version = version + 1, fence = :fence, state = :state, updated = :now
WHERE id = :id AND version = :version

-- name: page
SELECT {clock}, id, version, name, fence, prefix,
    CASE WHEN prefix = :prefix THEN state ELSE SUBSTR(state, 1, 1) END
FROM lockkit_lock WHERE id > :after ORDER BY id LIMIT :most

-- name: stale
SELECT id, version, fence, state
FROM (SELECT * FROM lockkit_lock WHERE id >= :from ORDER BY id LIMIT :most)
WHERE updated < :before

-- name: delete
DELETE FROM lockkit_lock WHERE id = :id AND version = :version

-- name: put
INSERT INTO lockkit_lock (id, prefix, name, version, fence, state, updated)
VALUES (:id, :prefix, :name, :now, :fence, :state, :now) ON CONFLICT (id) DO UPDATE
SET name = excluded.name, version = excluded.version, fence = excluded.fence,
    state = excluded.state, updated = excluded.updated

-- name: prefixes
SELECT prefix, MAX(used)
FROM (SELECT prefix, state <> '' AS used FROM lockkit_lock ORDER BY id LIMIT :most) AS looked_at
WHERE prefix <> :prefix AND SUBSTR(prefix, 1, 1) <> '{' GROUP BY prefix ORDER BY 2 DESC LIMIT 100
