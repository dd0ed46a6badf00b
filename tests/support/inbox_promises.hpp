#ifndef IDEM_TESTS_SUPPORT_INBOX_PROMISES_HPP
#define IDEM_TESTS_SUPPORT_INBOX_PROMISES_HPP

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <idem/dead_letters.hpp>
#include <idem/inbox.hpp>
#include <idem/testing/faulty_store.hpp>

#include "support/catch.hpp"

/// What an inbox promises on any store. A world has a store whose clock the test moves.
namespace idem_test {

inline constexpr idem::Duration message_lease = std::chrono::hours{1};

[[nodiscard]] inline idem::InboxOptions inbox_options(std::uint32_t attempts = 3) {
    idem::InboxOptions out;
    out.group = "billing {1}";
    out.lease = message_lease;
    out.retry.attempts = attempts;
    out.max_crashes = 3;
    return out;
}
template <class World>
[[nodiscard]] auto inbox_of(World& world, idem::InboxOptions options = inbox_options()) {
    return idem::Inbox(world.store(), std::move(options));
}

/// As a consumer that took the message and vanished, or is still at it.
template <class World>
void take_elsewhere(World& world, const std::string& id, std::string_view body) {
    const idem::Key key{inbox_options().group, id};
    idem::ClaimRequest claim;
    claim.key = {idem::Component::message, key};
    claim.fingerprint = idem::Fingerprint::of_bytes(body);
    claim.owner = idem::detail::new_owner();
    claim.lease = claim.retention = claim.held_retention = message_lease;
    claim.policy.max_crashes = 3;
    REQUIRE(idem::claim_one(world.store(), claim).kind == idem::ClaimKind::acquired);
}

template <class World>
void messages_are_handled_once(World& world) {
    auto inbox = inbox_of(world);
    int handled = 0;
    for (int copy = 0; copy < 10; ++copy) {
        const auto out = inbox.consume({"m\n1", "body"}, [&] { ++handled; });
        CHECK(out.action == idem::InboxAction::ack);
        CHECK(out.handled == (copy == 0));
        CHECK(out.attempt == 1);
        CHECK(out.failure.kind == idem::FailureClass::none);
    }
    CHECK(handled == 1);
    // For another group, and for another tenant, it is another message.
    auto other = inbox_options();
    other.group = "search";
    CHECK(inbox_of(world, other).consume({"m\n1", "body"}, [&] { ++handled; }).handled);
    CHECK(inbox.consume({"m\n1", "body", "acme"}, [&] { ++handled; }).handled);
    CHECK(handled == 3);
    const auto changed = inbox.consume({"m\n1", "another body"}, [&] { ++handled; });
    CHECK(changed.action == idem::InboxAction::dead_letter);
    CHECK(changed.failure.code == "mismatch");
    CHECK(handled == 3);
}

template <class World>
void messages_in_progress_are_not_acknowledged(World& world) {
    auto inbox = inbox_of(world);
    take_elsewhere(world, "busy", "b");
    int handled = 0;
    const auto busy = inbox.consume({"busy", "b"}, [&] { ++handled; });
    CHECK(busy.action == idem::InboxAction::retry_later);
    CHECK(busy.delay > idem::Duration::zero());
    CHECK(busy.failure.code == "in_progress");
    CHECK(handled == 0);
    // Who is at it first is told apart from who has the same id with another body.
    CHECK(inbox.consume({"busy", "c"}, [&] { ++handled; }).failure.code == "mismatch");
    world.advance(message_lease);
    const auto taken_over = inbox.consume({"busy", "b"}, [&](idem::Execution& execution) {
        ++handled;
        CHECK(execution.takeover());
    });
    CHECK(taken_over.action == idem::InboxAction::ack);
    CHECK(taken_over.attempt == 2);
    CHECK(handled == 1);
}

template <class World>
void failures_are_tried_again_and_then_set_aside(World& world) {
    auto inbox = inbox_of(world);
    int handled = 0;
    const auto fails = [&] {
        ++handled;
        throw std::runtime_error("the mailer is away");
    };
    for (std::uint32_t attempt = 1; attempt <= 3; ++attempt) {
        const auto out = inbox.consume({"fails", "b"}, fails);
        CHECK(out.attempt == attempt);
        CHECK(out.action ==
              (attempt < 3 ? idem::InboxAction::retry_later : idem::InboxAction::dead_letter));
        CHECK(out.failure.message == "the mailer is away");
        CHECK_THROWS_AS(std::rethrow_exception(out.error), std::runtime_error);
    }
    const auto again = inbox.consume({"fails", "b"}, fails);
    CHECK(again.action == idem::InboxAction::dead_letter);
    CHECK(again.failure.kind == idem::FailureClass::exhausted);
    CHECK(again.failure.message == "the mailer is away");
    CHECK(handled == 3);
    // Of one that failed the next delivery runs, and may be what works.
    CHECK(inbox.consume({"works later", "b"}, [] { throw 7; }).action ==
          idem::InboxAction::retry_later);
    CHECK(inbox.consume({"works later", "b"}, [] {}).action == idem::InboxAction::ack);
}

template <class World>
void what_cannot_work_is_a_dead_letter(World& world) {
    auto inbox = inbox_of(world);
    int handled = 0;
    for (int copy = 0; copy < 2; ++copy) {
        const auto out = inbox.consume({"bad", "{"}, [&] {
            ++handled;
            throw idem::FinalError("bad_json", "line 1: unexpected end");
        });
        CHECK(out.action == idem::InboxAction::dead_letter);
        CHECK(out.failure.kind == idem::FailureClass::final);
        CHECK(out.failure.code == "bad_json");
        CHECK(out.handled == (copy == 0));
        const auto held = inbox.consume({"doubt", "b"}, [&] {
            ++handled;
            throw idem::UnknownOutcomeError("the bank did not answer");
        });
        CHECK(held.action == idem::InboxAction::dead_letter);
        CHECK(held.failure.kind == idem::FailureClass::unknown);
    }
    CHECK(handled == 2);
    CHECK(inbox.guard().find(inbox.key_of("doubt"))->header.state == idem::State::unknown);
}

/// A consumer that was paused past its lease, and failed when it woke up, has no say: another one
/// has the message, or has done it.
template <class World>
void who_has_lost_a_message_does_not_bury_it(World& world) {
    auto inbox = inbox_of(world);
    auto other = inbox_of(world);
    const auto fail = [](int how) {
        if (how == 0) throw idem::FinalError("bad", "it cannot work");
        if (how == 1) throw idem::UnknownOutcomeError("the bank did not answer");
        throw std::runtime_error("away");
    };
    for (int how = 0; how < 3; ++how) {
        const std::string id = "lost " + std::to_string(how);
        const auto out = inbox.consume({id, "b"}, [&] {
            world.advance(message_lease);
            CHECK(other.consume({id, "b"}, [] {}).action == idem::InboxAction::ack);
            fail(how);
        });
        CHECK(out.action == idem::InboxAction::retry_later);
        CHECK(out.handled);
        CHECK(out.failure.kind == idem::FailureClass::retryable);
        CHECK(out.failure.code == "lost");
        CHECK(out.error != nullptr);
        CHECK(inbox.consume({id, "b"}, [] {}).action == idem::InboxAction::ack);
    }
}

template <class World>
void what_kills_its_consumers_is_a_dead_letter(World& world) {
    auto inbox = inbox_of(world);
    for (int crash = 0; crash < 3; ++crash) {
        take_elsewhere(world, "poison", "b");
        world.advance(message_lease);
    }
    bool handled = false;
    for (int copy = 0; copy < 2; ++copy) {
        const auto out = inbox.consume({"poison", "b"}, [&] { handled = true; });
        CHECK(out.action == idem::InboxAction::dead_letter);
        CHECK(out.failure.kind == idem::FailureClass::exhausted);
    }
    CHECK_FALSE(handled);
}

template <class World>
void without_its_store_nothing_is_handled(World& world) {
    using idem::testing::Fault;
    idem::testing::FaultyStore store(world.store());
    idem::Inbox inbox(store, inbox_options());
    int handled = 0;
    store.fail_call(1, Fault::refused);
    const auto out = inbox.consume({"down", "b"}, [&] { ++handled; });
    CHECK(out.action == idem::InboxAction::retry_later);
    CHECK(out.failure.code == "unavailable");
    CHECK(out.error != nullptr);
    CHECK(handled == 0);
    CHECK(inbox.consume({"down", "b"}, [&] { ++handled; }).action == idem::InboxAction::ack);
    CHECK(handled == 1);
    // A failure that could not be recorded is told by the record, when the message comes again.
    store.fail_call(2, Fault::refused);
    const auto unrecorded =
        inbox.consume({"down 2", "b"}, [] { throw idem::FinalError("bad", "it cannot work"); });
    CHECK(unrecorded.action == idem::InboxAction::retry_later);
    CHECK(unrecorded.failure.code == "bad");
    for (const auto& id : {std::string(), std::string(256, 'x')}) {
        const auto nameless = inbox.consume({id, "b"}, [&] { ++handled; });
        CHECK(nameless.action == idem::InboxAction::dead_letter);
        CHECK(nameless.failure.code == "no_id");
    }
    CHECK(handled == 1);
}

template <class World>
void many_consumers_handle_each_message_once(World& world) {
    auto inbox = inbox_of(world);
    constexpr std::size_t count = 60;
    std::array<std::atomic<int>, count> effects{};
    std::atomic<int> acks{0};
    {
        std::vector<std::jthread> consumers;
        for (unsigned me = 0; me < 6; ++me)
            consumers.emplace_back([&, me] {
                std::mt19937 random(me);
                std::vector<std::size_t> order(count);
                for (std::size_t i = 0; i < count; ++i) order[i] = i;
                std::shuffle(order.begin(), order.end(), random);
                while (!order.empty()) {
                    const std::size_t i = order.back();
                    const auto out = inbox.consume({"n" + std::to_string(i), "b"}, [&] {
                        ++effects[i];
                        std::this_thread::yield();
                    });
                    order.pop_back();
                    if (out.action == idem::InboxAction::ack) ++acks;
                    if (out.action == idem::InboxAction::retry_later)
                        order.insert(order.begin(), i);
                }
            });
    }
    CHECK(std::all_of(effects.begin(), effects.end(), [](const auto& n) { return n == 1; }));
    CHECK(acks == 6 * static_cast<int>(count));
}

template <class World>
void dead_letters_are_listed_replayed_and_purged(World& world) {
    auto options = inbox_options();
    options.group = "letters";
    auto inbox = inbox_of(world, options);
    int handled = 0;
    const auto fails = [&] {
        ++handled;
        throw idem::FinalError("422", "no");
    };
    for (const char* id : {"a", "b", "c"}) (void)inbox.consume({id, "b"}, fails);
    (void)inbox.consume({"held", "b"}, [] { throw idem::UnknownOutcomeError("?"); });
    (void)inbox.consume({"fine", "b"}, [] {});
    idem::DeadLetters letters(world.store());
    idem::DeadLetterQuery query;
    query.scope = "letters";
    const auto all = [&] {
        std::vector<idem::RecordView> out;
        std::string ids;
        query.cursor.clear();
        query.limit = 2;
        do {
            auto page = letters.list(query);
            for (auto& letter : page.records) {
                // A listing may show one twice.
                if (ids.find(letter.key.id) != std::string::npos) continue;
                ids += letter.key.id;
                out.push_back(std::move(letter));
            }
            query.cursor = page.next;
        } while (!query.cursor.empty());
        return out;
    };
    const auto failed = all();
    REQUIRE(failed.size() == 3);
    for (const auto& letter : failed) {
        CHECK(letter.failure() == idem::Failure{idem::FailureClass::final, "422", "no"});
        CHECK(letter.header.attempt == 1);
    }
    CHECK(letters.replay(failed[0]));
    CHECK_FALSE(letters.replay(failed[0]));  // there is none
    CHECK(inbox.consume({failed[0].key.id, "b"}, fails).attempt == 1);
    CHECK_FALSE(letters.replay(failed[0]));  // another failure than the one that was seen
    for (const auto& letter : all())
        if (letter.key.id == failed[0].key.id) CHECK(letters.replay(letter));
    CHECK(inbox.consume({failed[0].key.id, "b"}, [] {}).action == idem::InboxAction::ack);
    CHECK(handled == 4);
    CHECK(inbox.consume({failed[1].key.id, "b"}, fails).action == idem::InboxAction::dead_letter);
    CHECK(handled == 4);
    query.held = true;
    const auto held = all();
    REQUIRE(held.size() == 1);
    CHECK_THROWS_AS(letters.purge(query, 10), idem::UsageError);
    CHECK(letters.replay(held[0]));
    CHECK(inbox.consume({"held", "b"}, [] {}).action == idem::InboxAction::ack);
    query = {};
    query.scope = "letters";
    CHECK_THROWS_AS(letters.purge(query, 10), idem::UsageError);  // without an age
    query.older_than = std::chrono::minutes{1};
    CHECK(letters.purge(query, 10) == 0);
    world.advance(std::chrono::minutes{1});
    CHECK(letters.purge(query, 1) == 1);
    CHECK(letters.purge(query, 10) == 1);
    CHECK(all().empty());
    CHECK(inbox.guard().find({"letters", "fine"}).has_value());
}

template <class World>
void inboxes_keep_their_promises(World& world) {
    messages_are_handled_once(world);
    messages_in_progress_are_not_acknowledged(world);
    failures_are_tried_again_and_then_set_aside(world);
    what_cannot_work_is_a_dead_letter(world);
    who_has_lost_a_message_does_not_bury_it(world);
    what_kills_its_consumers_is_a_dead_letter(world);
    dead_letters_are_listed_replayed_and_purged(world);
    without_its_store_nothing_is_handled(world);
    many_consumers_handle_each_message_once(world);
}

/// Real processes, each ended by SIGKILL inside the handler, the third one for good.
template <class World, class MakeStore>
void consumers_that_are_killed_are_counted(World& world, MakeStore&& make_store) {
    for (int crash = 0; crash < 3; ++crash) {
        std::fflush(nullptr);
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            alarm(120);
            idem::Inbox inbox(make_store(), inbox_options());
            (void)inbox.consume({"killer", "b"}, [] { (void)raise(SIGKILL); });
            _exit(1);
        }
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child);
        REQUIRE(WIFSIGNALED(status));
        CHECK(WTERMSIG(status) == SIGKILL);
        auto inbox = inbox_of(world);
        CHECK(inbox.consume({"killer", "b"}, [] {}).action == idem::InboxAction::retry_later);
        world.advance(message_lease);
    }
    auto inbox = inbox_of(world);
    bool handled = false;
    const auto out = inbox.consume({"killer", "b"}, [&] { handled = true; });
    CHECK(out.action == idem::InboxAction::dead_letter);
    CHECK(out.failure.kind == idem::FailureClass::exhausted);
    CHECK_FALSE(handled);
    CHECK(inbox.guard().find(inbox.key_of("killer"))->header.crashes == 3);
}

}  // namespace idem_test

#endif
