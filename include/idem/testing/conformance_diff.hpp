#ifndef IDEM_TESTING_CONFORMANCE_DIFF_HPP
#define IDEM_TESTING_CONFORMANCE_DIFF_HPP

#include <optional>
#include <string>
#include <type_traits>

#include <idem/testing/conformance_base.hpp>

/// Where two replies to one request differ, field by field.
namespace idem::inline v0_1::testing::conformance {

[[nodiscard]] inline std::string show(const Policy& p) {
    return show(p.orphan) + "/" + show(p.max_attempts) + "/" + show(p.max_crashes);
}
[[nodiscard]] inline std::string show(const CodecId& id) {
    return show(id.tag) + "." + show(id.version);
}
[[nodiscard]] inline std::string show(const Fingerprint& print) {
    return print.present() ? idem::detail::hex(print.stored().substr(0, 5)) : "none";
}

class Diff {
public:
    explicit Diff(Duration slack) noexcept : slack_(slack) {}

    template <class T>
    void field(const char* name, const T& model, const T& store) {
        if (!(model == store)) note(name, show(model), show(store));
    }
    void time(const char* name, Duration model, Duration store) {
        if ((model < store ? store - model : model - store) > slack_)
            note(name, show(model), show(store));
    }
    void time(const char* name, Instant model, Instant store) {
        time(name, model.time_since_epoch(), store.time_since_epoch());
    }
    /// Fences follow the clock, so they are as exact as it is.
    void fence(const char* name, Fence model, Fence store) {
        const Fence apart = model < store ? store - model : model - store;
        if (apart > static_cast<Fence>(slack_.count())) note(name, show(model), show(store));
    }
    void trouble(const Trouble& store) {
        if (store) out_ += " trouble: " + store.message + ";";
    }
    /// Empty where the two are equal.
    [[nodiscard]] const std::string& text() const noexcept { return out_; }

private:
    void note(const char* name, const std::string& model, const std::string& store) {
        out_ += std::string(" ") + name + " should be " + model + " and is " + store + ";";
    }

    Duration slack_;
    std::string out_{};
};

inline void compare(Diff& d, const ClaimReply& m, const ClaimReply& s) {
    d.trouble(s.trouble);
    d.field("kind", m.kind, s.kind);
    d.field("verify", m.verify, s.verify);
    d.field("takeover", m.takeover, s.takeover);
    d.field("result_kind", m.result_kind, s.result_kind);
    d.field("codec", m.codec, s.codec);
    d.field("attempt", m.attempt, s.attempt);
    d.field("crashes", m.crashes, s.crashes);
    d.fence("fence", m.fence, s.fence);
    d.field("owner", m.owner, s.owner);
    d.time("retention_left", m.retention_left, s.retention_left);
    d.time("lease_left", m.lease_left, s.lease_left);
    d.time("created", m.created, s.created);
    d.time("started", m.started, s.started);
    d.time("completed", m.completed, s.completed);
    d.field("failure.kind", m.failure.kind, s.failure.kind);
    d.field("failure.code", m.failure.code, s.failure.code);
    d.field("failure.message", m.failure.message, s.failure.message);
    d.field("result", m.result, s.result);
    d.field("checkpoint", m.checkpoint, s.checkpoint);
    d.field("resource", m.resource, s.resource);
}
inline void compare(Diff& d, const FinishReply& m, const FinishReply& s) {
    d.trouble(s.trouble);
    d.field("lost", m.lost, s.lost);
    d.field("reason", m.reason, s.reason);
    d.field("state", m.state, s.state);
}
inline void compare(Diff& d, const RenewReply& m, const RenewReply& s) {
    d.trouble(s.trouble);
    d.field("lost", m.lost, s.lost);
    d.field("reason", m.reason, s.reason);
    d.time("lease_left", m.lease_left, s.lease_left);
}
inline void compare(Diff& d, const IssueReply& m, const IssueReply& s) {
    d.trouble(s.trouble);
    d.field("issued", m.issued, s.issued);
}
inline void compare(Diff& d, const ResolveReply& m, const ResolveReply& s) {
    d.trouble(s.trouble);
    d.field("resolved", m.resolved, s.resolved);
    d.field("state", m.state, s.state);
}
inline void compare(Diff& d, const ReapReply& m, const ReapReply& s) {
    d.trouble(s.trouble);
    d.field("reaped", m.reaped, s.reaped);
    d.field("state", m.state, s.state);
}
inline void compare(Diff& d, const ForgetReply& m, const ForgetReply& s) {
    d.trouble(s.trouble);
    d.field("existed", m.existed, s.existed);
    d.fence("fence", m.fence, s.fence);
}

inline void compare(Diff& d, const RecordHeader& m, const RecordHeader& s) {
    d.field("state", m.state, s.state);
    d.field("token", m.token, s.token);
    d.field("bound", m.bound, s.bound);
    d.field("verify", m.verify, s.verify);
    d.field("takeover", m.takeover, s.takeover);
    d.field("policy", m.policy, s.policy);
    d.field("result_kind", m.result, s.result);
    d.field("codec", m.codec, s.codec);
    d.field("failure.kind", m.failure, s.failure);
    d.field("attempt", m.attempt, s.attempt);
    d.field("crashes", m.crashes, s.crashes);
    d.fence("fence", m.fence, s.fence);
    d.field("owner", m.owner, s.owner);
    d.field("fingerprint", m.fingerprint, s.fingerprint);
    d.time("created", m.created, s.created);
    d.time("started", m.started, s.started);
    d.time("completed", m.completed, s.completed);
    d.time("lease_end", m.lease_end, s.lease_end);
    d.time("retention_end", m.retention_end, s.retention_end);
    d.time("validity_end", m.validity_end, s.validity_end);
}

inline void compare(Diff& d, const RecordView& m, const RecordView& s) {
    d.field("component", m.component, s.component);
    d.field("key.scope", m.key.scope, s.key.scope);
    d.field("key.id", m.key.id, s.key.id);
    d.field("key.tenant", m.key.tenant, s.key.tenant);
    compare(d, m.header, s.header);
    d.field("result", m.payload.result, s.payload.result);
    d.field("failure.code", m.payload.failure_code, s.payload.failure_code);
    d.field("failure.message", m.payload.failure_message, s.payload.failure_message);
    d.field("checkpoint", m.payload.checkpoint, s.payload.checkpoint);
    d.field("resource", m.payload.resource, s.payload.resource);
    d.field("lapsed", m.lapsed, s.lapsed);
    d.time("lease_left", m.lease_left, s.lease_left);
}
inline void compare(Diff& d, const std::optional<RecordView>& m,
                    const std::optional<RecordView>& s) {
    d.field("found", m.has_value(), s.has_value());
    if (m && s) compare(d, *m, *s);
}

}  // namespace idem::inline v0_1::testing::conformance

#endif
