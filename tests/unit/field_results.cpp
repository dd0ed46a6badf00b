// Field cases of results, asked of the guard over the memory store; of garbage over the model
// store, which holds its records as bytes.
//
// Left to other suites:
//   R83  hop headers, cookies and lengths of a replay: the words of HTTP have their own
//   R80  a stream as a result does not compile: asked here as a question, not as a program

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <idem/testing/model_store.hpp>

#include "support/catch.hpp"
#include "support/field.hpp"

namespace idem_field {

// A result that can be moved and not copied.
struct Ticket {
    std::unique_ptr<std::string> number{};
};

// A result whose codec throws where it is told to.
struct Stubborn {
    std::string text{};
    bool throws_on_encode = false;
    bool throws_on_decode = false;
};

// A result that is stored encrypted: the key lives outside the store.
struct Sealed {
    std::string text{};
    static inline char key = 'k';
};

// A result that cannot be handed on any more once it has been moved so often.
struct Brittle {
    int value = 0;
    int moves_left = 1000;

    Brittle() = default;
    explicit Brittle(int v, int moves) : value(v), moves_left(moves) {}
    Brittle(Brittle&& other) : value(other.value), moves_left(other.moves_left - 1) {
        if (moves_left < 0) throw std::length_error("moved once too often");
    }
    Brittle& operator=(Brittle&&) = delete;
    Brittle(const Brittle&) = delete;
    Brittle& operator=(const Brittle&) = delete;
    ~Brittle() = default;
};

}  // namespace idem_field

namespace idem {

template <>
struct Codec<idem_field::Ticket> {
    static constexpr std::uint32_t tag = codec_tag("field.Ticket");
    static constexpr std::uint8_t version = 1;
    static void encode(const idem_field::Ticket& ticket, std::string& out) {
        out += *ticket.number;
    }
    static idem_field::Ticket decode(std::string_view bytes, std::uint8_t) {
        return {std::make_unique<std::string>(bytes)};
    }
};

template <>
struct Codec<idem_field::Stubborn> {
    static constexpr std::uint32_t tag = codec_tag("field.Stubborn");
    static constexpr std::uint8_t version = 1;
    static void encode(const idem_field::Stubborn& value, std::string& out) {
        out += value.throws_on_decode ? '!' : '.';
        out += value.text;
        if (value.throws_on_encode) throw std::runtime_error("half of it is written already");
    }
    static idem_field::Stubborn decode(std::string_view bytes, std::uint8_t) {
        if (bytes.substr(0, 1) != ".") throw CodecError("does not decode");
        return {std::string(bytes.substr(1))};
    }
};

template <>
struct Codec<idem_field::Sealed> {
    static constexpr std::uint32_t tag = codec_tag("field.Sealed");
    static constexpr std::uint8_t version = 1;
    static void encode(const idem_field::Sealed& value, std::string& out) {
        for (const char c : "seal" + value.text)
            out += static_cast<char>(c ^ idem_field::Sealed::key);
    }
    static idem_field::Sealed decode(std::string_view bytes, std::uint8_t) {
        std::string text;
        for (const char c : bytes) text += static_cast<char>(c ^ idem_field::Sealed::key);
        if (!text.starts_with("seal")) throw CodecError("sealed with another key");
        return {text.substr(4)};
    }
};

template <>
struct Codec<idem_field::Brittle> {
    static constexpr std::uint32_t tag = codec_tag("field.Brittle");
    static constexpr std::uint8_t version = 1;
    static void encode(const idem_field::Brittle& value, std::string& out) {
        Codec<int>::encode(value.value, out);
    }
    static idem_field::Brittle decode(std::string_view bytes, std::uint8_t v) {
        return idem_field::Brittle(Codec<int>::decode(bytes, v), 1000);
    }
};

}  // namespace idem

