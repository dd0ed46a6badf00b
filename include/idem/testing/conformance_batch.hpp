#ifndef IDEM_TESTING_CONFORMANCE_BATCH_HPP
#define IDEM_TESTING_CONFORMANCE_BATCH_HPP

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <functional>
#include <set>
#include <thread>

#include <idem/record_codec.hpp>
#include <idem/testing/conformance_port.hpp>

/// Batches, and what must hold where many threads ask at once.
namespace idem::inline v0_1::testing::conformance {

/// Runs `body(i)` on `count` threads that start together; what one throws is thrown here.
inline void together(std::size_t count, const std::function<void(std::size_t)>& body) {
    std::barrier start(static_cast<std::ptrdiff_t>(count));
    std::vector<std::exception_ptr> thrown(count);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) {
        threads.emplace_back([&, i] {
            start.arrive_and_wait();
            try {
                body(i);
            } catch (...) {
                thrown[i] = std::current_exception();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& error : thrown)
        if (error) std::rethrow_exception(error);
}

template <class B>
void batch_answers_by_position(B& b) {
    constexpr std::size_t size = 300;
    std::vector<ClaimRequest> claims;
    for (std::size_t i = 0; i < size; ++i)  // neither sorted nor reversed
        claims.push_back(b.claim_request(b.key(std::to_string(i * 7 % size)), i));
    b.settle(b.key("7"), 1000, FinishKind::complete);
    std::vector<ClaimReply> claimed(size);
    b.store().claim(claims, claimed);
    std::vector<FinishRequest> finishes;
    std::vector<std::string> results(size);
    for (std::size_t i = 0; i < size; ++i) {
        expect(!claimed[i].trouble, "trouble: " + claimed[i].trouble.message);
        expect_equal(claimed[i].kind, i == 1 ? ClaimKind::completed : ClaimKind::acquired,
                     "the answer of item " + std::to_string(i));
        results[i] = "of " + std::to_string(i);
        finishes.push_back(b.finish_request(b.key(std::to_string(i * 7 % size)), i,
                                            claimed[i].fence, FinishKind::complete));
        finishes.back().result = results[i];
    }
    std::vector<FinishReply> finished(size);
    b.store().finish(finishes, finished);
    std::vector<KeyView> keys;
    for (const auto& claim : claims) keys.push_back(claim.key);
    std::vector<FindReply> found(size);
    b.store().find(keys, found);
    for (std::size_t i = 0; i < size; ++i) {
        if (i == 1) continue;
        expect(!finished[i].lost, "the finish of item " + std::to_string(i) + " was lost");
        expect(found[i].record && found[i].record->payload.result == results[i],
               "item " + std::to_string(i) + " found the result of another");
    }
}

template <class B>
void batch_same_key_in_order(B& b) {
    std::vector<ClaimRequest> claims;
    for (std::uint64_t who = 0; who < 6; ++who) claims.push_back(b.claim_request(b.key(), who / 2));
    std::vector<ClaimReply> claimed(claims.size());
    b.store().claim(claims, claimed);
    for (std::size_t i = 0; i < claims.size(); ++i) {
        expect(!claimed[i].trouble, "trouble: " + claimed[i].trouble.message);
        expect_equal(claimed[i].kind, i < 2 ? ClaimKind::acquired : ClaimKind::in_progress,
                     "the answer of item " + std::to_string(i));
    }
    expect_equal(claimed[1].fence, claimed[0].fence, "the fence of the same claim twice");
    const Fence fence = claimed[0].fence;
    const FinishRequest finishes[] = {
        b.finish_request(b.key(), 1, fence, FinishKind::complete),
        b.finish_request(b.key(), 0, fence, FinishKind::quarantine),
        b.finish_request(b.key(), 0, fence, FinishKind::complete),
        b.finish_request(b.key(), 0, fence, FinishKind::fail),
    };
    FinishReply finished[4];
    b.store().finish(finishes, finished);
    expect_lost(finished[0], LostReason::other_owner, "the first item");
    expect(!finished[1].lost && finished[1].state == State::unknown, "the second item");
    expect(!finished[2].lost && finished[2].state == State::succeeded, "the third item");
    expect_lost(finished[3], LostReason::finished, "the fourth item");
    const ForgetRequest forgets[] = {{b.view(b.key()), B::lease}, {b.view(b.key()), B::lease}};
    ForgetReply forgotten[2];
    b.store().forget(forgets, forgotten);
    expect(forgotten[0].existed && !forgotten[1].existed, "forget of one key twice in a batch");
}

template <class B>
void batch_of_nothing(B& b) {
    b.store().claim(std::span<const ClaimRequest>{}, std::span<ClaimReply>{});
    b.store().finish(std::span<const FinishRequest>{}, std::span<FinishReply>{});
    b.store().renew(std::span<const RenewRequest>{}, std::span<RenewReply>{});
    b.store().find(std::span<const KeyView>{}, std::span<FindReply>{});
    b.acquire(b.key(), 1);
}

template <class B>
void batches_in_opposite_orders(B& b) {
    constexpr std::size_t threads = 8;
    constexpr std::size_t keys = 16;
    constexpr int rounds = 20;
    std::atomic<int> acquired{0};
    for (std::size_t i = 0; i < keys; ++i) (void)b.key(std::to_string(i));
    together(threads, [&](std::size_t me) {
        for (int round = 0; round < rounds; ++round) {
            std::vector<ClaimRequest> claims;
            const auto who = me * 1000 + static_cast<std::size_t>(round);
            for (std::size_t i = 0; i < keys; ++i) {
                const auto at = me % 2 == 0 ? i : keys - 1 - i;
                claims.push_back(b.claim_request(b.key(std::to_string(at)), who));
            }
            std::vector<ClaimReply> claimed(keys);
            b.store().claim(claims, claimed);
            std::vector<FinishRequest> releases;
            for (std::size_t i = 0; i < keys; ++i) {
                expect(!claimed[i].trouble, "trouble: " + claimed[i].trouble.message);
                if (claimed[i].kind != ClaimKind::acquired) continue;
                ++acquired;
                releases.push_back(b.finish_request(claims[i].key.key(), who, claimed[i].fence,
                                                    FinishKind::release));
                releases.back().key = claims[i].key;
            }
            std::vector<FinishReply> released(releases.size());
            b.store().finish(releases, released);
            for (const auto& reply : released)
                expect(!reply.trouble && !reply.lost, "a holder's release was lost");
        }
    });
    std::uint32_t attempts = 0;
    for (std::size_t i = 0; i < keys; ++i)
        attempts += b.must_find(b.key(std::to_string(i))).header.attempt;
    expect_equal(static_cast<int>(attempts), acquired.load(), "acquisitions on record");
}

template <class B>
void one_of_many_claims(B& b) {
    for (int round = 0; round < 5; ++round) {
        const auto& key = b.key(std::to_string(round));
        std::atomic<int> acquired{0};
        std::atomic<std::uint64_t> winner{0};
        together(64, [&](std::size_t me) {
            const auto reply = b.claim(key, me);
            if (reply.kind == ClaimKind::acquired) {
                ++acquired;
                winner = me;
            } else {
                expect_equal(reply.kind, ClaimKind::in_progress, "the answer of the others");
            }
        });
        expect_equal(acquired.load(), 1, "acquired claims of 64");
        expect(b.must_find(key).header.owner == B::owner(winner), "the owner is not the winner");
    }
}

template <class B>
void one_of_many_takeovers(B& b) {
    const Fence first = b.acquire(b.key(), 1000);
    b.lapse();
    std::atomic<int> acquired{0};
    std::atomic<int> completed{0};
    together(16, [&](std::size_t me) {
        if (me == 0) {  // the vanished holder comes back in the same moment
            if (!b.finish(b.key(), 1000, first, FinishKind::complete).lost) ++completed;
            return;
        }
        if (b.claim(b.key(), me).kind == ClaimKind::acquired) ++acquired;
    });
    expect_equal(acquired.load() + completed.load(), 1, "takeovers and late completes together");
}

template <class B>
void one_of_many_settlers(B& b) {
    auto request = b.claim_request(b.key(), 1);
    request.policy.orphan = Orphan::hold;
    const Fence fence = b.acquire(request);
    b.lapse();
    std::atomic<int> reaped{0};
    together(8, [&](std::size_t) {
        if (b.send(b.reap_request(b.key(), fence)).reaped) ++reaped;
    });
    expect_equal(reaped.load(), 1, "reapers that settled one orphan");
    std::atomic<int> resolved{0};
    together(8, [&](std::size_t) {
        ResolveRequest resolve;
        resolve.key = b.view(b.key());
        resolve.seen_fence = fence;
        resolve.retention = B::retention;
        if (b.send(resolve).resolved) ++resolved;
    });
    expect_equal(resolved.load(), 1, "people that resolved one record");
}

template <class B>
void fences_are_never_shared(B& b) {
    constexpr std::size_t threads = 8;
    std::vector<std::vector<Fence>> seen(threads);
    together(threads, [&](std::size_t me) {
        for (std::uint64_t round = 0; round < 50; ++round) {
            const auto who = me * 1000 + round;
            const auto reply = b.claim(b.key(), who);
            if (reply.kind != ClaimKind::acquired) continue;
            if (!seen[me].empty()) expect(reply.fence > seen[me].back(), "a fence went down");
            seen[me].push_back(reply.fence);
            if (round % 5 == 0) {
                b.forget(b.key());
            } else {
                (void)b.finish(b.key(), who, reply.fence, FinishKind::release);
            }
        }
    });
    std::set<Fence> all;
    std::size_t count = 0;
    for (const auto& fences : seen) {
        all.insert(fences.begin(), fences.end());
        count += fences.size();
    }
    expect(count > 0, "nothing was acquired");
    expect_equal(all.size(), count, "different fences");
}

template <class B>
void a_copy_is_the_same_store(B& b) {
    auto copy = b.store();
    const Fence fence = b.acquire(b.key(), 1);
    expect_equal(claim_one(copy, b.claim_request(b.key(), 2)).kind, ClaimKind::in_progress,
                 "a claim through a copy");
    const auto finish = b.finish_request(b.key(), 1, fence, FinishKind::complete);
    expect(!finish_one(copy, finish).lost, "a finish through a copy was lost");
    b.expect_state(b.key(), State::succeeded);
}

template <class B>
void garbage_is_schema_trouble(B& b) {
    if constexpr (holds_garbage<std::remove_cvref_t<decltype(b.world)>>) {
        if (!puts_garbage(b.world)) return;
        RecordHeader header;
        header.state = State::succeeded;
        header.retention_end = b.world.now() + B::retention;
        std::string newer = encode_record(header, {});
        newer[1] = static_cast<char>(record_format::major + 1);
        const std::string whole = encode_record(header, {});
        for (const auto& bytes :
             {std::string("rubbish"), whole.substr(0, whole.size() / 2), newer}) {
            b.world.put_raw(b.view(b.key("bad")), bytes);
            const ClaimRequest claims[] = {b.claim_request(b.key("good"), 1),
                                           b.claim_request(b.key("bad"), 1),
                                           b.claim_request(b.key("fine"), 1)};
            ClaimReply claimed[3];
            b.store().claim(claims, claimed);
            const auto is_schema = [](const Trouble& trouble) {
                return trouble.kind == Trouble::Kind::schema && !trouble.may_have_applied;
            };
            expect(is_schema(claimed[1].trouble), "a claim over garbage is no schema trouble");
            expect(!claimed[0].trouble && claimed[0].kind == ClaimKind::acquired &&
                       !claimed[2].trouble && claimed[2].kind == ClaimKind::acquired,
                   "one item's trouble harmed another");
            const auto finish = b.finish_request(b.key("bad"), 1, 1, FinishKind::complete);
            expect(is_schema(finish_one(b.store(), finish).trouble), "finish over garbage");
            expect(is_schema(forget_one(b.store(), {b.view(b.key("bad")), B::lease}).trouble),
                   "forget over garbage");
            expect(is_schema(find_one(b.store(), b.view(b.key("bad"))).trouble), "find of garbage");
        }
    }
}

template <world World>
[[nodiscard]] Promises<World> batch_promises() {
    using B = Bench<World>;
    return {
        {3, "batch: replies answer by position", batch_answers_by_position<B>},
        {3, "batch: the same key twice acts first to last", batch_same_key_in_order<B>},
        {3, "batch: of nothing does nothing", batch_of_nothing<B>},
        {3, "batch: opposite orders never deadlock", batches_in_opposite_orders<B>},
        {2, "atomic: of 64 concurrent claims one is acquired", one_of_many_claims<B>},
        {2, "atomic: takeover or late complete, never both", one_of_many_takeovers<B>},
        {2, "atomic: one reaper and one resolver settle a record", one_of_many_settlers<B>},
        {7, "fences grow for every acquisition and are never shared", fences_are_never_shared<B>},
        {1, "handle: a copy names the same records", a_copy_is_the_same_store<B>},
        {10, "garbage and newer formats are schema trouble, untouched",
         garbage_is_schema_trouble<B>},
    };
}

}  // namespace idem::inline v0_1::testing::conformance

#endif
