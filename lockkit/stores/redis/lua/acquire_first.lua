-- Goes on where acquire_free ends, for all other cases: checks the layout and the tombstones, and now
-- and then forgets what was abandoned long ago.
if bucket[1] ~= VERSION then
  if bucket[1] then return other_layout(bucket[1]) end
  redis.call('HSET', KEYS[1], 'v', VERSION)
end
if not is_known and bucket[3] and redis.call('ZSCORE', KEYS[4], token) then
  return { ok = '-' }
end
if is_free and now % 64 == 0 then forget_some() end
