#ifndef IDEM_LAYERED_ENCRYPTED_HPP
#define IDEM_LAYERED_ENCRYPTED_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <idem/detail/bytes.hpp>
#include <idem/detail/random.hpp>
#include <idem/error.hpp>
#include <idem/failure.hpp>
#include <idem/key.hpp>
#include <idem/layered/nesting.hpp>
#include <idem/operation.hpp>
#include <idem/store.hpp>

namespace idem::inline v0_1 {

/// 32 secret bytes, and the number by which every value that they encrypt names them.
struct EncryptionKey {
    std::uint32_t id = 0;
    std::string_view bytes{};
};

namespace detail {

/// The bytes of one key. They do not outlive it in memory.
class SecretBytes {
public:
    static constexpr std::size_t size = 32;

    explicit SecretBytes(std::string_view bytes) noexcept {
        std::copy_n(bytes.data(), size, reinterpret_cast<char*>(bytes_.data()));
    }
    ~SecretBytes() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }
    SecretBytes(const SecretBytes&) = delete;
    SecretBytes& operator=(const SecretBytes&) = delete;

    [[nodiscard]] const unsigned char* data() const noexcept { return bytes_.data(); }

private:
    std::array<unsigned char, size> bytes_{};
};

}  // namespace detail

/// The keys of an `EncryptedStore`: one writes, all of them read. To rotate, add the new key to
/// every process, then let it write, and take the old one out when the longest retention is over.
/// A key is good for 2^32 values (NIST SP 800-38D): 49 days at 1,000 writes a second.
/// Copies share the bytes, which are wiped with the last one. Any thread.
class EncryptionKeys {
public:
    /// @throws UsageError for a key that has not 32 bytes, an id that comes twice, or a `writing`
    /// id that is not among them.
    EncryptionKeys(std::uint32_t writing, std::span<const EncryptionKey> keys) {
        auto held = std::make_shared<Held>();
        held->writing = writing;
        for (const auto& key : keys) {
            if (key.bytes.size() != detail::SecretBytes::size)
                throw UsageError("EncryptionKeys: key " + std::to_string(key.id) + " has " +
                                 std::to_string(key.bytes.size()) + " bytes; AES-256 takes 32");
            if (!held->secrets.try_emplace(key.id, key.bytes).second)
                throw UsageError("EncryptionKeys: key " + std::to_string(key.id) +
                                 " is there twice");
        }
        if (held->secrets.count(writing) == 0)
            throw UsageError("EncryptionKeys: key " + std::to_string(writing) +
                             " shall write, and is not among the keys");
        held_ = std::move(held);
    }
    EncryptionKeys(std::uint32_t writing, std::initializer_list<EncryptionKey> keys)
        : EncryptionKeys(writing, std::span(keys.begin(), keys.size())) {}

    [[nodiscard]] std::uint32_t writing() const noexcept { return held_->writing; }

    /// The bytes of a key; null where it is not among them.
    [[nodiscard]] const detail::SecretBytes* secret(std::uint32_t id) const noexcept {
        const auto at = held_->secrets.find(id);
        return at == held_->secrets.end() ? nullptr : &at->second;
    }

private:
    struct Held {
        std::uint32_t writing = 0;
        std::map<std::uint32_t, detail::SecretBytes> secrets{};
    };
    std::shared_ptr<const Held> held_{};
};

namespace detail {

/// What an envelope is for. One that is put elsewhere does not open.
struct EnvelopePlace {
    enum class Part : char { result = 'r', failure = 'f', checkpoint = 'c' };

    Part part = Part::result;
    const KeyView& key;
    CodecId codec{};  ///< Of a result: the same bytes must not be read as another type.

