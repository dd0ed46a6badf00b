#ifndef RABBITMQ_BROKER_HPP
#define RABBITMQ_BROKER_HPP

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <amqp.h>
#include <amqp_tcp_socket.h>

namespace rabbitmq {

using Milliseconds = std::chrono::milliseconds;

/// A message as it was delivered. Not acknowledged until somebody does.
struct Delivery {
    std::uint64_t tag = 0;
    std::string id{};
    std::string body{};
};

/// One connection with one channel of confirms, for one thread. What is published is on the
/// broker's disk when `publish` returns: only then may what it stands for be acknowledged. Any
/// trouble is an exception; the broker then gives back what was not acknowledged.
class Broker {
public:
    explicit Broker(const std::string& host, int port)
        : connection_(amqp_new_connection(), amqp_destroy_connection) {
        amqp_socket_t* socket = amqp_tcp_socket_new(get());
        const timeval patience{10, 0};
        if (socket == nullptr ||
            amqp_socket_open_noblock(socket, host.c_str(), port, &patience) != 0)
            throw std::runtime_error("no RabbitMQ at " + host + ":" + std::to_string(port));
        check(amqp_login(get(), "/", 0, 131072, 30, AMQP_SASL_METHOD_PLAIN, "guest", "guest"),
              "login");
        amqp_channel_open(get(), channel);
        check(amqp_get_rpc_reply(get()), "channel");
        amqp_confirm_select(get(), channel);
        check(amqp_get_rpc_reply(get()), "confirms");
    }

    /// A durable queue. With a time to live what is in it moves on to `then`; unused it goes.
    void declare(const std::string& name, std::optional<Milliseconds> live = {},
                 const std::string& then = "") {
        std::array<amqp_table_entry_t, 4> entries{};
        int count = 0;
        const auto text = [&](const char* key, const std::string& value) {
            auto& entry = entries[static_cast<std::size_t>(count++)];
            entry.key = amqp_cstring_bytes(key);
            entry.value.kind = AMQP_FIELD_KIND_UTF8;
            entry.value.value.bytes = amqp_cstring_bytes(value.c_str());
        };
        const auto number = [&](const char* key, std::int64_t value) {
            auto& entry = entries[static_cast<std::size_t>(count++)];
            entry.key = amqp_cstring_bytes(key);
            entry.value.kind = AMQP_FIELD_KIND_I64;
            entry.value.value.i64 = value;
        };
        const std::string exchange;
        if (live) {
            number("x-message-ttl", live->count());
            number("x-expires", live->count() + 60'000);
            text("x-dead-letter-exchange", exchange);
            text("x-dead-letter-routing-key", then);
        }
        const amqp_table_t arguments{count, entries.data()};
        amqp_queue_declare(get(), channel, bytes(name), 0, 1, 0, 0, arguments);
        check(amqp_get_rpc_reply(get()), "queue");
    }

    /// How many lie in it that nobody has been given.
    [[nodiscard]] std::uint32_t depth(const std::string& name) {
        const auto* ok =
            amqp_queue_declare(get(), channel, bytes(name), 0, 1, 0, 0, amqp_empty_table);
        check(amqp_get_rpc_reply(get()), "queue");
        return ok->message_count;
    }

    /// Returns once the broker has it. The reason goes along as a header, for a person.
    void publish(const std::string& queue, const std::string& id, std::string_view body,
                 const std::string& reason = "") {
        amqp_basic_properties_t properties{};
        properties._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG;
        properties.delivery_mode = 2;  // persistent
        properties.message_id = bytes(id);
        amqp_table_entry_t why{};
        if (!reason.empty()) {
            why.key = amqp_cstring_bytes("x-reason");
            why.value.kind = AMQP_FIELD_KIND_UTF8;
            why.value.value.bytes = bytes(reason);
            properties._flags |= AMQP_BASIC_HEADERS_FLAG;
            properties.headers = {1, &why};
        }
        if (amqp_basic_publish(get(), channel, amqp_empty_bytes, bytes(queue), 0, 0, &properties,
                               bytes(body)) != AMQP_STATUS_OK)
            throw std::runtime_error("publish failed");
        ++published_;
        while (confirmed_ < published_) await_confirm();
    }
    /// The same again after about this long, through a queue whose time is the next power of two:
    /// in one queue a long wait would hold up the short ones behind it.
    void publish_later(const std::string& queue, const std::string& id, std::string_view body,
                       Milliseconds delay) {
        const auto least =
            static_cast<std::uint64_t>(std::clamp<std::int64_t>(delay.count(), 1, 1 << 26));
        const Milliseconds live(static_cast<std::int64_t>(std::bit_ceil(least)));
        const std::string waits = queue + ".retry." + std::to_string(live.count());
        declare(waits, live, queue);
        publish(waits, id, body);
    }

    /// From here on messages come, at most `prefetch` of them unacknowledged.
    void subscribe(const std::string& queue, std::uint16_t prefetch) {
        amqp_basic_qos(get(), channel, 0, prefetch, 0);
        check(amqp_get_rpc_reply(get()), "prefetch");
        amqp_basic_consume(get(), channel, bytes(queue), amqp_empty_bytes, 0, 0, 0,
                           amqp_empty_table);
        check(amqp_get_rpc_reply(get()), "consume");
    }
    /// Nothing where none came in the time.
    [[nodiscard]] std::optional<Delivery> next(Milliseconds patience) {
        amqp_maybe_release_buffers(get());
        amqp_envelope_t envelope;
        const timeval time{patience.count() / 1000, patience.count() % 1000 * 1000};
        const auto reply = amqp_consume_message(get(), &envelope, &time, 0);
        if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION &&
            reply.library_error == AMQP_STATUS_TIMEOUT)
            return std::nullopt;
        check(reply, "delivery");
        Delivery out{envelope.delivery_tag, text(envelope.message.properties.message_id),
                     text(envelope.message.body)};
        amqp_destroy_envelope(&envelope);
        return out;
    }
    void acknowledge(const Delivery& delivery) {
        if (amqp_basic_ack(get(), channel, delivery.tag, 0) != 0)
            throw std::runtime_error("the acknowledgement failed");
    }

private:
    static constexpr amqp_channel_t channel = 1;

