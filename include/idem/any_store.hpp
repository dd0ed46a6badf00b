#ifndef IDEM_ANY_STORE_HPP
#define IDEM_ANY_STORE_HPP

#include <charconv>
#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <idem/any_front.hpp>
#include <idem/detail/url.hpp>
#include <idem/layered/tiered.hpp>
#include <idem/memory/store.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

/// Any store behind one type, for a program that learns at start which one it gets. A handle as
/// every store is; costs one virtual call per batch.
class AnyStore {
public:
    // The whole concept is asked inside. To ask it here, of an AnyStore or a store over one, is to
    // ask whether that can be made of itself, which never ends.
    template <class Store>
    requires(!std::same_as<Store, AnyStore> &&
             requires(Store & s) {
                 { s.purge(std::size_t{}) } -> std::same_as<PurgeReply>;
             }) AnyStore(Store store)
        : held_(std::make_shared<Holds<Store>>(std::move(store))) {}  // NOLINT

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        held_->claim(requests, replies);
    }
    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        held_->finish(requests, replies);
    }
    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        held_->renew(requests, replies);
    }
    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        held_->issue(requests, replies);
    }
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        held_->resolve(requests, replies);
    }
    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        held_->reap(requests, replies);
    }
    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        held_->find(keys, replies);
    }
    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        held_->forget(requests, replies);
    }
    [[nodiscard]] ListPage list(const ListQuery& query) { return held_->list(query); }
    [[nodiscard]] PurgeReply purge(std::size_t limit) { return held_->purge(limit); }

    /// How long one request may take in the worst case; zero where the store does not say.
    [[nodiscard]] Duration time_allowed() const { return held_->time_allowed(); }
    /// Null where the store has no notices to give.
    [[nodiscard]] std::shared_ptr<void> watch(const KeyView& key, std::function<void()> notice) {
        return held_->watch(key, std::move(notice));
    }

private:
    struct Held {
        virtual ~Held() = default;
        virtual void claim(std::span<const ClaimRequest>, std::span<ClaimReply>) = 0;
        virtual void finish(std::span<const FinishRequest>, std::span<FinishReply>) = 0;
        virtual void renew(std::span<const RenewRequest>, std::span<RenewReply>) = 0;
        virtual void issue(std::span<const IssueRequest>, std::span<IssueReply>) = 0;
        virtual void resolve(std::span<const ResolveRequest>, std::span<ResolveReply>) = 0;
        virtual void reap(std::span<const ReapRequest>, std::span<ReapReply>) = 0;
        virtual void find(std::span<const KeyView>, std::span<FindReply>) = 0;
        virtual void forget(std::span<const ForgetRequest>, std::span<ForgetReply>) = 0;
        [[nodiscard]] virtual ListPage list(const ListQuery&) = 0;
        [[nodiscard]] virtual PurgeReply purge(std::size_t) = 0;
        [[nodiscard]] virtual Duration time_allowed() const = 0;
        [[nodiscard]] virtual std::shared_ptr<void> watch(const KeyView&,
                                                          std::function<void()>) = 0;
    };

    template <store Store>
    struct Holds final : Held {
        explicit Holds(Store s) : store(std::move(s)) {}
        void claim(std::span<const ClaimRequest> q, std::span<ClaimReply> a) override {
            store.claim(q, a);
        }
        void finish(std::span<const FinishRequest> q, std::span<FinishReply> a) override {
            store.finish(q, a);
        }
        void renew(std::span<const RenewRequest> q, std::span<RenewReply> a) override {
            store.renew(q, a);
        }
        void issue(std::span<const IssueRequest> q, std::span<IssueReply> a) override {
            store.issue(q, a);
        }
        void resolve(std::span<const ResolveRequest> q, std::span<ResolveReply> a) override {
            store.resolve(q, a);
        }
        void reap(std::span<const ReapRequest> q, std::span<ReapReply> a) override {
            store.reap(q, a);
        }
        void find(std::span<const KeyView> q, std::span<FindReply> a) override { store.find(q, a); }
        void forget(std::span<const ForgetRequest> q, std::span<ForgetReply> a) override {
            store.forget(q, a);
        }
        ListPage list(const ListQuery& query) override { return store.list(query); }
        PurgeReply purge(std::size_t limit) override { return store.purge(limit); }
        Duration time_allowed() const override { return time_allowed_by(store); }
        std::shared_ptr<void> watch(const KeyView& key, std::function<void()> notice) override {
            return watch_with(store, key, std::move(notice));
        }
        Store store;
    };

    std::shared_ptr<Held> held_;
};

static_assert(store<AnyStore>);

namespace detail {

using StoreOpener = std::function<AnyStore(const Url&)>;
using FrontOpener = std::function<AnyFront(const Url&)>;

/// The schemes that this shared object can open. A backend's umbrella adds its own by an inline
/// variable, so that including it is all that a user does.
struct StoreSchemes {
    [[gnu::visibility("hidden")]] static StoreSchemes& instance() {
        static StoreSchemes schemes;
        return schemes;
    }
    std::mutex mutex{};
    std::map<std::string, StoreOpener, std::less<>> openers{};
    std::map<std::string, FrontOpener, std::less<>> fronts{};

