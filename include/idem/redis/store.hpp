#ifndef IDEM_REDIS_STORE_HPP
#define IDEM_REDIS_STORE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <idem/detail/chunk.hpp>
#include <idem/detail/fork.hpp>
#include <idem/detail/look.hpp>
#include <idem/redis/listing.hpp>
#include <idem/redis/state.hpp>
#include <idem/redis/subscriber.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

/// Remembers keys in Redis 6.2 or later (or Valkey): one string a key, decided by one script an
/// operation, by the server's clock; a batch is one write and one read. Models `idem::store`; its
/// comment numbers the promises. A handle: copies share the connections, which are closed with the
/// last copy. Any thread may call any member at any time. After fork a child gets `UsageError`.
/// What was answered survives a crash of this process; of the server only as far as its
/// persistence and its replicas do: a failover or an eviction may let a key run twice.
class RedisStore {
public:
    /// Does no I/O: a service may start before its server.
    /// @throws UsageError for a URL or options that cannot be right.
    explicit RedisStore(RedisOptions options) : state_(make(std::move(options))) {}

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        const LocalInstant deadline = state_->wire.deadline();
        auto which = all_of(requests);
        if (state_->look_first.pays()) look(requests, replies, which, deadline);
        each(requests, replies, which, deadline);
        state_->look_first.learn(replies);
    }
    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        each(requests, replies);
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        each(requests, replies);
    }
    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        each(requests, replies);
    }
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        each(requests, replies);
    }
    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        each(requests, replies);
    }
    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        each(requests, replies);
    }
    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        const LocalInstant deadline = state_->wire.deadline();
        for (std::size_t at = 0; at < keys.size(); at += limits.items) {
            const std::size_t count = std::min(limits.items, keys.size() - at);
            find_some(keys.subspan(at, count), replies.subspan(at, count), deadline);
        }
    }

    /// By SCAN: a key that is not touched meanwhile appears at least once. Walks the whole
    /// database: for people and sweepers, not for requests. A page holds at most `limit` records
    /// and ends where about 10,000 keys have been looked at. A record that cannot be read is left
    /// out and is `trouble` of its page; the pages go on behind it.
    [[nodiscard]] ListPage list(const ListQuery& query);

    /// Nothing to do: every record carries its own time to live.
    [[nodiscard]] PurgeReply purge(std::size_t) { return {}; }

    /// Asks to be told when the key is settled by any process, from before this returns until the
    /// handle goes. `notice` is called from a thread of the store, any number of times, needlessly
    /// too. Null where no notices can come: the caller polls. Blocks no longer than one request.
    [[nodiscard]] std::shared_ptr<void> watch(const KeyView& key, std::function<void()> notice) {
        try {
            return state_->subscriber->watch(name(key), std::move(notice));
        } catch (const std::exception&) {
            return nullptr;
        }
    }

    /// How long one request may take in the worst case.
    [[nodiscard]] Duration time_allowed() const noexcept {
        return state_->wire.options().time_allowed;
    }
    [[nodiscard]] RedisTraffic traffic() const noexcept { return state_->wire.traffic(); }

