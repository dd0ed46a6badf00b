#ifndef IDEM_REDIS_SCRIPT_COMMON_HPP
#define IDEM_REDIS_SCRIPT_COMMON_HPP

#include <string_view>

/// What the scripts have in common: `protocol.hpp` in Lua stands on it. One key a script, in KEYS.
/// Microseconds are whole numbers below 2^53 and leave Lua by %.0f or struct, never by its own
/// print of a double.
///
/// There are no functions in them: each run would make them anew, and those that share a record's
/// fields cost more than all the rest (a repeat took 149 k of the server's instructions with them,
/// and takes 66 k). What several need is a piece of text, put in where its name stands behind an @.
namespace idem::inline v0_1::redis::text {

/// The clock goes before it, as `local now = …`.
///
/// `v` is the first kilobyte of what is under the key, `n` the length of it all; the record's
/// fields are local variables under their own names, without values where there is none.
inline constexpr std::string_view read = R"lua(
local K, A = KEYS[1], ARGV[1]
local unpack, sub, byte = struct.unpack, string.sub, string.byte
local v = redis.pcall('GETRANGE', K, '0', '1023')
if type(v) == 'table' then return v end
local n = #v
if n == 1024 then n = redis.call('STRLEN', K) end
local state, flags, orphan, rkind, fclass, maxa, maxc, ctag, cver, attempt, crashes, fence, owner,
  created, started, completed, lease_end, retention_end, rl
local token, bound, verify, takeover = false, false, false, false
local fp, validity, code, msg, cp, res, result = '', 0, '', '', '', '', ''
local parts_at, cl, ml, kl, sl = 0, 0, 0, 0, 0
if n > 0 then
  local magic, major = byte(v, 1, 2)
  if magic ~= 194 or not major or major == 0 then @garbage end
  if major > 1 then
    return {err = 'IDEMNEWER the record was written by a newer version of the library'}
  end
  if n < 86 then @garbage end
  magic, major, state, flags, orphan, rkind, fclass, maxa, maxc, ctag, cver, attempt, crashes,
    fence, owner, created, started, completed, lease_end, retention_end, rl = unpack(@header, v)
  if state < 1 or state > 7 or orphan > 2 or rkind > 4 or fclass > 4 then @garbage end
  token, bound = flags % 2 == 1, flags % 4 >= 2
  verify, takeover = flags % 8 >= 4, flags % 16 >= 8
  local at = 87
  if flags % 32 >= 16 then
    fp = sub(v, at, at + 32)
    at = at + 33
  end
  if flags % 64 >= 32 then
    if n < at + 6 then @garbage end
    validity = unpack('<I7', v, at)
    at = at + 7
  end
  if flags % 128 >= 64 then
    if n < at + 10 then @garbage end
    cl, ml, kl, sl = unpack('<BHI4I4', v, at)
    parts_at = at + 11
    at = parts_at + cl + ml + kl + sl
  end
  if flags >= 128 then
    local size = redis.call('GETRANGE', K, at - 1, at)
    if #size < 2 then @garbage end
    at = at + 2 + unpack('<H', size)
  end
  if at - 1 + rl ~= n then @garbage end
end
local stands = n > 0 and now < retention_end
)lua";

inline constexpr std::string_view header = "'<BBBBBBBHHI4BI4I4I7c16I7I7I7I7I7I4'";

inline constexpr std::string_view garbage =
    "return {err = 'IDEMGARBAGE the bytes under this key are no record'}";

/// The next fence: grows even where the record has gone meanwhile, as far as the clock does.
inline constexpr std::string_view next_fence = R"lua(
local next = now
if n > 0 and fence >= now then next = fence + 1 end
if next < 1 then next = 1 end
)lua";

/// The record's opaque bytes but for its result, before it is written anew.
inline constexpr std::string_view load = R"lua(
if parts_at > 0 then
  if n > #v then v = redis.call('GET', K) end
  local at = parts_at
  code = sub(v, at, at + cl - 1)
  at = at + cl
  msg = sub(v, at, at + ml - 1)
  at = at + ml
  cp = sub(v, at, at + kl - 1)
  at = at + kl
  res = sub(v, at, at + sl - 1)
end
)lua";

inline constexpr std::string_view fresh = R"lua(
flags, orphan, rkind, fclass, maxa, maxc, ctag, cver = 0, 0, 0, 0, 0, 0, 0, 0
attempt, crashes = 0, 0
created, started, completed, lease_end, validity = 0, 0, 0, 0, 0
token, bound, verify, takeover, fp = false, false, false, false, ''
)lua";

/// To `released`, or for a token back to `issued` with its binding only; for `kept`.
inline constexpr std::string_view roll_back = R"lua(
verify, takeover, completed = false, false, 0
state, retention_end = 3, now + kept
if token then
  state = 1
  if validity > now then retention_end = validity + kept end
  if not bound then fp = '' end
  fclass, code, msg, cp, res = 0, '', '', '', ''
end
)lua";

inline constexpr std::string_view ttl =
    "string.format('%.0f', math.max(1, math.ceil((retention_end - now) / 1000)))";

/// Writes the record, `w`, whole. Nothing is ever written without a time to live.
inline constexpr std::string_view put = R"lua(
local f, more = 0, ''
if token then f = 1 end
if bound then f = f + 2 end
if verify then f = f + 4 end
if takeover then f = f + 8 end
if fp ~= '' then
  f = f + 16
  more = fp
end
if validity ~= 0 then
  f = f + 32
  more = more .. struct.pack('<I7', validity)
end
if code ~= '' or msg ~= '' or cp ~= '' or res ~= '' then
  f = f + 64
  more = more .. struct.pack('<BHI4I4', #code, #msg, #cp, #res) .. code .. msg .. cp .. res
end
local w = struct.pack(@header, 194, 1, state, f, orphan, rkind, fclass, maxa, maxc, ctag, cver,
  attempt, crashes, fence, owner, created, started, completed, lease_end, retention_end,
  #result) .. more .. result
local done
if n == 0 then
  done = redis.pcall('SET', K, w, 'PX', @ttl, 'NX')
  if not done then @garbage end
else
  done = redis.pcall('SET', K, w, 'PX', @ttl)
end
if done.err then return done end
)lua";

/// Writes the ends of lease and retention only.
inline constexpr std::string_view patch = R"lua(
local ends = struct.pack('<I7I7', lease_end, retention_end)
local done = redis.pcall('SETRANGE', K, '68', ends)
if type(done) == 'table' then return done end
redis.call('PEXPIRE', K, @ttl)
)lua";

inline constexpr std::string_view tell = "redis.pcall('PUBLISH', K, '')";

}  // namespace idem::inline v0_1::redis::text

#endif
