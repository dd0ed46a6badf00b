#ifndef IDEM_REDIS_SCRIPT_COMMON_HPP
#define IDEM_REDIS_SCRIPT_COMMON_HPP

#include <string_view>

/// What every script begins with: `protocol.hpp` in Lua stands on it. One key a script, in KEYS.
/// Microseconds are whole numbers below 2^53 and leave Lua by %.0f or struct, never by its own
/// print of a double.
namespace idem::inline v0_1::redis::text {

/// The clock goes before it, as `local now = …`.
///
/// `v` is the first kilobyte of what is under the key, `n` the length of it all; the record's
/// fields are local variables under their own names.
inline constexpr std::string_view read = R"lua(
local K, A = KEYS[1], ARGV[1]
local pack, unpack, sub, byte = struct.pack, struct.unpack, string.sub, string.byte
local min, max, floor, ceil = math.min, math.max, math.floor, math.ceil
local H = '<BBBBBBBHHI4BI4I4I7c16I7I7I7I7I7I4'
local NOBODY = string.rep('\0', 16)
local GARBAGE = {err = 'IDEMGARBAGE the bytes under this key are no record'}
local v = redis.pcall('GETRANGE', K, 0, 1023)
if type(v) == 'table' then return v end
local n = #v
if n == 1024 then n = redis.call('STRLEN', K) end
local state, flags, orphan, rkind, fclass, maxa, maxc, ctag, cver = 7, 0, 0, 0, 0, 0, 0, 0, 0
local attempt, crashes, fence, owner = 0, 0, 0, NOBODY
local created, started, completed, lease_end, retention_end, validity = 0, 0, 0, 0, 0, 0
local token, bound, verify, takeover = false, false, false, false
local fp, code, msg, cp, res, result = '', '', '', '', '', ''
local parts_at, cl, ml, kl, sl, rl = 0, 0, 0, 0, 0, 0
if n > 0 then
  local magic, major = byte(v, 1, 2)
  if magic ~= 194 or not major or major == 0 then return GARBAGE end
  if major > 1 then
    return {err = 'IDEMNEWER the record was written by a newer version of the library'}
  end
  if n < 86 then return GARBAGE end
  magic, major, state, flags, orphan, rkind, fclass, maxa, maxc, ctag, cver, attempt, crashes,
    fence, owner, created, started, completed, lease_end, retention_end, rl = unpack(H, v)
  if state < 1 or state > 7 or orphan > 2 or rkind > 4 or fclass > 4 then return GARBAGE end
  token, bound = flags % 2 == 1, flags % 4 >= 2
  verify, takeover = flags % 8 >= 4, flags % 16 >= 8
  local at = 87
  if flags % 32 >= 16 then
    fp = sub(v, at, at + 32)
    at = at + 33
  end
  if flags % 64 >= 32 then
    if n < at + 6 then return GARBAGE end
    validity = unpack('<I7', v, at)
    at = at + 7
  end
  if flags % 128 >= 64 then
    if n < at + 10 then return GARBAGE end
    cl, ml, kl, sl = unpack('<BHI4I4', v, at)
    parts_at = at + 11
    at = parts_at + cl + ml + kl + sl
  end
  if flags >= 128 then
    local size = redis.call('GETRANGE', K, at - 1, at)
    if #size < 2 then return GARBAGE end
    at = at + 2 + unpack('<H', size)
  end
  if at - 1 + rl ~= n then return GARBAGE end
end
local stands = n > 0 and now < retention_end
)lua";

/// Changing the record. `put` writes it whole, `patch` only its ends; both answer with an error
/// reply where Redis refused. Nothing is ever written without a time to live.
inline constexpr std::string_view write = R"lua(
local function next_fence()
  if n == 0 then return max(now, 1) end
  return max(fence + 1, now)
end
local function load()
  if n > #v then v = redis.call('GET', K) end
  if parts_at == 0 then return end
  local at = parts_at
  code = sub(v, at, at + cl - 1)
  at = at + cl
  msg = sub(v, at, at + ml - 1)
  at = at + ml
  cp = sub(v, at, at + kl - 1)
  at = at + kl
  res = sub(v, at, at + sl - 1)
end
local function fresh()
  orphan, rkind, fclass, maxa, maxc, ctag, cver, attempt, crashes = 0, 0, 0, 0, 0, 0, 0, 0, 0
  fence, owner = 0, NOBODY
  created, started, completed, lease_end, retention_end, validity = 0, 0, 0, 0, 0, 0
  token, bound, verify, takeover = false, false, false, false
  fp, code, msg, cp, res, result = '', '', '', '', '', ''
end
local function ttl()
  return string.format('%.0f', max(1, ceil((retention_end - now) / 1000)))
end
local w
local function put()
  local f, more = 0, ''
  if token then f = f + 1 end
  if bound then f = f + 2 end
  if verify then f = f + 4 end
  if takeover then f = f + 8 end
  if fp ~= '' then
    f = f + 16
    more = fp
  end
  if validity ~= 0 then
    f = f + 32
    more = more .. pack('<I7', validity)
  end
  if code ~= '' or msg ~= '' or cp ~= '' or res ~= '' then
    f = f + 64
    more = more .. pack('<BHI4I4', #code, #msg, #cp, #res) .. code .. msg .. cp .. res
  end
  w = pack(H, 194, 1, state, f, orphan, rkind, fclass, maxa, maxc, ctag, cver, attempt, crashes,
    fence, owner, created, started, completed, lease_end, retention_end, #result) .. more .. result
  local done
  if n == 0 then
    done = redis.pcall('SET', K, w, 'PX', ttl(), 'NX')
    if not done then return GARBAGE end
  else
    done = redis.pcall('SET', K, w, 'PX', ttl())
  end
  if done.err then return done end
end
local function patch()
  local done = redis.pcall('SETRANGE', K, 68, pack('<I7I7', lease_end, retention_end))
  if type(done) == 'table' then return done end
  redis.call('PEXPIRE', K, ttl())
end
local function tell() redis.pcall('PUBLISH', K, '') end
local function up(count) return min(count + 1, 4294967295) end
local function reached(count, cap) return cap ~= 0 and count >= cap end
local function settle(to, kept)
  state, completed, retention_end, verify = to, now, now + kept, false
end
local function exhaust(held)
  settle(5, held)
  fclass = 4
end
local function roll_back(kept)
  verify, takeover, completed = false, false, 0
  state, retention_end = 3, now + kept
  if not token then return end
  state, retention_end = 1, max(validity, now) + kept
  if not bound then fp = '' end
  fclass, code, msg, cp, res = 0, '', '', '', ''
end
)lua";

}  // namespace idem::inline v0_1::redis::text

#endif
