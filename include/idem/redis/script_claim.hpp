#ifndef IDEM_REDIS_SCRIPT_CLAIM_HPP
#define IDEM_REDIS_SCRIPT_CLAIM_HPP

#include <string_view>

namespace idem::inline v0_1::redis::text {

/// `protocol::claim`. Answers kind, now (7 bytes), and the record as it is afterwards as far as the
/// caller may see it; 128 on top of the kind says that it was too long to pass through Lua, and
/// only its fixed fields are here.
inline constexpr std::string_view claim = R"lua(
local cflags, corphan, cmaxa, cmaxc, lease, retention, held, cowner = unpack('<BBHHI7I7I7c16', A)
local cfp = sub(A, 44, 76)
if byte(cfp) == 0 then cfp = '' end
local kind, acquires, writes, patches, anew = 0, false, false, false, false
repeat
  if not stands then
    if cflags >= 2 then kind = 7 else anew = true end
    break
  end
  if state ~= 2 and owner == cowner then
    kind = 6
    break
  end
  if cflags >= 2 and not token then
    kind = 7
    break
  end
  if state == 7 then
    anew = true
    break
  end
  local other = fp ~= '' and cfp ~= '' and fp ~= cfp and fp ~= sub(A, 77)
  if other and (state ~= 3 or verify) then
    kind = 2
    break
  end
  if state >= 4 then
    if n > #v then return struct.pack('<BI7', state + 127, now) .. sub(v, 1, 86) end
    return struct.pack('<BI7', state - 1, now) .. v
  end
  local can_verify = cflags % 2 == 1
  if state == 2 then
    if owner == cowner then
      patches = true
      break
    end
    if now < lease_end then
      kind = 1
      break
    end
    @stricter
    local c = crashes
    if c < 4294967295 then c = c + 1 end
    local at_cap = (maxc ~= 0 and c >= maxc) or (maxa ~= 0 and attempt >= maxa)
    if orphan == 0 and token and now >= validity and not at_cap then
      kind = 8
      break
    end
    @load
    crashes = c
    local verifies = orphan == 1 and can_verify and not at_cap
    if (orphan == 0 and not at_cap) or verifies then
      verify, takeover, acquires = verifies, true, true
      break
    end
    completed, retention_end, verify, writes = now, now + held, false, true
    if orphan == 0 then
      @next_fence
      state, fclass, fence, kind = 5, 4, next, 4
    else
      state, kind = 6, 5
    end
    break
  end
  if state == 1 and now >= validity then
    kind = 8
    break
  end
  @load
  if verify then
    takeover = true
    if not can_verify then
      @stricter
      state, completed, retention_end, verify = 6, now, now + held, false
      kind, writes = 5, true
      break
    end
  end
  if state == 1 then
    if not bound then fp = cfp end
  else
    if other or (fp ~= '') ~= (cfp ~= '') then cp, res = '', '' end
    fp = cfp
  end
  acquires = true
until true
if anew or acquires then
  @next_fence
  if anew then
    @fresh
    created, fp = now, cfp
  end
  @stricter
  if attempt < 4294967295 then attempt = attempt + 1 end
  state, fence, owner, started, completed, lease_end = 2, next, cowner, now, 0, now + lease
  retention_end = lease_end + retention
  if orphan ~= 0 then retention_end = retention_end + held end
  rkind, ctag, cver, fclass, code, msg = 0, 0, 0, 0, '', ''
  @put
  return struct.pack('<BI7', 0, now) .. w
end
if writes then
  @put
  @tell
  return struct.pack('<BI7', kind, now) .. w
end
if patches then
  if now + lease > lease_end then lease_end = now + lease end
  local kept = lease_end + retention
  if orphan ~= 0 then kept = kept + held end
  if kept > retention_end then retention_end = kept end
  if n > #v then v = redis.call('GET', K) end
  @patch
  return struct.pack('<BI7', 0, now) .. sub(v, 1, 68) .. ends .. sub(v, 83)
end
if kind == 7 then return struct.pack('<BI7', kind, now) end
return struct.pack('<BI7', kind, now) .. sub(v, 1, 86)
)lua";

/// Of record and caller the stricter policy counts.
inline constexpr std::string_view stricter = R"lua(
if corphan > orphan then orphan = corphan end
if cmaxa ~= 0 and (maxa == 0 or cmaxa < maxa) then maxa = cmaxa end
if cmaxc ~= 0 and (maxc == 0 or cmaxc < maxc) then maxc = cmaxc end
)lua";

}  // namespace idem::inline v0_1::redis::text

#endif
