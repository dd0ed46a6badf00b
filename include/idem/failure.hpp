#ifndef IDEM_FAILURE_HPP
#define IDEM_FAILURE_HPP

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <idem/error.hpp>

namespace idem::inline v0_1 {

/// What may be done about a failure. Stored values.
enum class FailureClass : std::uint8_t {
    none = 0,
    retryable = 1,  ///< Nothing has happened: the claim is rolled back, the next call runs.
    final = 2,      ///< It can never work: the failure is stored and replayed.
    unknown = 3,    ///< It may have happened (a gateway timeout): held, never rerun blindly.
    exhausted = 4,  ///< Stored by the library when a cap on attempts or crashes was reached.
};

[[nodiscard]] constexpr const char* to_string(FailureClass kind) noexcept {
    switch (kind) {
        case FailureClass::none: return "none";
        case FailureClass::retryable: return "retryable";
        case FailureClass::final: return "final";
        case FailureClass::unknown: return "unknown";
        case FailureClass::exhausted: return "exhausted";
    }
    return "invalid";
}

/// A failure as it is stored and replayed.
struct Failure {
    static constexpr std::size_t code_bytes_max = 64;
    static constexpr std::size_t message_bytes_max = 4096;

    FailureClass kind = FailureClass::retryable;
    std::string code{};     ///< For programs: "bad_codec", "422". Cut at 64 bytes.
    std::string message{};  ///< For people. Cut at 4096 bytes.

    friend bool operator==(const Failure&, const Failure&) = default;
};

/// Thrown by a handler: this request can never work. The failure is stored and every repeat gets
/// it. The exception reaches the caller of this call unchanged.
class FinalError : public Error {
public:
    FinalError(std::string code, const std::string& message)
        : Error(message), code_(std::move(code)) {}
    [[nodiscard]] const std::string& code() const noexcept { return code_; }

private:
    std::string code_;
};

/// Thrown by a handler: the effect may or may not have happened. The record is held for a person
/// or a verify callback; no repeat runs it.
class UnknownOutcomeError : public Error {
public:
    using Error::Error;
};

/// A result that says by itself whether it worked: std::expected, tl::expected and their like.
/// On error the claim is settled as the error's class says; nothing is thrown.
template <class R>
concept expected_like = requires(const R& r) {
    typename R::value_type;
    typename R::error_type;
    { r.has_value() } -> std::convertible_to<bool>;
    r.error();
};

}  // namespace idem::inline v0_1

#endif
