// The store on a real Redis: what it costs, what it leaves there, and what it makes of a server
// that forgets, fills up, or is somebody else's too.

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <idem/idem.hpp>

#include "support/catch.hpp"
#include "support/eventually.hpp"
#include "support/redis_requests.hpp"
#include "support/redis_world.hpp"

namespace redis_store_test {

using namespace std::chrono_literals;
using idem::ClaimKind;
using idem::Trouble;
using idem_test::claim_of;
using idem_test::complete_of;
using idem_test::options_for;
using idem_test::quick;
using idem_test::random_owner;
using idem_test::RedisCli;
using idem_test::RedisServer;
using idem_test::release_of;
using idem_test::shared_redis;
using idem_test::view_of;

struct Held {
    idem::Key key;
    idem::Owner owner;
    idem::ClaimReply reply;
};

Held acquire(idem::RedisStore& store, const std::string& id) {
    Held out{{"s", id}, random_owner(), {}};
    out.reply = idem::claim_one(store, claim_of(out.key, out.owner));
    REQUIRE(out.reply.trouble.message == "");
    REQUIRE(out.reply.kind == ClaimKind::acquired);
    return out;
}
idem::FinishReply complete(idem::RedisStore& store, const Held& held, std::string_view result) {
    return idem::finish_one(store, complete_of(held.key, held.owner, held.reply.fence, result));
}
idem::ClaimReply claim(idem::RedisStore& store, const idem::Key& key) {
    return idem::claim_one(store, claim_of(key, random_owner()));
}

/// What a call costs.
template <class Action>
std::pair<std::uint64_t, std::uint64_t> cost(idem::RedisStore& store, Action&& action) {
    const auto before = store.traffic();
    action();
    const auto after = store.traffic();
    return {after.round_trips - before.round_trips, after.commands - before.commands};
}
using Cost = std::pair<std::uint64_t, std::uint64_t>;

TEST_CASE("Redis: round trips and commands of each operation are what they must be",
          "[integration][redis]") {
    idem::RedisStore store(options_for(shared_redis().url()));
    const auto warm = acquire(store, "warm");
    (void)complete(store, warm, "r");  // the scripts are there now
    Held held;
    CHECK(cost(store, [&] { held = acquire(store, "k"); }) == Cost{1, 1});
    const idem::RenewRequest renew{view_of(held.key), held.owner, held.reply.fence, 30s, {}, {}};
    (void)idem::renew_one(store, renew);
    CHECK(cost(store, [&] { (void)idem::renew_one(store, renew); }) == Cost{1, 1});
    CHECK(cost(store, [&] { (void)complete(store, held, "result"); }) == Cost{1, 1});
    CHECK(cost(store, [&] { (void)claim(store, held.key); }) == Cost{1, 1});
    CHECK(cost(store, [&] { (void)idem::find_one(store, view_of(held.key)); }) == Cost{1, 2});
    CHECK(cost(store, [&] { (void)store.purge(100); }) == Cost{0, 0});

    std::vector<idem::Key> keys;
    std::vector<idem::ClaimRequest> batch;
    for (int i = 0; i < 100; ++i) keys.push_back({"batch", std::to_string(i)});
    for (const auto& key : keys) batch.push_back(claim_of(key, random_owner()));
    std::vector<idem::ClaimReply> replies(batch.size());
    CHECK(cost(store, [&] { store.claim(batch, replies); }) == Cost{1, 100});
    for (const auto& reply : replies) CHECK(reply.kind == ClaimKind::acquired);
    batch.push_back(claim_of(keys[0], random_owner()));
    replies.assign(batch.size(), {});
    CHECK(cost(store, [&] { store.claim(batch, replies); }) == Cost{1, 101});

    // The guard adds nothing of its own: two for the first call, one for a repeat.
    idem::IdempotencyGuard<idem::RedisStore> guard(store);
    CHECK(cost(store, [&] {
              (void)guard.run(idem::Key{"g", "k"}, {}, [] { return 1; });
          }) == Cost{2, 2});
    CHECK(cost(store, [&] {
              (void)guard.run(idem::Key{"g", "k"}, {}, [] { return 2; });
          }) == Cost{1, 1});
}

TEST_CASE("Redis: while most claims are repeats a plain read answers them",
          "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    idem::RedisStore store(options_for(server.url()));
    const auto held = acquire(store, "k");
    (void)complete(store, held, "result");
    for (int i = 0; i < 40; ++i) (void)claim(store, held.key);
    (void)cli({"CONFIG", "RESETSTAT"});
    CHECK(cost(store, [&] { CHECK(claim(store, held.key).result == "result"); }) == Cost{1, 2});
    CHECK(idem_test::calls_of(cli, "evalsha") == 0);
    CHECK(idem_test::calls_of(cli, "get") == 1);
    // What may write is left to the script: a round trip more, until first calls prevail.
    CHECK(cost(store, [&] { (void)acquire(store, "first"); }) == Cost{2, 3});
    CHECK(idem_test::calls_of(cli, "evalsha") == 1);
    for (int i = 0; i < 10; ++i) (void)acquire(store, std::to_string(i));
    CHECK(cost(store, [&] { (void)acquire(store, "later"); }) == Cost{1, 1});
}

TEST_CASE("Redis: in a batch that looks first nothing overtakes an item of its own key",
          "[integration][redis]") {
    auto options = options_for(shared_redis().url());
    options.look_first = true;
    idem::RedisStore store(options);
    const auto before = acquire(store, "order");
    (void)idem::finish_one(store, release_of(before.key, before.owner, before.reply.fence));
    // By itself the second would be stale; behind the first it meets one that runs.
    const std::vector batch = {claim_of(before.key, random_owner()),
                               claim_of(before.key, before.owner)};
    std::vector<idem::ClaimReply> replies(2);
    store.claim(batch, replies);
    CHECK(replies[0].kind == ClaimKind::acquired);
    CHECK(replies[1].kind == ClaimKind::in_progress);
}

TEST_CASE("Redis: a script calls the commands it needs and no more", "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    idem::RedisStore store(options_for(server.url()));
    (void)complete(store, acquire(store, "warm"), "r");
    const auto calls = [&](auto&& action) {
        (void)cli({"CONFIG", "RESETSTAT"});
        action();
        std::string out;
        for (const std::string name : {"evalsha", "eval", "time", "getrange", "get", "strlen",
                                       "set", "setrange", "pexpire", "publish"})
            if (const long times = idem_test::calls_of(cli, name); times > 0)
                out += name + " " + std::to_string(times) + " ";
        return out;
    };
    Held held;
    CHECK(calls([&] { held = acquire(store, "k"); }) == "evalsha 1 time 1 getrange 1 set 1 ");
    CHECK(calls([&] { (void)complete(store, held, "r"); }) ==
          "evalsha 1 time 1 getrange 1 set 1 publish 1 ");
    CHECK(calls([&] { (void)claim(store, held.key); }) == "evalsha 1 time 1 getrange 1 ");
}

TEST_CASE("Redis: a large result comes by a native read in the same write, and is never another's",
          "[integration][redis]") {
    auto options = options_for(shared_redis().url());
    options.look_first = false;
    idem::RedisStore store(options);
    const std::string large(16 * 1024, 'x');
    const auto held = acquire(store, "k");
    CHECK_FALSE(complete(store, held, large).lost);
    idem::ClaimReply reply;
    CHECK(cost(store, [&] { reply = claim(store, held.key); }) == Cost{2, 3});
    CHECK(reply.result == large);
    for (int i = 0; i < 3; ++i)
        CHECK(cost(store, [&] { reply = claim(store, held.key); }) == Cost{1, 2});
    CHECK(reply.result == large);
    CHECK(reply.kind == ClaimKind::completed);
    // Where no large one is met for a while, nobody pays for the second command any more.
    const auto small = acquire(store, "small");
    CHECK_FALSE(complete(store, small, "r").lost);
    for (int i = 0; i < 64; ++i) (void)claim(store, small.key);
    CHECK(cost(store, [&] { (void)claim(store, small.key); }) == Cost{1, 1});

    // While others forget and replace it, what is read is whole, and of one of them.
    std::atomic<bool> stop{false};
    std::atomic<int> seen{0};
    std::atomic<int> torn{0};
    const auto long_of = [](char letter) {
        return std::string(2000U + static_cast<unsigned char>(letter), letter);
    };
    const auto take_part = [&](char letter, bool forgets) {
        idem::RedisStore one(options_for(shared_redis().url(), "changing:"));
        const idem::Key key{"s", "moving"};
        for (int i = 0; i < 5'000 && !stop.load(); ++i) {
            const auto owner = random_owner();
            const auto got = idem::claim_one(one, claim_of(key, owner));
            if (got.kind == ClaimKind::acquired)
                (void)idem::finish_one(one, complete_of(key, owner, got.fence, long_of(letter)));
            if (got.kind == ClaimKind::completed) {
                const bool whole = !got.result.empty() && got.result == long_of(got.result[0]);
                if (!whole) ++torn;
                if (!whole) stop.store(true);
                if (seen.fetch_add(1) > 300) stop.store(true);
            }
            if (forgets) (void)idem::forget_one(one, {view_of(key), 1s});
        }
    };
    std::jthread changer(take_part, 'c', true);
    std::jthread other(take_part, 'o', false);
    changer.join();
    other.join();
    CHECK(torn == 0);
    CHECK(seen.load() > 50);
}

TEST_CASE("Redis: a record takes at most 390 bytes with a result of 100", "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    idem::RedisStore store(options_for(server.url(), "idem:"));
    constexpr std::size_t count = 30'000;
    const auto fill = [&](std::size_t from, std::size_t to) {
        for (std::size_t at = from; at < to; at += 500) {
            std::vector<idem::Key> keys;
            for (std::size_t i = at; i < at + 500; ++i) {
                const std::string number = std::to_string(i);
                keys.push_back({"bench", std::string(36 - number.size(), '0') + number});
            }
            std::vector<idem::ClaimRequest> claims;
            std::vector<idem::FinishRequest> finishes;
            for (const auto& key : keys) {
                claims.push_back(claim_of(key, random_owner()));
                claims.back().fingerprint = idem::Fingerprint::of_bytes(key.id);
            }
            std::vector<idem::ClaimReply> claimed(500);
            store.claim(claims, claimed);
            const std::string result(100, 'r');
            for (std::size_t i = 0; i < 500; ++i)
                finishes.push_back(complete_of(keys[i], claims[i].owner, claimed[i].fence, result));
            std::vector<idem::FinishReply> finished(500);
            store.finish(finishes, finished);
            for (const auto& reply : finished) REQUIRE_FALSE((reply.lost || reply.trouble));
        }
    };
    fill(0, 500);
    const long before = std::stol(cli.info("memory", "used_memory"));
    fill(500, 500 + count);
    const long after = std::stol(cli.info("memory", "used_memory"));
    const auto each = (after - before) / static_cast<long>(count);
    INFO(each << " bytes for each record");
    CHECK(each > 200);  // it has been counted at all
    CHECK(each <= 390);
}

TEST_CASE("Redis: the layout of a record and the name of its key are fixed",
          "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    idem_test::RedisWorld world(shared_redis().url(), cli);
    const idem::Key key{"scope", "id", "tenant"};
    idem::Owner owner;
    owner.bytes.fill('O');
    auto request = claim_of(key, owner);
    request.policy = {idem::Orphan::hold, 3, 5};
    request.fingerprint = idem::Fingerprint::of_bytes("request");
    const auto claimed = idem::claim_one(world.store(), request);
    auto finish = complete_of(key, owner, claimed.fence, "result");
    finish.codec = {0x01020304, 7};
    finish.resource = "res";
    world.advance(1s);
    CHECK_FALSE(idem::finish_one(world.store(), finish).lost);
    // Both were made by another program, from the description in layout.hpp.
    const std::string name = world.key_prefix() + "{cSY}c\x05scope\x06tenantid";
    CHECK(idem::redis::name_of(world.key_prefix(), view_of(key)) == name);
    const std::string bytes =
        "c2010450020100030005000403020107010000000000000000202110d70d064f"
        "4f4f4f4f4f4f4f4f4f4f4f4f4f4f4f00202110d70d0600202110d70d06406230"
        "10d70d0680e3ea11d70d064006c4e6d70d0606000000011f58b9145b24d108d7"
        "ac38887338b3ea3229833b9c1e418250343f907bfd1047000000000000000300"
        "0000726573726573756c74";
    CHECK(idem::detail::hex(cli({"GET", name})) == bytes);
    const auto read = idem::redis::read_record(cli({"GET", name}));
    REQUIRE(read);
    CHECK(read->payload.result == "result");
    CHECK(read->payload.resource == "res");
}

TEST_CASE("Redis: a reader skips what a later minor version has added, and takes no damage (R77)",
          "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    idem::RedisStore store(options_for(shared_redis().url(), "minor:"));
    const auto held = acquire(store, "k");
    CHECK_FALSE(complete(store, held, "result").lost);
    const std::string name = idem::redis::name_of("minor:", view_of(held.key));
    std::string bytes = cli({"GET", name});
    bytes[3] = static_cast<char>(bytes[3] | '\x80');
    bytes.insert(bytes.size() - 6, std::string("\3\0new", 5));
    (void)cli({"SET", name, bytes, "KEEPTTL"});
    CHECK(claim(store, held.key).result == "result");
    CHECK(idem::find_one(store, view_of(held.key)).record->payload.result == "result");
    // Each byte that is missing makes it no record, whose key is never run again.
    for (std::size_t size = 1; size < bytes.size(); ++size) {
        (void)cli({"SET", name, bytes.substr(0, size), "KEEPTTL"});
        CHECK(claim(store, held.key).trouble.kind == Trouble::Kind::schema);
        CHECK(idem::find_one(store, view_of(held.key)).trouble.kind == Trouble::Kind::schema);
    }
    (void)cli({"SET", name, "", "KEEPTTL"});
    CHECK(claim(store, held.key).trouble.kind == Trouble::Kind::schema);
    (void)cli({"DEL", name});
    (void)cli({"RPUSH", name, "a list"});
    (void)cli({"PEXPIRE", name, "60000"});
    CHECK(claim(store, held.key).trouble.kind == Trouble::Kind::schema);
    CHECK(idem::find_one(store, view_of(held.key)).trouble.kind == Trouble::Kind::schema);
    CHECK(cli({"TYPE", name}) == "list");
    std::size_t troubled = 0;
    idem::ListQuery query;
    query.scope = "s";
    for (bool more = true; more; more = !query.cursor.empty()) {
        const auto page = store.list(query);
        if (page.trouble.kind == Trouble::Kind::schema) ++troubled;
        query.cursor = page.next;
    }
    CHECK(troubled == 1);
}

TEST_CASE("Redis: no operation takes a record that was cut for one, and none changes it (R77)",
          "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    idem::RedisStore store(options_for(shared_redis().url(), "cut:"));
    const auto held = acquire(store, "k");
    const idem::RenewRequest renew{view_of(held.key), held.owner, held.reply.fence, 30s,
                                   "half done",       "resource"};
    CHECK_FALSE(idem::renew_one(store, renew).lost);
    const std::string name = idem::redis::name_of("cut:", view_of(held.key));
    const std::string whole = cli({"GET", name});
    idem::ResolveRequest resolve;
    resolve.key = view_of(held.key);
    resolve.seen_fence = held.reply.fence;
    resolve.retention = 1h;
    for (std::size_t size = 1; size < whole.size(); ++size) {
        INFO(size << " of " << whole.size());
        const std::string cut = whole.substr(0, size);
        (void)cli({"SET", name, cut, "KEEPTTL"});
        for (const auto& trouble :
             {idem::claim_one(store, claim_of(held.key, held.owner)).trouble,
              claim(store, held.key).trouble, idem::renew_one(store, renew).trouble,
              complete(store, held, "r").trouble,
              idem::finish_one(store, release_of(held.key, held.owner, held.reply.fence)).trouble,
              idem::resolve_one(store, resolve).trouble,
              idem::reap_one(store, {view_of(held.key), held.reply.fence, 1h, 1h}).trouble})
            CHECK(trouble.kind == Trouble::Kind::schema);
        CHECK(cli({"GET", name}) == cut);
    }
}

TEST_CASE("Redis: a record goes by itself when its retention is over (R29, R34, R35)",
          "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    idem::RedisStore store(options_for(shared_redis().url(), "ttl:"));
    const idem::Key key{"s", "k"};
    const std::string name = idem::redis::name_of("ttl:", view_of(key));
    const auto ttl = [&] { return std::stol(cli({"PTTL", name})); };
    const auto owner = random_owner();
    const auto reply = idem::claim_one(store, claim_of(key, owner));
    CHECK(ttl() > 3'600'000);
    CHECK(ttl() <= 3'630'000);  // lease and retention
    auto renew = idem::RenewRequest{view_of(key), owner, reply.fence, 2h, {}, {}};
    CHECK_FALSE(idem::renew_one(store, renew).lost);
    CHECK(ttl() > 2 * 3'600'000);
    auto finish = complete_of(key, owner, reply.fence, "r");
    finish.retention = 30ms;
    CHECK_FALSE(idem::finish_one(store, finish).lost);
    CHECK(ttl() <= 30);
    CHECK(idem_test::eventually([&] { return cli({"EXISTS", name}) == "0"; }));
    CHECK(idem::claim_one(store, claim_of(key, random_owner())).fence > reply.fence);
}

TEST_CASE("Redis: the slot of a key is the library's choice, whatever a user writes (R70, M28)",
          "[integration][redis]") {
    RedisServer server(
        {"--cluster-enabled", "yes", "--cluster-port", std::to_string(idem_test::free_port())});
    RedisCli cli(server.url());
    std::set<std::string> slots;
    for (const std::string id : {"a{b}c", "{b}", "{}", "}{", "{b}{c}", " {b} ", "x{b}y"}) {
        const idem::Key key{"{b}", id, "{b}"};
        slots.insert(cli({"CLUSTER", "KEYSLOT", idem::redis::name_of("idem:", view_of(key))}));
    }
    CHECK(slots.size() == 7);
    std::set<std::string> many;
    for (int i = 0; i < 500; ++i)
        many.insert(cli({"CLUSTER", "KEYSLOT",
                         idem::redis::name_of("idem:", view_of({"s", std::to_string(i)}))}));
    CHECK(many.size() > 480);
}

TEST_CASE("Redis: a node of a cluster is told to be one (R104)", "[integration][redis]") {
    RedisServer server(
        {"--cluster-enabled", "yes", "--cluster-port", std::to_string(idem_test::free_port())});
    RedisCli cli(server.url());
    idem::RedisStore store(quick(server.url()));
    CHECK(claim(store, {"s", "k"}).trouble.kind == Trouble::Kind::unavailable);  // no slots yet
    (void)cli({"CLUSTER", "ADDSLOTSRANGE", "0", "16383"});
    REQUIRE(idem_test::eventually([&] {
        return cli({"CLUSTER", "INFO"}).find("cluster_state:ok") != std::string::npos;
    }));
    // All slots are here: each script must touch its own key alone, and say so in KEYS.
    idem::IdempotencyGuard<idem::RedisStore> guard(store);
    for (int i = 0; i < 50; ++i)
        CHECK(guard.run(idem::Key{"s", std::to_string(i)}, {}, [&] { return i; }).value() == i);
    const auto held = acquire(store, "held");
    CHECK_FALSE(idem::find_one(store, view_of(held.key)).trouble);
    CHECK(idem::forget_one(store, {view_of(held.key), 1s}).existed);
}

TEST_CASE("Redis: a server that may evict claims is noticed, or refused (R106)",
          "[integration][redis]") {
    RedisServer server({"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"});
    std::vector<std::string> notices;
    auto options = options_for(server.url());
    options.notice = [&](std::string_view text) {
        notices.emplace_back(text);
        throw std::runtime_error("what it throws changes nothing");
    };
    idem::RedisStore store(options);
    for (int i = 0; i < 3; ++i) (void)acquire(store, std::to_string(i));
    REQUIRE(notices.size() == 1);
    CHECK(notices[0].find("allkeys-lru") != std::string::npos);
    CHECK(notices[0].find("127.0.0.1") != std::string::npos);
    options.refuse_eviction = true;
    idem::RedisStore strict(options);
    const auto refused = claim(strict, {"s", "k"});
    CHECK(refused.trouble.kind == Trouble::Kind::usage);
    CHECK(refused.trouble.message.find("allkeys-lru") != std::string::npos);
    RedisCli(server.url())({"CONFIG", "SET", "maxmemory-policy", "noeviction"});
    CHECK(claim(strict, {"s", "k"}).kind == ClaimKind::acquired);
}

TEST_CASE(
    "Redis: whoever lost the record is lost, and the next fence is higher (R14, R106, M7, M19)",
    "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    idem::RedisStore store(options_for(shared_redis().url(), "evict:"));
    const auto held = acquire(store, "k");
    (void)cli({"DEL", idem::redis::name_of("evict:", view_of(held.key))});
    const idem::RenewRequest renew{view_of(held.key), held.owner, held.reply.fence, 30s, {}, {}};
    CHECK(idem::renew_one(store, renew).reason == idem::LostReason::gone);
    CHECK(complete(store, held, "r").reason == idem::LostReason::gone);
    const auto next = claim(store, held.key);
    CHECK(next.kind == ClaimKind::acquired);
    CHECK(next.fence > held.reply.fence);
    CHECK(idem::renew_one(store, renew).reason == idem::LostReason::other_owner);
    CHECK(complete(store, held, "r").reason == idem::LostReason::other_owner);
}

TEST_CASE("Redis: a full server takes no new key, and ends what has begun (R107)",
          "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    idem::RedisStore store(options_for(server.url()));
    const auto done = acquire(store, "done");
    CHECK_FALSE(complete(store, done, "result").lost);
    const auto running = acquire(store, "running");
    const auto released = acquire(store, "released");
    (void)cli({"CONFIG", "SET", "maxmemory", "1"});
    const long keys = std::stol(cli({"DBSIZE"}));
    const auto refused = claim(store, {"s", "new"});
    CHECK(refused.trouble.kind == Trouble::Kind::unavailable);
    CHECK(refused.trouble.full);
    CHECK_FALSE(refused.trouble.may_have_applied);
    CHECK(std::stol(cli({"DBSIZE"})) == keys);
    CHECK(claim(store, done.key).result == "result");
    const idem::RenewRequest renew{
        view_of(running.key), running.owner, running.reply.fence, 60s, "half", {}};
    CHECK(idem::renew_one(store, renew).trouble.message == "");
    CHECK(complete(store, running, "late").trouble.message == "");
    CHECK(claim(store, running.key).result == "late");
    CHECK(idem::finish_one(store, release_of(released.key, released.owner, released.reply.fence))
              .trouble.message == "");
    CHECK(idem::forget_one(store, {view_of(done.key), 1s}).existed);
    idem::IdempotencyGuard<idem::RedisStore> guard(
        store, {.store_down = idem::StoreDown::run_unprotected});
    bool ran = false;
    CHECK_THROWS_AS(guard.run(idem::Key{"s", "new"}, {}, [&] { ran = true; }),
                    idem::UnavailableError);
    CHECK_FALSE(ran);
    (void)cli({"CONFIG", "SET", "maxmemory", "0"});
    CHECK(claim(store, {"s", "new"}).kind == ClaimKind::acquired);
}

TEST_CASE("Redis: SCRIPT FLUSH between any two operations costs one fallback each (R103, M26)",
          "[integration][redis]") {
    RedisServer server;
    RedisCli cli(server.url());
    idem::RedisStore store(options_for(server.url()));
    const auto flushed = [&](auto&& action) {
        (void)cli({"SCRIPT", "FLUSH"});
        const auto spent = cost(store, action);
        CHECK(spent.first == 2);
        CHECK(spent.second == 2);
    };
    const idem::Key key{"s", "k"};
    const auto owner = random_owner();
    idem::ClaimReply claimed;
    flushed([&] { claimed = idem::claim_one(store, claim_of(key, owner)); });
    CHECK(claimed.kind == ClaimKind::acquired);
    flushed([&] {
        CHECK_FALSE(idem::renew_one(store, {view_of(key), owner, claimed.fence, 30s, {}, {}}).lost);
    });
    flushed([&] {
        auto hold = complete_of(key, owner, claimed.fence, "");
        hold.kind = idem::FinishKind::quarantine;
        CHECK_FALSE(idem::finish_one(store, hold).lost);
    });
    flushed([&] {
        idem::ResolveRequest resolve;
        resolve.key = view_of(key);
        resolve.seen_fence = claimed.fence;
        resolve.retention = 1h;
        CHECK(idem::resolve_one(store, resolve).resolved);
    });
    flushed([&] { CHECK_FALSE(idem::reap_one(store, {view_of(key), 1, 1h, 1h}).reaped); });
    flushed([&] { CHECK(idem::forget_one(store, {view_of(key), 1s}).existed); });
    flushed([&] {
        CHECK(idem::issue_one(store, {view_of(key), {}, random_owner(), 1h, 1h}).issued);
    });

    std::vector<idem::Key> keys;
    std::vector<idem::ClaimRequest> batch;
    for (int i = 0; i < 40; ++i) keys.push_back({"batch", std::to_string(i % 20)});
    for (const auto& k : keys) batch.push_back(claim_of(k, random_owner()));
    std::vector<idem::ClaimReply> replies(batch.size());
    (void)cli({"SCRIPT", "FLUSH"});
    store.claim(batch, replies);
    for (std::size_t i = 0; i < 40; ++i) {
        CHECK(replies[i].trouble.message == "");
        CHECK(replies[i].kind == (i < 20 ? ClaimKind::acquired : ClaimKind::in_progress));
        CHECK(replies[i].attempt == 1);
    }
}

TEST_CASE("Redis: a batch whose scripts are flushed again and again is answered, each item once",
          "[integration][redis]") {
    RedisServer server;
    idem::RedisStore store(options_for(server.url()));
    const std::jthread flusher([&](const std::stop_token& stop) {
        RedisCli cli(server.url());
        while (!stop.stop_requested()) (void)cli({"SCRIPT", "FLUSH"});
    });
    for (int round = 0; round < 30; ++round) {
        std::vector<idem::Key> keys;
        std::vector<idem::ClaimRequest> batch;
        for (int i = 0; i < 60; ++i)
            keys.push_back({"r" + std::to_string(round), std::to_string(i % 30)});
        for (const auto& k : keys) batch.push_back(claim_of(k, random_owner()));
        std::vector<idem::ClaimReply> replies(batch.size());
        store.claim(batch, replies);
        for (std::size_t i = 0; i < batch.size(); ++i) {
            REQUIRE(replies[i].trouble.message == "");
            REQUIRE(replies[i].kind == (i < 30 ? ClaimKind::acquired : ClaimKind::in_progress));
        }
    }
}

TEST_CASE("Redis: the claim whose reply was lost is known again, and one owner holds it (R109, M2)",
          "[integration][redis]") {
    idem::RedisStore store(options_for(shared_redis().url()));
    const auto held = acquire(store, "k");
    const auto again = idem::claim_one(store, claim_of(held.key, held.owner));
    CHECK(again.kind == ClaimKind::acquired);
    CHECK(again.fence == held.reply.fence);
    CHECK(again.attempt == 1);
    // Given up in doubt: released by its owner alone, before or after it arrives.
    const idem::Key key{"s", "doubt"};
    const auto owner = random_owner();
    auto release = release_of(key, owner, 0);
    release.counted = false;
    CHECK_FALSE(idem::finish_one(store, release).lost);
    CHECK(idem::claim_one(store, claim_of(key, owner)).kind == ClaimKind::stale);
    CHECK(claim(store, key).kind == ClaimKind::acquired);
}

TEST_CASE("Redis: only the server's clock counts, not the client's (R40, M11, M22)",
          "[integration][redis]") {
    RedisCli cli(shared_redis().url());
    idem::RedisStore store(options_for(shared_redis().url()));
    const auto held = acquire(store, "k");
    const std::string time = cli({"TIME"});
    const auto server = std::stoll(time.substr(0, time.find('\n')));
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(held.reply.started.time_since_epoch())
            .count();
    CHECK(std::llabs(server - seconds) <= 5);
    // What travels is durations: the same bytes make sense an hour later.
    idem_test::RedisWorld world(shared_redis().url(), cli);
    CHECK(claim(world.store(), {"s", "k"}).started == world.now());
    world.advance(31s);
    const auto next = claim(world.store(), {"s", "k"});
    CHECK(next.kind == ClaimKind::acquired);
    CHECK(next.takeover);
    world.advance(-1h);  // it jumps back: nobody gets in early, and the fence still grows
    CHECK(claim(world.store(), {"s", "k"}).kind == ClaimKind::in_progress);
    CHECK(idem::forget_one(world.store(), {view_of({"s", "k"}), 1s}).existed);
    CHECK(claim(world.store(), {"s", "k"}).fence > next.fence);
}

TEST_CASE("Redis: list finds keys of any bytes, page by page, and takes no cursor of another",
          "[integration][redis]") {
    idem::RedisStore store(options_for(shared_redis().url(), "li*st[a-z]?\\:"));
    std::set<std::string> scopes;
    std::vector<idem::Key> keys;
    for (const std::string& scope :
         std::vector<std::string>{"*", "?", "[a]", "\\", "a*b", std::string("\0\xff", 2)}) {
        scopes.insert(scope);
        for (int i = 0; i < 40; ++i) keys.push_back({scope, std::to_string(i), "t?"});
    }
    std::vector<idem::ClaimRequest> batch;
    for (const auto& key : keys) batch.push_back(claim_of(key, random_owner()));
    std::vector<idem::ClaimReply> replies(batch.size());
    store.claim(batch, replies);
    for (const auto& scope : scopes) {
        for (const std::size_t limit : {1U, 13U, 1000U}) {
            idem::ListQuery query;
            query.scope = scope;
            if (limit != 13) query.tenant = "t?";
            query.limit = limit;
            std::set<std::string> ids;
            for (int page = 0; page < 100'000; ++page) {
                const auto got = store.list(query);
                REQUIRE(got.trouble.message == "");
                REQUIRE(got.records.size() <= limit);
                for (const auto& record : got.records) {
                    CHECK(record.key.scope == scope);
                    ids.insert(record.key.id);
                }
                query.cursor = got.next;
                if (query.cursor.empty()) break;
            }
            CHECK(ids.size() == 40);
        }
    }
    idem::ListQuery query;
    for (const std::string& cursor :
         {std::string("x"), std::string("\x7f"), std::string("\5\1"), std::string("\0\1x\0", 4),
          std::string("\1\1"
                      "0\0",
                      4),
          std::string("\0\1"
                      "0\2",
                      4)}) {
        query.cursor = cursor;
        CHECK(store.list(query).trouble.kind == Trouble::Kind::usage);
    }
}

TEST_CASE("Redis: a key that no store may see is a usage error, and its neighbours go on",
          "[integration][redis]") {
    idem::RedisStore store(options_for(shared_redis().url()));
    const std::vector<idem::Key> keys = {
        {"", "k"}, {"s", ""}, {"s", std::string(256, 'x')}, {"s", "good"}};
    std::vector<idem::ClaimRequest> batch;
    for (const auto& key : keys) batch.push_back(claim_of(key, random_owner()));
    std::vector<idem::ClaimReply> replies(batch.size());
    store.claim(batch, replies);
    for (std::size_t i = 0; i < 3; ++i) CHECK(replies[i].trouble.kind == Trouble::Kind::usage);
    CHECK(replies[3].kind == ClaimKind::acquired);
    std::vector<idem::KeyView> views;
    for (const auto& key : keys) views.push_back(view_of(key));
    std::vector<idem::FindReply> found(views.size());
    store.find(views, found);
    for (std::size_t i = 0; i < 3; ++i) CHECK(found[i].trouble.kind == Trouble::Kind::usage);
    CHECK(found[3].record.has_value());
}

}  // namespace redis_store_test