namespace field_results_test {

using namespace std::chrono_literals;
using namespace std::string_literals;
using idem::EventKind;
using idem::OutcomeKind;
using idem::ResultKind;
using idem::State;
using idem_field::Brittle;
using idem_field::Sealed;
using idem_field::Stubborn;
using idem_field::Ticket;
using idem_test::Bench;
using idem_test::Holder;
using idem_test::field_key;

TEST_CASE("R76: a record that is completed without a result answers so, typed and at once") {
    Bench b;
    auto guard = b.guard({.wait = idem_test::for_ever});
    Holder holder(b.memory, field_key("R76"));
    (void)holder.claim();
    const auto request = holder.finish_request(idem::FinishKind::complete);
    REQUIRE_FALSE(idem::finish_one(b.memory, request).lost);  // completed; no result came along
    int runs = 0;
    const auto outcome = guard.run(field_key("R76"), {}, [&] { return ++runs; });
    CHECK(outcome.replayed());
    CHECK_FALSE(outcome.has_value());
    CHECK(outcome.details().result == ResultKind::none);
    CHECK_THROWS_AS(outcome.value(), idem::UsageError);
    CHECK(runs == 0);
}

TEST_CASE("R76: a result whose bytes are missing is an error with an event, not a second run") {
    Bench b;
    auto guard = b.guard();
    Holder holder(b.memory, field_key("R76.bytes"));
    (void)holder.claim();
    auto request = holder.finish_request(idem::FinishKind::complete);
    request.result_kind = ResultKind::value;
    request.codec = idem::codec_id<int>();
    REQUIRE_FALSE(idem::finish_one(b.memory, request).lost);
    int runs = 0;
    CHECK_THROWS_AS(guard.run(field_key("R76.bytes"), {}, [&] { return ++runs; }),
                    idem::CodecError);
    CHECK(b.events.count(EventKind::schema_error) == 1);
    CHECK(runs == 0);
    CHECK(b.find(field_key("R76.bytes"))->header.state == State::succeeded);
}

// What may lie under a key and is no record of this version.
std::vector<std::string> garbage() {
    Bench b;
    idem::testing::ModelStore store(b.clock);
    Holder holder(store, field_key("sample"));
    (void)holder.claim();
    (void)holder.complete(1);
    const auto good = store.get_raw(holder.view()).value();
    std::string newer = good;
    newer[1] = 2;  // the major format
    std::string flipped = good;
    flipped[good.size() / 2] = static_cast<char>(flipped[good.size() / 2] ^ 0x10);
    return {"",
            "garbage",
            R"({"status":"completed"})",
            std::string(300, '\0'),
            good.substr(0, good.size() - 1),
            good.substr(0, good.size() / 2),
            good + "x",
            flipped,
            newer,
            "\xC1\xFF"s + good.substr(2)};
}

TEST_CASE("R77: garbage under a key is an error with an event, and is never overwritten") {
    Bench b;
    const auto all = garbage();
    for (std::size_t i = 0; i < all.size(); ++i) {
        idem::testing::ModelStore store(b.clock);
        const idem_test::Recorder events;
        idem::IdempotencyGuard guard(store, {.wait = idem_test::for_ever,
                                             .store_down = idem::StoreDown::run_unprotected,
                                             .events = events.observer()});
        INFO("sample " << i);
        const auto k = field_key("R77");
        const idem::KeyView view(idem::Component::call, k);
        store.put_raw(view, all[i]);
        int runs = 0;
        CHECK_THROWS_AS(guard.run(k, {}, [&] { return ++runs; }), idem::SchemaError);
        CHECK(events.count(EventKind::schema_error) == 1);
        CHECK_THROWS_AS(guard.claim<int>(k, {}), idem::SchemaError);
        CHECK_THROWS_AS(guard.find(k), idem::SchemaError);
        CHECK_THROWS_AS(guard.forget(k), idem::SchemaError);
        CHECK(guard.list().trouble.kind == idem::Trouble::Kind::schema);
        const std::vector<idem::BatchCall> calls{{.key = k}, {.key = field_key("R77.good")}};
        const auto outcomes =
            guard.run_batch(calls, [&](idem::Execution&, std::size_t) { return ++runs; });
        CHECK_THROWS_AS(outcomes[0].get(), idem::SchemaError);
        CHECK(outcomes[1].get().executed());  // one item's trouble does not harm its neighbour
        CHECK(runs == 1);
        CHECK(store.get_raw(view) == all[i]);
    }
}

TEST_CASE("R77: what turns to garbage under a holder is not overwritten by its result") {
    Bench b;
    idem::testing::ModelStore store(b.clock);
    const idem_test::Recorder events;
    idem::IdempotencyGuard guard(store, {.record_retry = 1us, .events = events.observer()});
    const auto k = field_key("R77.holder");
    const idem::KeyView view(idem::Component::call, k);
    const auto outcome = guard.run(k, {}, [&] {
        store.put_raw(view, "garbage");
        return 1;
    });
    CHECK(outcome.executed());
    CHECK(outcome.value() == 1);
    CHECK_FALSE(outcome.recorded());
    (void)events.wait_for(EventKind::record_abandoned);
    CHECK(store.get_raw(view) == "garbage");
}

TEST_CASE("R79: a result above the limit is recorded without its value, and never runs again") {
    Bench b;
    auto guard = b.guard({.result_bytes_max = 100});
    int runs = 0;
    const auto make = [&](const char* id, std::size_t size) {
        return guard.run(field_key(id), {}, [&, size] {
            ++runs;
            return std::string(size, 'x');
        });
    };
    CHECK(make("R79.fits", 100).value().size() == 100);
    CHECK(make("R79.fits", 100).value().size() == 100);
    CHECK(runs == 1);

    const auto first = make("R79", 101);
    CHECK(first.executed());
    CHECK(first.recorded());
    CHECK(first.value().size() == 101);  // its own caller has it
    CHECK(first.details().result == ResultKind::too_large);
    CHECK(b.events.count(EventKind::result_not_kept) == 1);
    const auto again = make("R79", 101);
    CHECK(again.replayed());
    CHECK_FALSE(again.has_value());
    CHECK(again.details().result == ResultKind::too_large);
    CHECK_THROWS_AS(again.value(), idem::UsageError);
    CHECK(runs == 2);
}

TEST_CASE("R79: a result that the full store cannot keep is completed without it") {
    Bench b;
    idem::MemoryStore small({.bytes_max = 64 * 1024, .clock = b.clock});
    idem::IdempotencyGuard guard(small);
    int runs = 0;
    const auto make = [&] {
        return guard.run(field_key("R79.full"), {}, [&] {
            ++runs;
            return std::string(std::size_t{256} * 1024, 'x');
        });
    };
    CHECK(make().recorded());
    const auto again = make();
    CHECK(again.replayed());
    CHECK(again.details().result == ResultKind::no_room);
    CHECK(runs == 1);
}

TEST_CASE("R80: a result of every byte value is replayed byte for byte") {
    Bench b;
    auto guard = b.guard();
    std::string text;
    std::vector<std::byte> bytes;
    for (int i = 0; i < 256; ++i) {
        text += static_cast<char>(i);
        bytes.push_back(static_cast<std::byte>(255 - i));
    }
    for (int round = 0; round < 2; ++round) {
        CHECK(guard.run(field_key("R80.text"), {}, [&] { return text; }).value() == text);
        CHECK(guard.run(field_key("R80.bytes"), {}, [&] { return bytes; }).value() == bytes);
        const auto nested = std::tuple{text, std::optional(bytes), std::vector{text, ""s, text}};
        CHECK(guard.run(field_key("R80.nested"), {}, [&] { return nested; }).value() == nested);
        CHECK(guard.run(field_key("R80.empty"), {}, [] { return ""s; }).value().empty());
    }
    CHECK(b.events.count(EventKind::replayed) == 4);
}

static_assert(!idem::codable<std::ostringstream>);
static_assert(!idem::codable<std::unique_ptr<int>>);
static_assert(!idem::codable<std::string_view>);
static_assert(!idem::codable<const char*>);
static_assert(!idem::codable<int&>);
static_assert(idem::codable<Ticket>);

TEST_CASE("R80: a result that cannot be copied is handed to the caller and replayed") {
    Bench b;
    auto guard = b.guard();
    const auto make = [&] {
        return guard.run(field_key("R80.ticket"), {},
                         [] { return Ticket{std::make_unique<std::string>("no. 1")}; });
    };
    auto first = make();
    CHECK(first.executed());
    const Ticket mine = std::move(first).value();
    CHECK(*mine.number == "no. 1");
    const auto again = make();
    CHECK(again.replayed());
    CHECK(*again.value().number == "no. 1");

    const std::vector<idem::BatchCall> calls{{.key = field_key("R80.b")},
                                             {.key = field_key("R80.b")}};
    const auto outcomes = guard.run_batch(calls, [](idem::Execution&, std::size_t) {
        return Ticket{std::make_unique<std::string>("no. 2")};
    });
    CHECK(outcomes[0].get().executed());
    CHECK(outcomes[1].get().replayed());
    CHECK(*outcomes[1].get().value().number == "no. 2");
}

TEST_CASE("R80: work that returns nothing is recorded and replayed as that") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    const auto call = [&] { return guard.run(field_key("R80.void"), {}, [&] { ++runs; }); };
    static_assert(std::is_same_v<decltype(call()), idem::Outcome<void>>);
    CHECK(call().executed());
    const auto again = call();
    CHECK(again.replayed());
    CHECK(again.has_value());
    CHECK(runs == 1);
    auto made = guard.claim<void>(field_key("R80.void.claim"), {});
    CHECK(std::move(std::get<idem::Claim<void>>(made)).complete().recorded());
}

