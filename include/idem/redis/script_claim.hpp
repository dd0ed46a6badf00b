#ifndef IDEM_REDIS_SCRIPT_CLAIM_HPP
#define IDEM_REDIS_SCRIPT_CLAIM_HPP

#include <string_view>

namespace idem::inline v0_1::redis::text {

/// `protocol::claim`. Answers kind, now (7 bytes), and the record as it is afterwards as far as the
/// caller may see it; 128 on top of the kind says that it was too long to pass through Lua, and
/// only its fixed fields are here.
inline constexpr std::string_view claim = R"lua(
local cflags, corphan, cmaxa, cmaxc, lease, retention, held, cowner = unpack('<BBHHI7I7I7c16', A)
local cfp, cbefore = sub(A, 44, 76), sub(A, 77)
if byte(cfp) == 0 then cfp = '' end
local redeem, can_verify = cflags >= 2, cflags % 2 == 1
local function answer(kind, bytes) return string.char(kind) .. pack('<I7', now) .. bytes end
local function counts(kind) return answer(kind, sub(v, 1, 86)) end
local function shown(kind)
  if n > #v then return counts(kind + 128) end
  return answer(kind, v)
end
local function cap(a, b)
  if a == 0 or b == 0 then return max(a, b) end
  return min(a, b)
end
local function stricter()
  orphan, maxa, maxc = max(orphan, corphan), cap(maxa, cmaxa), cap(maxc, cmaxc)
end
local function remembered()
  if orphan ~= 0 then return lease_end + retention + held end
  return lease_end + retention
end
local function acquire(next)
  state, attempt, fence, owner = 2, up(attempt), next, cowner
  stricter()
  started, completed, lease_end = now, 0, now + lease
  retention_end = remembered()
  rkind, ctag, cver, fclass, result, code, msg = 0, 0, 0, 0, '', '', ''
  return put() or answer(0, w)
end
local function acquire_new()
  local next = next_fence()
  fresh()
  created, fp = now, cfp
  return acquire(next)
end
local function written(kind)
  local refused = put()
  if refused then return refused end
  tell()
  return answer(kind, w)
end
local function claim_orphan()
  local o, a, c = max(orphan, corphan), cap(maxa, cmaxa), up(crashes)
  local at_cap = reached(c, cap(maxc, cmaxc)) or reached(attempt, a)
  if o == 0 and token and now >= validity and not at_cap then return counts(8) end
  load()
  crashes = c
  local verifies = o == 1 and can_verify and not at_cap
  if (o == 0 and not at_cap) or verifies then
    verify, takeover = verifies, true
    return acquire(next_fence())
  end
  stricter()
  if o == 0 then
    exhaust(held)
    fence = next_fence()
    return written(4)
  end
  settle(6, held)
  return written(5)
end
if not stands then
  if redeem then return answer(7, '') end
  return acquire_new()
end
if state ~= 2 and owner == cowner then return counts(6) end
if redeem and not token then return answer(7, '') end
if state == 7 then return acquire_new() end
local other = fp ~= '' and cfp ~= '' and fp ~= cfp and not (cbefore ~= '' and fp == cbefore)
if other and (state ~= 3 or verify) then return counts(2) end
if state == 2 then
  if owner == cowner then
    lease_end = max(lease_end, now + lease)
    retention_end = max(retention_end, remembered())
    load()
    local refused = patch()
    if refused then return refused end
    return answer(0, sub(v, 1, 68) .. pack('<I7I7', lease_end, retention_end) .. sub(v, 83))
  end
  if now >= lease_end then return claim_orphan() end
  return counts(1)
end
if state == 4 then return shown(3) end
if state == 5 then return shown(4) end
if state == 6 then return shown(5) end
if state == 1 and now >= validity then return counts(8) end
load()
if verify then
  takeover = true
  if not can_verify then
    stricter()
    settle(6, held)
    return written(5)
  end
end
if state == 1 then
  if not bound then fp = cfp end
else
  if other or (fp ~= '') ~= (cfp ~= '') then cp, res = '', '' end
  fp = cfp
end
return acquire(next_fence())
)lua";

}  // namespace idem::inline v0_1::redis::text

#endif