    [[nodiscard]] const char* name() const noexcept {
        switch (part) {
            case Part::result: return "result";
            case Part::failure: return "failure";
            case Part::checkpoint: return "checkpoint";
        }
        return "invalid";
    }
};

/// Fetched once, as `sha256_md` is and for the same reasons.
[[nodiscard]] inline const EVP_CIPHER* aes_256_gcm() {
    static EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
    if (cipher == nullptr) throw std::bad_alloc{};
    return cipher;
}

/// Seals and opens the values of one batch. An envelope is
///
///     version (1) | key id (4) | writing fence (8) | nonce (12) | ciphertext | tag (16)
///
/// with numbers least significant byte first. Authenticated with it: version, key id and fence, the
/// part, the codec (tag 4, version 1), and the encoded key. The fence stands in it because whoever
/// takes a checkpoint over holds a higher one. Not for two threads at once.
class Envelopes {
public:
    static constexpr std::size_t overhead = 41;

    explicit Envelopes(const EncryptionKeys& keys) noexcept : keys_(keys) {}

    [[nodiscard]] std::string seal(const EnvelopePlace& place, Fence fence,
                                   std::string_view plain) {
        std::string out;
        out.reserve(overhead + plain.size());
        out += version;
        put_fixed(out, keys_.writing(), 4);
        put_fixed(out, fence, 8);
        out.resize(head_bytes + nonce_bytes);
        fill_random(out.data() + head_bytes, nonce_bytes);
        begin(*keys_.secret(keys_.writing()), place, out, true);
        out.resize(head_bytes + nonce_bytes + plain.size() + tag_bytes);
        char* const text = out.data() + head_bytes + nonce_bytes;
        char* const tag = text + plain.size();
        std::array<unsigned char, 16> rest{};
        int size = 0;
        update(plain, text);
        if (EVP_EncryptFinal_ex(context_.get(), rest.data(), &size) != 1 ||
            EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, tag_bytes, tag) != 1)
            throw std::bad_alloc{};
        return out;
    }

    /// Puts what is in the envelope in its place, or leaves it and says what is wrong.
    [[nodiscard]] Trouble open(const EnvelopePlace& place, std::string& bytes) {
        if (bytes.size() < overhead || bytes.front() != version) return not_sealed(place);
        ByteReader in(std::string_view(bytes).substr(1));
        const auto id = static_cast<std::uint32_t>(*in.fixed(4));
        const SecretBytes* const secret = keys_.secret(id);
        if (secret == nullptr)
            return refused(place,
                           "is encrypted with key " + std::to_string(id) +
                               ", which is not among EncryptionKeys",
                           "add that key, or forget the record");
        begin(*secret, place, bytes, false);
        std::string plain(bytes.size() - overhead, '\0');
        update(std::string_view(bytes).substr(head_bytes + nonce_bytes, plain.size()),
               plain.data());
        char* const tag = bytes.data() + bytes.size() - tag_bytes;
        std::array<unsigned char, 16> rest{};
        int size = 0;
        if (EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, tag_bytes, tag) != 1)
            throw std::bad_alloc{};
        if (EVP_DecryptFinal_ex(context_.get(), rest.data(), &size) != 1)
            return refused(place,
                           "does not open with key " + std::to_string(id) +
                               ": the key has other bytes, or the record was changed",
                           "give the key its bytes, or forget the record");
        bytes = std::move(plain);
        return {};
    }

    [[nodiscard]] static Trouble not_sealed(const EnvelopePlace& place) {
        return refused(place, "is not encrypted, or was damaged",
                       "read it by the store without encryption, or forget the record");
    }