TEST_CASE("R80: a result that cannot be encoded is recorded without its value") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    const auto call = [&] {
        return guard.run(field_key("R80.encode"), {}, [&] {
            ++runs;
            return Stubborn{"text", true};
        });
    };
    const auto first = call();
    CHECK(first.executed());
    CHECK(first.recorded());
    CHECK(first.value().text == "text");
    CHECK(first.details().result == ResultKind::not_encodable);
    CHECK(b.events.count(EventKind::result_not_kept) == 1);
    const auto again = call();
    CHECK(again.replayed());
    CHECK_FALSE(again.has_value());
    CHECK(again.details().result == ResultKind::not_encodable);
    CHECK(b.find(field_key("R80.encode"))->payload.result.empty());  // nor half of it
    CHECK(runs == 1);
}

TEST_CASE("R80: a result that does not decode is an error with an event, and runs nothing") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    const auto call = [&] {
        return guard.run(field_key("R80.decode"), {}, [&] {
            ++runs;
            return Stubborn{"text", false, true};
        });
    };
    CHECK(call().recorded());
    const auto before = b.find(field_key("R80.decode"));
    CHECK_THROWS_AS(call(), idem::CodecError);
    CHECK(b.events.count(EventKind::schema_error) == 1);
    CHECK(b.events.count(EventKind::replayed) == 0);
    CHECK(runs == 1);
    CHECK(b.find(field_key("R80.decode"))->header == before->header);
}

