#ifndef IDEMCTL_COMMANDS_HPP
#define IDEMCTL_COMMANDS_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <idem/any_store.hpp>
#include <idem/erase.hpp>

#include "records.hpp"

namespace idemctl {

/// Where records, or pages of them, come to: a page that did not come is an error, a record that
/// cannot be read is told and left out.
class Walk {
public:
    Walk(idem::AnyStore& store, idem::ListQuery query) : store_(store), query_(std::move(query)) {}

    /// Calls `each` for every record until it answers false. @throws what the store's trouble is.
    template <class Each>
    void operator()(Each&& each) {
        for (;;) {
            const auto page = store_.list(query_);
            if (page.trouble.kind != idem::Trouble::Kind::schema) page.trouble.raise();
            if (page.trouble && trouble_.empty()) trouble_ = page.trouble.message;
            for (const auto& record : page.records)
                if (!each(record)) return;
            if (page.next.empty()) return;
            query_.cursor = page.next;
        }
    }
    /// What is wrong with a record that was left out; empty: nothing.
    [[nodiscard]] const std::string& trouble() const { return trouble_; }

private:
    idem::AnyStore& store_;
    idem::ListQuery query_;
    std::string trouble_{};
};

inline int list(idem::AnyStore& store, const Arguments& a) {
    Walk walk(store, a.query());
    Table table = table_of_records();
    std::size_t count = 0;
    walk([&](const idem::RecordView& record) {
        if (a.json) {
            print(json_of(record, false));
        } else {
            table.add(row_of(record, a.wide));
        }
        return ++count != a.limit.value_or(0);
    });
    if (!a.json && count > 0) table.flush();
    if (!a.json)
        print((count == 0 ? "no records" : counted(count, "record")) +
              (count == a.limit ? ": as many as --limit lets through" : ""));
    if (!walk.trouble().empty()) throw idem::SchemaError("left out: " + walk.trouble());
    return count == 0 ? nothing : ok;
}

/// The record that the key names; nothing, once that was said, where there is none.
/// @throws WrongUsage where it names several.
[[nodiscard]] inline std::optional<idem::RecordView> find(idem::AnyStore& store,
                                                          const Arguments& a) {
    std::vector<idem::Component> components(idem::components.begin(), idem::components.end());
    if (a.component) components = {*a.component};
    const idem::Key key{*a.scope, *a.id, a.tenant.value_or("")};
    std::vector<idem::KeyView> keys;
    for (const auto component : components) keys.emplace_back(component, key);
    std::vector<idem::FindReply> replies(keys.size());
    store.find(keys, replies);
    std::optional<idem::RecordView> out;
    for (auto& reply : replies) {
        reply.trouble.raise();
        if (reply.record && out)
            throw WrongUsage("a " + std::string(to_string(out->component)) + " and a " +
                             to_string(reply.record->component) +
                             " have this key: say which by --component");
        if (reply.record) out = std::move(reply.record);
    }
    if (!out) std::cerr << "no such record\n";
    return out;
}

inline int show(idem::AnyStore& store, const Arguments& a) {
    const auto record = find(store, a);
    if (!record) return nothing;
    if (a.result) {
        if (record->header.result != idem::ResultKind::value) {
            std::cerr << "it has no result: " << state_word(record->header.state) << ", "
                      << to_string(record->header.result) << '\n';
            return nothing;
        }
        std::cout << record->payload.result;
    } else if (a.json) {
        print(json_of(*record, true));
    } else {
        show(*record);
    }
    return ok;
}

// --- what destroys ------------------------------------------------------------------------------

/// "1203 records (13 running, 1190 succeeded)".
[[nodiscard]] inline std::string summary(const std::map<idem::State, std::size_t>& states) {
    std::size_t all = 0;
    std::string parts;
    for (const auto& [state, count] : states) {
        all += count;
        parts += (parts.empty() ? "" : ", ") + std::to_string(count) + " " + state_word(state);
    }
    return counted(all, "record") + (parts.empty() ? "" : " (" + parts + ")");
}

inline int forget_matches(idem::AnyStore& store, const Arguments& a) {
    std::map<idem::State, std::size_t> states;
    std::size_t matched = 0;
    Walk walk(store, a.query());
    walk([&](const idem::RecordView& record) {
        ++states[record.header.state];
        return ++matched != 0;
    });
    idem::EraseReply erased{.complete = true};
    if (matched > 0) {
        if (!a.json) print(summary(states));
        if (!confirm(a, "forget " + counted(matched, "record"))) return nothing;
        erased = idem::erase(store, a.query());
    }
    if (a.json) {
        JsonObject out;
        out.number("matched", static_cast<std::int64_t>(matched))
            .number("forgotten", static_cast<std::int64_t>(erased.erased))
            .boolean("complete", erased.complete && walk.trouble().empty());
        print(std::move(out));
    } else {
        print("forgot " + counted(erased.erased, "record"));
        if (matched > 0)
            print(
                "Their names stay as tombstones for a minute, or as long as a holder's lease;\n"
                "in PostgreSQL until idemctl purge has run after that.");
    }
    if (erased.erased > 0 && erased.trouble) std::cerr << "some are left: run it again\n";
    erased.trouble.raise();
    if (!walk.trouble().empty()) throw idem::SchemaError("left: " + walk.trouble());
    return erased.erased == 0 ? nothing : ok;
}

inline int forget_one(idem::AnyStore& store, const Arguments& a) {
    const auto record = find(store, a);
    if (!record) return nothing;
    const bool running = record->header.state == idem::State::running && !record->lapsed;
    if (!confirm(a, "forget " + name_of(*record) + ", which is " +
                        state_word(record->header.state) +
                        (running ? " (its holder goes on until it looks)" : "")))
        return nothing;
    idem::ForgetRequest request;
    request.key = {record->component, record->key};
    request.lease = std::chrono::minutes{1};
    const auto reply = idem::forget_one(store, request);
    reply.trouble.raise();
    if (a.json) {
        JsonObject out;
        out.number("matched", 1).number("forgotten", reply.existed ? 1 : 0);
        print(std::move(out));
    } else {
        print(reply.existed ? "forgot " + name_of(*record) : "it has gone meanwhile");
    }
    return reply.existed ? ok : changed;
}

inline int forget(idem::AnyStore& store, const Arguments& a) {
    return a.id ? forget_one(store, a) : forget_matches(store, a);
}

[[nodiscard]] inline std::string read_file(const std::string& name) {
    std::ifstream in(name, std::ios::binary);
    std::string out{std::istreambuf_iterator<char>(in), {}};
    if (!in) throw WrongUsage("cannot read the file of --result-file");
    return out;
}

inline int resolve(idem::AnyStore& store, const Arguments& a) {
    const std::string result = a.result_file.empty() ? "" : read_file(a.result_file);
    const auto record = find(store, a);
    if (!record) return nothing;
    if (record->header.state != idem::State::unknown) {
        std::cerr << "it is not held: it is " << state_word(record->header.state) << '\n';
        return nothing;
    }
    if (!confirm(a, (a.done ? "settle as done: " : "let run again: ") + name_of(*record)))
        return nothing;
    idem::ResolveRequest request;
    request.key = {record->component, record->key};
    request.seen_fence = record->header.fence;
    request.succeeded = a.done;
    request.retention = a.retention;
    if (!a.result_file.empty()) {
        request.result_kind = idem::ResultKind::value;
        request.codec = a.codec;
        request.result = result;
    }
    const auto reply = idem::resolve_one(store, request);
    reply.trouble.raise();
    if (a.json) {
        JsonObject out;
        out.boolean("resolved", reply.resolved).text("state", to_string(reply.state));
        print(std::move(out));
    } else {
        print(reply.resolved ? "resolved: it is " + state_word(reply.state)
                             : "lost: it has changed meanwhile, and is " + state_word(reply.state) +
                                   "; look again");
    }
    return reply.resolved ? ok : changed;
}

inline int purge(idem::AnyStore& store, const Arguments& a) {
    if (!confirm(a, "remove " +
                        (a.limit ? "at most " + counted(*a.limit, "record")
                                 : std::string("all records")) +
                        " past retention"))
        return nothing;
    std::size_t removed = 0;
    for (bool more = true; more;) {
        const std::size_t left = a.limit ? *a.limit - removed : 1000;
        const auto reply = store.purge(std::min<std::size_t>(left, 1000));
        removed += reply.removed;
        reply.trouble.raise();
        more = reply.more && (!a.limit || removed < *a.limit);
    }
    if (a.json) {
        JsonObject out;
        out.number("removed", static_cast<std::int64_t>(removed));
        print(std::move(out));
    } else {
        print("removed " + counted(removed, "record"));
    }
    return ok;
}

}  // namespace idemctl

#endif
