#ifndef IDEM_CODEC_PROTOBUF_HPP
#define IDEM_CODEC_PROTOBUF_HPP

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include <idem/codec.hpp>

// For users of Protocol Buffers; includes nothing of it.

namespace idem::inline v0_1 {

/// A generated message class of protobuf (full or lite runtime).
template <class M>
concept protobuf_message = requires(M& message, const M& stored, std::string* out,
                                    const char* data) {
    { stored.AppendToString(out) } -> std::same_as<bool>;
    { message.ParseFromArray(data, int{}) } -> std::same_as<bool>;
    { stored.GetTypeName() } -> std::convertible_to<std::string>;
};

/// Stored in wire format behind the message's full name, so that one message is never read as
/// another. Fields that an older build does not know survive, as protobuf has it.
template <protobuf_message M>
struct Codec<M> {
    static constexpr std::uint32_t tag = codec_tag("protobuf");
    static constexpr std::uint8_t version = 1;
    static void encode(const M& message, std::string& out) {
        detail::put_bytes(out, message.GetTypeName());
        std::string wire;
        if (!message.AppendToString(&wire))
            throw CodecError("the protobuf message does not serialise");
        detail::put_bytes(out, wire);  // the wire format itself cannot tell where it was cut
    }
    static M decode(std::string_view bytes, std::uint8_t) {
        detail::ByteReader in(bytes);
        M message;
        if (detail::or_truncated(in.bytes()) != message.GetTypeName())
            throw CodecError("the stored result is another protobuf message");
        const auto wire = detail::or_truncated(in.bytes());
        detail::expect_end(in);
        if (!message.ParseFromArray(wire.data(), static_cast<int>(wire.size())))
            throw CodecError("the stored protobuf message does not parse");
        return message;
    }
};

}  // namespace idem::inline v0_1

#endif
