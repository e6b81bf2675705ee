-- The statements that most databases share. Each database has a file with those that differ there.
-- dialect.py reads the files, and knows the statements by their names. sqlite.sql explains the
-- columns.

-- name: read
SELECT {clock}, found.version, found.fence, found.state
FROM (SELECT 1) AS one LEFT JOIN lockkit_lock AS found ON found.id = :id

-- name: read_many
SELECT {clock}, id, version, fence, state
FROM lockkit_lock WHERE id IN (:ids)

-- name: insert
INSERT INTO lockkit_lock (id, prefix, name, version, fence, state, updated)
VALUES (:id, :prefix, :name, :now, :fence, :state, :now) ON CONFLICT (id) DO NOTHING

-- name: update
UPDATE lockkit_lock SET version = version + 1, fence = :fence, state = :state, updated = :now
WHERE id = :id AND version = :version

-- name: mend
UPDATE lockkit_lock SET version = :now, fence = :fence, state = :state, updated = :now
WHERE id = :id AND version NOT BETWEEN 0 AND {most}

-- name: page
SELECT {clock}, id, version, name, fence, prefix,
    CASE WHEN prefix = :prefix THEN state ELSE SUBSTR(state, 1, 1) END
FROM lockkit_lock WHERE id > :after ORDER BY id LIMIT :most

-- name: stale
SELECT id, version, fence, state
FROM (SELECT * FROM lockkit_lock WHERE id >= :from ORDER BY id LIMIT :most) AS looked_at
WHERE updated < :before

-- name: delete
DELETE FROM lockkit_lock WHERE id = :id AND version = :version

-- name: put
INSERT INTO lockkit_lock (id, prefix, name, version, fence, state, updated)
VALUES (:id, :prefix, :name, :now, :fence, :state, :now) ON CONFLICT (id) DO UPDATE
SET name = excluded.name, version = excluded.version, fence = excluded.fence,
    state = excluded.state, updated = excluded.updated

-- name: prefixes
SELECT prefix, MAX(CAST(used AS int))
FROM (SELECT prefix, state <> '' AS used FROM lockkit_lock ORDER BY id LIMIT :most) AS looked_at
WHERE prefix <> :prefix AND SUBSTR(prefix, 1, 1) <> '{' GROUP BY prefix ORDER BY 2 DESC LIMIT 100