private:
    static constexpr char version = '\xE1';  ///< Rarely the first byte of a text.
    static constexpr std::size_t head_bytes = 13;
    static constexpr std::size_t nonce_bytes = 12;
    static constexpr int tag_bytes = 16;
    static_assert(overhead == head_bytes + nonce_bytes + tag_bytes);

    struct Free {
        void operator()(EVP_CIPHER_CTX* c) const noexcept { EVP_CIPHER_CTX_free(c); }
    };

    [[nodiscard]] static Trouble refused(const EnvelopePlace& place, const std::string& why,
                                         const char* advice) {
        return Trouble::schema(std::string("the ") + place.name() + " on record " + why +
                               ". Nothing is run again: " + advice);
    }

    /// Sets key, nonce and associated data up; head and nonce lie at the beginning of `envelope`.
    void begin(const SecretBytes& secret, const EnvelopePlace& place, std::string_view envelope,
               bool seals) {
        associated_.assign(envelope.substr(0, head_bytes));
        associated_ += static_cast<char>(place.part);
        put_fixed(associated_, place.codec.tag, 4);
        put_fixed(associated_, place.codec.version, 1);
        encode_key(place.key, associated_);
        // Of this batch alone: a context keeps the expanded key until it is freed.
        if (!context_) context_.reset(EVP_CIPHER_CTX_new());
        const std::string_view nonce = envelope.substr(head_bytes, nonce_bytes);
        if (!context_ || EVP_CipherInit_ex2(context_.get(), aes_256_gcm(), secret.data(),
                                            unsigned_of(nonce), seals ? 1 : 0, nullptr) != 1)
            throw std::bad_alloc{};
        update(associated_, nullptr);
    }
    /// In pieces: OpenSSL counts in int.
    void update(std::string_view in, char* out) {
        constexpr std::size_t piece = std::size_t{1} << 30U;
        for (std::size_t at = 0; at < in.size(); at += piece) {
            const auto part = in.substr(at, piece);
            auto* const to = out == nullptr ? nullptr : reinterpret_cast<unsigned char*>(out + at);
            int size = 0;
            if (EVP_CipherUpdate(context_.get(), to, &size, unsigned_of(part),
                                 static_cast<int>(part.size())) != 1)
                throw std::bad_alloc{};
        }
    }
    [[nodiscard]] static const unsigned char* unsigned_of(std::string_view bytes) noexcept {
        return reinterpret_cast<const unsigned char*>(bytes.data());
    }

    const EncryptionKeys& keys_;
    std::unique_ptr<EVP_CIPHER_CTX, Free> context_{};
    std::string associated_{};
};

}  // namespace detail

/// A store over a store that sees results, checkpoints and failure texts only as AES-256-GCM: who
/// reads the server, its backup or the wire learns none of them, and nobody can change one or move
/// it to another key unnoticed. Keys, tenants, fingerprints, resource ids, codec, states, counts
/// and times stay readable, and so does the length of a value.
/// What does not open (a key is missing, the record was changed, it is not encrypted) is `schema`
/// trouble that names the key id; a claim that meets it is given back, and never a rerun.
/// Models `idem::store`: a handle for any thread. A crash loses what the store beneath loses.
template <class Store>
class EncryptedStore {
public:
    static_assert(store<Store>, "EncryptedStore<Store>: Store is no idem::store");
    static_assert(!detail::is_layer<Store, EncryptedStore>,
                  "idem: this store is encrypted already");

    /// Of a failure's message: code and envelope have their place in it. A longer one is cut here.
    static constexpr std::size_t message_bytes_max =
        Failure::message_bytes_max - Failure::code_bytes_max - 1 - detail::Envelopes::overhead;

    EncryptedStore(Store inner, EncryptionKeys keys)
        : inner_(std::move(inner)), keys_(std::move(keys)) {}

    void claim(std::span<const ClaimRequest> requests, std::span<ClaimReply> replies) {
        inner_.claim(requests, replies);
        detail::Envelopes envelopes(keys_);
        std::vector<std::size_t> acquired;
        std::vector<FinishRequest> releases;
        for (std::size_t i = 0; i < requests.size(); ++i) {
            Trouble trouble = open(envelopes, requests[i].key, replies[i]);
            if (!trouble) continue;
            if (replies[i].kind == ClaimKind::acquired) {
                acquired.push_back(i);
                releases.push_back(release_of(requests[i], replies[i].fence));
            }
            replies[i] = ClaimReply{};
            replies[i].trouble = std::move(trouble);
        }
        if (releases.empty()) return;
        std::vector<FinishReply> released(releases.size());
        inner_.finish(releases, released);
        for (std::size_t i = 0; i < released.size(); ++i)  // else the caller has to give it up
            replies[acquired[i]].trouble.may_have_applied = static_cast<bool>(released[i].trouble);
    }