TEST_CASE("R82: what fails after the result is in does not take it out again") {
    Bench b;
    auto guard = b.guard();
    const auto request = [&](bool later_step_throws) {
        const auto outcome = guard.run(field_key("R82"), {}, [] { return 1; });
        if (later_step_throws) throw std::runtime_error("the client is gone");
        return outcome;
    };
    CHECK_THROWS_AS(request(true), std::runtime_error);
    CHECK(request(false).replayed());

    const auto two_phases = [&] {
        auto made = guard.claim<int>(field_key("R82.claim"), {});
        (void)std::move(std::get<idem::Claim<int>>(made)).complete(2);
        throw std::runtime_error("the client is gone");
    };
    CHECK_THROWS_AS(two_phases(), std::runtime_error);
    CHECK(guard.run(field_key("R82.claim"), {}, [] { return 3; }).value() == 2);
}

TEST_CASE("R82: an observer that throws changes nothing") {
    Bench b;
    auto guard = b.guard({.events = [](const idem::Event&) { throw 1; }});
    CHECK(guard.run(field_key("R82.observer"), {}, [] { return 1; }).recorded());
    CHECK(guard.run(field_key("R82.observer"), {}, [] { return 2; }).value() == 1);
    CHECK_THROWS_AS(guard.run(field_key("R82.rollback"), {}, []() -> int { throw 2; }), int);
    CHECK(b.find(field_key("R82.rollback"))->header.state == State::released);
}

// However often the library moves a result: before it is recorded the record is held, afterwards
// it stays. It is never released, for the handler has run.
TEST_CASE("R82: a result that throws on its way to the caller is never run again") {
    int thrown = 0;
    for (int moves = 0; moves < 12; ++moves) {
        Bench b;
        auto guard = b.guard();
        int runs = 0;
        const auto call = [&] {
            return guard.run(field_key("R82.brittle"), {}, [&] {
                ++runs;
                return Brittle(1, moves);
            });
        };
        try {
            const bool recorded = call().recorded();
            CHECK(recorded);
        } catch (const std::length_error&) {
            ++thrown;
        }
        const auto state = b.find(field_key("R82.brittle"))->header.state;
        INFO("after " << moves << " moves the record is " << to_string(state));
        CHECK((state == State::succeeded || state == State::unknown));
        const bool ran_again = call().executed();
        CHECK_FALSE(ran_again);
        CHECK(runs == 1);
    }
    CHECK(thrown > 0);
    CHECK(thrown < 12);
}

TEST_CASE("R85: a second call in the same process gets the value, and after a failure runs anew") {
    Bench b;
    auto guard = b.guard();
    const auto fails = []() -> int { throw std::runtime_error("no"); };
    CHECK_THROWS(guard.run(field_key("R85"), {}, fails));
    CHECK(guard.run(field_key("R85"), {}, [] { return 1; }).executed());
    CHECK(guard.run(field_key("R85"), {}, [] { return 2; }).value() == 1);
    CHECK(guard.forget(field_key("R85")));
    CHECK(guard.run(field_key("R85"), {}, [] { return 3; }).executed());
}

TEST_CASE("R86: a sealed result is unreadable at rest; the wrong key is an error and no run") {
    Bench b;
    auto guard = b.guard();
    int runs = 0;
    const auto call = [&] {
        return guard.run(field_key("R86"), {}, [&] {
            ++runs;
            return Sealed{"secret"};
        });
    };
    Sealed::key = 'k';
    CHECK(call().recorded());
    CHECK(b.find(field_key("R86"))->payload.result.find("secret") == std::string::npos);
    Sealed::key = 'w';
    CHECK_THROWS_AS(call(), idem::CodecError);
    CHECK(runs == 1);
    Sealed::key = 'k';
    CHECK(call().value().text == "secret");
    CHECK(runs == 1);
}

}  // namespace field_results_test