private:
    struct State {
        State(RedisOptions options, const redis::Target& target)
            : wire(std::move(options), target),
              subscriber(std::make_shared<redis::Subscriber>(
                  [place = target.place, login = target.login](LocalInstant deadline,
                                                               redis::Fault& fault) {
                      return redis::Connection::open(place, login, deadline, fault);
                  },
                  wire.options().connect_timeout, wire.options().command_timeout,
                  wire.options().time_allowed)) {}
        State(const State&) = delete;
        State& operator=(const State&) = delete;
        ~State() { subscriber->stop(); }

        redis::State wire;
        detail::LookFirst look_first{wire.options().look_first};
        std::shared_ptr<redis::Subscriber> subscriber;
        idem::detail::MadeIn made_in{};
    };

    /// Of one write.
    static constexpr detail::ChunkLimits limits{.items = 500, .bytes = std::size_t{4} << 20U};
    static constexpr std::size_t looks_per_page = 10'000;
    static constexpr int large_tries = 4;

    [[nodiscard]] static std::shared_ptr<State> make(RedisOptions options) {
        const redis::Target target = redis::read_url(options);
        redis::check(options);
        // A forked child leaves it all as it is: its locks may be held by threads it has not.
        return {new State(std::move(options), target), [](State* state) {
                    if (state->made_in.here()) delete state;
                }};
    }
    [[nodiscard]] std::string name(const KeyView& key) const {
        return redis::name_of(state_->wire.options().prefix, key);
    }

    template <class Request>
    [[nodiscard]] static std::vector<std::size_t> all_of(std::span<const Request> requests) {
        std::vector<std::size_t> out(requests.size());
        std::iota(out.begin(), out.end(), std::size_t{0});
        return out;
    }
    template <class Request, class Reply>
    void each(std::span<const Request> requests, std::span<Reply> replies) {
        each(requests, replies, all_of(requests), state_->wire.deadline());
    }
    /// Those that are named, in this order, in writes of bounded size.
    template <class Request, class Reply>
    void each(std::span<const Request> requests, std::span<Reply> replies,
              std::vector<std::size_t> order, LocalInstant deadline) {
        std::vector<redis::Call> calls(requests.size());
        std::erase_if(order, [&](std::size_t i) {
            if (requests[i].key.valid()) return false;
            replies[i].trouble = KeyView::refusal();
            return true;
        });
        for (const auto i : order) {
            calls[i].name = name(requests[i].key);
            redis::pack(requests[i], calls[i]);
        }
        for (std::size_t at = 0; at < order.size();) {
            const auto end = detail::chunk_end(
                at, order.size(), limits, [&](std::size_t i) { return calls[order[i]].weight(); });
            some(requests, replies, calls, std::span(order).subspan(at, end - at), deadline);
            at = end;
        }
    }

    template <class Request, class Reply>
    void some(std::span<const Request> requests, std::span<Reply> replies,
              std::vector<redis::Call>& calls, std::span<const std::size_t> which,
              LocalInstant deadline) {
        constexpr bool claims = std::same_as<Request, ClaimRequest>;
        std::vector<std::size_t> left(which.begin(), which.end());
        for (int tries = 0; !left.empty(); ++tries) {
            std::vector<redis::Call> sent;
            sent.reserve(left.size());
            for (const auto i : left) {
                sent.push_back(std::move(calls[i]));
                sent.back().with_value = claims && (tries > 0 || state_->wire.large_values());
            }
            state_->wire.carry_out(sent, redis::repeatable<Request>, deadline);
            std::vector<std::size_t> again;
            for (std::size_t k = 0; k < left.size(); ++k) {
                const std::size_t i = left[k];
                if (read(sent[k], requests[i], replies[i], deadline) != redis::Read::again)
                    continue;
                if (tries < large_tries) {
                    again.push_back(i);
                } else {
                    replies[i].trouble = Trouble::unavailable(
                        "the record changed whenever its result was read", false);
                }
                calls[i] = std::move(sent[k]);
            }
            left = std::move(again);
        }
    }

    template <class Request, class Reply>
    [[nodiscard]] redis::Read read(redis::Call& call, const Request& request, Reply& reply,
                                   LocalInstant deadline) {
        if (call.fault) {
            if constexpr (std::same_as<Request, ClaimRequest>)
                if (call.fault->is(redis::code::unacked)) undo(call, request, deadline);
            reply.trouble = redis::trouble_of(*call.fault);
            return redis::Read::done;
        }
        const redis::Read read = redis::read_reply(call, reply);
        if constexpr (std::same_as<Request, ClaimRequest>)
            state_->wire.met_large_value(redis::left_out(call));
        if (read != redis::Read::nonsense) return read;
        reply = Reply{};
        reply.trouble = {Trouble::Kind::schema, true, "Redis gave a reply that makes no sense"};
        return redis::Read::done;
    }

    /// A claim that too few replicas have must not stand either: nobody would run it. Where the
    /// time is over it stays in doubt, and whoever claimed gives it up.
    void undo(redis::Call& claim, const ClaimRequest& request, LocalInstant deadline) {
        FinishRequest release;
        release.key = request.key;
        release.owner = request.owner;
        release.kind = FinishKind::release;
        release.counted = false;
        release.lease = request.lease;
        release.retention = request.retention;
        release.held_retention = request.held_retention;
        redis::Call call;
        call.name = claim.name;
        redis::pack(release, call);
        state_->wire.carry_out(std::span(&call, 1), true, deadline);
        const bool undone = !call.fault || call.fault->is(redis::code::unacked);
        claim.fault->may_have_applied = !undone;
    }

    /// Answers those of the claims that change nothing from a plain read. What is left stays in
    /// `which`, with everything behind it of the same key.
    void look(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies,
              std::vector<std::size_t>& which, LocalInstant deadline);
    void find_some(std::span<const KeyView> keys, std::span<FindReply> replies,
                   LocalInstant deadline);
    /// What a plain read saw under a key.
    struct Seen {
        std::optional<redis::LaidOut> record{};
        Instant now{};
        Trouble trouble{};
    };
    /// Reads the keys that are named, each from the node that has it, and calls `use(i, Seen&)`.
    template <class Use>
    void read_records(std::span<const KeyView> keys, std::span<const std::size_t> which,
                      LocalInstant deadline, Use&& use);
    /// Reads the records of some names into a page, as far as it has room; those it has none for
    /// stay in `names`.
    void list_some(const ListQuery& query, std::size_t node, std::vector<std::string>& names,
                   std::size_t limit, LocalInstant deadline, ListPage& page);

    std::shared_ptr<State> state_;
};

