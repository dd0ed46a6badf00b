#ifndef IDEM_DEAD_LETTERS_HPP
#define IDEM_DEAD_LETTERS_HPP

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <idem/clock.hpp>
#include <idem/error.hpp>
#include <idem/guard.hpp>
#include <idem/key.hpp>
#include <idem/operation.hpp>
#include <idem/options.hpp>
#include <idem/record.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

/// Which dead letters.
struct DeadLetterQuery {
    std::optional<std::string> scope{};  ///< Of an inbox: its group.
    std::optional<std::string> tenant{};
    Duration older_than{};  ///< Since the key was first claimed.
    /// What is held for a person (`State::unknown`) instead of what has failed for good.
    bool held = false;
    std::size_t limit = 100;
    std::string cursor{};  ///< Empty for the first page; else `ListPage::next` of the last one.
};

/// What is final, exhausted or held, of one component on any store: to look at, to try again, to
/// throw away. The records are the list: nothing is lost between a failure and its dead letter, and
/// what survives a crash is what the store keeps, for `held_retention`. What a message said is not
/// in its record: the broker's dead letter queue has it. Any thread may call any member.
template <store Store>
class DeadLetters {
public:
    /// Of messages by default; `Component::call` for what guards have run.
    explicit DeadLetters(const Store& store, Component component = Component::message)
        : guard_(store, {.heartbeat = false}, component) {}

    /// A page; one that is empty is not the last while `next` is not. A record that cannot be read
    /// is left out and is the page's `trouble`. @throws UnavailableError, UsageError.
    [[nodiscard]] ListPage list(const DeadLetterQuery& query = {}) {
        ListQuery asked;
        asked.scope = query.scope;
        asked.tenant = query.tenant;
        asked.state = query.held ? State::unknown : State::failed;
        if (query.older_than > Duration::zero()) asked.created_before = query.older_than;
        asked.limit = query.limit;
        asked.cursor = query.cursor;
        return guard_.list(std::move(asked));
    }

    /// Lets the next delivery or call run again, with its attempts counted anew. False where it is
    /// not as it was seen any more: somebody else has been faster. One that has failed is forgotten
    /// for that (its fence goes on rising). Hand the message to the broker only after this has
    /// returned true. @throws UnavailableError, SchemaError, UsageError.
    bool replay(const RecordView& letter) {
        if (letter.component != guard_.component())
            throw UsageError("DeadLetters::replay: the record is of another component");
        if (letter.header.state == State::unknown)
            return guard_.resolve(letter.key, letter.header.fence, Resolution::rerun());
        return letter.header.state == State::failed &&
               guard_.forget(letter.key, letter.header.fence);
    }

    /// Throws away at most `limit` of those that the query names, and says how many; a delivery
    /// that comes later runs. Held ones are not thrown away: settle them.
    /// @throws UsageError for a query without an age, or for held ones; UnavailableError.
    std::size_t purge(DeadLetterQuery query, std::size_t limit) {
        detail::check_duration(query.older_than, "DeadLetterQuery::older_than");
        if (query.held) throw UsageError("DeadLetterQuery::held is not for purge");
        std::size_t purged = 0;
        query.limit = std::min<std::size_t>(std::max<std::size_t>(limit, 1), 1000);
        for (;;) {
            const ListPage page = list(query);
            for (const RecordView& letter : page.records) {
                if (purged == limit) return purged;
                purged += replay(letter) ? 1 : 0;
            }
            if (page.next.empty()) return purged;
            query.cursor = page.next;
        }
    }

private:
    IdempotencyGuard<Store> guard_;
};

}  // namespace idem::inline v0_1

#endif
