-- lockkit on SQLite: one row per name, in a file of its own, and what differs from table.sql.
--
-- id       SHA-256 (hex) of the key prefix and the name: what is compared, so collations do not matter
-- prefix   the key prefix, for listing
-- name     the name, for people
-- version  grows with every change; a change is written only over the version that was read
-- fence    the last fencing token or ticket of the name
-- state    JSON of holders, queue and tombs (codec.py); empty when the name is free
-- updated  when the row was last written; in microseconds since 1970, like all times here
--
-- The clock is the host's wall clock. The connection reads it before each statement, because SQLite
-- itself reads it in whole milliseconds.

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

-- name: mend
UPDATE lockkit_lock SET version = :now, fence = :fence, state = :state, updated = :now
WHERE id = :id AND NOT (version BETWEEN 0 AND {most} AND TYPEOF(version) = 'integer')