static_assert(store<RedisStore>);

template <class Use>
void RedisStore::read_records(std::span<const KeyView> keys, std::span<const std::size_t> which,
                              LocalInstant deadline, Use&& use) {
    redis::Topology& topology = state_->wire.topology();
    for (std::size_t node = 0, nodes = topology.nodes(); node < nodes; ++node) {
        redis::Request request;
        state_->wire.add_clock(request);
        std::vector<std::size_t> asked;
        for (const auto i : which) {
            const std::string key = name(keys[i]);
            if (topology.node_of(key) != node) continue;
            request.command({"GET", key});
            asked.push_back(i);
        }
        if (asked.empty()) continue;
        const auto answers = state_->wire.read(node, request, deadline);
        const auto now =
            answers.fault ? std::nullopt : redis::State::read_clock(answers.replies[0]);
        for (std::size_t k = 0; k < asked.size(); ++k) {
            Seen seen{{}, now.value_or(Instant{}), {}};
            if (answers.fault) {
                seen.trouble = redis::trouble_of(*answers.fault);
            } else if (const redis::Reply& value = answers.replies[k + 1]; !value.is_null()) {
                const auto bytes = value.is_error() ? std::nullopt : value.text();
                if (bytes) seen.record = redis::read_record(*bytes);
                if (!seen.record || !now)
                    seen.trouble = Trouble::schema(redis::trouble_with(bytes.value_or("")));
            }
            use(asked[k], seen);
        }
    }
}

inline void RedisStore::look(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies,
                             std::vector<std::size_t>& which, LocalInstant deadline) {
    std::vector<KeyView> keys(requests.size());
    std::vector<std::size_t> asked;
    for (const auto i : which) {
        keys[i] = requests[i].key;
        if (keys[i].valid()) asked.push_back(i);
    }
    std::vector<bool> answered(requests.size(), false);
    std::unordered_set<std::string> left;
    for (std::size_t at = 0; at < asked.size(); at += limits.items) {
        const std::size_t count = std::min(limits.items, asked.size() - at);
        read_records(
            keys, std::span(asked).subspan(at, count), deadline, [&](std::size_t i, Seen& seen) {
                if (seen.trouble.kind == Trouble::Kind::unavailable) {
                    replies[i].trouble = std::move(seen.trouble);
                    answered[i] = true;
                    return;
                }
                answered[i] = !seen.trouble && !left.contains(encode_key(keys[i])) &&
                              detail::answer_by_look(
                                  seen.record ? &seen.record->header : nullptr,
                                  seen.record ? std::move(seen.record->payload) : Payload{},
                                  seen.now, requests[i], replies[i]);
                if (!answered[i]) left.insert(encode_key(keys[i]));
            });
    }
    std::erase_if(which, [&](std::size_t i) { return answered[i]; });
}

