#ifndef IDEMCTL_RECORDS_HPP
#define IDEMCTL_RECORDS_HPP

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <idem/detail/bytes.hpp>

#include "output.hpp"

/// Records as people and programs read them.
namespace idemctl {

/// A key's part in a column: empty is "-", and what could be taken for it is escaped.
[[nodiscard]] inline std::string cell(const std::string& bytes, bool wide) {
    if (bytes.empty()) return "-";
    if (bytes == "-") return "\\x2d";
    return escape(bytes, wide ? std::string::npos : 40);
}

/// The word for people: `unknown` is what a person must find out.
[[nodiscard]] inline std::string state_word(idem::State state) {
    return state == idem::State::unknown ? "held" : to_string(state);
}

[[nodiscard]] inline std::string lease_word(const idem::RecordView& record) {
    if (record.header.state != idem::State::running) return "-";
    if (!record.lapsed) return in_words(record.lease_left) + " left";
    return "lapsed " + in_words(wall_clock() - record.header.lease_end);
}

[[nodiscard]] inline Table table_of_records() {
    return {{"COMPONENT", "SCOPE", "TENANT", "ID", "STATE", "ATTEMPT", "CRASHES", "AGE", "LEASE",
             "FENCE"},
            {5, 6, 9}};
}
[[nodiscard]] inline std::vector<std::string> row_of(const idem::RecordView& record, bool wide) {
    const auto& header = record.header;
    return {to_string(record.component),
            cell(record.key.scope, wide),
            cell(record.key.tenant, wide),
            cell(record.key.id, wide),
            state_word(header.state),
            std::to_string(header.attempt),
            std::to_string(header.crashes),
            in_words(wall_clock() - header.created),
            lease_word(record),
            std::to_string(header.fence)};
}

/// "call charge/order-7 of tenant bob", for questions and answers.
[[nodiscard]] inline std::string name_of(const idem::RecordView& record) {
    const auto& key = record.key;
    return std::string(to_string(record.component)) + " " + escape(key.scope, 60) + " " +
           escape(key.id, 60) + (key.tenant.empty() ? "" : " of tenant " + escape(key.tenant, 60));
}

/// NAME/VERSION for what this program knows, else the tag in hexadecimal digits.
[[nodiscard]] inline std::string codec_word(const idem::CodecId& codec) {
    std::string name;
    for (const char* known : {"text", "bytes", "void", "idem.http.Response"})
        if (codec.tag == idem::codec_tag(known)) name = known;
    if (name.empty()) {
        std::array<char, 16> text{};
        (void)std::snprintf(text.data(), text.size(), "0x%08X", unsigned{codec.tag});
        name = text.data();
    }
    return name + "/" + std::to_string(codec.version);
}

[[nodiscard]] inline std::string caps_word(const idem::Policy& policy) {
    const auto cap = [](unsigned number) {
        return number == 0 ? std::string("no cap") : "at most " + std::to_string(number);
    };
    return cap(policy.max_attempts) + " on attempts, " + cap(policy.max_crashes) + " on crashes";
}

// --- JSON ---------------------------------------------------------------------------------------

/// Keys and bytes in the form of `escape`, times in RFC 3339, what there is none of left out.
[[nodiscard]] inline JsonObject json_of(const idem::RecordView& record, bool whole) {
    const auto& header = record.header;
    JsonObject out;
    out.text("component", to_string(record.component))
        .text("scope", escape(record.key.scope))
        .text("tenant", escape(record.key.tenant))
        .text("id", escape(record.key.id))
        .text("state", to_string(header.state))
        .boolean("lapsed", record.lapsed)
        .number("attempt", header.attempt)
        .number("crashes", header.crashes)
        .number("fence", static_cast<std::int64_t>(header.fence))
        .text("orphan", to_string(header.policy.orphan))
        .text("created", rfc3339(header.created))
        .text_unless_empty("started", rfc3339(header.started))
        .text_unless_empty("completed", rfc3339(header.completed))
        .text_unless_empty("validity_end", rfc3339(header.validity_end))
        .text("retention_end", rfc3339(header.retention_end));
    if (header.state == idem::State::running)
        out.text("lease_end", rfc3339(header.lease_end))
            .number("lease_left_ms", record.lease_left / std::chrono::milliseconds{1});
    if (header.failure != idem::FailureClass::none) {
        JsonObject failure;
        failure.text("class", to_string(header.failure))
            .text("code", escape(record.payload.failure_code))
            .text("message", escape(record.payload.failure_message));
        out.object("failure", std::move(failure));
    }
    if (header.state == idem::State::succeeded) {
        JsonObject result;
        result.text("kind", to_string(header.result))
            .text("codec", codec_word(header.codec))
            .number("bytes", static_cast<std::int64_t>(record.payload.result.size()));
        if (whole) result.text("head", escape(record.payload.result, 200));
        out.object("result", std::move(result));
    }
    if (!whole) return out;
    out.text("owner", idem::detail::hex(header.owner.stored()))
        .text_unless_empty("fingerprint", idem::detail::hex(header.fingerprint.stored()))
        .number("max_attempts", header.policy.max_attempts)
        .number("max_crashes", header.policy.max_crashes)
        .boolean("token", header.token)
        .boolean("bound", header.bound)
        .boolean("verify", header.verify)
        .boolean("takeover", header.takeover)
        .text_unless_empty("checkpoint", escape(record.payload.checkpoint, 200))
        .text_unless_empty("resource", escape(record.payload.resource, 200));
    return out;
}

// --- all of one record --------------------------------------------------------------------------

inline void show_field(std::string name, const std::string& value) {
    name.resize(std::max<std::size_t>(name.size() + 1, 14), ' ');
    print(name + (value.empty() ? "-" : value));
}
inline void show_time(const std::string& name, idem::Instant at) {
    if (at == idem::Instant{}) return show_field(name, "");
    const idem::Duration age = wall_clock() - at;
    show_field(name, rfc3339(at) + (age < age.zero() ? "  in " + in_words(-age)
                                                     : "  " + in_words(age) + " ago"));
}
inline void show_bytes(const std::string& name, const std::string& bytes) {
    show_field(name,
               bytes.empty() ? "" : counted(bytes.size(), "byte") + ": " + escape(bytes, 200));
}

inline void show(const idem::RecordView& record) {
    const auto& header = record.header;
    const auto& payload = record.payload;
    const bool running = header.state == idem::State::running;
    std::string flags;
    for (const auto& [set, word] : {std::pair{header.token, "token"},
                                    {header.bound, "bound"},
                                    {header.verify, "verify"},
                                    {header.takeover, "takeover"}})
        if (set) flags += (flags.empty() ? "" : ", ") + std::string(word);
    show_field("component", to_string(record.component));
    show_field("scope", escape(record.key.scope));
    show_field("tenant", escape(record.key.tenant));
    show_field("id", escape(record.key.id));
    show_field("state", state_word(header.state) + (record.lapsed ? ", lapsed" : ""));
    show_field("attempt", std::to_string(header.attempt));
    show_field("crashes", std::to_string(header.crashes));
    show_field("fence", std::to_string(header.fence));
    show_field("owner", idem::detail::hex(header.owner.stored()));
    show_field("flags", flags);
    show_field("orphan",
               std::string(to_string(header.policy.orphan)) + "; " + caps_word(header.policy));
    show_time("created", header.created);
    show_time("started", header.started);
    show_time("completed", header.completed);
    show_time("lease end", running ? header.lease_end : idem::Instant{});
    show_time("valid until", header.validity_end);
    show_time("kept until", header.retention_end);
    show_field("fingerprint", idem::detail::hex(header.fingerprint.stored()));
    const bool failed = header.failure != idem::FailureClass::none;
    show_field("failure", failed ? to_string(header.failure) : "");
    if (failed) {
        show_field("  code", escape(payload.failure_code));
        show_field("  message", escape(payload.failure_message));
    }
    const bool done = header.state == idem::State::succeeded;
    show_field(
        "result",
        done ? std::string(to_string(header.result)) + ", codec " + codec_word(header.codec) : "");
    if (done) show_bytes("  bytes", payload.result);
    show_bytes("checkpoint", payload.checkpoint);
    show_bytes("resource", payload.resource);
}

}  // namespace idemctl

#endif
