#ifndef IDEM_REDIS_FRONT_HPP
#define IDEM_REDIS_FRONT_HPP

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/detail/bytes.hpp>
#include <idem/detail/fork.hpp>
#include <idem/layered/front.hpp>
#include <idem/redis/state.hpp>

namespace idem::inline v0_1 {

/// Redis as the fast layer of a `TieredStore`: one string a key, read natively, written by a
/// script that keeps the higher fence. A handle: copies share the connections. Any thread, any
/// time. It may be wiped, evict or be set back: then the store behind answers. After fork a child
/// gets `usage` trouble.
class RedisFront {
public:
    /// As for `RedisStore`; its keys begin with `prefix` and "front:". Each back needs a prefix of
    /// its own, or it is answered from another one's results. @param time_allowed in place of
    /// `RedisOptions::time_allowed`, unless the URL has one: short, for a slow front must not slow
    /// down every call. @throws UsageError for a URL or options that cannot be right.
    explicit RedisFront(RedisOptions options,
                        Duration time_allowed = std::chrono::milliseconds{250})
        : state_(make((options.time_allowed = time_allowed, std::move(options)))) {}

    void get(std::span<const KeyView> keys, std::span<FrontGot> got);
    void put(std::span<const FrontPut> puts, std::span<Trouble> troubles) {
        write(puts, troubles, put_);
    }
    void bury(std::span<const FrontBury> buries, std::span<Trouble> troubles) {
        write(buries, troubles, bury_);
    }
    [[nodiscard]] Duration time_allowed() const noexcept {
        return state_->wire.options().time_allowed;
    }
    [[nodiscard]] RedisTraffic traffic() const noexcept { return state_->wire.traffic(); }

private:
    struct State {
        State(RedisOptions options, const redis::Target& target)
            : wire(std::move(options), target) {}

        redis::State wire;
        detail::MadeIn made_in{};
    };

    /// What stands under a key: 'r' or 't' (a tombstone), fence and end (7 bytes each, little
    /// endian), and the bytes of a record.
    static constexpr std::size_t head_bytes = 15;
    static constexpr std::size_t items_max = 500;

    // ARGV: kind, fence, when it ends or how long it lasts (7 bytes, 0 for fence 0), the bytes.
    static constexpr std::string_view put_ = R"lua(
local v = redis.call('GETRANGE', KEYS[1], 0, 14)
local fence, ends = struct.unpack('<I7I7', ARGV[1])
if ends <= now then return 0 end
if #v == 15 then
  local _, f, e = struct.unpack('<BI7I7', v)
  if f >= fence and e > now then return 0 end
end
redis.call('SET', KEYS[1], 'r' .. ARGV[1] .. ARGV[2], 'PX', math.ceil((ends - now) / 1000))
return 1
)lua";
    static constexpr std::string_view bury_ = R"lua(
local fence, lasts = struct.unpack('<I7I7', ARGV[1])
local v = redis.call('GETRANGE', KEYS[1], 0, 14)
if fence == 0 then
  if string.sub(v, 1, 1) == 'r' then redis.call('PEXPIRE', KEYS[1], 0) end
  return 1
end
if #v == 15 then
  local _, f, e = struct.unpack('<BI7I7', v)
  if f > fence and e > now then return 0 end
end
redis.call('SET', KEYS[1], struct.pack('<c1I7I7', 't', fence, now + lasts), 'PX',
  math.ceil(lasts / 1000))
return 1
)lua";

    [[nodiscard]] static std::shared_ptr<State> make(RedisOptions options) {
        const redis::Target target = redis::read_url(options);
        options.prefix += "front:";
        options.command_timeout = std::min(options.command_timeout, options.time_allowed);
        options.connect_timeout = std::min(options.connect_timeout, options.time_allowed);
        redis::check(options);
        return {new State(std::move(options), target), [](State* state) {
                    if (state->made_in.here()) delete state;
                }};
    }
    [[nodiscard]] std::string name(const KeyView& key) const {
        return redis::name_of(state_->wire.options().prefix, key);
    }
    [[nodiscard]] static std::string packed(Fence fence, std::int64_t time) {
        std::string out;
        idem::detail::put_fixed(out, fence, 7);
        idem::detail::put_fixed(out, static_cast<std::uint64_t>(time), 7);
        return out;
    }
    [[nodiscard]] static std::string packed(const FrontPut& put) {
        return packed(put.fence, put.ends.time_since_epoch().count());
    }
    [[nodiscard]] static std::string packed(const FrontBury& bury) {
        return packed(bury.fence, bury.lasts.count());
    }
    [[nodiscard]] static std::string_view bytes_of(const FrontPut& put) { return put.bytes; }
    [[nodiscard]] static std::string_view bytes_of(const FrontBury&) { return {}; }
    static void read_value(const redis::Reply& value, FrontGot& got);

    template <class Item>
    void write(std::span<const Item> items, std::span<Trouble> troubles, std::string_view body);

    std::shared_ptr<State> state_;
};