inline void RedisStore::find_some(std::span<const KeyView> keys, std::span<FindReply> replies,
                                  LocalInstant deadline) {
    std::vector<std::size_t> asked;
    for (std::size_t i = 0; i < keys.size(); ++i) {
        replies[i] = {{}, keys[i].valid() ? Trouble{} : KeyView::refusal()};
        if (!replies[i].trouble) asked.push_back(i);
    }
    read_records(keys, asked, deadline, [&](std::size_t i, Seen& seen) {
        replies[i].trouble = std::move(seen.trouble);
        if (replies[i].trouble || !seen.record) return;
        if (!protocol::visible(&seen.record->header, seen.now)) return;
        replies[i].record = protocol::view_of(
            keys[i], {seen.record->header, std::move(seen.record->payload)}, seen.now);
    });
}

inline void RedisStore::list_some(const ListQuery& query, std::size_t node,
                                  std::vector<std::string>& names, std::size_t limit,
                                  LocalInstant deadline, ListPage& page) {
    const std::size_t count =
        std::min({names.size(), std::max<std::size_t>(2 * (limit - page.records.size()), 16),
                  std::size_t{256}});
    redis::Request request;
    state_->wire.add_clock(request);
    for (std::size_t i = 0; i < count; ++i) request.command({"GET", names[i]});
    const auto answers = state_->wire.read(node, request, deadline);
    const auto now = answers.fault ? std::nullopt : redis::State::read_clock(answers.replies[0]);
    if (!now) {
        page.trouble = answers.fault ? redis::trouble_of(*answers.fault)
                                     : Trouble::schema("Redis gave a time that makes no sense");
        return;
    }
    std::size_t taken = 0;
    for (; taken < count && page.records.size() < limit; ++taken) {
        const redis::Reply& value = answers.replies[taken + 1];
        const auto key = redis::key_of(state_->wire.options().prefix, names[taken]);
        if (value.is_null() || !key) continue;
        const auto bytes = value.is_error() ? std::nullopt : value.text();
        auto record = bytes ? redis::read_record(*bytes) : std::nullopt;
        if (!record) {
            page.trouble = Trouble::schema(redis::trouble_with(bytes.value_or("")));
        } else if (protocol::visible(&record->header, *now) &&
                   protocol::matches(query, *key, record->header, *now)) {
            page.records.push_back(
                protocol::view_of(*key, {record->header, std::move(record->payload)}, *now));
        }
    }
    names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(taken));
}

inline ListPage RedisStore::list(const ListQuery& query) {
    ListPage page;
    auto cursor = redis::ListCursor::read(query.cursor);
    redis::Topology& topology = state_->wire.topology();
    if (!cursor || cursor->node >= topology.nodes()) {
        page.trouble = Trouble::usage("ListQuery::cursor is not from this store");
        return page;
    }
    const std::size_t limit = std::max<std::size_t>(query.limit, 1);
    const std::string pattern = redis::pattern_of(state_->wire.options().prefix, query);
    const std::size_t step = std::clamp<std::size_t>(limit, 100, 1000);
    const LocalInstant deadline = state_->wire.deadline();
    for (std::size_t looks = 0; page.records.size() < limit && looks < looks_per_page;) {
        if (!cursor->names.empty()) {
            list_some(query, cursor->node, cursor->names, limit, deadline, page);
            if (page.trouble && page.trouble.kind != Trouble::Kind::schema) return page;
            continue;
        }
        if (cursor->ended) {
            if (cursor->node + 1 == topology.nodes()) return page;
            *cursor = {cursor->node + 1, "0", false, {}};
        }
        redis::Request request;
        request.command({"SCAN", cursor->scan, "MATCH", pattern, "COUNT", std::to_string(step)});
        const auto answers = state_->wire.read(cursor->node, request, deadline);
        if (answers.fault) {
            page.trouble = redis::trouble_of(*answers.fault);
            return page;
        }
        const redis::Reply& reply = answers.replies[0];
        cursor->scan = reply.text(0).value_or("0");
        cursor->ended = cursor->scan == "0";
        for (std::size_t i = 0; i < reply.size(1); ++i)
            cursor->names.emplace_back(reply.text(1, i).value_or(""));
        looks += step;
    }
    const bool last =
        cursor->ended && cursor->names.empty() && cursor->node + 1 == topology.nodes();
    if (!last) page.next = cursor->written();
    return page;
}

}  // namespace idem::inline v0_1

#endif
