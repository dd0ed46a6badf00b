#ifndef IDEM_REDIS_SCRIPT_SETTLE_HPP
#define IDEM_REDIS_SCRIPT_SETTLE_HPP

#include <string_view>

namespace idem::inline v0_1::redis::text {

/// `protocol::issue`. Answers 1 where it was issued.
inline constexpr std::string_view issue = R"lua(
local valid, retention, nowner = unpack('<I7I7c16', A)
if stands and state ~= 7 then
  if state == 1 and attempt == 0 and owner == nowner then return 1 end
  return 0
end
@next_fence
if not stands or owner == string.rep('\0', 16) then owner = nowner end
@fresh
state, token, fp, fence = 1, true, sub(A, 31), next
bound, created, validity = fp ~= '', now, now + valid
retention_end = validity + retention
@put
return 1
)lua";

/// `protocol::resolve`. Answers 8 × done + the state afterwards.
inline constexpr std::string_view resolve = R"lua(
local succeeded, nkind, ntag, nver, seen, kept = unpack('<BBI4BI7I7', A)
if not stands then return 7 end
if state ~= 6 or fence ~= seen then return state end
@load
@next_fence
fence, fclass, code, msg = next, 0, '', ''
if succeeded == 1 then
  state, completed, retention_end, verify = 4, now, now + kept, false
  rkind, ctag, cver, result, cp = nkind, ntag, nver, ARGV[2], ''
else
  @roll_back
end
@put
@tell
return 8 + state
)lua";

/// `protocol::reap`. Answers 8 × done + the state afterwards.
inline constexpr std::string_view reap = R"lua(
local seen, kept, held = unpack('<I7I7I7', A)
if not stands then return 7 end
if state ~= 2 or now < lease_end or fence ~= seen then return state end
local c = crashes
if c < 4294967295 then c = c + 1 end
local at_cap = (maxc ~= 0 and c >= maxc) or (maxa ~= 0 and attempt >= maxa)
if orphan == 1 and not at_cap then return state end
@load
crashes = c
if orphan == 0 and not at_cap then
  @roll_back
else
  completed, retention_end, verify = now, now + held, false
  if orphan == 0 then
    @next_fence
    state, fclass, fence = 5, 4, next
  else
    state = 6
  end
end
@put
@tell
return 8 + state
)lua";

/// `protocol::forget`. Answers 1 where there was one, and the tombstone's fence (7 bytes).
inline constexpr std::string_view forget = R"lua(
local seen, kept = unpack('<I7I7', A)
kept = math.max(kept, 60000000)
if not stands then return struct.pack('<BI7', 0, 0) end
if state == 7 then return struct.pack('<BI7', 0, fence) end
if seen ~= 0 and seen ~= fence then return struct.pack('<BI7', 0, 0) end
if state == 2 and lease_end - now > kept then kept = lease_end - now end
local since = created
@fresh
state, created, retention_end = 7, since, now + kept
@put
@tell
return struct.pack('<BI7', 1, fence)
)lua";

}  // namespace idem::inline v0_1::redis::text

#endif