static_assert(front<RedisFront>);

inline void RedisFront::read_value(const redis::Reply& value, FrontGot& got) {
    const auto text = value.is_null() || value.is_error() ? std::nullopt : value.text();
    // What is not ours to read is nothing: the store behind knows.
    if (!text || text->size() < head_bytes || text->front() != 'r') return;
    idem::detail::ByteReader in(text->substr(8));
    const Instant ends(Duration(static_cast<std::int64_t>(in.fixed(7).value_or(0))));
    if (got.now >= ends) return;
    got.ends = ends;
    got.bytes.emplace(text->substr(head_bytes));
}

inline void RedisFront::get(std::span<const KeyView> keys, std::span<FrontGot> got) {
    const LocalInstant deadline = state_->wire.deadline();
    redis::Topology& topology = state_->wire.topology();
    for (std::size_t node = 0, nodes = topology.nodes(); node < nodes; ++node) {
        for (std::size_t at = 0; at < keys.size();) {
            redis::Request request;
            state_->wire.add_clock(request);
            std::vector<std::size_t> asked;
            for (; at < keys.size() && asked.size() < items_max; ++at) {
                const std::string key = name(keys[at]);
                if (topology.node_of(key) != node) continue;
                request.command({"GET", key});
                asked.push_back(at);
            }
            if (asked.empty()) continue;
            const auto answers = state_->wire.read(node, request, deadline);
            const auto now =
                answers.fault ? std::nullopt : redis::State::read_clock(answers.replies[0]);
            for (std::size_t k = 0; k < asked.size(); ++k) {
                FrontGot& one = got[asked[k]];
                if (!now) {
                    one.trouble = answers.fault ? redis::trouble_of(*answers.fault)
                                                : Trouble::schema("a time that makes no sense");
                    continue;
                }
                one.now = *now;
                read_value(answers.replies[k + 1], one);
            }
        }
    }
}

template <class Item>
void RedisFront::write(std::span<const Item> items, std::span<Trouble> troubles,
                       std::string_view body) {
    const std::string script = state_->wire.scripts().clock() + std::string(body);
    const LocalInstant deadline = state_->wire.deadline();
    redis::Topology& topology = state_->wire.topology();
    for (std::size_t node = 0, nodes = topology.nodes(); node < nodes; ++node) {
        for (std::size_t at = 0; at < items.size();) {
            redis::Request request;
            std::vector<std::size_t> sent;
            for (; at < items.size() && sent.size() < items_max; ++at) {
                const std::string key = name(items[at].key);
                if (topology.node_of(key) != node) continue;
                request.command({"EVAL", script, "1", key, packed(items[at]), bytes_of(items[at])});
                sent.push_back(at);
            }
            if (sent.empty()) continue;
            // The same again answers as the first did: a higher fence has come or it has not.
            const auto answers = state_->wire.read(node, request, deadline);
            for (std::size_t k = 0; k < sent.size(); ++k) {
                Trouble& trouble = troubles[sent[k]];
                if (answers.fault) {
                    trouble = redis::trouble_of(*answers.fault);
                    trouble.may_have_applied = true;
                } else if (const redis::Reply& reply = answers.replies[k]; reply.is_error()) {
                    trouble = Trouble::schema("Redis: " + std::string(reply.text().value_or("")));
                }
            }
        }
    }
}

}  // namespace idem::inline v0_1

#endif
