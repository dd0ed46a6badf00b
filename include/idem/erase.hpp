#ifndef IDEM_ERASE_HPP
#define IDEM_ERASE_HPP

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <idem/store.hpp>

namespace idem::inline v0_1 {

/// How far an `erase` came.
struct EraseReply {
    std::size_t erased = 0;
    bool complete = false;  ///< Nothing that matched was left, but for what came meanwhile.
    std::string cursor{};   ///< Where it is not: the `ListQuery::cursor` to go on with.
    Trouble trouble{};      ///< The first that was met.
};

namespace detail {

/// How many of a page could not be forgotten.
template <store Store>
[[nodiscard]] std::size_t forget_all(Store& s, std::span<const RecordView> records, Duration lease,
                                     EraseReply& out) {
    std::vector<ForgetRequest> requests;
    requests.reserve(records.size());
    for (const auto& record : records)
        requests.push_back({.key = {record.component, record.key}, .lease = lease});
    std::vector<ForgetReply> replies(requests.size());
    if (!requests.empty()) s.forget(requests, replies);
    std::size_t left = 0;
    for (const auto& reply : replies) {
        out.erased += reply.existed ? 1 : 0;
        left += reply.trouble ? 1 : 0;
        if (reply.trouble && !out.trouble) out.trouble = reply.trouble;
    }
    return left;
}

}  // namespace detail

/// Forgets everything that a query matches (all there is, where it is empty), page by page of
/// `query.limit` records: so a tenant is erased. Its keys run again, and a holder that still runs
/// is told `lost`. One record that is locked or cannot be read does not stop the rest; one that
/// comes meanwhile may be missed, so erase until nothing is found. For any thread; after a crash
/// it begins again. A tombstone with the key's name and fence stays for `lease`, or for what a
/// holder has left, and for a minute at least: Redis and memory then drop it, in PostgreSQL
/// `purge`.
template <store Store>
[[nodiscard]] EraseReply erase(Store& s, ListQuery query,
                               Duration lease = std::chrono::minutes{1}) {
    EraseReply out{.complete = true};
    for (;;) {
        const ListPage page = s.list(query);
        if (page.trouble && !out.trouble) out.trouble = page.trouble;
        const std::size_t left = detail::forget_all(s, page.records, lease, out);
        if (out.complete && out.trouble) {
            out.complete = false;
            out.cursor = query.cursor;
        }
        const bool unread = page.trouble && page.trouble.kind != Trouble::Kind::schema;
        const bool stuck = left > 0 && left == page.records.size();
        if (unread || stuck || page.next.empty()) return out;
        query.cursor = page.next;
    }
}

}  // namespace idem::inline v0_1

#endif