    template <class Opener>
    [[nodiscard]] Opener find(std::map<std::string, Opener, std::less<>> StoreSchemes::*where,
                              std::string_view scheme) {
        std::scoped_lock const lock(mutex);
        const auto found = (this->*where).find(scheme);
        return found == (this->*where).end() ? Opener() : found->second;
    }
};

inline bool add_store_scheme(std::string scheme, StoreOpener opener) {
    StoreSchemes& schemes = StoreSchemes::instance();
    std::scoped_lock const lock(schemes.mutex);
    return schemes.openers.insert_or_assign(std::move(scheme), std::move(opener)).second;
}

inline bool add_front_scheme(std::string scheme, FrontOpener opener) {
    StoreSchemes& schemes = StoreSchemes::instance();
    std::scoped_lock const lock(schemes.mutex);
    return schemes.fronts.insert_or_assign(std::move(scheme), std::move(opener)).second;
}

/// @throws UsageError, naming the option, for anything but a whole number.
[[nodiscard]] inline std::size_t url_number(const std::string& name, const std::string& value) {
    std::size_t number = 0;
    const auto* end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc{} || at != end)
        throw UsageError("store URL: " + name + " must be a whole number, and is \"" + value +
                         "\"");
    return number;
}

/// memory://?records_max=N&bytes_max=N&reserve=N
[[nodiscard]] inline AnyStore open_memory_store(const Url& url) {
    if (!url.place.empty()) throw UsageError("memory:// has no host and no path");
    MemoryOptions options;
    for (const auto& [name, value] : url.options) {
        if (name == "records_max") {
            options.records_max = url_number(name, value);
        } else if (name == "bytes_max") {
            options.bytes_max = url_number(name, value);
        } else if (name == "reserve") {
            options.reserve = url_number(name, value);
        } else {
            throw UsageError("memory:// has no option \"" + name +
                             "\"; it has records_max, bytes_max, reserve");
        }
    }
    return MemoryStore(std::move(options));
}

/// The two URLs in front+back://…?front=URL&…: the back's own, without the front's, which stands in
/// it percent-encoded. @param plus where the scheme is put together.
struct TieredUrls {
    TieredUrls(const Url& url, std::size_t plus)
        : back(url.scheme.substr(plus + 1) + "://" + url.place) {
        char between = '?';
        for (std::size_t at = url.text.find('?'); at < url.text.size();) {
            const auto end = std::min(url.text.find('&', at + 1), url.text.size());
            const std::string option = url.text.substr(at + 1, end - at - 1);
            at = end;
            if (option.starts_with("front=")) {
                front = percent_decode(option.substr(6));
            } else {
                back += between + option;
                between = '&';
            }
        }
    }
    std::string front{};
    std::string back;
};

[[nodiscard]] inline AnyStore open_tiered_store(const Url& url, std::size_t plus) {
    auto& schemes = StoreSchemes::instance();
    const TieredUrls urls(url, plus);
    const auto front = parse_url(urls.front);
    const auto open = front ? schemes.find(&StoreSchemes::fronts, front->scheme) : FrontOpener();
    if (!open)
        throw UsageError("store URL: " + url.scheme + ":// needs front=" +
                         url.scheme.substr(0, plus) + "://..., percent-encoded");
    const auto back = parse_url(urls.back);
    return TieredStore(open(*front), schemes.find(&StoreSchemes::openers, back->scheme)(*back));
}

}  // namespace detail

/// Opens a store by its URL: `memory://`, and the schemes of the backends whose umbrella header was
/// included; `redis+postgres://…?front=redis%3A%2F%2Fhost` is PostgreSQL behind Redis. Each call of
/// `memory://` opens a store of its own.
/// @throws UsageError for an unknown scheme or option, by name; UnavailableError.
[[nodiscard]] inline AnyStore open_store(std::string_view text) {
    const auto parsed = detail::parse_url(text);
    if (!parsed) throw UsageError("a store URL is scheme://place?name=value&name=value");
    const detail::Url& url = *parsed;
    if (url.scheme == "memory") return detail::open_memory_store(url);
    auto& schemes = detail::StoreSchemes::instance();
    if (const auto opener = schemes.find(&detail::StoreSchemes::openers, url.scheme))
        return opener(url);
    const auto plus = url.scheme.find('+');
    if (plus != std::string::npos &&
        schemes.find(&detail::StoreSchemes::fronts, url.scheme.substr(0, plus)) &&
        schemes.find(&detail::StoreSchemes::openers, url.scheme.substr(plus + 1)))
        return detail::open_tiered_store(url, plus);
    throw UsageError("no store for the scheme \"" + url.scheme +
                     "\": include the umbrella header of its backend");
}

}  // namespace idem::inline v0_1

#endif