    void finish(std::span<const FinishRequest> requests, std::span<FinishReply> replies) {
        detail::Envelopes envelopes(keys_);
        std::vector<FinishRequest> sealed(requests.begin(), requests.end());
        std::vector<std::array<std::string, 2>> bytes(requests.size());
        for (std::size_t i = 0; i < sealed.size(); ++i) {
            FinishRequest& request = sealed[i];
            auto& [outcome, checkpoint] = bytes[i];
            if (request.kind == FinishKind::complete) {
                request.failure_code = request.failure_message = {};
                seal_result(envelopes, request, request.fence, outcome);
            } else {
                request.result = {};
                seal_failure(envelopes, request, outcome);
            }
            seal_checkpoint(envelopes, request, checkpoint);
        }
        inner_.finish(sealed, replies);
    }

    void renew(std::span<const RenewRequest> requests, std::span<RenewReply> replies) {
        detail::Envelopes envelopes(keys_);
        std::vector<RenewRequest> sealed(requests.begin(), requests.end());
        std::vector<std::string> checkpoints(requests.size());
        for (std::size_t i = 0; i < sealed.size(); ++i)
            seal_checkpoint(envelopes, sealed[i], checkpoints[i]);
        inner_.renew(sealed, replies);
    }

    void issue(std::span<const IssueRequest> requests, std::span<IssueReply> replies) {
        inner_.issue(requests, replies);
    }

    /// A person writes under the fence that was seen, for the new one is the store's to make.
    void resolve(std::span<const ResolveRequest> requests, std::span<ResolveReply> replies) {
        detail::Envelopes envelopes(keys_);
        std::vector<ResolveRequest> sealed(requests.begin(), requests.end());
        std::vector<std::string> results(requests.size());
        for (std::size_t i = 0; i < sealed.size(); ++i)
            seal_result(envelopes, sealed[i], sealed[i].seen_fence, results[i]);
        inner_.resolve(sealed, replies);
    }

    void reap(std::span<const ReapRequest> requests, std::span<ReapReply> replies) {
        inner_.reap(requests, replies);
    }

    void find(std::span<const KeyView> keys, std::span<FindReply> replies) {
        inner_.find(keys, replies);
        detail::Envelopes envelopes(keys_);
        for (auto& reply : replies) {
            if (!reply.record) continue;
            reply.trouble = open(envelopes, *reply.record);
            if (reply.trouble) reply.record.reset();
        }
    }

    void forget(std::span<const ForgetRequest> requests, std::span<ForgetReply> replies) {
        inner_.forget(requests, replies);
    }

    /// What does not open is left out, and the page's `schema` trouble says so.
    [[nodiscard]] ListPage list(const ListQuery& query) {
        ListPage page = inner_.list(query);
        detail::Envelopes envelopes(keys_);
        std::erase_if(page.records, [&](RecordView& record) {
            Trouble trouble = open(envelopes, record);
            const bool bad = static_cast<bool>(trouble);
            if (bad && !page.trouble) page.trouble = std::move(trouble);
            return bad;
        });
        return page;
    }

    [[nodiscard]] PurgeReply purge(std::size_t limit) { return inner_.purge(limit); }

    /// Zero where the store below does not say.
    /// A claim that cannot be opened is given back, which is a second request.
    [[nodiscard]] Duration time_allowed() const { return 2 * time_allowed_by(inner_); }
    [[nodiscard]] std::shared_ptr<void> watch(const KeyView& key, std::function<void()> notice) {
        return watch_with(inner_, key, std::move(notice));
    }

private:
    using Part = detail::EnvelopePlace::Part;

    // --- to the store ---------------------------------------------------------------------------