    [[nodiscard]] amqp_connection_state_t get() const { return connection_.get(); }
    [[nodiscard]] static amqp_bytes_t bytes(std::string_view text) {
        return {text.size(), const_cast<char*>(text.data())};  // it is only read
    }
    [[nodiscard]] static std::string text(const amqp_bytes_t& bytes) {
        return {static_cast<const char*>(bytes.bytes), bytes.len};
    }
    static void check(const amqp_rpc_reply_t& reply, const char* what) {
        if (reply.reply_type == AMQP_RESPONSE_NORMAL) return;
        std::string why = "closed by the broker";
        if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
            why = amqp_error_string2(reply.library_error);
        throw std::runtime_error(std::string("RabbitMQ, ") + what + ": " + why);
    }
    void await_confirm() {
        amqp_frame_t frame;
        const timeval patience{10, 0};
        if (amqp_simple_wait_frame_noblock(get(), &frame, &patience) != AMQP_STATUS_OK)
            throw std::runtime_error("RabbitMQ has not confirmed a message");
        if (frame.frame_type != AMQP_FRAME_METHOD) return;
        if (frame.payload.method.id == AMQP_BASIC_ACK_METHOD) {
            const auto* ack = static_cast<amqp_basic_ack_t*>(frame.payload.method.decoded);
            confirmed_ = std::max(confirmed_, ack->delivery_tag);
        } else if (frame.payload.method.id == AMQP_BASIC_NACK_METHOD ||
                   frame.payload.method.id == AMQP_CHANNEL_CLOSE_METHOD ||
                   frame.payload.method.id == AMQP_CONNECTION_CLOSE_METHOD) {
            throw std::runtime_error("RabbitMQ has refused a message");
        }
    }

    std::unique_ptr<std::remove_pointer_t<amqp_connection_state_t>,
                    int (*)(amqp_connection_state_t)>
        connection_;
    std::uint64_t published_ = 0;
    std::uint64_t confirmed_ = 0;
};

}  // namespace rabbitmq

#endif
