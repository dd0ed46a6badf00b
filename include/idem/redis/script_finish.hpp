#ifndef IDEM_REDIS_SCRIPT_FINISH_HPP
#define IDEM_REDIS_SCRIPT_FINISH_HPP

#include <string_view>

namespace idem::inline v0_1::redis::text {

/// `protocol::finish`. Answers 8 × (why it is lost, or 0) + the state afterwards.
inline constexpr std::string_view finish = R"lua(
local kind, given, nkind, nclass, ntag, nver, nfence, lease, retention, held, nowner =
  unpack('<BBBBI4BI7I7I7I7c16', A)
local counted, has_cp, has_res = given % 2 == 1, given % 4 >= 2, given >= 4
if not stands then
  if kind ~= 2 then return 4 * 8 + 7 end
  @next_fence
  if nfence > next then next = nfence end
  @fresh
  state, owner, fence, created, started = 3, nowner, next, now, now
  retention_end = now + math.max(lease, 60000000)
  @put
  return 3
end
if state == 7 then return 3 * 8 + 7 end
local own = owner == nowner and (fence == nfence
  or (kind == 2 and (nfence == 0 or (state == 3 and attempt == 0))))
if not own or not (state == 2 or (state == 6 and kind <= 1)) then
  local says = own and ((state == 4 and (kind == 0 or kind == 3))
    or (state == 5 and (kind == 1 or kind == 2))
    or (state == 6 and kind == 3)
    or ((state == 3 or state == 1) and kind == 2))
  if says then return state end
  if state == 2 then return 8 + state end
  return 2 * 8 + state
end
@load
if has_cp then cp = ARGV[5] end
if has_res then res = ARGV[6] end
if kind == 2 then
  code, msg, fclass = ARGV[3], ARGV[4], nclass
  if not counted and attempt > 0 then attempt = attempt - 1 end
  if counted and maxa ~= 0 and attempt >= maxa then
    state, completed, retention_end, verify, fclass = 5, now, now + held, false, 4
  else
    local owed, kept = verify and not counted, retention
    @roll_back
    verify = owed
    if owed then retention_end = retention_end + held end
  end
else
  completed, retention_end, verify = now, now + held, false
  if kind == 0 then
    state, retention_end = 4, now + retention
    rkind, ctag, cver, fclass, result, code, msg = nkind, ntag, nver, 0, ARGV[2], '', ''
    if not has_cp then cp = '' end
  else
    state, fclass, code, msg = 6, nclass, ARGV[3], ARGV[4]
    if kind == 1 then state, fclass = 5, 2 end
  end
end
@put
@tell
return state
)lua";

/// `protocol::renew`. Answers the lease left in microseconds, or minus why it is lost.
inline constexpr std::string_view renew = R"lua(
local given, nfence, lease, nowner = unpack('<BI7I7c16', A)
if not stands then return -4 end
if state == 7 then return -3 end
if state ~= 2 then return -2 end
if owner ~= nowner or fence ~= nfence then return -1 end
if now + lease > lease_end then
  retention_end = retention_end - lease_end + now + lease
  lease_end = now + lease
end
if given == 0 then
  @patch
else
  @load
  if given % 2 == 1 then cp = ARGV[2] end
  if given >= 2 then res = ARGV[3] end
  @put
end
return lease_end - now
)lua";

}  // namespace idem::inline v0_1::redis::text

#endif