    /// An empty result is sealed too: else it could be put in the place of any other.
    template <class Request>
    static void seal_result(detail::Envelopes& envelopes, Request& request, Fence fence,
                            std::string& bytes) {
        if (request.result_kind != ResultKind::value && request.result.empty()) return;
        bytes = envelopes.seal({Part::result, request.key, request.codec}, fence, request.result);
        request.result = bytes;
    }
    template <class Request>
    static void seal_checkpoint(detail::Envelopes& envelopes, Request& request,
                                std::string& bytes) {
        if (!request.checkpoint || request.checkpoint->empty()) return;
        bytes = envelopes.seal({Part::checkpoint, request.key}, request.fence, *request.checkpoint);
        request.checkpoint = bytes;
    }
    /// Code and message in one envelope in the place of the message: the length of a code tells
    /// it. Stores cut a message that is too long, so it is cut before.
    static void seal_failure(detail::Envelopes& envelopes, FinishRequest& request,
                             std::string& bytes) {
        if (request.failure_code.empty() && request.failure_message.empty()) return;
        const auto code = request.failure_code.substr(0, Failure::code_bytes_max);
        std::string plain(1, static_cast<char>(code.size()));
        plain += code;
        plain += request.failure_message.substr(0, message_bytes_max);
        bytes = envelopes.seal({Part::failure, request.key}, request.fence, plain);
        request.failure_code = {};
        request.failure_message = bytes;
    }
    [[nodiscard]] static FinishRequest release_of(const ClaimRequest& claim, Fence fence) {
        FinishRequest release;
        release.key = claim.key;
        release.owner = claim.owner;
        release.fence = fence;
        release.kind = FinishKind::release;
        release.counted = false;
        release.lease = claim.lease;
        release.retention = claim.retention;
        release.held_retention = claim.held_retention;
        return release;
    }

    // --- and back -------------------------------------------------------------------------------

    [[nodiscard]] static Trouble open_result(detail::Envelopes& envelopes, const KeyView& key,
                                             ResultKind kind, CodecId codec, std::string& bytes) {
        if (kind != ResultKind::value && bytes.empty()) return {};
        return envelopes.open({Part::result, key, codec}, bytes);
    }
    [[nodiscard]] static Trouble open_checkpoint(detail::Envelopes& envelopes, const KeyView& key,
                                                 std::string& bytes) {
        if (bytes.empty()) return {};
        return envelopes.open({Part::checkpoint, key}, bytes);
    }
    [[nodiscard]] static Trouble open_failure(detail::Envelopes& envelopes, const KeyView& key,
                                              std::string& code, std::string& message) {
        if (code.empty() && message.empty()) return {};
        const detail::EnvelopePlace place{Part::failure, key};
        if (!code.empty()) return detail::Envelopes::not_sealed(place);
        Trouble trouble = envelopes.open(place, message);
        if (trouble) return trouble;
        detail::ByteReader in(message);
        const auto size = in.fixed(1);
        const auto text = in.take(static_cast<std::size_t>(size.value_or(0)));
        code = text.value_or("");
        message = std::string(in.rest());
        return {};
    }
    [[nodiscard]] static Trouble open(detail::Envelopes& envelopes, const KeyView& key,
                                      ClaimReply& reply) {
        if (reply.trouble) return {};
        switch (reply.kind) {
            case ClaimKind::acquired: return open_checkpoint(envelopes, key, reply.checkpoint);
            case ClaimKind::completed:
                return open_result(envelopes, key, reply.result_kind, reply.codec, reply.result);
            case ClaimKind::failed:
            case ClaimKind::unknown:
                return open_failure(envelopes, key, reply.failure.code, reply.failure.message);
            default: return {};
        }
    }
    [[nodiscard]] static Trouble open(detail::Envelopes& envelopes, RecordView& record) {
        const KeyView key(record.component, record.key);
        Payload& parts = record.payload;
        const RecordHeader& header = record.header;
        Trouble trouble = open_result(envelopes, key, header.result, header.codec, parts.result);
        if (!trouble) trouble = open_checkpoint(envelopes, key, parts.checkpoint);
        if (!trouble)
            trouble = open_failure(envelopes, key, parts.failure_code, parts.failure_message);
        return trouble;
    }

    Store inner_;
    EncryptionKeys keys_;
};

}  // namespace idem::inline v0_1

#endif
