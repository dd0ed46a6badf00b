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
  local next = max(next_fence(), nfence)
  fresh()
  state, owner, fence, created, started = 3, nowner, next, now, now
  retention_end = now + max(lease, 60000000)
  return put() or 3
end
if state == 7 then return 3 * 8 + 7 end
local own = owner == nowner and (fence == nfence or (nfence == 0 and kind == 2))
if not own or not (state == 2 or (state == 6 and kind <= 1)) then
  local says = own and ((state == 4 and (kind == 0 or kind == 3))
    or (state == 5 and (kind == 1 or kind == 2))
    or (state == 6 and kind == 3)
    or ((state == 3 or state == 1) and kind == 2))
  if says then return state end
  if state == 2 then return 8 + state end
  return 2 * 8 + state
end
load()
if has_cp then cp = ARGV[5] end
if has_res then res = ARGV[6] end
if kind == 0 then
  settle(4, retention)
  rkind, ctag, cver, fclass, result, code, msg = nkind, ntag, nver, 0, ARGV[2], '', ''
  if not has_cp then cp = '' end
else
  code, msg, fclass = ARGV[3], ARGV[4], nclass
  if kind == 1 then
    settle(5, held)
    fclass = 2
  elseif kind == 3 then
    settle(6, held)
  else
    if not counted and attempt > 0 then attempt = attempt - 1 end
    if counted and reached(attempt, maxa) then
      exhaust(held)
    else
      local owed = verify and not counted
      roll_back(retention)
      verify = owed
      if owed then retention_end = retention_end + held end
    end
  end
end
local refused = put()
if refused then return refused end
tell()
return state
)lua";

/// `protocol::renew`. Answers the lease left in microseconds, or minus why it is lost.
inline constexpr std::string_view renew = R"lua(
local given, nfence, lease, nowner = unpack('<BI7I7c16', A)
if not stands then return -4 end
if state == 7 then return -3 end
if state ~= 2 then return -2 end
if owner ~= nowner or fence ~= nfence then return -1 end
local beyond = retention_end - lease_end
lease_end = max(lease_end, now + lease)
retention_end = lease_end + beyond
local refused
if given == 0 then
  refused = patch()
else
  load()
  if given % 2 == 1 then cp = ARGV[2] end
  if given >= 2 then res = ARGV[3] end
  refused = put()
end
return refused or lease_end - now
)lua";

}  // namespace idem::inline v0_1::redis::text

#endif
