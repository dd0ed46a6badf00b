#ifndef IDEM_REDIS_SCRIPT_SETTLE_HPP
#define IDEM_REDIS_SCRIPT_SETTLE_HPP

#include <string_view>

namespace idem::inline v0_1::redis::text {

/// `protocol::issue`. Answers 1 where it was issued.
inline constexpr std::string_view issue = R"lua(
local valid, retention, nowner = unpack('<I7I7c16', A)
local binding = sub(A, 31)
if stands and state ~= 7 then
  if state == 1 and attempt == 0 and owner == nowner then return 1 end
  return 0
end
local next, last = next_fence(), nowner
if stands and owner ~= NOBODY then last = owner end
fresh()
state, token, bound, fp, owner, fence = 1, true, binding ~= '', binding, last, next
created, validity = now, now + valid
retention_end = validity + retention
return put() or 1
)lua";

/// `protocol::resolve`. Answers 8 × done + the state afterwards.
inline constexpr std::string_view resolve = R"lua(
local succeeded, nkind, ntag, nver, seen, retention = unpack('<BBI4BI7I7', A)
if not stands then return 7 end
if state ~= 6 or fence ~= seen then return state end
load()
fence, fclass, code, msg = next_fence(), 0, '', ''
if succeeded == 1 then
  settle(4, retention)
  rkind, ctag, cver, result, cp = nkind, ntag, nver, ARGV[2], ''
else
  roll_back(retention)
end
local refused = put()
if refused then return refused end
tell()
return 8 + state
)lua";

/// `protocol::reap`. Answers 8 × done + the state afterwards.
inline constexpr std::string_view reap = R"lua(
local seen, retention, held = unpack('<I7I7I7', A)
if not stands then return 7 end
if state ~= 2 or now < lease_end or fence ~= seen then return state end
local c = up(crashes)
local at_cap = reached(c, maxc) or reached(attempt, maxa)
if orphan == 1 and not at_cap then return state end
load()
crashes = c
if orphan ~= 0 then
  settle(6, held)
elseif at_cap then
  exhaust(held)
  fence = next_fence()
else
  roll_back(retention)
end
local refused = put()
if refused then return refused end
tell()
return 8 + state
)lua";

/// `protocol::forget`. Answers 1 where there was one.
inline constexpr std::string_view forget = R"lua(
local lease = unpack('<I7', A)
if not stands or state == 7 then return 0 end
local kept = max(lease, 60000000)
if state == 2 then kept = max(kept, lease_end - now) end
local f, o, c = fence, owner, created
fresh()
state, fence, owner, created, retention_end = 7, f, o, c, now + kept
local refused = put()
if refused then return refused end
tell()
return 1
)lua";

}  // namespace idem::inline v0_1::redis::text

#endif
